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

    Arguments
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
    open_ = replace(sequence.context or Context(), exposure=_opened(sequence, gap))
    first, after = np.searchsorted(sequence.times, [gap.start, gap.stop])
    begin = max(0, int(first) - REMEMBERED)
    # A shorter history begins at the last event that is left out.
    start = float(sequence.times[begin - 1]) if begin else sequence.start
    past = sequence.piece(slice(begin, int(first)), start, gap.start, inferred=True)
    conditioned = open_.without("scored_from")
    past = past.with_values(context=conditioned)
    here = remember(model, past.batch())
    many = select_rows(here, torch.zeros(futures, dtype=torch.int64))
    low, high = (torch.full_like(many.start, edge) for edge in (gap.start, gap.stop))
    drawn = advance(model, many, low, high, random).data
    last = min(int(after) + ahead, len(sequence))
    if futures == 1 or last == after:
        return _joined(sequence, int(first), int(after), drawn[0], open_, sequence.start, 0, None)
    stop = until
    if last < len(sequence) and float(sequence.times[last]) < until:
        stop = float(sequence.times[last])
    following = [
        _joined(sequence, int(first), int(after), path, conditioned, start, begin, stop)
        for path in drawn
    ]
    batch = Dataset.from_sequences([one.scored_after(gap.stop) for one in following]).batch()
    logs = quick_log_likelihood(model, batch).double()
    chance = torch.softmax(torch.where(logs.isfinite(), logs, -torch.inf), 0)
    if not bool(chance.isfinite().all()):  # what follows is impossible after every one of them
        chance = torch.full_like(chance, 1 / futures)
    kept = int(torch.multinomial(chance, 1, generator=random))
    return _joined(sequence, int(first), int(after), drawn[kept], open_, sequence.start, 0, None)


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
