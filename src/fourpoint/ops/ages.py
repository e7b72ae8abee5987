r"""Moments of the ages of past events, one after the other in time, without a loop over events.

With past types n and decays beta_j, just before each event

    R_jn = sum exp(-beta_j a),  R'_jn = sum (beta_j a) exp(-beta_j a),
        R''_jn = sum (beta_j a)^2 exp(-beta_j a)

over the ages a of the earlier events of type n in the same window. From one event to the next, with
d = beta gap,

    R <- e^-d (R + 1),   R' <- e^-d (R' + d (R + 1)),   R'' <- e^-d (R'' + 2 d R' + d^2 (R + 1)),

where the 1 belongs to the type of the event just passed. Each is a linear recursion S_i = f_i
S_{i-1} + u_i, driven by those before it, and a scan computes it for all events at once: a few
positions one by one in many chunks side by side, then the chunks' ends the same way. Windows lie
end to end, and a fade of 0 parts them. Exponents are never positive.

An integral of R over a window is a sum over its ends. Where time has a weight w, a step function,

    int w beta R = sum over events of w(t_i) - sum over probes of kappa R:

the probes are the steps of w, with kappa = w before less w after, and the ends of windows, with
kappa = w there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fourpoint.events.context import Steps

# moments of one kind in a block: scans like long ones, loops what stays in the nearest cache
SCANNED = 2**16
LOOPED = 2**13
RADIX = 8  # positions that a scan takes one by one

# Arrays by their axes: N events of B windows, with P probes behind them; K moments of each of J
# decays and M types, n events at a time.
Times = Float[ndarray, " N"]
Marks = Int[ndarray, " N"]
Offsets = Int[ndarray, " B1"]
Bounds = Float[ndarray, " B"]
Probes = Int[ndarray, " P"]
PerProbe = Float[ndarray, " P"]
Decays = Float[ndarray, " J"]
PerDecay = Float[ndarray, "J n"]
Ages = Float[ndarray, "J 1 n"]
Moment = Float[ndarray, "J M n"]
Moments = Float[ndarray, "K J M n"]
State = Float[ndarray, "K J M"]


@dataclass(frozen=True)
class Timeline:
    """Events of many windows laid end to end, in any unit of time; windows without events count in
    ``duration`` alone.
    """

    gaps: Times  # since the event before, 0 for the first of a window
    marks: Marks
    source: Marks  # the mark of the event before, which the first of a window ignores
    first: Int[ndarray, " S"]  # index of each window's first event
    last: Probes  # index of the last event before each probe: the end of each window
    tails: PerProbe  # from that event to the probe
    duration: float  # weighted
    counts: Int[ndarray, " M"]  # scored events of each type
    changes: PerProbe  # kappa: what the weight of time falls by at each probe
    exposed: Float[ndarray, " M"]  # weights of time at the events of each type, summed
    scored: Bool[ndarray, " N"]  # events whose rates count

    @property
    def types(self) -> int:
        """M, the number of types."""
        return len(self.counts)


def timeline(
    times: Times,
    marks: Marks,
    offsets: Offsets,
    starts: Bounds,
    stops: Bounds,
    types: int,
    unit: float = 1.0,
    weight: Steps | None = None,
) -> Timeline:
    """Lay sequences end to end: sequence i owns events ``offsets[i]:offsets[i + 1]``. Times are
    divided by ``unit``. Time has the ``weight`` of its sequence in the likelihood (1 if None), and
    events at a weight of 0 are not scored.

    >>> line = timeline(
    ...     np.array([1.0, 3.0]),
    ...     np.array([0, 0]),
    ...     np.array([0, 2, 2]),
    ...     np.zeros(2),
    ...     np.array([4.0, 5.0]),
    ...     1,
    ... )
    >>> line.gaps.tolist(), line.tails.tolist(), line.duration
    ([0.0, 2.0], [1.0], 9.0)
    """
    some = np.flatnonzero(np.diff(offsets))
    first = offsets[some]
    last = offsets[some + 1] - 1
    gaps = np.zeros(len(times))
    np.subtract(times[1:], times[:-1], out=gaps[1:])
    gaps[first] = 0.0
    gaps /= unit
    if types == 1:  # zeros that nothing reads take no time
        own = np.zeros_like(marks)
        source = np.zeros_like(marks)
    else:
        own = marks.copy()
        source = np.roll(marks, 1)
    if weight is None:
        when = stops[some]
        duration = float((stops - starts).sum()) / unit
        changes = np.ones(len(last))
        scored = np.ones(len(times), bool)
        counts = np.array([len(times)])
        if types > 1:
            counts = np.bincount(own, minlength=types)
        exposed = counts.astype(np.float64)
    else:
        at_events, last, when, changes = _probes(times, offsets, starts, stops, weight)
        weighted = weight.integrals(starts, stops)
        duration = float(weighted.sum()) / unit
        scored = at_events > 0
        counts = np.bincount(own[scored], minlength=types)
        exposed = np.bincount(own, at_events, minlength=types).astype(np.float64)
    tails = (when - times[last]) / unit
    return Timeline(
        gaps=gaps,
        marks=own,
        source=source,
        first=first,
        last=last,
        tails=tails,
        duration=duration,
        counts=counts,
        changes=changes,
        exposed=exposed,
        scored=scored,
    )


def _probes(
    times: Times,
    offsets: Offsets,
    starts: Bounds,
    stops: Bounds,
    weight: Steps,
) -> tuple[Times, Probes, PerProbe, PerProbe]:
    """The weight of time at every event, and of the probes with an event before them the index of
    that event, the time, and kappa. An event at a step lies behind it.
    """
    B = len(starts)
    rows = np.arange(B)
    first = weight.offsets[:-1]
    step_rows = np.repeat(rows, np.diff(weight.offsets))
    begins = weight.times.copy()
    begins[first] = starts  # the first value also holds before its time
    begins = np.maximum(begins, starts[step_rows])
    values = weight.values[:, 0]
    rises = np.diff(values, prepend=0.0)
    rises[first] = values[first]
    inside_window = begins <= stops[step_rows]
    rises[~inside_window] = 0.0
    count = np.bincount(step_rows[inside_window], minlength=B)
    final = values[first + count - 1]
    event_rows = np.repeat(rows, np.diff(offsets))
    row = np.concatenate([step_rows, event_rows, rows])
    when = np.concatenate([begins, times, stops])
    counts = [len(begins), len(times), B]
    kind = np.repeat([0, 1, 2], counts)
    no_change = np.zeros(len(times))
    falls = np.concatenate([-rises, no_change, final])
    order = np.lexsort((kind, when, row))
    row = row[order]
    when = when[order]
    kind = kind[order]
    falls = falls[order]
    is_event = kind == 1
    step = np.where(kind == 0, order, -1)
    latest = np.maximum.accumulate(step)
    at_events = values[latest[is_event]]
    before = np.cumsum(is_event) - 1
    follows_event = before >= offsets[row]
    changes = ~is_event & (falls != 0)
    probe = changes & follows_event
    return at_events, before[probe], when[probe], falls[probe]


def fades(line: Timeline, beta: Decays, most: int) -> Iterator[tuple[slice, PerDecay, PerDecay]]:
    """Blocks of events with beta gap and exp(-beta gap) before each; nothing is left where a window
    begins.
    """
    kinds = len(beta) * line.types
    size = max(1024, most // kinds)
    N = len(line.gaps)
    for a in range(0, N, size):
        block = slice(a, min(a + size, N))
        ages = beta[:, None] * line.gaps[block]
        fade = np.exp(-ages)
        begins = line.first[inside(line.first, block)]
        fade[:, begins - a] = 0.0
        yield block, ages, fade


def moment_blocks(
    line: Timeline, beta: Decays, count: int
) -> Iterator[tuple[slice, Moments, State]]:
    """Blocks of events with ``count`` moments just before each, and the sum of kappa times those at
    the probes behind its events.
    """
    state = np.zeros((count, len(beta), line.types))
    types = np.arange(line.types)[:, None]
    for block, ages, fade in fades(line, beta, SCANNED):
        preceding = line.source[block] == types
        own = preceding.astype(np.float64)
        moments = _moments(fade[:, None], ages[:, None], own, state)
        state = moments[..., -1].copy()
        within = inside(line.last, block)
        last = line.last[within]
        after = moments[..., last - block.start]
        after[0] += line.marks[last] == types
        since = beta[:, None, None] * line.tails[within]
        faded = _faded(after, since)
        weighted = faded @ line.changes[within]
        yield block, moments, weighted


def inside(places: Int[ndarray, " S"], block: slice) -> slice:
    """Which of the rising ``places`` lie in the block."""
    low, high = np.searchsorted(places, (block.start, block.stop))
    return slice(int(low), int(high))


def _faded(moments: Moments, ages: Ages) -> Moments:
    """The moments when ``ages`` = beta dt have passed without an event."""
    faded = moments.copy()
    if len(moments) > 1:
        faded[1] += ages * moments[0]
    if len(moments) > 2:
        driven = 2 * moments[1] + ages * moments[0]
        faded[2] += ages * driven
    return faded * np.exp(-ages)


def _moments(
    fade: Ages,
    ages: Ages,
    own: Float[ndarray, "M n"],
    state: State,
) -> Moments:
    """The moments before each event from those before the event that precedes the block; each is
    driven by those below it.
    """
    found = np.empty((*state.shape, fade.shape[-1]))
    found[0] = _scan(fade, fade * own, state[0])
    if len(state) > 1:
        aged = fade * ages
        passed = _shifted(found[0], state[0]) + own
        found[1] = _scan(fade, aged * passed, state[1])
    if len(state) > 2:
        before = _shifted(found[1], state[1])
        driven = 2 * before + ages * passed
        found[2] = _scan(fade, aged * driven, state[2])
    return found


def _shifted(x: Moment, before: Float[ndarray, "J M"]) -> Moment:
    """x one position later, after what was before it."""
    first = before[..., None]
    rest = x[..., :-1]
    return np.concatenate([first, rest], -1)


def _scan(factor: ndarray, drive: ndarray, before: ndarray | None = None) -> ndarray:
    """S_i = factor_i S_{i-1} + drive_i along the last axis: RADIX positions in turn, in all chunks
    at once, then the chunks' ends.
    """
    n = drive.shape[-1]
    chunks = -(-n // RADIX)
    s = _in_chunks(drive, chunks)
    p = _in_chunks(factor, chunks)
    if before is not None:
        s[..., 0, 0] += factor[..., 0] * before
    for i in range(1, RADIX):
        own = p[..., i]
        s[..., i] += own * s[..., i - 1]
        own *= p[..., i - 1]
    if chunks > 1:
        ends = s[..., -1]
        carried = _scan(p[..., -1], ends)
        before_chunk = carried[..., :-1, None]
        s[..., 1:, :] += p[..., 1:, :] * before_chunk
    flat = s.reshape(*drive.shape[:-1], -1)
    return flat[..., :n]


def _in_chunks(x: ndarray, chunks: int) -> ndarray:
    """A copy whose last axis is cut into chunks of RADIX positions, the last filled up with 0."""
    *axes, n = x.shape
    padded = np.zeros((*axes, chunks * RADIX))
    padded[..., :n] = x
    return padded.reshape(*axes, chunks, RADIX)
