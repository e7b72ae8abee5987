r"""Maximum likelihood for the exponential Hawkes process: where `models.hawkes` gets its numbers
from.

At fixed decays the log-likelihood is concave in theta = (mu, alpha) and falls apart into one
problem per type, so that only the decays need a search. It is made on a grid of log-spaced decays,
each at its best theta; the highest local maxima of that profile are then refined in theta and u =
log beta together (`ops.newton`), and the best of them wins. Further exponentials join one at a
time, each from a grid of its own. Nothing is random, and nothing depends on a starting value.

Beyond SAMPLE events the search looks at stretches of the data with so many events together, which
show fast decays, and at every k-th event, which shows decays too slow for the stretches; with more
than FEW types it does not tell types apart. Newton's method then goes on with all events and types
from each optimum found. The curvature at the end is the observed information, whose inverse gives
the standard errors. With very many types (WIDE) L-BFGS takes the place of Newton's method, and
there are no standard errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from fourpoint.events import Dataset
from fourpoint.ops.ages import Timeline, timeline
from fourpoint.ops.excitation import Design, derivatives, third_derivatives
from fourpoint.ops.newton import Information, Point, climb, information, profile_directions
from fourpoint.ops.profiles import Profile

SAMPLE = 2**14  # events that the search for decays looks at
STRETCH = 2**12  # events of one stretch of them
# of the grid of log decays; half of it for few events, whose profile is rougher and costs little
SPACING = 1.8
CANDIDATES = 3  # local maxima of a profile that are refined
FEW = 8  # types that the search tells apart
WIDE = 2e6  # second derivatives beyond which there is no Newton's method
NATS = 3.0  # what a slow decay must gain on every k-th event to be tried on all
PLENTY = 10_000  # events of every type, beyond which profile likelihoods are not skewed
MOST_THIRD = 2e10  # multiplications of the third derivatives


@dataclass(frozen=True)
class Estimate:
    """mu (M,), alpha (J, M, M) and beta (J,) by rising decay, standard errors of each, in the
    user's unit, and remarks.

    An error is NaN where an estimate lies on the edge of what is possible or the data do not
    determine it. ``profiles`` are the shapes of the profile log-likelihoods, under the same names
    (`ops.profiles`).
    """

    baseline: Float[ndarray, " M"]
    branching: Float[ndarray, "J M M"]
    decay: Float[ndarray, " J"]
    errors: dict[str, ndarray]
    notes: list[str] = field(default_factory=list)
    profiles: dict[str, Profile] = field(default_factory=dict)


def estimate(data: Dataset, exponentials: int = 1) -> Estimate:
    """The maximum likelihood estimate of a Hawkes process with ``exponentials`` decays.

    A type that never happens counts as half an event, and nothing excites it or is excited by it.
    Where events share a time the likelihood grows without bound as the decay does, and the best
    maximum inside the range of the search is taken. A decay that multiplies nothing is one fade per
    four mean gaps.

    >>> data = Dataset(
    ...     np.array([1.0, 1.1, 4.0, 4.3]),
    ...     np.zeros(4, dtype=np.int64),
    ...     np.array([0, 4]),
    ...     np.zeros(1),
    ...     np.array([8.0]),
    ... )
    >>> found = estimate(data)
    >>> found.branching.shape, bool(0.3 < found.branching[0, 0, 0] < 0.7)
    ((1, 1, 1), True)
    """
    exposed = float(data.exposed_times.sum())
    unit = exposed / max(1, data.scored_events)
    line = _line(data, unit)
    span = _span(line, data, unit)
    best = _search(data, line, unit, exponentials, span)
    found = information(best, span.low, span.high)
    errors = np.full_like(best.theta, np.nan)
    decay_errors = np.full_like(best.u, np.nan)
    if found is not None:
        variance, decay_variance = found.variances()
        errors = np.sqrt(variance)
        decay_errors = np.sqrt(decay_variance)
    unused = -np.log(4.0)
    u = np.where(_used(best), best.u, unused)
    order = np.argsort(u)
    decay = np.exp(u[order]) / unit
    half_an_event = 0.5 / line.duration
    happens = line.counts > 0
    mu = np.where(happens, best.theta[:, 0], half_an_event)
    beyond = information(best, span.low, span.high, beyond=True)
    profiles = {}
    if beyond is not None:
        profiles = _profiles(line, best, beyond, unit, order)
    return Estimate(
        baseline=mu / unit,
        branching=_branching(best.theta)[order],
        decay=decay,
        errors={
            "baseline": errors[:, 0] / unit,
            "branching": _branching(errors)[order],
            "decay": decay * decay_errors[order],
        },
        notes=_remarks(data, line, best, span, unit),
        profiles=profiles,
    )


def _profiles(
    line: Timeline,
    best: Point,
    found: Information,
    unit: float,
    order: ndarray,
) -> dict[str, Profile]:
    """The shapes of all profile log-likelihoods, in the user's unit, by rising decay; those of
    decays in their logarithms.

    Branching ratios above 0 and decays have their profiles at the estimate. Where the maximum would
    be if ratios at 0 could be negative, to first order, is far from it with many types, most of
    whose ratios are 0.
    """
    M, W = best.theta.shape
    J = len(best.u)
    ways = profile_directions(best, found)
    directions = W + J
    third = np.zeros((M, directions))
    counts = line.counts[line.counts > 0]
    few = counts.min(initial=PLENTY) < PLENTY
    work = 3.0 * len(line.gaps) * W * directions
    if few and work <= MOST_THIRD:
        joint = ways.joint.transpose(1, 0, 2)
        along = np.concatenate([ways.rows, joint], 1)
        third = third_derivatives(line, best.theta, best.u, along)
    scale = np.ones(W)
    scale[0] = unit
    centre = np.where(best.theta > 0, best.theta, ways.theta)
    centre[:, 0] = ways.theta[:, 0]
    centre /= scale
    edge = np.minimum(centre, 0.0)
    inside = centre - edge
    curvature = ways.curvature * scale**2
    gradient = edge * curvature
    skewness = third[:, :W] * scale**3
    parts = (inside, gradient, curvature, skewness)
    of_decay = np.nansum(third[:, W:], axis=0)
    decay = np.exp(best.u) / unit
    turns = (decay, np.zeros(J), ways.joint_curvature, of_decay)
    return {
        "baseline": Profile(*(part[:, 0] for part in parts)),
        "branching": Profile(*(_branching(part)[order] for part in parts)),
        "decay": Profile(*(part[order] for part in turns), logarithmic=True),
    }


# ---------------------------------------------------------------------- the search


@dataclass(frozen=True)
class _Span:
    """The logarithms of the slowest and the fastest decay that are tried, and whether events share
    a time.
    """

    low: float
    high: float
    tied: bool


def _search(data: Dataset, line: Timeline, unit: float, J: int, span: _Span) -> Point:
    """The best of the climbs on all events."""
    M = line.types
    few = M <= FEW
    view = _as_it_is if few else _pooled
    sample = line if data.events <= SAMPLE else _stretches(data, unit)
    found = _greedy(view(sample), J, span)
    best = found[-1]
    if sample is line and few:
        return best
    starts = [(best.theta, best.u)]
    if sample is not line and data.lengths.max() > STRETCH:
        every = -(-data.events // STRETCH)
        thinned = view(_line(data, unit, every))
        fastest = -float(np.log(every))
        slow = _slow(thinned, replace(span, high=fastest))
        if slow is not None:
            theta = every * slow.theta[:, :1]
            u = slow.u
            if J > 1:
                fewer = found[J - 2]
                theta = fewer.theta
                u = np.append(fewer.u, slow.u)
            theta = np.concatenate([theta, slow.theta[:, 1:]], 1)
            starts.append((theta, u))
    coefficients = 1 + J * M + J
    second_derivatives = M * coefficients**2
    ascent = _wide if second_derivatives > WIDE else _climbed
    points = []
    for theta, u in starts:
        if not few:
            theta = _shared(theta, line)
        points.append(ascent(line, theta, u, span))
    return _highest(points, span)


def _greedy(line: Timeline, J: int, span: _Span) -> list[Point]:
    """The best points with 1 to J decays. Each decay more is tried everywhere on the grid beside
    those there are.
    """
    spacing = SPACING
    if len(line.gaps) <= STRETCH:
        spacing /= 2
    intervals = int((span.high - span.low) / spacing)
    grid = np.linspace(span.low, span.high, 2 + intervals)
    theta = line.counts[:, None] / (2 * line.duration)
    u = np.zeros(0)
    found: list[Point] = []
    for _ in range(J):
        even = 0.3 / line.types
        branching = np.full((line.types, line.types), even)
        theta = np.concatenate([theta, branching], 1)
        profile = []
        for v in grid:
            design = Design(line, np.append(u, v))
            point = _concave(design, theta)
            profile.append(point)
            theta = point.theta
        heights = np.array([point.here.value for point in profile])
        refined = []
        for i in _peaks(heights):
            decays = np.append(u, grid[i])
            refined.append(_climbed(line, profile[i].theta, decays, span))
        best = _highest(refined, span)
        found.append(best)
        theta = best.theta
        u = best.u
    return found


def _slow(line: Timeline, span: _Span) -> Point | None:
    """The best of the slow decays, where it explains more than constant rates do."""
    if span.high <= span.low + SPACING:
        return None
    best = _greedy(line, 1, span)[0]
    counts = line.counts[line.counts > 0]
    rates = counts / line.duration
    log_rates = counts * np.log(rates)
    constant = float(log_rates.sum()) - counts.sum()
    enough = constant + NATS
    return best if best.here.value > enough else None


def _climbed(
    line: Timeline,
    theta: Float[ndarray, "M W"],
    u: Float[ndarray, " J"],
    span: _Span,
) -> Point:
    return climb(
        lambda t, v: derivatives(line, t, v),
        _lit(theta, line),
        u,
        span.low,
        span.high,
    )


def _concave(design: Design, theta: Float[ndarray, "M W"]) -> Point:
    """The best theta at fixed decays, to a precision that a comparison of decays needs."""
    return climb(
        lambda t, _: design.derivatives(t),
        _lit(theta, design.line),
        np.zeros(0),
        0.0,
        0.0,
        enough=1e-3,
    )


def _lit(theta: Float[ndarray, "M W"], line: Timeline) -> Float[ndarray, "M W"]:
    """theta with baselines of at least a tenth of the mean rates, so that every event has a rate; 0
    for types without any.
    """
    rates = line.counts / line.duration
    least = rates[:, None] / 10
    lit = theta.copy()
    baselines = np.maximum(theta[:, :1], least)
    lit[:, :1] = baselines
    happens = line.counts > 0
    decays = (theta.shape[1] - 1) // line.types
    of_decays = np.tile(happens, decays)
    sources = np.append(True, of_decays)
    possible = happens[:, None] & sources
    return np.where(possible, lit, 0.0)


def _peaks(heights: Float[ndarray, " G"]) -> list[int]:
    """The highest local maxima, best first."""
    around = np.pad(heights, 1, constant_values=-np.inf)
    rises = heights > around[:-2]
    falls = heights >= around[2:]
    peaks = np.flatnonzero(rises & falls)
    best_first = sorted(peaks.tolist(), key=lambda i: -heights[i])
    return best_first[:CANDIDATES]


def _highest(points: list[Point], span: _Span) -> Point:
    """The point of highest likelihood; where events share a time, among those with excitation
    inside the range, if any.
    """
    inside = []
    if span.tied:
        for point in points:
            excited = (point.theta[:, 1:] > 0).any()
            if excited and point.u.max() < span.high:
                inside.append(point)
    return max(inside or points, key=lambda point: point.here.value)


def _wide(
    line: Timeline,
    theta: Float[ndarray, "M W"],
    u: Float[ndarray, " J"],
    span: _Span,
) -> Point:
    """L-BFGS in all parameters, in units of where it starts."""
    from scipy.optimize import minimize

    scale = _lit(theta, line)
    J = len(u)
    W = theta.shape[1]
    events = len(line.gaps)

    def parameters(
        x: Float[ndarray, " P"],
    ) -> tuple[Float[ndarray, "M W"], Float[ndarray, " J"]]:
        scaled = x[:-J].reshape(scale.shape)
        return scaled * scale, x[-J:]

    def loss(x: Float[ndarray, " P"]) -> tuple[float, Float[ndarray, " P"]]:
        theta, u = parameters(x)
        here = derivatives(line, theta, u, order=1)
        of_theta = here.gradient[:, :W] * scale
        of_u = here.gradient[:, W:].sum(0)
        gradient = np.append(of_theta, of_u)
        return -here.value / events, -gradient / events

    floors = np.zeros(scale.shape)
    floors[:, 0] = 1e-9
    of_theta = [(floor, None) for floor in floors.ravel()]
    of_u = [(span.low, span.high)] * J
    start = np.append(np.ones(scale.size), u)
    found = minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=of_theta + of_u,
        options={"maxiter": 1000, "maxfun": 2000, "ftol": 1e-11, "gtol": 1e-8},
    )
    theta, u = parameters(found.x)
    return Point(theta, u, derivatives(line, theta, u, order=1))


def _shared(theta: Float[ndarray, "1 V"], line: Timeline) -> Float[ndarray, "M W"]:
    """theta of all types from that of their sum, as if types were drawn at random; no number is 0,
    which could not grow.
    """
    total = max(1, line.counts.sum())
    share = line.counts / total
    branching = np.maximum(theta[0, 1:], 0.01)
    alpha = np.repeat(branching, line.types)
    coefficients = np.append(theta[0, 0], alpha)
    return share[:, None] * coefficients


# ---------------------------------------------------------------------- what is looked at


def _span(line: Timeline, data: Dataset, unit: float) -> _Span:
    """From a quarter of a fade per longest window to ten fades in the shortest hundredth of the
    gaps.
    """
    longest = float(data.durations.max()) / unit
    every = 1 + len(line.gaps) // SAMPLE
    gaps = line.gaps[::every]
    # Shorter gaps than the rounding of the times say nothing, and no decay is as fast.
    rounding = np.finfo(np.float64).eps * longest
    gaps = gaps[gaps > rounding]
    low = -float(np.log(4 * longest))
    high = 0.0
    if len(gaps):
        shortest = np.quantile(gaps, 0.01)
        fastest = 10 / shortest
        high = float(np.log(fastest))
    ties = np.count_nonzero(line.gaps == 0)
    return _Span(
        low=low,
        high=max(high, low + 2 * SPACING),
        tied=bool(ties > len(line.first)),
    )


def _line(data: Dataset, unit: float, every: int = 1) -> Timeline:
    """Every ``every``-th event of the data, all windows kept."""
    offsets = -(-data.offsets // every)
    return timeline(
        data.times[::every],
        data.mark_ids[::every],
        offsets,
        data.starts,
        data.stops,
        data.marks.count,
        unit,
        data.scored_exposure,
    )


def _stretches(data: Dataset, unit: float) -> Timeline:
    """About SAMPLE events: sequences, or stretches of long ones, evenly taken from all over the
    data.
    """
    needed = -(-data.lengths // STRETCH)
    pieces = np.maximum(1, needed)
    row = np.repeat(np.arange(len(data)), pieces)
    first_piece = np.cumsum(pieces) - pieces
    number = np.arange(len(row))
    nth = number - np.repeat(first_piece, pieces)
    weight = data.scored_exposure
    if weight is not None:
        a, b = _ends_of_stretches(data, row, nth)
        scored = np.append(0, np.cumsum(data.scored))
        some = scored[b] > scored[a]
        row = row[some]
        nth = nth[some]
    stretches = len(row)
    wanted = round(stretches * SAMPLE / data.events)
    size = min(max(1, wanted), stretches)
    even = np.linspace(0, stretches - 1, size)
    chosen = np.unique(even.round().astype(np.int64))
    row = row[chosen]
    nth = nth[chosen]
    a, b = _ends_of_stretches(data, row, nth)
    # A stretch is watched from the event before it to the event after it.
    before = data.times[a - 1]
    starts = np.where(nth > 0, before, data.starts[row])
    after = np.minimum(b, data.events - 1)
    goes_on = b < data.offsets[row + 1]
    stops = np.where(goes_on, data.times[after], data.stops[row])
    lengths = b - a
    offsets = np.append(0, np.cumsum(lengths))
    moved = a - offsets[:-1]
    shift = np.repeat(moved, lengths)
    flat = shift + np.arange(offsets[-1])
    return timeline(
        data.times[flat],
        data.mark_ids[flat],
        offsets,
        starts,
        stops,
        data.marks.count,
        unit,
        None if weight is None else weight.select(row),
    )


def _ends_of_stretches(data: Dataset, row: ndarray, nth: ndarray) -> tuple[ndarray, ndarray]:
    """The first event of the ``nth`` stretch of every row, and the one after its last."""
    first = data.offsets[row] + nth * STRETCH
    end_of_row = data.offsets[row + 1]
    return first, np.minimum(first + STRETCH, end_of_row)


def _used(best: Point) -> ndarray:
    """Which decays multiply branching ratios above 0."""
    branching = _branching(best.theta)
    return np.any(branching > 0, axis=(1, 2))


def _as_it_is(line: Timeline) -> Timeline:
    return line


def _pooled(line: Timeline) -> Timeline:
    """The same events, all of one type."""
    nothing = np.zeros_like(line.marks)
    return replace(
        line,
        marks=nothing,
        source=nothing,
        counts=line.counts.sum(keepdims=True),
        exposed=line.exposed.sum(keepdims=True),
    )


# ---------------------------------------------------------------------- what is said


def _branching(theta: Float[ndarray, "M W"]) -> Float[ndarray, "J M M"]:
    """Columns after the first, by decay, excited and exciting type."""
    M = len(theta)
    by_excited = theta[:, 1:].reshape(M, -1, M)
    return by_excited.transpose(1, 0, 2)


def _remarks(data: Dataset, line: Timeline, best: Point, span: _Span, unit: float) -> list[str]:
    """What a reader of the estimates should know."""
    said = []
    never = np.count_nonzero(line.counts == 0)
    if never:
        said.append(
            f"{never} of {line.types} types have no events: each is treated as half an event "
            "that excites nothing"
        )
    used = _used(best)
    if not used.any():
        said.append("no excitation found: the rates are constant, and the decay is not determined")
        return said
    if not used.all():
        said.append(
            f"{int(used.sum())} of {len(used)} exponentials are enough: the others have "
            "branching ratio 0"
        )
    slowest = best.u <= span.low
    at_end = slowest | (best.u >= span.high)
    for u in best.u[used & at_end]:
        decay = np.exp(u) / unit
        ties = ""
        if span.tied and u >= span.high:
            ties = f"; {data.tied:.0%} of the gaps are 0, which favours ever faster decays"
        said.append(f"the decay {decay:.4g} is at the end of the searched range{ties}")
    if not best.here.curvature.size:
        said.append(f"{line.types} types are too many for standard errors")
    return said
