r"""Exact samples from any model, from nothing or from a history of one's own.

All paths advance together. In each round every path opens one window, and either its next event is
found there or time moves on (`ops.thinning`); the event's mark is drawn in proportion to the
intensities at its time. Places come from the model's ``draw_places`` where it has one; else every
candidate has a place too, and is accepted by the rate there over a bound. Models with
``event_features`` draw those of training events for each. Models with a closed ``inverse`` are
inverted by it, those with a ``bound`` thinned, the others inverted numerically, and what is sampled
is what `evaluate` scores: the same features, the same rate. Where the history has an exposure e(t),
events come at the rate e(t) lambda(t): no window reaches beyond a step of e, and none is opened
where e is 0. Paths that have reached the end leave the batch. A cap on events per path is never
silent.

    sample          -> Dataset      events in [start, stop)
    sample_paths    -> Paths        the same, with acceptance rate and capped paths
    advance         the loop itself, for paths with ends and pasts of their own
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import (
    Batch,
    BatchContext,
    BatchSteps,
    Dataset,
    Sequence,
    UserError,
    check_marks,
    known_at,
)
from fourpoint.models.base import History, PointProcess, box_of, longest_panel
from fourpoint.ops.quadrature import Unconverged
from fourpoint.ops.thinning import (
    ExplosiveRate,
    Round,
    Tally,
    draw_marks,
    next_by_inversion,
    thin,
    unit_exponentials,
)
from fourpoint.report.printing import Step, bar

Method = Literal["auto", "thinning", "inversion"]
METHODS = ("auto", "thinning", "inversion")
MOST = 100_000  # events of one path at which a process counts as explosive, where no cap is given
NUMBERS, SMALLEST = 2**20, 64  # numbers of a history in one group of paths, and paths at the least
NUMBERS_CUDA = 2**24  # the same on a CUDA device
KEEP = 0.95  # share of paths still going below which the others leave the batch
BLOCK = 2048  # events of a long history that are encoded at once


class AnyDataclass(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


H = TypeVar("H", bound=AnyDataclass)


@dataclass(frozen=True)
class Paths:
    """Sampled paths, the share of candidates that thinning accepted (NaN for inversion), and the
    rows that were capped.

    A capped path is observed up to its last event only: its window in ``data`` ends there.
    ``unfinished`` are the rows of paths of which only the first events were drawn, for lack of
    time.
    """

    data: Dataset
    method: str
    acceptance: float
    capped: NDArray[np.int64]
    unfinished: NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))

    def __str__(self) -> str:
        if self.method == "thinning":
            how = f"thinning, {self.acceptance:.0%} of candidates accepted"
        else:
            how = self.method
        return f"{self.data}; {how}" + (
            f"; {len(self.capped):,} paths capped" if len(self.capped) else ""
        )


def sample(
    model: PointProcess,
    start: float,
    stop: float,
    sequences: int,
    seed: int = 0,
    *,
    history: Sequence | Dataset | None = None,
    most: int | None = None,
    method: Method = "auto",
    progress: bool = False,
) -> Dataset:
    """Draw ``sequences`` paths of ``model`` on [start, stop), in the user's unit of time.

    Args:
        history: what happened up to and including ``start``: one :class:`Sequence` for all paths,
            or a :class:`Dataset` with one sequence per path. The model's clock begins at its
            window's start. None: the window opens at ``start``. Its context (covariates, exposure)
            holds for the paths too, which have it in the result.
        most: a cap on the events of one path; a path that reaches it ends there, with a warning.
            Without it a path of 100,000 events is taken for an explosion and is an error.
        method: "thinning" (needs a model with a ``bound``), "inversion", or "auto": inversion where
            the model has it in closed form (``inverse``), else thinning where it can be done; a
            Hawkes process with places is drawn cluster by cluster.
        progress: whether to show a bar on stderr.

    Raises :class:`UserError` for an empty window, a history with events after ``start``, other
    marks than the model's, or a model that explodes.

    >>> from fourpoint.models.hawkes import Hawkes
    >>> data = sample(Hawkes(baseline=10.0, branching=1.0), 0.0, 1.0, 500, seed=1)  # mean count 15
    >>> len(data), abs(data.events / 500 - 15) < 1
    (500, True)
    """
    paths = sample_paths(
        model,
        start,
        stop,
        sequences,
        seed,
        history=history,
        most=most,
        method=method,
        progress=progress,
    )
    if len(paths.capped):
        warnings.warn(
            (
                f"{len(paths.capped):,} of {sequences:,} paths reached most={most} events and "
                "end there"
            ),
            stacklevel=2,
        )
    return paths.data


def sample_paths(
    model: PointProcess,
    start: float,
    stop: float,
    sequences: int,
    seed: int = 0,
    *,
    history: Sequence | Dataset | None = None,
    most: int | None = None,
    method: Method = "auto",
    progress: bool = False,
    time_left: Callable[[], bool] | None = None,
) -> Paths:
    """Like :func:`sample`, but return the acceptance rate and the truncated paths with the data.

    ``time_left`` is called repeatedly while paths are drawn; when it returns False, the paths are
    stopped (``Paths.unfinished``).

    >>> from fourpoint.models.poisson import Poisson
    >>> print(sample_paths(Poisson(), 0.0, 5.0, 100, seed=1))
    100 sequences, ... events, no marks, windows of 5; thinning, 100% of candidates accepted
    """
    if not (np.isfinite(start) and np.isfinite(stop) and stop > start):
        raise UserError(
            "a finite window with start < stop",
            f"start={start}, stop={stop}",
            "Pass stop after start.",
        )
    if sequences < 1 or (most is not None and most < 1):
        raise UserError(
            "at least one sequence and most of at least 1",
            f"sequences={sequences}, most={most}",
            "Raise them.",
        )
    begin, end = (torch.full((sequences,), float(x), dtype=torch.float64) for x in (start, stop))
    random = torch.Generator().manual_seed(seed)
    with eval_mode(model), bar("sampling", 1.0, show=progress) as step:
        past = _opening(model, float(start), sequences, history)
        paths = advance(
            model,
            past,
            begin,
            end,
            random,
            most=most,
            method=method,
            step=step,
            time_left=time_left,
        )
    if history is None and model.effects is not None:
        known = model.effects.spec.training_clock(sequences)
        return dataclasses.replace(paths, data=dataclasses.replace(paths.data, context=known))
    if history is None or history.context is None:
        return paths
    known = history.context.without("scored_from")
    if history_count(history) < sequences:
        known = known.select(np.zeros(sequences, dtype=np.int64))
    return dataclasses.replace(paths, data=dataclasses.replace(paths.data, context=known))


def history_count(history: Sequence | Dataset) -> int:
    """How many sequences a history has."""
    return len(history) if isinstance(history, Dataset) else 1


def advance(
    model: PointProcess,
    past: History,
    start: Float[Tensor, " B"],
    stop: Float[Tensor, " B"],
    random: torch.Generator,
    *,
    most: int | None = None,
    method: Method = "auto",
    limit: int = MOST,
    step: Step | None = None,
    time_left: Callable[[], bool] | None = None,
) -> Paths:
    """One path on [start, stop) for each row of the model's history ``past``; the model must be in
    evaluation mode.

    The exposure of the history's context is a factor of the rate.
    ``limit`` events of one path are an explosion where there is no cap ``most``. ``step`` is told
    the share of the work that is done. ``time_left`` as in :func:`sample_paths`.
    """
    chosen = _method(model, method)
    tally = Tally()
    count = torch.zeros_like(start, dtype=torch.int64)
    found = [Drawn(count[:0], start[:0], count[:0])]
    unfinished = torch.zeros_like(start, dtype=torch.bool)
    exposure = None if past.context is None else past.context.exposure
    try:
        if method == "auto" and model.draws_paths and exposure is None:
            whole = _whole_paths(model, past, start, stop, random, most, limit)
            if whole is not None:
                return whole
        every = torch.arange(len(start), device=start.device)
        for rows in every.split(_group(past)):
            own = past if len(rows) == len(start) else select_rows(past, rows)
            going = _Going(len(start), int(rows[0]), step, time_left, unfinished)
            for event in _events(
                model,
                own,
                rows,
                start[rows],
                stop[rows],
                random,
                count,
                most,
                chosen,
                tally,
                limit,
                going,
                None if exposure is None else exposure.select(rows),
            ):
                found.append(event)
    except (ExplosiveRate, Unconverged) as error:
        remedy = "Shorten the window, set a cap with most=, or fit the model again."
        raise UserError(
            "a process whose rate stays finite", str(error).rstrip("."), remedy
        ) from error
    if step is not None:
        step(1.0)
    if most is not None:
        capped = torch.nonzero(count >= most)[:, 0].cpu()
    else:
        capped = torch.zeros(0, dtype=torch.int64)
    data = _dataset(found, start, stop, capped, model)
    left = torch.nonzero(unfinished)[:, 0].cpu()
    return Paths(data, chosen, tally.acceptance, capped.numpy(), left.numpy())


def _whole_paths(
    model: PointProcess,
    past: History,
    start: Tensor,
    stop: Tensor,
    random: torch.Generator,
    most: int | None,
    limit: int,
) -> Paths | None:
    """Paths from a model that draws whole ones; None where a cap is reached, which only the order
    of time can tell.
    """
    found = model.draw_paths(past, start, stop, random, limit if most is None else most - 1)
    if found is None:
        if most is None:
            raise ExplosiveRate(f"a path with more than {limit:,} events")
        return None
    order = torch.from_numpy(np.lexsort((found.time.numpy(), found.row.numpy())))
    features = None if found.features is None else found.features[order]
    place = None if found.place is None else found.place[order]
    events = [Drawn(found.row[order], found.time[order], found.mark[order], place, features)]
    nobody = torch.zeros(0, dtype=torch.int64)
    return Paths(
        _dataset(events, start, stop, nobody, model),
        model.draws_paths,
        float("nan"),
        nobody.numpy(),
    )


class Drawn(NamedTuple):
    """Events of one round: the rows of their paths, times, marks, places and features."""

    rows: Int[Tensor, " E"]
    times: Float[Tensor, " E"]
    marks: Int[Tensor, " E"]
    places: Float[Tensor, "E k"] | None = None
    features: Float[Tensor, "E F"] | None = None


class _Going(NamedTuple):
    """How far sampling has come: paths in all, those of earlier groups, whom to tell and whom to
    ask for time, and which paths are unfinished for lack of it.
    """

    paths: int
    earlier: int
    step: Step | None
    time_left: Callable[[], bool] | None
    unfinished: Bool[Tensor, " B"]

    def ended_early(
        self, rows: Int[Tensor, " R"], at: Float[Tensor, " R"], end: Float[Tensor, " R"]
    ) -> bool:
        """Whether there is no time left; the paths ``rows`` whose time ``at`` is before their
        ``end`` are then unfinished.
        """
        if self.time_left is None or self.time_left():
            return False
        self.unfinished[rows[at < end]] = True
        return True

    def tell(self, group: int, at: Tensor, start: Tensor, width: Tensor) -> None:
        """Of a ``group`` of paths those with a time ``at`` are still going; ``width`` is all that
        they have to go from ``start``.
        """
        if self.step is None:
            return
        share = float(((at - start) / width).clamp(0, 1).sum())
        self.step((self.earlier + group - len(at) + share) / self.paths)


def remember(model: PointProcess, batch: Batch, before: Any = None) -> Any:
    """The model's history after all events of ``batch``: the last position only, where the model
    can forget the rest. ``before`` is what it remembered of the same sequences at the start.
    """
    if model.marks.box is not None and batch.places is None:
        named = ", ".join(model.marks.box.names)
        remedy = (
            "Streams do not take places: forecast from a sequence read with place=, or follow a "
            "model fitted without places."
        )
        raise UserError(
            f"events with places ({named}), as the model was made for",
            "events without places, as a stream has",
            remedy,
        )
    step = BLOCK if model.linear else max(1, batch.times.shape[1])
    past = model.encode(batch.columns(0, step), before)
    nothing = torch.zeros_like(batch.start, dtype=torch.int64)
    past = model.extend(past, batch.start, nothing, nothing.bool())
    for first in range(step, batch.times.shape[1], step):
        past = model.encode(batch.columns(first, first + step), past)
        past = model.extend(past, batch.start, nothing, nothing.bool())
    if batch.context is not None and past.context is None:
        past = dataclasses.replace(past, context=batch.context)
    return past


def exposed_rates(
    history: History, times: Float[Tensor, "B Q"], rates: Float[Tensor, "B Q M"]
) -> Float[Tensor, "B Q M"]:
    """``rates`` at ``times``, times the exposure where the history has one."""
    exposure = None if history.context is None else history.context.exposure
    if exposure is None:
        return rates
    return rates * exposure.at(times).to(rates)


def select_rows(history: H, rows: Int[Tensor, " R"]) -> H:
    """The sequences at ``rows`` of a history, in this order, with repetition; what all share (a
    spectrum) stays shared.

    >>> from fourpoint.models.positions import positions_of
    >>> history = positions_of(Sequence([1.0], start=0.0, stop=3.0).batch())
    >>> select_rows(history, torch.zeros(3, dtype=torch.int64)).times.shape
    torch.Size([3, 2])
    """
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(history):
        value = getattr(history, field.name)
        if isinstance(value, Tensor):
            changed[field.name] = value[rows]
        elif isinstance(value, BatchContext):
            changed[field.name] = value.select(rows)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            changed[field.name] = select_rows(value, rows)
    return dataclasses.replace(history, **changed)


def last_rates(
    model: PointProcess, history: History, times: Float[Tensor, "B Q"]
) -> Float[Tensor, "B Q M"]:
    """The intensities at ``times`` seen from the last position: what they would be if nothing more
    happened.
    """
    return model.log_intensity(history, times[:, None], history.lengths[:, None])[:, 0].exp()


@contextmanager
def eval_mode(model: PointProcess) -> Iterator[None]:
    """The model in evaluation mode, without gradients, and afterwards as it was."""
    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was)


def _events(
    model: PointProcess,
    past: History,
    rows: Int[Tensor, " R"],
    at: Float[Tensor, " R"],
    end: Float[Tensor, " R"],
    random: torch.Generator,
    count: Int[Tensor, " B"],
    most: int | None,
    method: str,
    tally: Tally,
    limit: int,
    going: _Going,
    exposure: BatchSteps | None,
) -> Iterator[Drawn]:
    """Rounds of the paths ``rows`` until all have ended: each yields its events, and counts
    them.
    """
    limit = limit if most is None else most
    group = len(rows)
    begin = at
    span = end - at
    width = span if method == "thinning" else torch.zeros_like(span)
    while len(rows) and not going.ended_early(rows, at, end):
        going.tell(group, at, begin, span)
        later = model.draws_places
        until, factor = end, None
        if exposure is not None:
            factor = exposure.at(at[:, None])[:, 0, 0]
            until = torch.minimum(end, exposure.next_step(at))
            at = torch.where(factor > 0, at, until)
        if model.marks.box is None or later:
            (hit, at, intensities, width), past = _round(
                model, past, at, until, width, random, method, tally, factor
            )
            place = None
        else:
            (hit, at, intensities, width), past, place = _round_with_places(
                model, past, at, until, width, random, method, tally, factor
            )
        marks = draw_marks(intensities, random)
        if model.marks.box is not None and later:
            place = model.draw_places(past, at, marks, random)
        if bool(hit.any()):
            features = None
            if model.event_features is not None:
                features = model.event_features.draw(marks, random)
            if place is None and features is None:
                past = model.extend(past, at, marks, hit)
            else:
                past = model.extend(past, at, marks, hit, place, features)
            there = None if place is None else place[hit]
            known = None if features is None else features[hit]
            yield Drawn(rows[hit], at[hit], marks[hit], there, known)
        count[rows] += hit
        full = count[rows] >= limit
        if most is None and bool(full.any()):
            raise ExplosiveRate(f"a path with {limit:,} events by time {float(at[full][0]):g}")
        alive = (at < end) & ~full
        if int(alive.sum()) < KEEP * len(rows):
            keep = torch.nonzero(alive)[:, 0]
            rows = rows[keep]
            at = at[keep]
            end = end[keep]
            width = width[keep]
            past = select_rows(past, keep)
            exposure = None if exposure is None else exposure.select(keep)
            begin = begin[keep]
            span = span[keep]
        else:
            end = torch.where(alive, end, at)


def _round(
    model: PointProcess,
    past: History,
    at: Tensor,
    end: Tensor,
    width: Tensor,
    random: torch.Generator,
    method: str,
    tally: Tally,
    factor: Float[Tensor, " B"] | None = None,
) -> tuple[Round, Any]:
    """One window of every path, and the history after it: a linear model's states move along to the
    one candidate. The rate has a ``factor``, 1 if None.
    """
    moves = model.linear

    def rates(times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
        nonlocal past
        if method == "thinning" and moves and times.shape[1] == 1:
            past = model.move(past, times[:, 0])
        rates = last_rates(model, past, times)
        return rates if factor is None else rates * factor[:, None, None].to(rates)

    def bound(a: Float[Tensor, " B"], b: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        top = model.upper_bound(past, a, b)
        return top if factor is None else top.to(at) * factor

    if method == "thinning":
        wanted = 1 if not tally.proposals else round(1 / max(tally.acceptance, 1 / 8))
        return thin(
            rates,
            bound,
            at,
            end,
            width,
            random,
            candidates=wanted,
            tally=tally,
        ), past
    if model.has_inverse:
        mass = unit_exponentials(at.shape, random)
        if factor is not None:
            mass = mass / torch.where(factor > 0, factor, 1.0)
        time = model.inverse(past, at, mass)
        hit = (at < end) & (time < end)
        time = torch.where(hit, time, torch.maximum(at, end))
        return Round(hit, time, rates(time[:, None])[:, 0].to(at.dtype), width), past
    return _inverted(model, past, at, end, width, random, factor), past


def _inverted(
    model: PointProcess,
    past: History,
    at: Float[Tensor, " B"],
    end: Float[Tensor, " B"],
    width: Float[Tensor, " B"],
    random: torch.Generator,
    factor: Float[Tensor, " B"] | None = None,
) -> Round:
    """The next event of every path inside a window of its own, by inversion of the compensator.

    An exponential has no memory: where a window holds no event, time moves on to its end and
    another one is drawn there. So no path
    waits for the one that has farthest to go. One event is to be expected in a window at the rate
    at its beginning, and a window is twice as long after one without an event. Only the total rate
    is integrated; the rates of all marks are read once, at the event.
    """
    last = past.lengths[:, None]
    tiny = torch.finfo(at.dtype).tiny

    def totals(times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q 1"]:
        found = plain_totals(times)
        return found if factor is None else found * factor[:, None, None].to(found)

    def plain_totals(times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q 1"]:
        going = torch.nonzero(times[:, -1] > times[:, 0])[
            :, 0
        ]  # a path that has its event is asked at one time over and over
        if times.shape[1] == 1 or len(going) > KEEP * len(times):
            return model.total_intensity(past, times[:, None], last)[:, 0, :, None]
        own = model.total_intensity(select_rows(past, going), times[going, None], last[going])[:, 0]
        return own.new_zeros(times.shape).index_copy(0, going, own)[..., None]

    first = totals(at[:, None])[:, 0, 0].to(at.dtype)
    half = ((end - at) / 2).clamp(min=tiny)
    onwards = torch.nextafter(at, torch.full_like(at, torch.inf))
    stop = torch.minimum(
        torch.maximum(at + torch.maximum(1 / first.clamp(min=tiny), width), onwards), end
    )
    panel = torch.minimum((stop - at).clamp(min=tiny), half)
    own = longest_panel(model, past, at)
    longest = (
        (lambda elapsed: half) if own is None else lambda elapsed: torch.minimum(half, own(elapsed))
    )
    known = model.shortest_time(past)
    passed = at - past.times.gather(1, last)[:, 0]
    shortest = (
        None if known is None else torch.maximum(known, passed / 16)
    )  # what an event did changes ever more slowly
    time = next_by_inversion(totals, at, stop, panel, random, longest=longest, shortest=shortest)
    hit = torch.isfinite(time)
    time = torch.where(hit, time, torch.maximum(at, stop))
    return Round(
        hit,
        time,
        last_rates(model, past, time[:, None])[:, 0].to(at.dtype),
        torch.where(hit, 0.0, 2 * (stop - at)),
    )


def _round_with_places(
    model: PointProcess,
    past: History,
    at: Tensor,
    end: Tensor,
    width: Tensor,
    random: torch.Generator,
    method: str,
    tally: Tally,
    factor: Float[Tensor, " B"] | None = None,
) -> tuple[Round, Any, Float[Tensor, "B k"]]:
    """One window of every path, the history after it, and the event's place where there is one.

    Thinning draws a place x for every candidate, in a cell of the model's ``envelope`` in
    proportion to its bound: lambda(x) over the density of x is on average the rate in the box, and
    never above the mean of the envelope.
    """
    if method != "thinning":
        found, past = _round(model, past, at, end, width, random, method, tally, factor)
        place, intensities = _draw_places(model, past, found, random)
        return Round(found.hit, found.time, intensities, found.width), past, place
    moves = model.linear
    bounds = [torch.zeros(0)]
    looked = [(torch.zeros(0), torch.zeros(0))]

    def bound(a: Float[Tensor, " B"], b: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        bounds[0] = model.envelope(past, a, b)
        top = bounds[0].mean(1)
        return top if factor is None else top * factor

    def rates(times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
        nonlocal past
        if moves and times.shape[1] == 1:
            past = model.move(past, times[:, 0])
        places, over = _somewhere(model, bounds[0], times.shape[1], random)
        looked[0] = (times, places)
        rates = _rates_at(model, past, times, places) * over[..., None]
        return rates if factor is None else rates * factor[:, None, None]

    wanted = 1 if not tally.proposals else round(1 / max(tally.acceptance, 1 / 64))
    found = thin(rates, bound, at, end, width, random, candidates=wanted, tally=tally)
    which = (looked[0][0] == found.time[:, None]).to(torch.int64).argmax(1)
    return found, past, looked[0][1][torch.arange(len(which)), which]


def _draw_places(
    model: PointProcess, past: History, found: Round, random: torch.Generator
) -> tuple[Float[Tensor, "B k"], Float[Tensor, "B M"]]:
    """Places of events at known times, by rejection under the envelope at that time, and the
    intensities there.
    """
    envelope = model.envelope(past, found.time, found.time)
    place = _somewhere(model, envelope, 1, random)[0][:, 0]
    intensities = found.intensities.clone()
    top = envelope.mean(1)
    open_ = found.hit.clone()
    while bool(open_.any()):
        there, over = _somewhere(model, envelope, 1, random)
        own = _rates_at(model, past, found.time[:, None], there)[:, 0]
        taken = open_ & (
            torch.rand(len(top), dtype=top.dtype, generator=random) * top < own.sum(1) * over[:, 0]
        )
        place = torch.where(taken[:, None], there[:, 0], place)
        intensities = torch.where(taken[:, None], own, intensities)
        open_ = open_ & ~taken
    return place, intensities


def _somewhere(
    model: PointProcess, envelope: Float[Tensor, "B C"], count: int, random: torch.Generator
) -> tuple[Float[Tensor, "B Q k"], Float[Tensor, "B Q"]]:
    """Places in cells drawn in proportion to their bounds, and one over their density, in units of
    the volume.
    """
    box = box_of(model.marks, type(model).__name__)
    running = envelope.cumsum(1)
    side = round(envelope.shape[1] ** (1 / box.dimension))
    coin = torch.rand(len(running), count, dtype=torch.float64, generator=random) * running[:, -1:]
    cell = torch.searchsorted(running, coin, right=True).clamp(max=running.shape[1] - 1)
    over = envelope.mean(1, keepdim=True) / envelope.gather(1, cell)
    inside = torch.rand(*cell.shape, box.dimension, dtype=torch.float64, generator=random)
    for axis in reversed(range(box.dimension)):
        low = box.low[axis]
        high = box.high[axis]
        cells_from_low = cell % side + inside[..., axis]
        inside[..., axis] = low + (high - low) * cells_from_low / side
        cell = cell // side
    return inside, over


def _rates_at(
    model: PointProcess, past: History, times: Float[Tensor, "B Q"], places: Float[Tensor, "B Q k"]
) -> Float[Tensor, "B Q M"]:
    """The volume of the box times the intensities at places, seen from the last position."""
    logs = model.log_intensity_at(past, times[:, None], places[:, None], past.lengths[:, None])[
        :, 0
    ]
    box = box_of(model.marks, type(model).__name__)
    return box.volume * logs.exp().to(torch.float64)


def _group(history: History) -> int:
    """How many paths advance together: as many as keep the history's largest part in the
    processor's cache; on a CUDA device many more, since a round costs the launches of its kernels.
    """
    values = (getattr(history, field.name) for field in dataclasses.fields(history))
    largest = max(v[:1].numel() for v in values if isinstance(v, Tensor))
    numbers = NUMBERS if history.times.device.type == "cpu" else NUMBERS_CUDA
    return max(SMALLEST, numbers // max(1, largest))


def _method(model: PointProcess, method: str) -> str:
    if method not in METHODS:
        raise UserError(
            f"method to be one of {', '.join(METHODS)}", f"{method!r}", "Choose one of them."
        )
    certified = model.has_upper_bound
    if method == "thinning" and not certified:
        raise UserError(
            "a model with a bound for method='thinning'",
            type(model).__name__,
            "Use method='inversion' or 'auto'.",
        )
    if method == "auto":
        return "thinning" if certified and not model.has_inverse else "inversion"
    return method


def _opening(
    model: PointProcess, start: float, sequences: int, history: Sequence | Dataset | None
) -> Any:
    """The model's history at ``start``, one row per path."""
    if isinstance(history, Dataset) and len(history) not in (1, sequences):
        raise UserError(
            f"one history, or one for each of {sequences:,} paths",
            f"{len(history):,}",
            "Pass as many sequences as paths.",
        )
    space = model.marks
    if isinstance(history, Sequence):
        space = history.space
    elif history is not None:
        space = history.marks
    check_marks(model.marks, space)
    if isinstance(history, Dataset) and model.event_features is not None:
        model.event_features.check_names(history)
    if history is None:
        batch = Sequence(
            [],
            start=start,
            stop=start + 1,
            space=model.marks if model.marks.box is not None else None,
            context=None if model.effects is None else model.effects.spec.training_clock(1),
        ).batch()
    else:
        batch = history.batch()
        late = batch.valid & ~known_at(batch.times, start)
        if bool((batch.start > start).any()) or bool(late.any()):
            when = float(batch.times[late].max()) if bool(late.any()) else float(batch.start.max())
            expected = f"a history up to the start at {start:g}"
            remedy = "Cut it with sequence.until(start)."
            raise UserError(expected, f"an event or a window at {when:g}", remedy)
    past = remember(model, batch)
    if len(batch.start) == sequences:
        return past
    return select_rows(past, torch.zeros(sequences, dtype=torch.int64))


def _dataset(
    found: list[Drawn], start: Tensor, stop: Tensor, capped: Tensor, model: PointProcess
) -> Dataset:
    rows = torch.cat([event.rows for event in found]).cpu().numpy()
    times = torch.cat([event.times for event in found]).cpu().numpy()
    kinds = torch.cat([event.marks for event in found]).cpu().numpy()
    where = [event.places for event in found if event.places is not None]
    order = np.argsort(rows, kind="stable")
    lengths = np.bincount(rows, minlength=len(start))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ends = stop.cpu().numpy().copy()
    if len(capped):
        cut = capped.numpy()
        last = times[order][offsets[cut + 1] - 1]
        ends[cut] = np.nextafter(last, np.inf)
    places = torch.cat(where).cpu().numpy()[order] if where else None
    features = None
    names: tuple[str, ...] = ()
    if model.event_features is not None:
        names = model.event_features.spec.names
        known = [event.features for event in found if event.features is not None]
        features = np.zeros((0, len(names)))
        if known:
            features = torch.cat(known).cpu().numpy()[order]
    return Dataset(
        times[order],
        kinds[order],
        offsets,
        start.cpu().numpy().copy(),
        ends,
        model.marks,
        places=places,
        features=features,
        feature_names=names,
    )
