r"""A linear DAPP stepped by kernels: states in, states out, with the integral of the rate in
between.

Tensors of one row cost more in calls than in arithmetic; here a step of one stream takes tens of
microseconds, and rows of many streams are stepped together. With S the states of all modes at some
moment and a_j = -gamma_j + i theta_j,

    S(t + h) = exp(a h) S(t),  z_m = sum_j Re[r_km w_j exp(i psi_j(m)) S_j],
        lambda_m = mu_m + g(b_m + drift_m + z_m),

exactly as in `dapp`. The integral of the rate over an interval is read at equal steps, so that the
states at all nodes follow from one exponential by multiplication. Every eight steps are a panel,
integrated by the polynomial through its nine nodes (Newton and Cotes' rule); there are 1 to 8
panels, as many as the interval's length and the modes' speed suggest. The last Legendre
coefficients of each polynomial, made smaller by as much as they fell, estimate the error, and an
interval that misses the tolerance is cut in two, at a knot of the splines if there is one inside.
Nothing is interpolated in time. The loops are `kernels.DAPP_STREAM`; a stream without them is
followed by the model itself (`streaming.steppers.ByHistory`). Axes: R rows, J = K D modes, M marks,
C curves (splines).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint import kernels
from fourpoint.kernels.numba_dapp_stream import (
    GROUP,
    LINKS,
    PANEL,
    Care,
    Series,
    Shape,
    sinusoids,
)
from fourpoint.models.base import PointProcess
from fourpoint.models.dapp import DAPP
from fourpoint.models.following import LARGEST, Events, Numbers, Scored, Stop, not_finite
from fourpoint.ops.quadrature import Unconverged
from fourpoint.ops.spline import cubics

Floats = NDArray[Any]
Complexes = NDArray[Any]
PANELS = 8  # of a stretch, at most
# how far the modes of the fastest head turn, in the mean, in one panel; the same in float32
TURN = 2.0
LOOSE_TURN = 2.7
EDGE = 1.1  # error of a panel whose first rate alone is off, in units of its last coefficient
TOLERANCE = 2.5e-7  # absolute, of a stretch
RELATIVE = 1e-6
FIRST_PIECE = 2.0  # panels that the first piece of a series takes the place of, at most
MOST_PIECES, MOST_TERMS = 6, 32  # pieces of a series, and coefficients of a head in one
WIDER = 2.0  # how much longer a piece may be than all before it
SERIES_ERROR = 3e-8  # of a mode of size 1, in the mean over a head: half a rounding of float32
SERIES_BYTES = 2**19  # of all coefficients
KEPT_PIECES = 3  # pieces whose coefficients a table of rows keeps
CHEBYSHEV = 48  # nodes from which they are formed


def supports(model: PointProcess) -> bool:
    """Whether ``model`` can be stepped here: a DAPP in linear form whose weights are not
    normalised, if the kernel's compiler is installed.

    >>> supports(DAPP()), supports(DAPP(normalise="softmax"))
    (True, False)
    """
    if not isinstance(model, DAPP):
        return False
    normalise = model.settings()["normalise"]
    return kernels.DAPP_STREAM.choose(linear=model.scanned, normalise=normalise) is not None


class Reached(NamedTuple):
    """Rows moved on in time: their states, log lambda per mark and time unit there, and the
    integral of the rate until there.
    """

    state: Complexes  # (R, J)
    logs: Floats  # (R, M), float64
    integral: Floats  # (R,), float64


class Kept(NamedTuple):
    """Coefficients of series of the rows of a table, kept from call to call by the kernel."""

    ready: NDArray[np.int64]  # (R,): pieces of a row that hold for its present state
    series: Floats  # (R, M, pieces, terms)


class Before(NamedTuple):
    """States of rows as they were before events, by which :meth:`Steps.follow` can be undone."""

    place: NDArray[np.int64]  # per event: the place for a copy of the states before it; -1: no copy
    copied: NDArray[np.bool_]  # by place: whether there is a copy
    state: Complexes  # by place


class Steps:
    """The numbers of a DAPP in evaluation mode, copied, in precision ``kind`` (float32 or float64).

    Later changes of the model are not seen. Times are in the user's unit, those ``since`` counted
    from a row's window's start.

    >>> steps = Steps(DAPP(heads=1, eval_features=16, base="constant", drift="none"))
    >>> found = steps.reach(
    ...     steps.blank(1), np.zeros(1), np.ones(1)
    ... )  # no event yet: mu + g(b), here 1 + log 2
    >>> round(float(found.integral[0]), 6)
    1.693147
    """

    @torch.no_grad()
    def __init__(self, model: DAPP, kind: type[np.floating[Any]] = np.float64) -> None:
        rate = model.rate
        settings = model.settings()
        self.kind = np.dtype(kind)
        self.whirl = np.dtype(np.complex64 if self.kind == np.float32 else np.complex128)
        self.marks = model.marks.count
        self.scale = float(model.time_scale)
        self.log_unit = math.log(self.scale)
        self.loose = max(RELATIVE, 32 * float(np.finfo(kind).eps))
        self._copy_attention(model)
        self.has_trend = settings["values"] != "mark"
        self.link = rate.link
        self.log_scale = np.zeros(self.marks)
        if self.link == "softplus":
            self.log_scale = _copied(rate.log_scale)
        self.size = np.exp(self.log_scale).astype(kind)
        bias = _copied(rate.bias) if self.link != "identity" else 0.0
        self.bias = (bias - self.log_scale).astype(kind)
        self.log_base = None
        if not rate.baseline.splined_base:
            self.log_base = _copied(rate.baseline.log_base)[:, 0].astype(kind)
        self.splined_drift = rate.baseline.splined_drift and self.link != "identity"
        self.length = 0.0
        self.cell = math.inf
        self._end = np.zeros((1, 0), dtype=kind)
        curves = rate.baseline.curves()
        if curves is not None:
            by_curve = _copied(cubics(curves.coefficients.double()))
            table = by_curve.transpose(2, 1, 0)  # (4, C, intervals)
            end = np.zeros_like(table[..., :1])
            end[0] = table[..., -1:].sum(0)  # past the last knot a curve is constant
            self.length = float(rate.baseline.length)
            self.intervals = table.shape[2]
            self.cell = self.length / self.intervals
            extended = np.concatenate([table, end], 2)
            self.cubics = np.ascontiguousarray(extended.astype(kind))
            self._end = self.cubics[0, :, -1][None]
        self._loops = kernels.DAPP_STREAM.load()
        self._loop_numbers = self._for_loops()

    def _copy_attention(self, model: DAPP) -> None:
        """The modes, what events add to them, and how they are read."""
        kind = self.kind
        spectrum = model.spectrum(fixed=True)
        weight = _copied(spectrum.weight)
        self.heads = weight.shape[0]
        self.frequency = _copied(spectrum.frequency).ravel().astype(kind)
        self.decay = None
        if spectrum.decay is not None:
            self.decay = -_copied(spectrum.decay).ravel().astype(kind)
        turn = np.exp(1j * _copied(spectrum.shift))  # (K, D, M)
        readout = _copied(model.readout_weights())[:, None]
        read = weight[..., None] * turn * readout
        self.read = _interleaved(read.reshape(-1, self.marks)).astype(kind)
        marks = torch.arange(self.marks)[None]
        at_start = torch.zeros_like(marks, dtype=torch.float64)
        self.value = _copied(model.event_values(at_start, marks))[0]  # (M, K)
        after_one = _copied(model.event_values(at_start + 1.0, marks))[0]
        self.value_trend = after_one - self.value
        self.constant = self._driven(turn, self.value)
        self.trend = self._driven(turn, self.value_trend)
        speed = np.sqrt((_copied(spectrum.rate.abs()) ** 2).mean(1).max())
        in_one_panel = TURN if kind == np.float64 else LOOSE_TURN
        self.speed = float(speed) / in_one_panel / self.scale

    def _driven(self, turn: Complexes, values: Floats) -> Complexes:
        """What an event of each mark adds to the states, (M, J): exp(-i psi_j(m)) v_k(m)."""
        by_mark = turn.conj().transpose(2, 0, 1)
        driven = by_mark * values[..., None]
        flat = driven.reshape(self.marks, -1)
        return np.ascontiguousarray(flat.astype(self.whirl))

    def blank(self, rows: int) -> Complexes:
        """States before any event."""
        return np.zeros((rows, len(self.frequency)), dtype=self.whirl)

    def added(self, since: Floats, mark: NDArray[np.int64]) -> Complexes:
        """What events at ``since`` of types ``mark`` add to the states, (R, J)."""
        own = self.constant[mark]
        if not self.has_trend:
            return own
        elapsed = (since / self.scale).astype(self.kind)
        return own + elapsed[:, None] * self.trend[mark]

    def absorb(
        self,
        state: Complexes,
        rows: NDArray[np.int64],
        ahead: Complexes,
        since: Floats,
        mark: NDArray[np.int64],
    ) -> None:
        """``rows`` of ``state`` become ``ahead``, with events at ``since`` of type ``mark``."""
        self._loops.absorb(state, rows, ahead, since / self.scale, mark, self.constant, self.trend)

    def kept(self, rows: int) -> Kept:
        """Room for coefficients of rows, none of which is known yet."""
        series = self._loop_numbers[3]
        pieces = min(KEPT_PIECES, len(series.terms))
        terms = int(series.terms.max(initial=0))
        return Kept(
            np.zeros(rows, dtype=np.int64),
            np.zeros((rows, self.marks, pieces, terms), dtype=self.kind),
        )

    def follow(
        self,
        state: Complexes,
        rows: NDArray[np.int64],
        numbers: Numbers,
        start: float,
        events: Events,
        into: Scored,
        kept: Kept | None = None,
        before: Before | None = None,
    ) -> Stop | None:
        """Score ``events`` of ``rows`` one after the other and absorb each; None, or where that
        stopped.

        ``kept`` must be forgotten for rows whose state changes otherwise. ``before`` takes copies
        of states.
        """
        logs = np.empty(self.marks)
        fault = np.empty(4)
        kept = kept or self.kept(len(state))
        if before is None:
            no_place = np.full(len(rows), -1)
            before = Before(no_place, np.zeros(0, dtype=bool), self.blank(0))
        given = (
            start,
            events.times,
            events.marks,
            *self._loop_numbers,
            self.constant,
            self.trend,
            LARGEST,
        )
        done = self._loops.follow(state, rows, *numbers, *given, *kept, *before, *into, logs, fault)
        if done < 0:
            return None
        if fault[3] == 0.0:
            return Stop(done, _unconverged(*fault[:3].tolist()))
        return Stop(done, not_finite(logs.tolist(), float(fault[0]), float(events.times[done])))

    def values(self, since: Floats, mark: NDArray[np.int64]) -> Floats:
        """v_k of events at ``since`` of type ``mark``, (R, K)."""
        elapsed = (since / self.scale)[:, None]
        return np.asarray(self.value[mark] + elapsed * self.value_trend[mark])

    @property
    def fading(self) -> Floats:
        """-gamma, or 0 where modes do not decay; (J,)."""
        if self.decay is None:
            return np.zeros_like(self.frequency)
        return self.decay

    def moved(self, state: Complexes, gap: Floats) -> Complexes:
        """States ``gap`` later."""
        return state * self._turns(gap / self.scale)

    def logs(self, state: Complexes, since: Floats) -> Floats:
        """log lambda per mark and time unit where the rows are, (R, M)."""
        z = _real(state) @ self.read
        return self._log_rates(z, self._curves(since))

    def reach(
        self,
        state: Complexes,
        since: Floats,
        gap: Floats,
        rows: NDArray[np.int64] | None = None,
    ) -> Reached:
        """Rows at ``since`` moved on by ``gap``, with the integral of their rates: all of
        ``state``, or ``rows`` of it.

        Raises `ops.quadrature.Unconverged` where a rate explodes or cannot be integrated.
        """
        if rows is None:
            rows = np.arange(len(since))
        fault = np.empty(3)
        found = Reached(
            state=np.empty((len(rows), state.shape[1]), dtype=self.whirl),
            logs=np.empty((len(rows), self.marks)),
            integral=np.empty(len(rows)),
        )
        done = self._loops.reach(state, rows, since, gap, *self._loop_numbers, *found, fault)
        if done >= 0:
            raise _unconverged(*fault.tolist())
        return found

    def integral(
        self,
        state: Complexes,
        since: Floats,
        gap: Floats,
        rows: NDArray[np.int64],
        kept: Kept | None = None,
    ) -> Floats:
        """The integral of :meth:`reach` alone, (R,)."""
        at = np.zeros(len(state))
        at[rows] = since
        numbers = Numbers(at, np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))
        no_marks = np.full(len(rows), -1)
        ends = Events(since + gap, no_marks)
        found = Scored.empty(len(rows))
        stop = self.follow(state, rows, numbers, 0.0, ends, found, kept)
        if stop is not None:
            raise stop.error
        return found.gap

    def _turns(self, lag: Floats) -> Complexes:
        """exp(a lag), (R, J)."""
        d = lag.astype(self.kind)[:, None]
        angle = d * self.frequency
        fade = 1.0
        if self.decay is not None:
            fade = np.exp(d * self.decay)
        turn = np.empty(angle.shape, dtype=self.whirl)
        np.multiply(np.cos(angle), fade, out=turn.real)
        np.multiply(np.sin(angle), fade, out=turn.imag)
        return turn

    def _curves(self, since: Floats) -> Floats:
        """The splines' values at times ``since``, (R, C)."""
        if since.min() >= self.length:
            return self._end
        at = since / self.cell
        cell = np.minimum(at, self.intervals).astype(np.int64)
        place = (at - cell).astype(self.kind)
        a0, a1, a2, a3 = self.cubics.take(cell, axis=-1)
        values = a0 + place * (a1 + place * (a2 + place * a3))
        return np.asarray(values.T)

    def _parts(self, z: Floats, curves: Floats) -> tuple[Floats, Floats]:
        """log mu, and the link's argument less log s."""
        base = self.log_base
        if base is None:
            base = curves[..., : self.marks]
        x = z + self.bias
        if self.splined_drift:
            x = x + curves[..., -self.marks :]
        return base, x

    def _log_rates(self, z: Floats, curves: Floats) -> Floats:
        """log lambda per mark and unit of the user's time, formed before anything can overflow;
        float64.
        """
        base, x = self._parts(z, curves)
        base = np.asarray(base, dtype=np.float64)
        x = np.asarray(x, dtype=np.float64)
        if self.link == "identity":
            logs = np.log(np.exp(base) + x)
        elif self.link == "exp":
            logs = np.logaddexp(base, x)
        else:
            low = x < -36  # where the logarithm of softplus is its argument
            softplus = np.logaddexp(0.0, np.where(low, 0.0, x))
            inside = np.where(low, x, np.log(softplus))
            logs = np.logaddexp(base, self.log_scale + inside)
        return logs - self.log_unit

    def _for_loops(self) -> tuple[Any, ...]:
        """What the kernel must know of the model."""
        M = self.marks
        curves = np.zeros((4, 0, 1)) if self.length == 0 else self.cubics
        table = np.zeros((curves.shape[2], 2 * M, 4))
        if self.log_base is None:
            table[:, :M] = curves[:, :M].transpose(2, 1, 0)
        else:
            table[:, :M, 0] = self.log_base
        if self.splined_drift:
            table[:, M:] = curves[:, -M:].transpose(2, 1, 0)
        level = np.exp(table[0, :M, 0])
        size = self.size.astype(np.float64)
        bias = self.bias.astype(np.float64)
        shape = Shape(
            table,
            self.cell,
            self.length,
            self.log_base is None,
            level,
            bias,
            size,
            LINKS.index(self.link),
            self.log_unit,
        )
        care = Care(_panel_rule(), self.speed, PANELS, EDGE, TOLERANCE, self.loose)
        read = np.ascontiguousarray(self.read.reshape(-1, 2, M).transpose(2, 1, 0))
        return (
            self.scale,
            sinusoids(self.frequency, -self.fading, self.kind),
            read,
            self._series(),
            shape,
            care,
        )

    def _series(self) -> Series:
        """Read-outs as Chebyshev series, in float32; the first piece takes the place of
        ``FIRST_PIECE`` panels or fewer.

        A piece is halved until no head takes more than ``MOST_TERMS``. The next may be much longer
        than all before it, since what faded fast is gone.
        """
        none = np.zeros((0, self.heads), dtype=np.int64)
        size = len(self.frequency) // self.heads
        no_rows = np.zeros((0, 2, size), dtype=self.kind)
        found = Series(np.zeros(1), none, none, no_rows, SERIES_ERROR)
        if self.kind != np.float32 or self.speed == 0:
            return found
        power = self.fading.astype(np.float64) + 1j * self.frequency.astype(np.float64)
        power = power.reshape(self.heads, -1)
        read = self.read.astype(np.float64).reshape(-1, 2, self.marks)
        weights = read[:, 0] - 1j * read[:, 1]
        weights = weights.reshape(self.heads, -1, self.marks)
        width = FIRST_PIECE / (self.speed * self.scale)
        while len(found.terms) < MOST_PIECES:
            begin = float(found.ends[-1])
            terms, rows, width = _piece(power, weights, begin, width)
            table = np.concatenate([found.table, rows.astype(self.kind)])
            if table.nbytes > SERIES_BYTES:
                break
            before = np.cumsum(terms) - terms
            first = len(found.table) + self.marks * before
            end = begin + width
            found = Series(
                np.append(found.ends, end),
                np.vstack([found.terms, terms]),
                np.vstack([found.first, first]),
                table,
                SERIES_ERROR,
            )
            width = WIDER * end
        return found


def _copied(x: torch.Tensor) -> Floats:
    """The values of a tensor, in float64."""
    return np.ascontiguousarray(x.detach().cpu().double().numpy())


def _piece(
    power: Complexes,
    weights: Complexes,
    begin: float,
    width: float,
) -> tuple[NDArray[np.int64], Floats, float]:
    """Chebyshev coefficients of exp(power t) in a piece of time from ``begin`` on, of ``width`` or
    as often halved as is needed.

    (K, D) power; (K, D, M) weights. What comes back: the terms of each head, all coefficients by
    head, mark and term, (rows, 2, D), and the width.
    """
    order = np.arange(CHEBYSHEV)
    theta = (order + 0.5) * math.pi / CHEBYSHEV
    to_coefficients = np.cos(order[:, None] * theta) * 2 / CHEBYSHEV
    to_coefficients[0] /= 2
    sizes = np.abs(weights).sum(-1) + np.finfo(np.float64).tiny
    while True:
        times = begin + width * (np.cos(theta) + 1) / 2
        values = np.exp(power[..., None] * times)
        each = np.empty_like(values)  # (K, D, CHEBYSHEV)
        each.real = values.real @ to_coefficients.T
        each.imag = values.imag @ to_coefficients.T
        magnitudes = np.abs(each[..., ::-1])
        tails = np.cumsum(magnitudes, -1)[..., ::-1]
        weighted = (sizes[..., None] * tails).sum(1)
        lost = weighted / sizes.sum(1, keepdims=True)  # (K, CHEBYSHEV)
        needed = (lost > SERIES_ERROR).sum(-1)
        if needed.max() <= MOST_TERMS:
            break
        width /= 2
    terms = np.maximum(1, -(-needed // GROUP)) * GROUP
    rows = []
    for head, count in enumerate(terms.tolist()):
        own = np.einsum("dn,dm->mnd", each[head, :, :count], weights[head])
        own = own.reshape(-1, power.shape[1])
        rows.append(np.stack([own.real, -own.imag], 1))
    return terms, np.concatenate(rows), width


def _unconverged(left: float, width: float, rate: float) -> Unconverged:
    where = f"between {left:g} and {left + width:g} after the start"
    if not math.isfinite(rate):
        return Unconverged(
            f"expected a finite rate; received {rate} {where}. The model explodes: fit it again."
        )
    return Unconverged(
        f"expected a rate that can be integrated; received one that jumps {where}. Fit the "
        "model again."
    )


def _interleaved(read: Complexes) -> Floats:
    """Re[read_j S_j] as a real product with the parts of S side by side, (2 J, M)."""
    return np.stack([read.real, -read.imag], 1).reshape(-1, read.shape[1])


def _real(state: Complexes) -> Floats:
    """Real and imaginary parts side by side, (..., 2 J), without a copy."""
    return state.view(np.float32 if state.dtype == np.complex64 else np.float64)


def _panel_rule() -> Floats:
    """What maps rates at the nodes of a panel to their mean, and to the last four Legendre
    coefficients, (5, PANEL + 1).
    """
    nodes = np.linspace(-1, 1, PANEL + 1)
    inverse = np.linalg.inv(np.polynomial.legendre.legvander(nodes, PANEL))
    return np.concatenate([inverse[:1], inverse[-4:]])
