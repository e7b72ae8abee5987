"""The verbs every model answers, and nothing else: encode, extend, log_intensity, intensity.

A history is what a model remembers of B sequences. It has *positions*: position 0 is the window's
start, before any event, and position p is the moment just after event p. ``encode`` returns all
positions of a batch at once, which is what a likelihood needs; ``extend`` returns the last one only
where a model can forget the rest, which is what a stream and a sampler need. Queries are asked in
groups: all Q times of a group are seen from one position, so that "strictly before" is decided
once, by position, and tied events cannot see themselves.

    encode(batch) -> History      extend(history, time, mark) -> History      intensity(history, t) -> (B, Q, M)

Optional verbs, each used where a model has it:

    integral(history, a, b, seen)   int_a^b lambda per mark in closed form      bound(history, a, b)      a rate that certainly dominates
    inverse(history, a, mass)       when the integral from a reaches ``mass``   move(history, time)       no event until ``time``
    knots(history)                  times at which the rate is not smooth       without(history, t, seen) rates less one past event each
    log_total(history, t, seen)     log of the rate of all marks together       (these two for models with many marks)
    log_own(history, t, marks)      log lambda of each event's own mark
    in_gaps(history, t, b, weights) each gap's mean rate, and log rates at b    fast_log_likelihood(...)  for training, or None
    slopes(batch, nodes, ...)       the same and its gradient, without torch's  redraw(random)            what is random in a step
    maximum_likelihood(data)        a fit without gradient steps                recipe                    settings of `fit` that suit it
    spreading()                     the tick inside which the ends of gaps are moved about while training, 0 for none; where a model has
                                    this, `fit` leaves its past as it is
    cuts(history), first_nodes, most_nodes    where integrals are cut, and nodes of a rule to begin and to end with, for narrow peaks
    shortest_time(history)          the shortest time in which a sequence's rate changes by much while nothing happens, (B,)
    longest_panel(elapsed)          how much of the time after that a rule of 16 nodes may see at once, for the same reason

A model whose mark space has a box keeps places x too: ``extend(..., place)`` takes one,
log_intensity is the rate of each type in the whole box, and

    log_intensity_at(history, t, x)   log lambda_m(t, x), per unit of time and of volume
    draw_places(history, t, m)        where events of known time and type are; or, where that cannot be drawn,
    envelope(history, a, b)           the volume times a bound of lambda in each of C equal cells, (B, C); ``bound`` is its mean
    with_order(n), order              the rule for integrals over the box, where they are not closed

Axes: B sequences, N events, P positions, G groups, Q query times in a group, M marks. Times are
float64 in the user's
unit, and so are intensities: events per unit of time and per mark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fourpoint.events import Batch, Box, Dataset, MarkSpace, UserError
from fourpoint.ops.quadrature import MOST

PLACED = (
    "dapp-places",
    "hawkes-places",
    "poisson",
    "spline-poisson",
)  # models for events with places


@runtime_checkable
class History(Protocol):
    """What is remembered of B sequences at P positions."""

    @property
    def times(self) -> Float[Tensor, "B P"]:
        """When each position begins: the window's start, then one time per event."""

    @property
    def start(self) -> Float[Tensor, " B"]:
        """When each window begins."""

    @property
    def lengths(self) -> Int[Tensor, " B"]:
        """The last position that is real; later ones are padding."""


H = TypeVar("H", bound=History)


@runtime_checkable
class Model(Protocol[H]):
    """A point process: a rate per mark, given the past."""

    marks: MarkSpace

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``, as JSON can hold them; enough to build the
        model again.
        """

    def initialise(self, data: Dataset) -> list[str]:
        """Take time scale, base rates and choices left to the data from ``data``; say each choice
        in a line.
        """

    def encode(self, batch: Batch, before: H | None = None) -> H:
        """All positions of a batch. ``before`` goes on from a history whose events came earlier
        (linear models).
        """

    def extend(
        self,
        history: H,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
    ) -> H:
        """One event more in each sequence, or only where ``active``."""

    def log_intensity(
        self, history: H, times: Float[Tensor, "B G Q"], seen: Int[Tensor, "B G"] | None = None
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda at ``times``, group g seen from position ``seen[b, g]`` (from position g where
        None).
        """

    def intensity(self, history: H, times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
        """lambda at ``times``, each from the events strictly before it."""


def intensity(model: Model[H], history: H, times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
    """exp(log_intensity) at any times, each seen from the events strictly before it: every model's
    ``intensity``.
    """
    return model.log_intensity(history, times[..., None], position_before(history, times))[
        :, :, 0
    ].exp()


def position_before(history: History, times: Float[Tensor, "B Q"]) -> Int[Tensor, "B Q"]:
    """The number of remembered events strictly before each time; the one place where query times
    meet "before".
    """
    first = history.times[:, :1]
    if bool((times < first).any()):
        b, q = (int(i) for i in torch.nonzero(times < first)[0])
        raise UserError(
            f"query times at or after {float(first[b, 0]):g}, the earliest that is remembered",
            f"{float(times[b, q]):g} (row {b}, query {q})",
            "Encode the whole sequence to look further back.",
        )
    count = torch.searchsorted(history.times[:, 1:].contiguous(), times.contiguous())
    return torch.minimum(count, history.lengths[:, None])


def longest_panel(
    model: Any, history: Any, start: Float[Tensor, " B"]
) -> Callable[[Tensor], Tensor] | None:
    """How long a stretch of time may be that a rule with 16 nodes sees at once, by the time since
    ``start``; None for any length.
    """
    if not hasattr(model, "longest_panel"):
        return None
    passed = start - history.times.gather(1, history.lengths[:, None])[:, 0]
    return lambda elapsed: model.longest_panel(passed + elapsed)


def shortest_time(model: Any, history: Any) -> Float[Tensor, " B"] | None:
    """The shortest time in which each sequence's rate changes by much while nothing happens; None
    if the model does not say.
    """
    return model.shortest_time(history) if hasattr(model, "shortest_time") else None


def pieces(
    model: Any, history: Any, edges: Float[Tensor, "B E"]
) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B H"], dict[str, Any]]:
    """Left and right ends of the pieces in which integrals between ``edges`` are found, and
    :func:`rule`.

    Edges are cut where the model says: at its ``knots``, where the rate is not smooth, or ``cuts``,
    between which it may have peaks.
    """
    own = edges
    verb = getattr(model, "knots", None) or getattr(model, "cuts", None)
    cuts = None if verb is None else verb(history)
    if cuts is not None:
        edges = (
            torch.cat([edges, torch.minimum(torch.maximum(cuts, edges[:, :1]), edges[:, -1:])], 1)
            .sort(1)
            .values
        )
    left, right = edges[:, :-1].contiguous(), edges[:, 1:].contiguous()
    if cuts is not None:  # most pieces of many cuts are empty
        order = filled(left, right)
        left, right = left.gather(1, order), right.gather(1, order)
    how = rule(model, history)
    if (
        cuts is not None and how["shortest"] is not None
    ):  # events raise the rate at edges, not at cuts
        before = own.gather(1, torch.searchsorted(own.contiguous(), left, right=True) - 1)
        how["shortest"] = torch.where(left == before, how["shortest"], torch.inf)
    return left, right, how


def rule(model: Any, history: Any) -> dict[str, Any]:
    """Arguments of `quadrature.integrate` for this model's rate: ``first`` nodes, ``most`` before
    it cuts an interval, and the ``shortest`` time in which the rate changes by much.
    """
    shortest = shortest_time(model, history)
    return dict(
        first=getattr(model, "first_nodes", 2),
        most=getattr(model, "most_nodes", MOST),
        shortest=None if shortest is None else shortest[:, None],
    )


def filled(left: Float[Tensor, "B H"], right: Float[Tensor, "B H"]) -> Int[Tensor, "B F"]:
    """Which of the pieces [left, right] are not empty; rows with fewer of them have empty ones
    behind.
    """
    full = right > left
    return full.to(torch.int8).argsort(dim=1, descending=True, stable=True)[
        :, : max(1, int(full.sum(1).max()))
    ]


def space_without_places(marks: MarkSpace | int | Sequence[str] | None, model: str) -> MarkSpace:
    """The mark space of a model that has no use for places; a box is refused."""
    space = MarkSpace.of(marks)
    if space.box is not None:
        remedy = f"Use {', '.join(PLACED[:-1])} or {PLACED[-1]}, or read the events without place=."
        raise UserError(f"events without places for {model}", f"{space}", remedy)
    return space


def box_of(marks: MarkSpace, model: str) -> Box:
    """The box of a model that needs one."""
    if marks.box is None:
        remedy = f"Read the events with place=, or use {model.removesuffix('-places')}."
        raise UserError(f"events with places for {model}", f"{marks}", remedy)
    return marks.box


P = TypeVar("P")


def placed(part: P | None) -> P:
    """What a model has only where its mark space has a box."""
    if part is None:
        raise UserError(
            "a model made for events with places",
            "one without a box",
            "Build it with marks=data.marks of such events.",
        )
    return part


def places_of(batch: Batch) -> Float[Tensor, "B N k"]:
    """The places of a batch, which must have them."""
    if batch.places is None:
        raise UserError(
            "events with places, as the model was made for",
            "events without",
            "Read them with place=.",
        )
    return batch.places


def place_or_nothing(
    place: Float[Tensor, "B k"] | None, happened: Bool[Tensor, " B"], dimension: int
) -> Float[Tensor, "B k"]:
    """The place of one event more in each row, 0 where none ``happened``."""
    if place is None:
        if bool(happened.any()):
            raise UserError(
                "a place for every event", "an event without one", "Pass place= with time and mark."
            )
        return torch.zeros(len(happened), dimension, dtype=torch.float64, device=happened.device)
    return torch.where(happened[:, None], place, 0.0)
