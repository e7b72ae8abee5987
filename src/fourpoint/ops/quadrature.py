r"""Integrals over many intervals at once, by two rules with two purposes.

Training draws *stratified* nodes: interval [a, b] is cut into n equal strata with one uniform node
in each,

    int_a^b f  ~  (b - a)/n sum_q f(a + (b - a)(q + u_q)/n),        u_q ~ U[0, 1],

which is unbiased, so that no model can hide its rate between fixed nodes. Evaluation uses
*Gauss-Legendre* nodes, doubled only in those intervals whose error estimate is still large, until
the sum of the estimates is below a tolerance; an interval that 64 nodes do not settle is cut, since
what is narrow in one is wide in its pieces: into equal ones, or with short ones at the ends where
edges and probes are larger than the tail. The discretisation error of an interval has four parts:

    move   |Q_n - Q_{n/2}|, which bounds the error of the finer rule as soon as it converges at all;
    tail    (b - a) times the Legendre coefficients of f where the rule ends: coarse rules may agree
            by chance, and then these, read off the same nodes, are still large;
    edges   (x_1 - a) |f(a+) - p(a)| with p the polynomial through the nodes and x_1 the first of
            them: a rate that an event has just raised may fall again before x_1, and no node would
            see it; and the same at b;
    probes  8 d |f(a + d) - p(a + d)| at lags d that fall by a factor of 32, from (b - a)/64 to the
            shortest time in which the rate changes: an excitation that begins at zero, rises and
            falls again before x_1 is seen neither by a node nor at a.

A fifth part is rounding, which no refinement removes. With eps the precision of the dtype in which
the rates were computed and eps_t that of the times,

    rounding = c eps (b - a) sum_q w_q f_q (1 + |log f_q|) + eps_t max(|a|, |b|) sum_q |f_{q+1} -
    f_q|,

the first term since models compute log f, whose error of eps |log f| is a relative error of f, the
second since every node is rounded to the resolution of the times. Refinement of an interval ends
where its discretisation error is within a small multiple of that, or where cutting it has not
reduced an error of the order of rounding: what is left is noise, and is stated in the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fourpoint.events.draws import uniform_rows

MOST, SPLITS = 64, 12  # nodes of an interval before it is cut, and how often that may be
WORK, MOST_WORK = 2560, 2**24  # times at which rates are asked for: per interval, and in all
FREE_WORK, FREE_WORK_EACH = 2**14, 128  # what is allowed in any case, in all and per interval
TIMES = 2**18  # at which rates are asked for at once, so that memory does not grow with the pieces
ROUNDING = 4.0  # c: relative errors of a rate and of its logarithm, in units of eps
NOISE = 4.0  # discretisation errors below this multiple of rounding are noise
LEFT_LIMIT = 2.0**-31  # of an interval, before its end, where the limit from the left is looked at
STALLED = 512.0  # up to this multiple of rounding, errors that a cut does not halve are noise
# Of an interval into four: equal ones, or short outer ones where most of the doubt is at the ends.
EVEN_CUTS = (1 / 4, 1 / 2, 3 / 4)
END_CUTS = (1 / 16, 1 / 2, 15 / 16)
SETTLED = 0.3  # of the tolerance, which the intervals that are not refined further may use
# Nodes of a rule whose error estimate may use a large share of the tolerance. With fewer nodes an
# estimate can be a little below the error, so that each interval has an even share.
TRUSTED = 16
SPARE, LARGEST = 6, 96  # nodes of a rule in log-time beside its density, and in all
LONG = 128.0  # intervals longer than this many shortest times are probed
DEPTH, DEEPEST = (
    5,
    10,
)  # probes of an interval at most, where the shortest time is unknown and where it is known
Rate = Callable[[Float[Tensor, "B H Q"], Int[Tensor, "B H"]], Float[Tensor, "B H Q"]]
Rates = Callable[[Float[Tensor, "B H Q"], Int[Tensor, "B H"]], Float[Tensor, "B H Q M"]]

FlatRate = Callable[[Float[Tensor, "H Q"], Int[Tensor, " H"]], Float[Tensor, "H Q"]]
# A computation that asks for rates, at times of the intervals ``which``, is sent them, and returns
# integrals and errors. Whoever runs it computes the rates: no function that does is passed down.
Asking = Generator[tuple[Tensor, Tensor], Tensor, tuple[Tensor, Tensor]]


class Unconverged(ArithmeticError):
    """An integral that did not settle: the numbers say how far it got."""


def stratified(
    a: Float[Tensor, "*S"], b: Float[Tensor, "*S"], nodes: int, random: torch.Generator
) -> Float[Tensor, "*S Q"]:
    """One uniform node in each of ``nodes`` equal strata of every [a, b]."""
    return (
        a[..., None]
        + (b - a)[..., None]
        * (torch.arange(nodes, device=a.device) + uniform(a, nodes, random))
        / nodes
    )


def early(
    a: Float[Tensor, "*S"], b: Float[Tensor, "*S"], draws: Float[Tensor, "*S Q"]
) -> tuple[Float[Tensor, "*S Q"], Float[Tensor, "*S Q"]]:
    r"""Nodes in every [a, b] that lie closer together soon after ``a``, where an event has been,
    and their weights; from :func:`uniform`.

    Half of their law is that of :func:`stratified`, half is uniform in the square root of the time
    since a: with x the share of b - a, v = (x + sqrt x) / 2 is what has one draw in each of n
    strata, and a node weighs dx/dv / n. Unbiased.

    >>> a, b = torch.zeros(10000, dtype=torch.float64), torch.ones(10000, dtype=torch.float64)
    >>> x, weights = early(a, b, uniform(a, 4, torch.Generator().manual_seed(0)))
    >>> round(float((weights * torch.exp(-30 * x)).sum(1).mean()), 3)
    0.033
    """
    nodes = draws.shape[-1]
    strata = torch.arange(nodes, device=a.device) + draws
    root = ((1 + 8 * strata / nodes).sqrt() - 1) / 2
    times = a[..., None] + (b - a)[..., None] * root**2
    weights = 4 * root / ((2 * root + 1) * nodes)
    return times, weights


def uniform(
    like: Float[Tensor, "*S"], nodes: int, random: torch.Generator
) -> Float[Tensor, "*S Q"]:
    """What :func:`stratified` and :func:`early` draw: u, 1 - u, u, ... with one u from U[0, 1] for
    every interval.

    Each node alone is uniform in its part, so that the estimate is unbiased. The errors that a
    linear trend makes at neighbouring nodes cancel, so that the standard error is a fraction of
    that of independent draws.
    """
    one = uniform_rows(like, random)[..., None]
    return torch.where(torch.arange(nodes, device=like.device) % 2 == 0, one, 1 - one)


@lru_cache(maxsize=32)
def gauss_legendre(nodes: int) -> tuple[Float[Tensor, " Q"], Float[Tensor, " Q"]]:
    """Nodes and weights on [0, 1]; exact for polynomials of degree 2 ``nodes`` - 1.

    >>> x, w = gauss_legendre(2)
    >>> bool(abs((w * x**3).sum() - 1 / 4) < 1e-12)
    True
    """
    import numpy as np

    x, w = np.polynomial.legendre.leggauss(nodes)
    return torch.from_numpy((x + 1) / 2), torch.from_numpy(w / 2)


def integrate(
    rate: Rate,
    a: Float[Tensor, "B G"],
    b: Float[Tensor, "B G"],
    *,
    tolerance: float,
    first: int = 2,
    most: int = MOST,
    splits: int = SPLITS,
    shortest: Float[Tensor, "#B #G"] | None = None,
) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G"]]:
    """The integral of ``rate`` over every [a, b] in float64, and an upper estimate of the error of
    each.

    Args:
        rate: ``rate(times (B, H, Q), which (B, H))`` at times of the intervals ``which``, in the
            dtype
            in which it was computed: that decides the rounding error.
        tolerance: bounds the sum of all discretisation errors; the errors that are returned hold
            rounding too.
        first, most: nodes to begin with, 2 or more, and after how many an interval is cut into
            four, up to ``splits`` times.
        shortest: the shortest time in which the rate changes by much, as far as that is known.
            Longer intervals are probed for changes near their left end; without it all of them are.

    Raises :class:`Unconverged` with the worst interval where the tolerance is not reached.

    >>> zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    >>> value, error = integrate(lambda t, _: t.exp(), zero, one, tolerance=1e-6)
    >>> abs(value.item() - 1.718281828) <= error.item() + 1e-6
    True
    """
    value, error = integrate_each(
        lambda t, which: rate(t, which)[..., None],
        a,
        b,
        tolerance=tolerance,
        first=first,
        most=most,
        splits=splits,
        shortest=shortest,
    )
    return value[..., 0], error


def integrate_each(
    rates: Rates,
    a: Float[Tensor, "B G"],
    b: Float[Tensor, "B G"],
    *,
    tolerance: float,
    first: int = 2,
    most: int = MOST,
    splits: int = SPLITS,
    shortest: Float[Tensor, "#B #G"] | None = None,
) -> tuple[Float[Tensor, "B G M"], Float[Tensor, "B G"]]:
    """:func:`integrate` for M rates at once; the errors are those of all of them together."""
    asking = integrating(
        a, b, tolerance=tolerance, first=first, most=most, splits=splits, shortest=shortest
    )
    asked = next(asking)
    while True:
        times, which = asked
        some = max(1, TIMES // max(1, times.shape[0] * times.shape[2]))
        parts = zip(times.split(some, 1), which.split(some, 1), strict=True)
        found = torch.cat([rates(*part) for part in parts], 1)
        try:
            asked = asking.send(found)
        except StopIteration as done:
            value, error = done.value
            return value, error


def integrating(
    a: Float[Tensor, "B G"],
    b: Float[Tensor, "B G"],
    *,
    tolerance: float,
    first: int = 2,
    most: int = MOST,
    splits: int = SPLITS,
    shortest: Float[Tensor, "#B #G"] | None = None,
) -> Asking:
    """:func:`integrate_each` as a computation that asks for (B, H, Q, M) rates at (B, H, Q) times
    of the intervals (B, H).
    """
    a, b = a.double(), b.double()
    unknown = torch.zeros((), dtype=a.dtype, device=a.device)
    scale = (unknown if shortest is None else shortest.to(a)).expand_as(a)
    each = max(FREE_WORK_EACH * a.numel(), min(WORK * a.numel(), MOST_WORK))
    work = _Work(each + FREE_WORK)
    return _refining(a, b, scale, tolerance, first, most, splits, work, None)


def integrate_in_log_time(
    rate: FlatRate,
    left: Float[Tensor, " R"],
    right: Float[Tensor, " R"],
    since: Float[Tensor, " R"],
    *,
    scale: float,
    density: float,
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
    """:func:`integrating_in_log_time` with rates by a function."""
    asking = integrating_in_log_time(left, right, since, scale=scale, density=density)
    found: Tensor | None = None
    while True:
        try:
            times, which = next(asking) if found is None else asking.send(found)
        except StopIteration as done:
            value, error = done.value
            return value, error
        found = rate(times, which)


def integrating_in_log_time(
    left: Float[Tensor, " R"],
    right: Float[Tensor, " R"],
    since: Float[Tensor, " R"],
    *,
    scale: float,
    density: float,
) -> Asking:
    """The integral over every [left, right] by one rule in u = log(1 + (t - since) / scale), and
    an upper estimate of its error; infinite where the rule would need more than LARGEST nodes. A
    computation that asks for (H, Q) rates at (H, Q) times of the intervals (H,).

    A rate that changes by shares of the time since the last event is about equally rough everywhere
    in u. The rule has ``density`` nodes per unit of u, by Gauss-Legendre in a variable that spaces
    them nearly evenly (:func:`even_rule`). There is no second rule: with c_k the Legendre
    coefficients read off the nodes, and m_3 and m_4 the largest |c_k| of the third and of the last
    quarter of them, the error is m_4 min(1, m_4 / m_3), since the rule is wrong about
    coefficients beyond twice as many only. Rounding is added.
    """
    low, high = (torch.log1p((x - since) / scale) for x in (left, right))
    wanted = density * (high - low) + SPARE
    count = 4 * torch.ceil(wanted / 4).long().clamp(max=LARGEST + 4)
    value = torch.zeros_like(left)
    error = torch.full_like(left, torch.inf)
    for nodes in sorted({int(n) for n in count.unique()}):
        if nodes > LARGEST:
            continue
        which = torch.nonzero(count == nodes)[:, 0]
        places, weights, coefficients = (x.to(low) for x in even_rule(nodes))
        span = (high - low)[which, None]
        lags = scale * torch.expm1(low[which, None] + span * places)
        found = yield since[which, None] + lags, which
        eps = torch.finfo(found.dtype).eps
        rates = found.double()
        terms = rates * (lags + scale) * span * weights
        value[which] = terms.sum(1)
        series = (terms @ coefficients).abs()
        quarter = nodes // 4
        last = series[:, -quarter:].amax(1)
        before = series[:, -2 * quarter : -quarter].amax(1)
        falling = torch.where(last < before, last / torch.where(last < before, before, 1.0), 1.0)
        of_rates = ROUNDING * eps * (terms * (1 + rates.log().abs())).sum(1)
        resolution = torch.finfo(left.dtype).eps * right[which].abs()
        of_times = resolution * rates.diff(dim=1).abs().sum(1)
        error[which] = last * falling + of_rates + of_times
    return value, torch.where(error.isnan(), torch.inf, error)


@lru_cache(maxsize=64)
def even_rule(
    nodes: int,
) -> tuple[Float[Tensor, " Q"], Float[Tensor, " Q"], Float[Tensor, "Q Q"]]:
    """Nodes and weights on [0, 1] of a Gauss-Legendre rule in x with t = g(x), whose nodes are
    spaced nearly evenly, and what maps weighted values to their Legendre coefficients in x.

    g is the ninth-order truncation of arcsin, scaled so that g(1) = 1: Hale and Trefethen, "New
    quadrature formulas from conformal maps" (2008).

    >>> t, w, _ = even_rule(12)
    >>> bool(abs((w * t**3).sum() - 1 / 4) < 1e-8)
    True
    """
    import numpy as np

    x, w = np.polynomial.legendre.leggauss(nodes)
    powers = np.arange(1, 10, 2)
    series = np.array([40320, 6720, 3024, 1800, 1225]) / 53089
    places = (x[:, None] ** powers) @ series
    derivatives = (powers * x[:, None] ** (powers - 1)) @ series
    polynomials = np.polynomial.legendre.legvander(x, nodes - 1)
    coefficients = polynomials * (2 * np.arange(nodes) + 1)
    return (
        torch.from_numpy((places + 1) / 2),
        torch.from_numpy(derivatives * w / 2),
        torch.from_numpy(coefficients),
    )


@dataclass
class _Work:
    """How many times rates may still be asked for."""

    left: int

    def allows(self, times: int) -> bool:
        return times <= self.left

    def spend(self, times: int) -> None:
        self.left -= times


def _refining(
    a: Float[Tensor, "B G"],
    b: Float[Tensor, "B G"],
    shortest: Float[Tensor, "B G"],
    tolerance: float,
    first: int,
    most: int,
    splits: int,
    work: _Work,
    before: Float[Tensor, "B G4"] | None,
) -> Asking:
    """The integrals; ``before`` are the discretisation errors that every four intervals had as
    one.
    """
    which = torch.arange(a.shape[1], device=a.device).expand_as(a)
    # A rate may jump at b, and may round times: seconds since 1970 have a resolution of 2.4e-7 s.
    last = torch.minimum(torch.nextafter(b, a), b - LEFT_LIMIT * (b - a)).maximum(a)
    begun = yield torch.cat([a[..., None], _places(a, b, first), last[..., None]], -1), which
    eps = torch.finfo(begun.dtype).eps
    begun = begun.double()
    ends = torch.stack([begun[:, :, 0], begun[:, :, -1]], 2).sum(-1)
    value = _sum(begun[:, :, 1:-1], a, b)
    probes = yield from _probing(a, b, shortest)
    nodes = 2 * first
    error = torch.full_like(ends[..., 0], torch.inf)
    rounding = torch.zeros_like(error)
    at_ends = torch.zeros_like(error, dtype=torch.bool)
    work.spend(a.numel() * (first + 2) + probes.numel())
    while True:
        low = a.gather(1, which)
        high = b.gather(1, which)
        found = yield _places(low, high, nodes), which
        found = found.double()
        work.spend(found[..., 0].numel())
        fine = _sum(found, low, high)
        all_ = which[..., None].expand(-1, -1, value.shape[-1])
        own_ends = ends.gather(1, which[..., None].expand(-1, -1, 2))
        own_probes = probes.gather(1, which[..., None].expand(-1, -1, probes.shape[-1]))
        asked_for = torch.where(high > low, tolerance / (1000 * error.numel()), 0.0)
        move = (fine - value.gather(1, all_)).abs().sum(-1)
        tail, near_ends = _doubt(found.sum(-1), own_ends, own_probes, low, high)
        now = move + tail + near_ends + asked_for
        at_ends = at_ends.scatter(1, which, near_ends > tail)
        error = error.scatter(1, which, now)
        rounding = rounding.scatter(1, which, _rounding(found, own_ends, low, high, eps))
        value = value.scatter(1, all_, fine)
        if not bool(torch.isfinite(value).all()):
            raise _not_finite(value.sum(-1), a, b)
        improvable = torch.where(error > NOISE * rounding, error, 0.0)
        if nodes >= most and before is not None:
            improvable = torch.where(_stalled(error, rounding, before), 0.0, improvable)
        small = negligible(improvable, SETTLED * tolerance)
        if nodes < TRUSTED:
            small = min(small, tolerance / (2 * error.numel()))
        open_ = improvable > small
        if float(improvable.sum()) <= tolerance or not bool(open_.any()):
            return value, error + rounding
        which = improvable.argsort(1, descending=True)[:, : int(open_.sum(1).max())]
        if nodes >= most:
            break
        nodes *= 2
    first = max(2, nodes // 4)  # nodes are no farther apart than before, or parts might miss a peak
    if not splits or not work.allows(4 * which.numel() * 4 * first):
        raise _unsettled(improvable, a, b, tolerance, nodes)
    low = a.gather(1, which)
    high = b.gather(1, which)
    cuts = torch.where(
        at_ends.gather(1, which)[..., None], low.new_tensor(END_CUTS), low.new_tensor(EVEN_CUTS)
    )
    inside = low[..., None] + (high - low)[..., None] * cuts
    bounds = torch.cat([low[..., None], inside, high[..., None]], -1)
    scale = torch.full_like(bounds[..., 1:], torch.inf)  # the rate is raised at the left end only
    scale[..., 0] = shortest.gather(1, which)
    rest = float(improvable.sum()) - float(improvable.gather(1, which).sum())
    inner = _refining(
        bounds[..., :-1].flatten(1),
        bounds[..., 1:].flatten(1),
        scale.flatten(1),
        tolerance - rest,
        first,
        most,
        splits - 1,
        work,
        error.gather(1, which),
    )
    answer: Tensor | None = None
    while True:
        try:
            times, own = next(inner) if answer is None else inner.send(answer)
        except StopIteration as done:
            parts, errors = done.value
            break
        answer = yield times, which.gather(1, own // 4)
    all_ = which[..., None].expand(-1, -1, value.shape[-1])
    whole = (error + rounding).scatter(1, which, errors.unflatten(1, (-1, 4)).sum(2))
    return value.scatter(1, all_, parts.unflatten(1, (-1, 4)).sum(2)), whole


def negligible(error: Float[Tensor, "*S"], most: float) -> float:
    """The largest error such that all errors up to it sum to at most ``most``; -1 if none."""
    ordered = error.flatten().sort().values
    count = int((ordered.cumsum(0) <= most).sum())
    kept = ordered
    if count < len(ordered):
        kept = ordered[ordered < ordered[count]]  # equal errors are kept all or not at all
    return float(kept[-1]) if len(kept) else -1.0


def _stalled(
    error: Float[Tensor, "B G"], rounding: Float[Tensor, "B G"], before: Float[Tensor, "B G4"]
) -> Bool[Tensor, "B G"]:
    """Where cutting has not halved an error that is of the order of rounding."""
    now, noise = (x.unflatten(1, (-1, 4)).sum(2) for x in (error, rounding))
    stalled = (2 * now >= before) & (now <= STALLED * noise)
    return stalled.repeat_interleave(4, 1)


def _rounding(
    values: Float[Tensor, "B H Q M"],
    ends: Float[Tensor, "B H 2"],
    a: Float[Tensor, "B H"],
    b: Float[Tensor, "B H"],
    eps: float,
) -> Float[Tensor, "B H"]:
    """What rounding of rates and of times may add to the error of each integral."""
    weights = gauss_legendre(values.shape[2])[1].to(values)
    size = values.abs()
    terms = (size + torch.xlogy(size, size).abs()).sum(-1)
    of_rates = ROUNDING * eps * (b - a) * (terms @ weights)
    total = values.sum(-1)
    along = torch.cat([ends[..., :1], total, ends[..., 1:]], -1)
    resolution = torch.finfo(a.dtype).eps * torch.maximum(a.abs(), b.abs())
    of_times = resolution * along.diff(dim=-1).abs().sum(-1)
    return of_rates + torch.where(b > a, of_times, 0.0)


def _probing(
    a: Float[Tensor, "B G"], b: Float[Tensor, "B G"], shortest: Float[Tensor, "B G"]
) -> Generator[tuple[Tensor, Tensor], Tensor, Float[Tensor, "B G K"]]:
    """The total rate at the probes of every interval that is long; NaN in the others."""
    times_longer = torch.where(b > a, (b - a) / shortest.clamp(min=torch.finfo(a.dtype).tiny), 0.0)
    long = times_longer > LONG
    if not bool(long.any()):
        return a.new_zeros(*a.shape, 0)
    octaves = math.log2(float(times_longer.max().clamp(max=2.0**1000)) / LONG)
    unknown = not bool(shortest.any())
    most = DEPTH if unknown else DEEPEST
    lags = _probe_lags(min(most, 1 + math.ceil(octaves / 5))).to(a)
    which = long.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    which = which[:, : int(long.sum(1).max())]
    low = a.gather(1, which)
    high = b.gather(1, which)
    found = yield low[..., None] + (high - low)[..., None] * lags, which
    found = found.double().sum(-1)
    found = torch.where(long.gather(1, which)[..., None], found, torch.nan)
    empty = a.new_full((*a.shape, len(lags)), torch.nan)
    return empty.scatter(1, which[..., None].expand_as(found), found)


@lru_cache(maxsize=32)
def _probe_lags(count: int) -> Float[Tensor, " K"]:
    """1/64, 1/2048, ... of an interval."""
    return 2.0 ** -(6 + 5 * torch.arange(count, dtype=torch.float64))


def _places(a: Float[Tensor, "B H"], b: Float[Tensor, "B H"], nodes: int) -> Float[Tensor, "B H Q"]:
    return a[..., None] + (b - a)[..., None] * gauss_legendre(nodes)[0].to(a)


def _sum(
    values: Float[Tensor, "B H Q M"], a: Float[Tensor, "B H"], b: Float[Tensor, "B H"]
) -> Float[Tensor, "B H M"]:
    return (b - a)[..., None] * (
        values.movedim(2, 3) @ gauss_legendre(values.shape[2])[1].to(values)
    )


def _doubt(
    values: Float[Tensor, "B H Q"],
    edges: Float[Tensor, "B H 2"],
    probes: Float[Tensor, "B H K"],
    a: Float[Tensor, "B H"],
    b: Float[Tensor, "B H"],
) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]]:
    """Parts of the error estimate: the tail, and edges with probes.

    The tail is the larger of the last two coefficients, made smaller by as much as they fell over
    the two before.
    """
    nodes = values.shape[-1]
    count = probes.shape[-1]
    readings = values @ _readings(nodes, count).to(values)
    modes, expected, predicted = readings.split([4, 2, count], -1)
    missed = (edges - expected).abs().sum(-1)
    before = modes[..., :2].abs().amax(-1)
    last = modes[..., 2:].abs().amax(-1)
    falling = torch.where(last < before, last / torch.where(last < before, before, 1.0), 1.0)
    near_ends = gauss_legendre(nodes)[0][0].to(values) * missed
    if count:
        off = torch.where(probes.isnan(), 0.0, (probes - predicted).abs())
        near_ends = near_ends + 8 * off @ _probe_lags(count).to(values)
    tail = last * falling
    return (b - a) * tail, (b - a) * near_ends


@lru_cache(maxsize=64)
def _readings(nodes: int, probes: int) -> Float[Tensor, "Q R"]:
    """What maps values at four nodes or more to their last four Legendre coefficients, and to their
    polynomial at both ends and at so many probes."""
    import numpy as np

    x, w = gauss_legendre(nodes)
    order = np.arange(nodes)
    modes = (
        w.numpy()[:, None]
        * (2 * order + 1)
        * np.polynomial.legendre.legvander(2 * x.numpy() - 1, nodes - 1)
    )
    columns = [modes[:, -4:], modes @ (-1.0) ** order, modes.sum(1)]
    at = 2 * _probe_lags(probes).numpy() - 1
    columns.append(modes @ np.polynomial.legendre.legvander(at, nodes - 1).T)
    return torch.from_numpy(np.column_stack(columns))


def _not_finite(value: Tensor, a: Tensor, b: Tensor) -> Unconverged:
    row, group = (int(i) for i in torch.nonzero(~torch.isfinite(value))[0])
    return Unconverged(
        f"expected a finite integral of the intensity; received {float(value[row, group])} over "
        f"[{float(a[row, group]):g}, {float(b[row, group]):g}] of row {row}. The model's "
        "rate explodes there: "
        "train longer or with a lower learning rate, or use link='softplus'."
    )


def _unsettled(error: Tensor, a: Tensor, b: Tensor, tolerance: float, nodes: int) -> Unconverged:
    row, group = divmod(int(error.argmax()), error.shape[1])
    return Unconverged(
        f"expected integrals settled to {tolerance:.3g}; received a summed change of "
        f"{float(error.sum()):.3g} at {nodes} nodes, "
        f"most of it ({float(error[row, group]):.3g}) over [{float(a[row, group]):g}, "
        f"{float(b[row, group]):g}] of row {row}. "
        "Raise the tolerance, or cut long windows."
    )
