r"""The compensator of a rate, Lambda(t) = int_a^t lambda, followed panel by panel until it reaches
a target.

On a panel [l, l + h] the rate is read at 16 Gauss-Legendre nodes and written in Legendre
polynomials of u = 2 (t - l)/h - 1,

    lambda(t) ~ sum_n c_n P_n(u),  int_l^t lambda = h sum_n c_n I_n(u),
        I_n = (P_{n+1} - P_{n-1}) / (2 (2n + 1)),

so that the integral is known at every point of the panel, not only at its end. The last terms of
that sum estimate its error, together with what the polynomial misses at the panel's left end; a
panel that misses the tolerance is halved, and after one that meets it the next is longer.
Excitation that is over before the first node would be missed: the first panel is also compared with
the rate at ever shorter lags, down to the shortest time in which that changes, and is no longer
than a few of these where they differ; where that time is unknown, it is a millionth of a gap.
Solving Lambda(t) = E inside a panel then needs no further reading of the rate. With E ~ Exp(1) the
answer is the next event of a process with this rate, with E = -log(1 - p) it is the p-quantile of
its time, and the whole march gives its law. Axes: B paths, P panels, Q nodes, M marks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fourpoint.ops.quadrature import Unconverged, gauss_legendre

PerPath = Float[Tensor, " B"]
PerPanel = Float[Tensor, "B Q"]  # a row of Q numbers for the panel of each path
AtNodes = Float[Tensor, "B N"]  # of all panels of each path
AtLevels = Float[Tensor, "B L"]

Rates = Callable[[PerPanel], Float[Tensor, "B Q M"]]
# of a panel that begins so long after the start
Longest = Callable[[PerPath], PerPath]

NODES = 16
TOLERANCE = 1e-5  # of each panel's integral: far below what any test of a sample could see
FAR = 2.0**60  # first widths after which a compensator that has not reached its target never will
GROWTH = 8.0  # of a panel over one that was held to a longest width
BEGIN = 4.0  # the first panel, in the rate's shortest times
BLIND = 2.0**-20  # the first panel, as a share of the given width, where those are unknown
# of the tolerance: after a panel with a smaller error the next is four times as long, not twice
CLEAR = 2.0**-10
CERTAIN = 20.0  # the integral past which a next event is as good as certain


class Panel(NamedTuple):
    """One stretch of each path. Its width is 0 where a path is done or has to try a shorter
    panel.
    """

    left: PerPath
    width: PerPath
    before: PerPath  # Lambda at the left end
    gain: PerPath  # its increase over the panel
    coefficients: PerPanel  # of the total rate
    intensities: Float[Tensor, "B Q M"]  # at the nodes


def march(
    rates: Rates,
    start: PerPath,
    stop: PerPath,
    target: PerPath,
    width: PerPath,
    *,
    longest: Longest | None = None,
    shortest: PerPath | None = None,
    through: PerPath | None = None,
    tolerance: float = TOLERANCE,
) -> Iterator[Panel]:
    """Panels from ``start`` on, until Lambda has passed ``target`` or time has reached ``stop``
    (which may be infinite).

    Args:
        rates: ``rates(times)`` are the intensities per mark, at ``start`` those just after it.
        width: a typical time until the next event; a compensator that has not reached its target
            after FAR of these never will.
        shortest: the shortest time in which the rate changes by much, where that is known. The
            first panel is no longer than a few of these, or a small part of ``width``; later ones
            grow, so that each sees the rate on its own time scale.
        longest: ``longest(elapsed)`` is the most that a panel may have; a change of the rate much
            shorter than a panel may be missed.
        through: a time that becomes a panel's end.

    Raises :class:`Unconverged` where the rate is not finite or no panel is short enough.
    """
    nodes, _ = gauss_legendre(NODES)
    x = nodes.to(start)
    matrix = _transform().to(start)
    at_left_end = _legendre(-start.new_ones(1), NODES - 1)
    left = start.clone()
    total = torch.zeros_like(start)
    first = width
    if shortest is None:
        begin = BLIND * width
        width = begin
    else:
        begin = torch.minimum(width, BEGIN * shortest)
    lags = _probes(width, shortest)  # of the first panel, which begins with an event
    halved = torch.zeros_like(start, dtype=torch.bool)
    while True:
        elapsed = left - start
        reached = (left >= stop) | (total >= target)
        stopped = reached | (elapsed > FAR * first)
        if bool(stopped.all()):
            return
        most = width
        if longest is not None:
            most = torch.minimum(width, longest(elapsed))
        right = _right_end(left, most, stop, through)
        h = torch.where(stopped, 0.0, right - left)
        looked = torch.cat([lags.new_zeros(1), lags])
        expected = at_left_end
        if len(lags):
            expected = _legendre(2 * looked - 1, NODES - 1)
        places = torch.cat([looked, x])
        times = left[:, None] + h[:, None] * places
        found = rates(times)
        before = found[:, : len(looked)]
        seen = before.sum(-1).to(start.dtype)
        own = found[:, len(looked) :]
        lam = own.sum(-1).to(start.dtype)
        _check_finite(lam, left, h)
        c = lam @ matrix.T
        gain = h * c[:, 0]
        off = (seen - c @ expected).abs()
        off = torch.where(torch.isfinite(off), off, 0.0)
        weights = torch.cat([x[:1], 8 * lags])
        missed = off @ weights
        last = c[:, -3:].abs().amax(1)
        tail = last / (2 * NODES - 5)
        error = h * (tail + missed)
        eps = torch.finfo(own.dtype).eps
        allowed = tolerance + 256 * eps * gain.abs()
        fine = (error <= allowed) & ~stopped
        coarse = ~(fine | stopped)
        _check_width(h, error, left, coarse)
        yield Panel(
            left=left,
            width=torch.where(fine, h, 0.0),
            before=total,
            gain=torch.where(fine, gain, 0.0),
            coefficients=c,
            intensities=own,
        )
        left = torch.where(fine, right, left)
        total = torch.where(fine, total + gain, total)
        clear = torch.where(error <= CLEAR * allowed, 4.0, 2.0)
        growth = torch.where(halved, 1.0, clear)
        wider = torch.maximum(h, width) * growth
        if longest is not None:
            wider = torch.minimum(wider, GROWTH * torch.maximum(h, most))
        narrower = h / 2
        if len(lags):
            narrower = torch.minimum(narrower, begin)
        following = torch.where(fine, wider, narrower)
        width = torch.where(stopped, width, following)
        lags = lags[:0]
        halved = coarse


def _right_end(
    left: PerPath,
    width: PerPath,
    stop: PerPath,
    through: PerPath | None,
) -> PerPath:
    """The right end of a panel: later than ``left``, at most ``stop``, and at ``through`` if that
    lies inside.
    """
    endless = torch.full_like(left, torch.inf)
    next_number = torch.nextafter(left, endless)
    later = torch.maximum(left + width, next_number)
    right = torch.minimum(later, stop)
    if through is None:
        return right
    crossed = (left < through) & (through < right)
    return torch.where(crossed, through, right)


def reach(
    rates: Rates,
    start: PerPath,
    stop: PerPath,
    target: PerPath,
    width: PerPath,
    *,
    longest: Longest | None = None,
    shortest: PerPath | None = None,
    tolerance: float = TOLERANCE,
) -> PerPath:
    """The time at which Lambda, counted from ``start``, reaches ``target``; infinite where it does
    not before ``stop``.

    Arguments as in :func:`march`. The answer is off by at most the tolerance over the rate.

    >>> start = torch.zeros(1, dtype=torch.float64)
    >>> reach(
    ...     lambda t: 2 * t[..., None], start, start + 9, start + 4, start + 0.1
    ... ).item()  # t^2 = 4
    2.0
    """
    time = torch.full_like(start, torch.inf)
    panels = march(
        rates,
        start,
        stop,
        target,
        width,
        longest=longest,
        shortest=shortest,
        tolerance=tolerance,
    )
    for p in panels:
        after = p.before + p.gain
        passed = (p.before < target) & (after >= target)
        there = (p.width > 0) & passed
        if bool(there.any()):
            time[there] = _time_at(_rows(p, there), target[there])
    return time


@dataclass(frozen=True)
class Law:
    """The law of the next event of B paths, on P panels of Q nodes each.

    ``times`` and ``weights`` (B, P Q) are nodes and the weights of integrals over them;
    ``integral`` is Lambda there and ``intensities`` (B, P Q, M) the rates. ``never`` (B,) is the
    probability that no event comes at all before ``stop``.
    """

    start: PerPath
    times: AtNodes
    weights: AtNodes
    integral: AtNodes
    intensities: Float[Tensor, "B N M"]
    never: PerPath
    panels: tuple[Panel, ...]

    @property
    def survival(self) -> AtNodes:
        """The probability of no event so far, exp(-Lambda)."""
        return torch.exp(-self.integral)

    @property
    def density(self) -> AtNodes:
        """Of the next event's time, lambda exp(-Lambda)."""
        return self.intensities.sum(-1) * self.survival

    def mean(self) -> PerPath:
        """The expected time, start + int exp(-Lambda); infinite where an event may never come."""
        expected = self.start + (self.weights * self.survival).sum(1)
        return torch.where(self.never < 1e-6, expected, torch.inf)

    def marks(self) -> Float[Tensor, "B M"]:
        """The probability of each mark for the next event, given that one comes."""
        weights = self.weights * self.survival
        raw = (weights[..., None] * self.intensities).sum(1)
        return raw / raw.sum(1, keepdim=True)

    def quantiles(self, levels: Sequence[float]) -> AtLevels:
        """The times before which the next event falls with these probabilities; infinite where it
        may never come.
        """
        own = torch.tensor(levels, dtype=self.start.dtype, device=self.start.device)
        targets = -torch.log1p(-own)
        return self._reached(targets.expand(len(self.start), -1))

    def quantiles_at(self, levels: PerPath) -> PerPath:
        """The same with one probability for each path."""
        targets = -torch.log1p(-levels)
        return self._reached(targets[:, None])[:, 0]

    def _reached(self, targets: AtLevels) -> AtLevels:
        """When Lambda reaches the targets; at the start for 0."""
        start = self.start[:, None]
        time = torch.where(targets > 0, torch.inf, start)
        for p in self.panels:
            low = p.before[:, None]
            high = (p.before + p.gain)[:, None]
            inside = (low < targets) & (high >= targets)
            row, level = torch.nonzero(inside, as_tuple=True)
            if len(row):
                own = targets[row, level]
                time[row, level] = _time_at(_rows(p, row), own)
        return time

    def integral_at(self, times: Float[Tensor, "B G"]) -> Float[Tensor, "B G"]:
        """Lambda at any times after the start; past the last panel it stays at its last value."""
        total = torch.zeros_like(times)
        for p in self.panels:
            h = p.width[:, None]
            lag = times - p.left[:, None]
            share = lag / _divisor(h)
            x = share.clamp(0, 1)
            inner = _antiderivatives(x, _legendre(2 * x - 1, NODES))
            mean = torch.einsum("bgn,bn->bg", inner, p.coefficients)
            total = total + h * mean
        return total

    def crps(self, time: PerPath) -> PerPath:
        """Continuous ranked probability score of the observed ``time``: (y - a) - 2 int_a^y S + int
        S^2, S = exp(-Lambda).

        ``time`` must be an end of a panel: pass it to :func:`next_event_law` as ``through``.
        """
        s = self.survival
        weighted = self.weights * s
        before = self.times <= time[:, None]
        early = torch.where(before, weighted, 0.0).sum(1)
        squares = (self.weights * s.square()).sum(1)
        elapsed = time - self.start
        return elapsed - 2 * early + squares


def next_event_law(
    rates: Rates,
    start: PerPath,
    width: PerPath,
    *,
    stop: PerPath | None = None,
    longest: Longest | None = None,
    shortest: PerPath | None = None,
    through: PerPath | None = None,
    tolerance: float = TOLERANCE,
) -> Law:
    """The law of the next event's time and mark, while nothing else happens, from the rate alone.

    >>> start = torch.zeros(1, dtype=torch.float64)
    >>> law = next_event_law(lambda t: torch.full((1, t.shape[1], 1), 2.0), start, start + 0.1)
    >>> round(law.mean().item(), 6), round(law.quantiles([0.5]).item(), 6)  # 1/2 and log(2)/2
    (0.5, 0.346574)
    """
    end = torch.full_like(start, torch.inf) if stop is None else stop
    goal = torch.full_like(start, CERTAIN)
    panels = tuple(
        march(
            rates,
            start,
            end,
            goal,
            width,
            longest=longest,
            shortest=shortest,
            through=through,
            tolerance=tolerance,
        )
    )
    x, w = (v.to(start) for v in gauss_legendre(NODES))
    inner = _antiderivatives(x, _legendre(2 * x - 1, NODES))
    times = []
    weights = []
    integrals = []
    intensities = []
    total = torch.zeros_like(start)
    for p in panels:
        h = p.width[:, None]
        left = p.left[:, None]
        before = p.before[:, None]
        mean = p.coefficients @ inner.T
        times.append(left + h * x)
        weights.append(h * w)
        integrals.append(before + h * mean)
        intensities.append(p.intensities.to(start.dtype))
        total = total + p.gain
    return Law(
        start=start,
        times=torch.cat(times, 1),
        weights=torch.cat(weights, 1),
        integral=torch.cat(integrals, 1),
        intensities=torch.cat(intensities, 1),
        never=torch.exp(-total),
        panels=panels,
    )


def _rows(panel: Panel, some: Tensor) -> Panel:
    """A panel of some of the paths."""
    return Panel(*(x[some] for x in panel))


def _divisor(x: Tensor) -> Tensor:
    """x where it is positive, and 1 elsewhere: quotients by it are finite."""
    return torch.where(x > 0, x, 1.0)


def _probes(width: PerPath, shortest: PerPath | None) -> Float[Tensor, " K"]:
    """Lags at which a panel of this width is compared with the rate, as shares of it, down to the
    shortest time.
    """
    longer = 1.0
    if shortest is not None:
        ratio = (width / shortest).nan_to_num(posinf=1.0, nan=1.0)
        longer = float(ratio.max().clamp(max=2.0**50))
    count = 0
    if longer > 128:
        octaves = math.log2(longer / 128)
        count = math.ceil(octaves / 5) + 1
    number = torch.arange(count, dtype=width.dtype, device=width.device)
    return 2.0 ** -(6 + 5 * number)


@lru_cache(maxsize=1)
def _transform() -> Float[Tensor, "Q Q"]:
    """c = transform @ (values at the nodes): c_n = (2n + 1) sum_q w_q P_n(u_q) f(t_q)."""
    x, w = gauss_legendre(NODES)
    p = _legendre(2 * x - 1, NODES - 1)
    factor = 2 * torch.arange(NODES) + 1
    return factor[:, None] * p * w


def _legendre(u: Float[Tensor, "*S"], degree: int) -> Float[Tensor, "*T"]:
    """P_0 .. P_degree, by the three-term recursion."""
    values = [torch.ones_like(u), u]
    for n in range(1, degree):
        factor = 2 * n + 1
        raised = factor * u * values[n]
        next_one = raised - n * values[n - 1]
        values.append(next_one / (n + 1))
    return torch.stack(values[: degree + 1])


def _antiderivatives(x: Float[Tensor, "*S"], p: Float[Tensor, "*T"]) -> Float[Tensor, "*S N"]:
    """int_0^x P_n(2 s - 1) ds for n = 0 .. NODES - 1, where ``p`` are P_0 .. P_NODES at 2 x - 1."""
    degrees = torch.arange(1, NODES, dtype=x.dtype, device=x.device)
    odd = (2 * degrees + 1).reshape(-1, *[1] * x.ndim)
    difference = p[2:] - p[:-2]
    higher = difference / (2 * odd)
    integrals = torch.cat([x[None], higher])
    return torch.movedim(integrals, 0, -1)


def _time_at(panel: Panel, target: PerPath) -> PerPath:
    """When Lambda reaches a target that lies in the panel."""
    rest = target - panel.before
    return panel.left + panel.width * _inside(panel, rest)


def _inside(panel: Panel, rest: PerPath) -> PerPath:
    """Where in the panel, from 0 to 1, its own integral reaches ``rest``: Newton's steps, kept
    inside a bracket.
    """
    c = panel.coefficients
    low = torch.zeros_like(rest)
    high = torch.ones_like(rest)
    share = rest / _divisor(panel.gain)
    x = share.clamp(0, 1)
    for _ in range(60):
        p = _legendre(2 * x - 1, NODES)
        terms = c * _antiderivatives(x, p)
        off = panel.width * terms.sum(-1) - rest
        low = torch.where(off < 0, x, low)
        high = torch.where(off >= 0, x, high)
        rates = c * p[:-1].T
        derivative = panel.width * rates.sum(-1)
        step = x - off / _divisor(derivative)
        bracketed = (step >= low) & (step <= high)
        usable = (derivative > 0) & bracketed
        following = torch.where(usable, step, (low + high) / 2)
        moved = (following - x).abs()
        x = following
        if bool((moved <= 1e-12).all()):
            break
    return x


def _check_finite(lam: PerPanel, left: PerPath, h: PerPath) -> None:
    finite = torch.isfinite(lam)
    bad = ~finite.all(1) & (h > 0)
    if bool(bad.any()):
        i = int(torch.nonzero(bad)[0])
        wrong = lam[i][~finite[i]]
        rate = float(wrong[0])
        begin = float(left[i])
        end = float(left[i] + h[i])
        raise Unconverged(
            f"expected a finite rate; received {rate} between {begin:g} and {end:g} on path {i}. "
            "The model explodes at that time: shorten the horizon, or fit it again."
        )


def _check_width(h: PerPath, error: PerPath, left: PerPath, missed: Tensor) -> None:
    lost = missed & (left + h / 4 == left)
    if bool(lost.any()):
        i = int(torch.nonzero(lost)[0])
        size = float(error[i])
        width = float(h[i])
        time = float(left[i])
        raise Unconverged(
            "expected a rate that can be integrated; received an error of "
            f"{size:.3g} over {width:.3g} at time {time:g} on path {i}. "
            "The model's rate jumps or explodes there: fit it again."
        )
