r"""Events of recording gaps, drawn from a model given what was observed around them.

While the exposure is 0 nothing was recorded, but a self-exciting process went on: events in the gap
are unknown, and they excited events after it. A likelihood that integrates over observed time alone
takes the past to be the observed events, and credits what unknown events excited to others, or to
the base rate.

:func:`impute` fills the gaps with events drawn from their conditional law, one gap after the other
in time. For each gap it draws P futures of the model from the history before the gap (observed
events, and events imputed into earlier gaps), and keeps one of them with probability in proportion
to the likelihood of the observed events that follow,

    w_p  ~  exp log L(observed events on [b, c) | history, future p),    [a, b) the gap,

where c is the beginning of the next gap or the time of the last of AHEAD events, whichever is
earlier: sampling importance resampling with a limited look ahead. It is exact in the limit of many
futures and of a look ahead beyond which a past event has no effect. Events after c and the joint
choice of futures of several gaps are not taken into account, and of a long history the last
REMEMBERED events are.

Alternating it with fits is stochastic EM: fit, impute, fit to the filled data, and so on.

:func:`marginal_log_likelihood` is that of the observed events, with those of the gaps integrated
out by the same futures. With S_k the time between gap k and the next one,

    log L  =  log L(S_0)  +  sum_k log mean_p L(S_k | history, future p of gap k),

where one future of each gap, drawn in proportion to L(S_k | ...), becomes history: a particle
filter, whose estimate of L has no bias.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.events import (
    Context,
    Dataset,
    Sequence,
    Steps,
    UserError,
    all_sequences,
    check_marks,
)
from fourpoint.inference.likelihood import quick_log_likelihood
from fourpoint.inference.sampling import advance, eval_mode, remember, select_rows
from fourpoint.models.base import PointProcess

FUTURES, AHEAD = 32, 64  # futures of a gap, and observed events after it that choose among them
REMEMBERED = 1024  # events of a long history that futures are drawn from


@dataclass(frozen=True)
class Gap:
    """A time [start, stop) in which nothing was recorded, and the exposure that it is filled
    with.
    """

    start: float
    stop: float
    exposure: float


def recording_gaps(sequence: Sequence) -> list[Gap]:
    """The recording gaps of a sequence inside its window, in order of time. A gap is filled with
    the exposure before it, or after it where the window begins with the gap.

    >>> exposure = Steps(
    ...     ("e",), np.array([0.0, 2.0, 3.0]), np.array([[2.0], [0.0], [1.0]]), np.array([0, 3])
    ... )
    >>> recording_gaps(Sequence([0.5], start=0.0, stop=5.0, context=Context(exposure=exposure)))
    [Gap(start=2.0, stop=3.0, exposure=2.0)]
    """
    context = sequence.context
    if context is None or context.exposure is None:
        return []
    steps = context.exposure
    edges = np.concatenate([[-np.inf], steps.times[1:], [np.inf]])
    values = steps.values[:, 0]
    positive = np.flatnonzero(values > 0)
    found: list[Gap] = []
    for j in np.flatnonzero(values == 0):
        start = max(edges[j], sequence.start)
        stop = min(edges[j + 1], sequence.stop)
        if stop <= start:
            continue
        earlier = positive[positive < j]
        nearest = earlier[-1:] if len(earlier) else positive[:1]
        level = float(values[nearest[0]]) if len(nearest) else 1.0
        if found and found[-1].stop == start:
            found[-1] = replace(found[-1], stop=float(stop))
        else:
            found.append(Gap(float(start), float(stop), level))
    return found


def impute(
    model: PointProcess,
    data: Dataset | Sequence,
    seed: int = 0,
    *,
    futures: int = FUTURES,
    ahead: int = AHEAD,
) -> Dataset:
    """The data with events in their recording gaps, drawn from ``model`` given what was observed
    around them, and with the exposure before each gap in the gap.

    Args:
        futures: drawn for each gap; one of them is kept. 1: forward sampling, which does not look
            at what follows.
        ahead: observed events after a gap that choose among its futures.

    The approximation is that of the module's head: sampling importance resampling gap by gap.
    Data without gaps come back as they are. Raises :class:`UserError` where the marks are not the
    model's, where events have features and the model, which draws those of imputed events,
    has none, and where the model explodes inside a gap.

    >>> from fourpoint.models.poisson import Poisson
    >>> exposure = Steps(
    ...     ("e",), np.array([0.0, 2.0, 9.0]), np.array([[1.0], [0.0], [1.0]]), np.array([0, 3])
    ... )
    >>> log = Sequence([0.5, 9.5], start=0.0, stop=10.0, context=Context(exposure=exposure))
    >>> filled = impute(Poisson(), log, seed=1)
    >>> filled.events > 2, bool((filled[0].context.exposure.values == 1).all())
    (True, True)
    """
    known = all_sequences(data)
    check_marks(model.marks, known.marks)
    if futures < 1 or ahead < 0:
        raise UserError(
            "at least one future and no fewer than 0 events ahead",
            f"futures={futures}, ahead={ahead}",
            "Raise them.",
        )
    gaps = [recording_gaps(sequence) for sequence in known]
    if not any(gaps):
        return known
    if model.event_features is not None:
        model.event_features.check_names(known)
    elif known.features is not None:
        raise UserError(
            "events without features to impute",
            f"events with {len(known.feature_names) or known.features.shape[1]} features",
            "Leave the event features out, or impute with a model that has them (hawkes).",
        )
    random = torch.Generator().manual_seed(seed)
    filled = []
    with eval_mode(model):
        for sequence, own in zip(known, gaps, strict=True):
            one = sequence
            for k, gap in enumerate(own):
                until = own[k + 1].start if k + 1 < len(own) else sequence.stop
                one = _filled(model, one, gap, until, random, futures, ahead)
            filled.append(one)
    found = Dataset.from_sequences(filled, unit=known.unit, name=known.name)
    names = known.feature_names
    return replace(found, log=known.log, splits=known.splits, ids=known.ids, feature_names=names)


@dataclass(frozen=True)
class Marginal:
    """The log-likelihood of observed events with those of gaps integrated out, the scored events,
    and the gaps that were filled.
    """

    log_likelihood: float
    events: int
    gaps: int

    @property
    def per_event(self) -> float:
        """Nats per scored event."""
        return self.log_likelihood / max(1, self.events)

    def __str__(self) -> str:
        return (
            f"with the unknown events of {self.gaps:,} recording gaps integrated out: "
            f"{self.per_event:.4f} nats per event (window)"
        )


def marginal_log_likelihood(
    model: PointProcess,
    data: Dataset | Sequence,
    seed: int = 0,
    *,
    futures: int = FUTURES,
) -> Marginal:
    """The log-likelihood of the observed events under ``model``, with the unknown events of
    recording gaps integrated out: the mean of the likelihood over ``futures`` drawn for every gap.

    For a process without memory it is the likelihood over observed time, and for data without gaps
    that of `evaluate`. Raises as :func:`impute` does.

    >>> from fourpoint.models.poisson import Poisson
    >>> exposure = Steps(
    ...     ("e",), np.array([0.0, 2.0, 9.0]), np.array([[1.0], [0.0], [1.0]]), np.array([0, 3])
    ... )
    >>> log = Sequence([0.5, 9.5], start=0.0, stop=10.0, context=Context(exposure=exposure))
    >>> round(marginal_log_likelihood(Poisson(), log, seed=1).log_likelihood, 6)  # a rate of 1
    -3.0
    """
    known = all_sequences(data)
    check_marks(model.marks, known.marks)
    if futures < 1:
        raise UserError("at least one future", f"futures={futures}", "Raise it.")
    if model.event_features is not None:
        model.event_features.check_names(known)
    random = torch.Generator().manual_seed(seed)
    total = 0.0
    count = 0
    with eval_mode(model):
        for sequence in known:
            gaps = recording_gaps(sequence)
            count += len(gaps)
            total += _marginal(model, sequence, gaps, random, futures)
    return Marginal(total, known.scored_events, count)


def _marginal(
    model: PointProcess,
    sequence: Sequence,
    gaps: list[Gap],
    random: torch.Generator,
    futures: int,
) -> float:
    """The marginal log-likelihood of one sequence."""
    context = sequence.context
    begin = sequence.start
    if context is not None and context.scored_from is not None:
        begin = max(begin, float(context.scored_from[0]))
    first = gaps[0].start if gaps else sequence.stop
    total = 0.0
    if begin < first:
        before = sequence.piece(sequence.times < first, sequence.start, first, inferred=False)
        total = float(quick_log_likelihood(model, before.batch()).sum())
    one = sequence
    for k, gap in enumerate(gaps):
        until = gaps[k + 1].start if k + 1 < len(gaps) else sequence.stop
        drawn = _drawn(model, one, gap, random, futures)
        logs = drawn.log_likelihoods(model, gap.stop, until)
        if begin < until:
            total += _log_mean(logs)
        if gap.stop < begin < until:  # what comes before the scored period conditions only
            total -= _log_mean(drawn.log_likelihoods(model, gap.stop, begin))
        one = drawn.filled(_chosen(logs, random))
    return total


def _log_mean(logs: torch.Tensor) -> float:
    return float(torch.logsumexp(logs, 0)) - float(np.log(len(logs)))


def _chosen(logs: torch.Tensor, random: torch.Generator) -> int:
    """One of the futures with these log-likelihoods of what follows."""
    chance = torch.softmax(torch.where(logs.isfinite(), logs, -torch.inf), 0)
    if not bool(chance.isfinite().all()):  # what follows is impossible after every one of them
        chance = torch.full_like(chance, 1 / len(logs))
    return int(torch.multinomial(chance, 1, generator=random))


def _filled(
    model: PointProcess,
    sequence: Sequence,
    gap: Gap,
    until: float,
    random: torch.Generator,
    futures: int,
    ahead: int,
) -> Sequence:
    """The sequence with one of its gaps filled; observed events up to ``until`` choose the
    future.
    """
    drawn = _drawn(model, sequence, gap, random, futures)
    last = min(drawn.after + ahead, len(sequence))
    if futures == 1 or last == drawn.after:
        return drawn.filled(0)
    stop = until
    if last < len(sequence) and float(sequence.times[last]) < until:
        stop = float(sequence.times[last])
    return drawn.filled(_chosen(drawn.log_likelihoods(model, gap.stop, stop), random))


@dataclass(frozen=True)
class _Drawn:
    """Futures of a gap: the sequence, its context with the gap open, the events from ``first`` to
    ``after`` that lie in the gap (none), and from which event on and from when histories begin.
    """

    sequence: Sequence
    paths: Dataset
    context: Context
    first: int
    after: int
    begin: int
    start: float

    def filled(self, path: int) -> Sequence:
        """The whole sequence with one of the futures in the gap."""
        return _joined(
            self.sequence,
            self.first,
            self.after,
            self.paths[path],
            self.context,
            self.sequence.start,
            0,
            None,
        )

    def log_likelihoods(self, model: PointProcess, low: float, high: float) -> torch.Tensor:
        """Those of the observed events on [low, high) after each future."""
        context = self.context.without("scored_from")
        following = [
            _joined(
                self.sequence,
                self.first,
                self.after,
                path,
                context,
                self.start,
                self.begin,
                high,
            ).scored_after(low)
            for path in self.paths
        ]
        return quick_log_likelihood(model, Dataset.from_sequences(following).batch()).double()


def _drawn(
    model: PointProcess, sequence: Sequence, gap: Gap, random: torch.Generator, futures: int
) -> _Drawn:
    """Futures of a gap, drawn from the history before it."""
    open_ = replace(sequence.context or Context(), exposure=_opened(sequence, gap))
    first, after = (int(x) for x in np.searchsorted(sequence.times, [gap.start, gap.stop]))
    begin = max(0, first - REMEMBERED)
    # A shorter history begins at the last event that is left out.
    start = float(sequence.times[begin - 1]) if begin else sequence.start
    past = sequence.piece(slice(begin, first), start, gap.start, inferred=True)
    past = past.with_values(context=open_.without("scored_from"))
    here = remember(model, past.batch())
    many = select_rows(here, torch.zeros(futures, dtype=torch.int64))
    low, high = (torch.full_like(many.start, edge) for edge in (gap.start, gap.stop))
    paths = advance(model, many, low, high, random).data
    return _Drawn(sequence, paths, open_, first, after, begin, start)


def _opened(sequence: Sequence, gap: Gap) -> Steps:
    """The exposure of the sequence with the gap's own in the gap."""
    assert sequence.context is not None and sequence.context.exposure is not None
    steps = sequence.context.exposure
    edges = np.concatenate([[-np.inf], steps.times[1:], [np.inf]])
    overlaps = (edges[:-1] < gap.stop) & (edges[1:] > gap.start)
    inside = overlaps & (steps.values[:, 0] == 0)
    return replace(steps, values=np.where(inside[:, None], gap.exposure, steps.values))


def _joined(
    sequence: Sequence,
    first: int,
    after: int,
    path: Sequence,
    context: Context,
    start: float,
    begin: int,
    stop: float | None,
) -> Sequence:
    """The sequence from event ``begin`` on with the events of ``path`` in place of those from
    ``first`` to ``after``, of which there are none; up to ``stop``, or to its end.
    """
    end = len(sequence)
    if stop is not None:
        end = int(np.searchsorted(sequence.times, stop))

    def joined(own: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([own[begin:first], new, own[after:end]])

    places = None
    if sequence.places is not None and path.places is not None:
        places = joined(sequence.places, path.places)
    features = None
    if sequence.features is not None and path.features is not None:
        features = joined(sequence.features, path.features)
    return sequence.with_values(
        times=joined(sequence.times, path.times),
        marks=joined(sequence.marks, path.marks),
        start=start,
        stop=sequence.stop if stop is None else stop,
        inferred=sequence.inferred and stop is None,
        places=places,
        features=features,
        context=context,
    )
