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
from functools import lru_cache, partial

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
DEPTH = 5  # probes of an interval at most, where the shortest time is unknown
DEEPEST = 10  # and where it is known

# Arrays by their axes: B rows of G intervals, H of which are chosen, and Q nodes in each of these.
Ends = Float[Tensor, "*S"]
Nodes = Float[Tensor, "*S Q"]
Rule = Float[Tensor, " Q"]
PerInterval = Float[Tensor, "B G"]
Shortest = Float[Tensor, "#B #G"]
Chosen = Int[Tensor, "B H"]
PerChosen = Float[Tensor, "B H"]
AtEnds = Float[Tensor, "B H 2"]
Times = Float[Tensor, "B H Q"]
Values = Float[Tensor, "B H Q M"]
PerRow = Float[Tensor, " R"]
FlatTimes = Float[Tensor, "H Q"]

Rate = Callable[[Times, Chosen], Times]
Rates = Callable[[Times, Chosen], Values]
FlatRate = Callable[[FlatTimes, Int[Tensor, " H"]], FlatTimes]
# A computation that asks for rates, at times of the intervals ``which``, is sent them, and returns
# integrals and errors. Whoever runs it computes the rates: no function that does is passed down.
Pair = tuple[Tensor, Tensor]
Asking = Generator[Pair, Tensor, Pair]


class Unconverged(ArithmeticError):
    """An integral that did not settle: the numbers say how far it got."""


def stratified(a: Ends, b: Ends, nodes: int, random: torch.Generator) -> Nodes:
    """One uniform node in each of ``nodes`` equal strata of every [a, b]."""
    width = b - a
    number = torch.arange(nodes, device=a.device)
    strata = number + uniform(a, nodes, random)
    lags = width[..., None] * strata / nodes
    return a[..., None] + lags


def early(a: Ends, b: Ends, draws: Nodes) -> tuple[Nodes, Nodes]:
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
    discriminant = 1 + 8 * strata / nodes
    root = (discriminant.sqrt() - 1) / 2
    times = _points(a, b, root**2)
    jacobian = (2 * root + 1) * nodes
    weights = 4 * root / jacobian
    return times, weights


def uniform(like: Ends, nodes: int, random: torch.Generator) -> Nodes:
    """What :func:`stratified` and :func:`early` draw: u, 1 - u, u, ... with one u from U[0, 1] for
    every interval.

    Each node alone is uniform in its part, so that the estimate is unbiased. The errors that a
    linear trend makes at neighbouring nodes cancel, so that the standard error is a fraction of
    that of independent draws.
    """
    one = uniform_rows(like, random)
    other = 1 - one
    return torch.stack([other if i % 2 else one for i in range(nodes)], -1)


@lru_cache(maxsize=32)
def gauss_legendre(nodes: int) -> tuple[Rule, Rule]:
    """Nodes and weights on [0, 1]; exact for polynomials of degree 2 ``nodes`` - 1.

    >>> x, w = gauss_legendre(2)
    >>> bool(abs((w * x**3).sum() - 1 / 4) < 1e-12)
    True
    """
    import numpy as np

    x, w = np.polynomial.legendre.leggauss(nodes)
    places = torch.from_numpy((x + 1) / 2)
    weights = torch.from_numpy(w / 2)
    return places, weights


def integrate(
    rate: Rate,
    a: PerInterval,
    b: PerInterval,
    *,
    tolerance: float,
    first: int = 2,
    most: int = MOST,
    splits: int = SPLITS,
    shortest: Shortest | None = None,
) -> tuple[PerInterval, PerInterval]:
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
    a: PerInterval,
    b: PerInterval,
    *,
    tolerance: float,
    first: int = 2,
    most: int = MOST,
    splits: int = SPLITS,
    shortest: Shortest | None = None,
) -> tuple[Float[Tensor, "B G M"], PerInterval]:
    """:func:`integrate` for M rates at once; the errors are those of all of them together."""
    asking = integrating(
        a, b, tolerance=tolerance, first=first, most=most, splits=splits, shortest=shortest
    )

    def in_parts(times: Tensor, which: Tensor) -> Tensor:
        rows, _, nodes = times.shape
        some = max(1, TIMES // max(1, rows * nodes))
        found = []
        for part, own in zip(times.split(some, 1), which.split(some, 1), strict=True):
            found.append(rates(part, own))
        return torch.cat(found, 1)

    return _answered(asking, in_parts)


def _answered(asking: Asking, rates: Callable[[Tensor, Tensor], Tensor]) -> Pair:
    """What a computation returns when a function computes the rates that it asks for."""
    found: Tensor | None = None
    while True:
        try:
            times, which = next(asking) if found is None else asking.send(found)
        except StopIteration as done:
            value, error = done.value
            return value, error
        found = rates(times, which)


def integrating(
    a: PerInterval,
    b: PerInterval,
    *,
    tolerance: float,
    first: int = 2,
    most: int = MOST,
    splits: int = SPLITS,
    shortest: Shortest | None = None,
) -> Asking:
    """:func:`integrate_each` as a computation that asks for (B, H, Q, M) rates at (B, H, Q) times
    of the intervals (B, H).
    """
    a, b = a.double(), b.double()
    if shortest is None:
        scale = a.new_zeros(()).expand_as(a)
    else:
        scale = shortest.to(a).expand_as(a)
    intervals = a.numel()
    limited = min(WORK * intervals, MOST_WORK)
    allowed = max(FREE_WORK_EACH * intervals, limited)
    work = _Work(allowed + FREE_WORK)
    return _refining(a, b, scale, tolerance, first, most, splits, work, None)


def integrate_in_log_time(
    rate: FlatRate,
    left: PerRow,
    right: PerRow,
    since: PerRow,
    *,
    scale: float,
    density: float,
) -> tuple[PerRow, PerRow]:
    """:func:`integrating_in_log_time` with rates by a function."""
    asking = integrating_in_log_time(left, right, since, scale=scale, density=density)
    return _answered(asking, rate)


def integrating_in_log_time(
    left: PerRow,
    right: PerRow,
    since: PerRow,
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
    low = torch.log1p((left - since) / scale)
    high = torch.log1p((right - since) / scale)
    wanted = density * (high - low) + SPARE
    quarters = torch.ceil(wanted / 4).long()
    count = 4 * quarters.clamp(max=LARGEST + 4)
    value = torch.zeros_like(left)
    error = torch.full_like(left, torch.inf)
    for nodes in map(int, count.unique()):
        if nodes > LARGEST:
            continue
        which = torch.nonzero(count == nodes)[:, 0]
        places, weights, coefficients = (x.to(low) for x in even_rule(nodes))
        span = (high - low)[which, None]
        u = low[which, None] + span * places
        lags = scale * torch.expm1(u)
        times = since[which, None] + lags
        found = yield times, which
        eps = torch.finfo(found.dtype).eps
        rates = found.double()
        stretch = lags + scale
        terms = rates * stretch * span * weights
        value[which] = terms.sum(1)
        series = (terms @ coefficients).abs()
        quarter = nodes // 4
        last = series[:, -quarter:].amax(1)
        third = series[:, nodes // 2 : -quarter]
        falling = _fall(last, third.amax(1))
        logs = 1 + rates.log().abs()
        of_rates = ROUNDING * eps * (terms * logs).sum(1)
        resolution = torch.finfo(left.dtype).eps * right[which].abs()
        steps = rates.diff(dim=1).abs()
        of_times = resolution * steps.sum(1)
        error[which] = last * falling + of_rates + of_times
    return value, torch.where(error.isnan(), torch.inf, error)


@lru_cache(maxsize=64)
def even_rule(
    nodes: int,
) -> tuple[Rule, Rule, Float[Tensor, "Q Q"]]:
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
    terms = powers * x[:, None] ** (powers - 1)
    derivatives = terms @ series
    polynomials = np.polynomial.legendre.legvander(x, nodes - 1)
    scales = 2 * np.arange(nodes) + 1
    coefficients = polynomials * scales
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
    a: PerInterval,
    b: PerInterval,
    shortest: PerInterval,
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
    before_end = b - LEFT_LIMIT * (b - a)
    last = torch.minimum(torch.nextafter(b, a), before_end).maximum(a)
    between = _places(a, b, first)
    times = torch.cat([a[..., None], between, last[..., None]], -1)
    begun = yield times, which
    eps = torch.finfo(begun.dtype).eps
    begun = begun.double()
    at_a = begun[:, :, 0]
    at_b = begun[:, :, -1]
    ends = torch.stack([at_a, at_b], 2).sum(-1)
    inner_rates = begun[:, :, 1:-1]
    value = _sum(inner_rates, a, b)
    probes = yield from _probing(a, b, shortest)
    nodes = 2 * first
    error = torch.full_like(ends[..., 0], torch.inf)
    rounding = torch.zeros_like(error)
    at_ends = torch.zeros_like(error, dtype=torch.bool)
    count = error.numel()
    work.spend(count * (first + 2) + probes.numel())
    while True:
        low = a.gather(1, which)
        high = b.gather(1, which)
        found = yield _places(low, high, nodes), which
        found = found.double()
        work.spend(found[..., 0].numel())
        fine = _sum(found, low, high)
        own_ends = _gathered(ends, which)
        own_probes = _gathered(probes, which)
        least = tolerance / (1000 * count)
        asked_for = torch.where(high > low, least, 0.0)
        change = fine - _gathered(value, which)
        move = change.abs().sum(-1)
        total = found.sum(-1)
        tail, near_ends = _doubt(total, own_ends, own_probes, low, high)
        now = move + tail + near_ends + asked_for
        noise = _rounding(found, own_ends, low, high, eps)
        at_ends = at_ends.scatter(1, which, near_ends > tail)
        error = error.scatter(1, which, now)
        rounding = rounding.scatter(1, which, noise)
        value = _scattered(value, which, fine)
        if not bool(torch.isfinite(value).all()):
            raise _not_finite(value.sum(-1), a, b)
        improvable = torch.where(error > NOISE * rounding, error, 0.0)
        if nodes >= most and before is not None:
            stalled = _stalled(error, rounding, before)
            improvable = torch.where(stalled, 0.0, improvable)
        small = negligible(improvable, SETTLED * tolerance)
        if nodes < TRUSTED:
            small = min(small, tolerance / (2 * count))
        open_ = improvable > small
        summed = float(improvable.sum())
        if summed <= tolerance or not bool(open_.any()):
            return value, error + rounding
        widest = int(open_.sum(1).max())
        worst_first = improvable.argsort(1, descending=True)
        which = worst_first[:, :widest]
        if nodes >= most:
            break
        nodes *= 2
    first = max(2, nodes // 4)  # nodes are no farther apart than before, or parts might miss a peak
    parts = 4 * which.numel()
    needed = parts * 4 * first
    if not splits or not work.allows(needed):
        raise _unsettled(improvable, a, b, tolerance, nodes)
    low = a.gather(1, which)
    high = b.gather(1, which)
    bounds = _cut(low, high, at_ends.gather(1, which))
    scale = torch.full_like(bounds[..., 1:], torch.inf)  # the rate is raised at the left end only
    scale[..., 0] = shortest.gather(1, which)
    to_cut = improvable.gather(1, which)
    rest = summed - float(to_cut.sum())
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
    integrals, errors = yield from _over_parts(inner, which)
    stated = error + rounding
    whole = _scattered(value, which, _by_fours(integrals))
    return whole, stated.scatter(1, which, _by_fours(errors))


def _over_parts(inner: Asking, which: Chosen) -> Asking:
    """A computation over four parts of each of the intervals ``which``, which asks for rates of
    these intervals.
    """
    times, part = next(inner)
    while True:
        rates = yield times, which.gather(1, part // 4)
        try:
            times, part = inner.send(rates)
        except StopIteration as done:
            integrals, errors = done.value
            return integrals, errors


def _cut(low: PerChosen, high: PerChosen, at_ends: Bool[Tensor, "B H"]) -> Float[Tensor, "B H 5"]:
    """The bounds of the four parts of every interval, with short outer ones where most of the
    doubt is ``at_ends``.
    """
    end_cuts = low.new_tensor(END_CUTS)
    even_cuts = low.new_tensor(EVEN_CUTS)
    cuts = torch.where(at_ends[..., None], end_cuts, even_cuts)
    inside = _points(low, high, cuts)
    return torch.cat([low[..., None], inside, high[..., None]], -1)


def _by_fours(x: Float[Tensor, "B G4 *M"]) -> Float[Tensor, "B G *M"]:
    """Sums over the four parts of every interval."""
    return x.unflatten(1, (-1, 4)).sum(2)


def _gathered(x: Float[Tensor, "B G M"], which: Chosen) -> Float[Tensor, "B H M"]:
    """Rows of ``x``, one for each of the intervals ``which``."""
    B, H = which.shape
    index = which[..., None].expand(B, H, x.shape[-1])
    return x.gather(1, index)


def _scattered(
    x: Float[Tensor, "B G M"], which: Chosen, rows: Float[Tensor, "B H M"]
) -> Float[Tensor, "B G M"]:
    """``x`` with other rows for the intervals ``which``."""
    index = which[..., None].expand_as(rows)
    return x.scatter(1, index, rows)


def negligible(error: Ends, most: float) -> float:
    """The largest error such that all errors up to it sum to at most ``most``; -1 if none."""
    ordered = error.flatten().sort().values
    count = int((ordered.cumsum(0) <= most).sum())
    kept = ordered
    if count < len(ordered):
        kept = ordered[ordered < ordered[count]]  # equal errors are kept all or not at all
    if not len(kept):
        return -1.0
    return float(kept[-1])


def _stalled(
    error: PerInterval, rounding: PerInterval, before: Float[Tensor, "B G4"]
) -> Bool[Tensor, "B G"]:
    """Where cutting has not halved an error that is of the order of rounding."""
    now = _by_fours(error)
    noise = _by_fours(rounding)
    not_halved = 2 * now >= before
    stalled = not_halved & (now <= STALLED * noise)
    return stalled.repeat_interleave(4, 1)


def _rounding(
    values: Values,
    ends: AtEnds,
    a: PerChosen,
    b: PerChosen,
    eps: float,
) -> PerChosen:
    """What rounding of rates and of times may add to the error of each integral."""
    _, weights = gauss_legendre(values.shape[2])
    size = values.abs()
    logs = torch.xlogy(size, size).abs()
    terms = (size + logs).sum(-1)
    mean = terms @ weights.to(values)
    of_rates = ROUNDING * eps * (b - a) * mean
    total = values.sum(-1)
    at_a, at_b = ends.split(1, -1)
    along = torch.cat([at_a, total, at_b], -1)
    latest = torch.maximum(a.abs(), b.abs())
    resolution = torch.finfo(a.dtype).eps * latest
    steps = along.diff(dim=-1).abs()
    of_times = resolution * steps.sum(-1)
    return of_rates + torch.where(b > a, of_times, 0.0)


def _probing(
    a: PerInterval, b: PerInterval, shortest: PerInterval
) -> Generator[tuple[Tensor, Tensor], Tensor, Float[Tensor, "B G K"]]:
    """The total rate at the probes of every interval that is long; NaN in the others."""
    tiny = torch.finfo(a.dtype).tiny
    ratio = (b - a) / shortest.clamp(min=tiny)
    times_longer = torch.where(b > a, ratio, 0.0)
    long = times_longer > LONG
    if not bool(long.any()):
        return a.new_zeros(*a.shape, 0)
    longest = times_longer.max().clamp(max=2.0**1000)
    octaves = math.log2(float(longest) / LONG)
    known = bool(shortest.any())
    most = DEEPEST if known else DEPTH
    wanted = 1 + math.ceil(octaves / 5)
    lags = _probe_lags(min(most, wanted)).to(a)
    number = long.to(torch.int8)
    long_first = number.argsort(dim=1, descending=True, stable=True)
    widest = int(long.sum(1).max())
    which = long_first[:, :widest]
    low = a.gather(1, which)
    high = b.gather(1, which)
    found = yield _points(low, high, lags), which
    total = found.double().sum(-1)
    asked = long.gather(1, which)
    probed = torch.where(asked[..., None], total, torch.nan)
    empty = a.new_full((*a.shape, len(lags)), torch.nan)
    return _scattered(empty, which, probed)


@lru_cache(maxsize=32)
def _probe_lags(count: int) -> Float[Tensor, " K"]:
    """1/64, 1/2048, ... of an interval."""
    number = torch.arange(count, dtype=torch.float64)
    return 2.0 ** -(6 + 5 * number)


def _points(a: Ends, b: Ends, shares: Float[Tensor, "*#S Q"]) -> Nodes:
    """Points of every [a, b] from their ``shares`` of its length."""
    width = b - a
    lags = width[..., None] * shares
    return a[..., None] + lags


def _places(a: PerChosen, b: PerChosen, nodes: int) -> Times:
    x, _ = gauss_legendre(nodes)
    return _points(a, b, x.to(a))


def _sum(values: Values, a: PerChosen, b: PerChosen) -> Float[Tensor, "B H M"]:
    _, weights = gauss_legendre(values.shape[2])
    width = b - a
    mean = values.movedim(2, 3) @ weights.to(values)
    return width[..., None] * mean


def _fall(last: Ends, before: Ends) -> Ends:
    """By how much coefficients fell, 1 where they did not."""
    fell = last < before
    share = last / torch.where(fell, before, 1.0)
    return torch.where(fell, share, 1.0)


def _doubt(
    values: Times,
    edges: AtEnds,
    probes: Float[Tensor, "B H K"],
    a: PerChosen,
    b: PerChosen,
) -> tuple[PerChosen, PerChosen]:
    """Parts of the error estimate: the tail, and edges with probes.

    The tail is the larger of the last two coefficients, made smaller by as much as they fell over
    the two before.
    """
    nodes = values.shape[-1]
    count = probes.shape[-1]
    readings = values @ _readings(nodes, count).to(values)
    modes, expected, predicted = readings.split([4, 2, count], -1)
    missed = (edges - expected).abs().sum(-1)
    sizes = modes.abs()
    before = sizes[..., :2].amax(-1)
    last = sizes[..., 2:].amax(-1)
    x, _ = gauss_legendre(nodes)
    near_ends = x[0].to(values) * missed
    if count:
        difference = (probes - predicted).abs()
        off = torch.where(probes.isnan(), 0.0, difference)
        lags = _probe_lags(count).to(values)
        near_ends = near_ends + 8 * off @ lags
    tail = last * _fall(last, before)
    width = b - a
    return width * tail, width * near_ends


@lru_cache(maxsize=64)
def _readings(nodes: int, probes: int) -> Float[Tensor, "Q R"]:
    """What maps values at four nodes or more to their last four Legendre coefficients, and to their
    polynomial at both ends and at so many probes."""
    import numpy as np

    x, w = (part.numpy() for part in gauss_legendre(nodes))
    order = np.arange(nodes)
    polynomials = partial(np.polynomial.legendre.legvander, deg=nodes - 1)
    scaled = w[:, None] * (2 * order + 1)
    modes = scaled * polynomials(2 * x - 1)
    at_a = modes @ (-1.0) ** order
    at_b = modes.sum(1)
    lags = _probe_lags(probes).numpy()
    there = polynomials(2 * lags - 1)
    at_probes = modes @ there.T
    last = modes[:, -4:]
    columns = np.column_stack([last, at_a, at_b, at_probes])
    return torch.from_numpy(columns)


def _not_finite(value: Tensor, a: Tensor, b: Tensor) -> Unconverged:
    places = torch.nonzero(~torch.isfinite(value))
    row, group = map(int, places[0])
    begin = float(a[row, group])
    end = float(b[row, group])
    received = float(value[row, group])
    return Unconverged(
        f"expected a finite integral of the intensity; received {received} over "
        f"[{begin:g}, {end:g}] of row {row}. The model's "
        "rate explodes there: "
        "train longer or with a lower learning rate, or use link='softplus'."
    )


def _unsettled(error: Tensor, a: Tensor, b: Tensor, tolerance: float, nodes: int) -> Unconverged:
    worst = int(error.argmax())
    row, group = divmod(worst, error.shape[1])
    begin = float(a[row, group])
    end = float(b[row, group])
    largest = float(error[row, group])
    summed = float(error.sum())
    return Unconverged(
        f"expected integrals settled to {tolerance:.3g}; received a summed change of "
        f"{summed:.3g} at {nodes} nodes, most of it ({largest:.3g}) over "
        f"[{begin:g}, {end:g}] of row {row}. Raise the tolerance, or cut long windows."
    )
