"""The contract of a point process: two abstract methods, and defaults for everything else.

A history is what a model remembers of B sequences. It has *positions*: position 0 is the start of
the window, before any event, and position p is the moment just after event p. ``encode`` returns
all positions of a batch at once, which is what a likelihood needs; ``extend`` adds one event and
may return the last position only, which is what streams and samplers need. Queries are made in
groups: all Q times of a group are seen from one position, so that "strictly before" is decided
once, by position, and tied events cannot see themselves.

    encode(batch) -> History      log_intensity(history, t, position) -> (B, G, Q, M)

Library code calls the methods of :class:`PointProcess` and nothing else. A model overrides a
default where it has something better: a closed form, a bound, a compiled loss. Capabilities that
have to be known before a history exists are class attributes or properties (``linear``,
``has_closed_integral``, ``has_upper_bound``, ``has_inverse``, ``fits_in_closed_form``); a method
that returns an optional result returns None if it is unsupported.

Axes: B sequences, N events, P positions, G groups, Q query times in a group, M marks. Times are
float64 in the user's unit, and intensities are events per unit of time and per mark.

How a model shows itself in a shell and in a notebook: its name, its marks, and its settings or
fitted parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, BatchContext, BatchSteps, Box, Dataset, MarkSpace, UserError
from fourpoint.kernels.path_terms import CountLaw, Wanted
from fourpoint.models.effects import Effects, EffectsSpec, RateRatio
from fourpoint.models.event_features import EventFeatures, features_of
from fourpoint.ops.quadrature import MOST
from fourpoint.report.printing import as_html

if TYPE_CHECKING:
    from fourpoint.models.calibration import Calibration
    from fourpoint.models.spatial.cells import Cells
    from fourpoint.storage.trained_on import TrainedOn

LARGEST = 12  # numbers of a table that are written out


class Described(ABC):
    """Gives a model ``repr`` in one line, and the same, escaped, as HTML.

    >>> from fourpoint.models.poisson import Poisson
    >>> Poisson(2)
    Poisson(2 types, rate=[1, 1])
    """

    marks: MarkSpace

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``, as JSON can hold them; enough to build the
        model again.
        """
        return {}

    def shown(self) -> Mapping[str, Any]:
        """What is written between the brackets: the settings, unless a model has something that
        says more.
        """
        return self.settings()

    def __repr__(self) -> str:
        parts = (f"{name}={_short(value)}" for name, value in self.shown().items())
        return f"{type(self).__name__}({', '.join([str(self.marks), *parts])})"

    def _repr_html_(self) -> str:
        return as_html(repr(self))


def _short(value: object) -> str:
    """A value in a few characters: numbers to four digits, large tables by their shape."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, np.ndarray | list | tuple):
        table = np.asarray(value)
        if table.dtype.kind not in "fiu":
            return str(value)
        if table.size == 1:
            return f"{table.item():.4g}"
        if table.size > LARGEST:
            return f"table of {' x '.join(map(str, table.shape))}"
        return _nested(table.tolist())
    return repr(value)


def _nested(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_nested, value))}]"
    return f"{value:.4g}"


PLACED = (
    "spatial-dapp",
    "spatial-hawkes",
    "poisson",
    "spline-poisson",
)  # models for events with places


H = TypeVar("H", bound="History")


@dataclass(frozen=True, eq=False)
class History:
    """What is remembered of B sequences at P positions. Times are float64 in the user's unit."""

    times: Float[Tensor, "B P"]  # when each position begins: the window's start, then each event
    start: Float[Tensor, " B"]  # when each window begins
    lengths: Int[Tensor, " B"]  # the last position that is real; later ones are padding
    context: BatchContext | None = field(default=None, kw_only=True)  # what the rate depends on

    def latest(self: H) -> H:
        """All that the next block of a long sequence needs: the last position, where the rest can
        be forgotten.
        """
        return self

    def at_positions(self: H, rows: Int[Tensor, " R"], positions: Int[Tensor, " R"]) -> H | None:
        """R positions of any rows, as a history of R rows with one position each; None where a
        position cannot be told from the others of its row.
        """
        return None

    def at_seen(
        self, seen: Int[Tensor, "B G"] | None, values: Float[Tensor, "B P *S"]
    ) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G *S"]]:
        """When the positions ``seen`` begin, and ``values`` of positions there; of all positions
        where None.
        """
        if seen is None:
            return self.times, values
        row = torch.arange(len(seen), device=seen.device)[:, None]
        return self.times[row, seen], values[row, seen]


class LogTimeRule(NamedTuple):
    """A rule in u = log(1 + d / scale), d being the time since the last event: its nodes per unit
    of u, and the longest gap that it is tried in, in the user's unit.
    """

    scale: float
    density: float
    longest: float


class ScoredGaps(NamedTuple):
    """What `PointProcess.scored_gaps` finds: log lambda at every event, and the integral over every
    gap with an upper estimate of its error, rounding included.
    """

    logs: Float[Tensor, "B N"]
    integral: Float[Tensor, "B G"]
    error: Float[Tensor, "B G"]


Gradients = list[tuple[nn.Parameter, NDArray[np.float64]]]


class PointProcess(Described, nn.Module, Generic[H]):
    """A point process: a rate per mark, given the past.

    A new model derives from this class and implements ``settings``, ``encode`` and
    ``log_intensity``; ``extend`` too if it is to be sampled from or to follow a stream.
    """

    marks: MarkSpace
    trained_on: TrainedOn | None = None
    calibration: Calibration | None = None  # of its prediction regions, by `calibrate`
    recipe: ClassVar[Mapping[str, Any] | None] = None  # settings of `fit` that suit this model
    first_guess: dict[str, Tensor] | None = None  # weights that training has to beat
    has_inverse: ClassVar[bool] = False  # `inverse` is implemented
    has_attention: ClassVar[bool] = False  # `attended` is implemented
    fits_in_closed_form: ClassVar[bool] = False  # `maximum_likelihood` is implemented
    # What past events show, in models in which none leads to another; "" in others.
    past_shows: ClassVar[str] = ""
    draws_places: bool = False  # `draw_places` is implemented
    draws_paths: str = ""  # how `draw_paths` draws, where it is implemented
    sums_over_marks: ClassVar[bool] = False  # total rates without forming the rate of every mark
    early_nodes: ClassVar[bool] = False  # nodes of the training loss lie closer soon after events
    scored_by_kernels: ClassVar[bool] = False  # compiled loops do most of an evaluation on a CPU
    one_thread: ClassVar[bool] = False  # gradients would depend on the number of threads
    dequantises_gaps: ClassVar[bool] = False  # it dequantises the ends of gaps by itself
    dequantise: bool = True  # whether it does so in training
    order: int | None = None  # nodes per axis of the rule for integrals over the box
    finest: int = 0  # the largest such order

    def __init__(self) -> None:
        super().__init__()
        self.effects: Effects | None = None  # of calendar and covariates
        self.rate_ratios: list[RateRatio] = []  # of holidays and covariates in the last fit
        self.event_features: EventFeatures | None = None  # which scale what events trigger
        self.feature_ratios: list[RateRatio] = []  # per unit of a feature, in the last fit

    # ------------------------------------------------------------------ abstract

    @abstractmethod
    def encode(self, batch: Batch, before: H | None = None) -> H:
        """All positions of a batch. ``before`` goes on from a history whose events came earlier
        (linear models).
        """

    @abstractmethod
    def log_intensity(
        self,
        history: H,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda at ``times``, group g from position ``seen[b, g]`` (position g if None)."""

    # ------------------------------------------------------------------ rates

    def extend(
        self,
        history: H,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> H:
        """One more event in each sequence, or only where ``active``.

        Models with ``event_features`` read ``features``; None: the mean factor of training events
        of the same mark.
        """
        raise UserError(
            "a model that events can be added to one by one",
            type(self).__name__,
            "Implement its method extend, or encode whole sequences.",
        )

    def intensity(self, history: H, times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
        """lambda at any ``times``, each given the events strictly before it."""
        position = position_before(history, times)
        return self.log_intensity(history, times[..., None], position)[:, :, 0].exp()

    def total_intensity(
        self,
        history: H,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q"]:
        """The sum over marks of lambda at ``times``."""
        return self.log_intensity(history, times, seen).exp().sum(-1)

    def log_total(
        self,
        history: H,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q"]:
        """The logarithm of :meth:`total_intensity`, for rates too small for their exponential."""
        return self.log_intensity(history, times, seen).logsumexp(-1)

    def log_rates_at_events(self, history: H, batch: Batch) -> Float[Tensor, "B N"]:
        """log lambda at every event, of its own mark (and place), given the events before it."""
        if batch.places is not None:
            logs = self.log_intensity_at(history, batch.times[..., None], batch.places[:, :, None])
        else:
            rows, events = batch.times.shape
            position = torch.arange(events, device=batch.times.device).expand(rows, events)
            logs = self.log_intensity(history, batch.times[..., None], position)
        return own_mark(logs[:, :, 0], batch.marks)

    def gap_terms(
        self,
        history: H,
        batch: Batch,
        ends: Float[Tensor, "B G"],
        nodes: Float[Tensor, "B G Q"],
        weights: Float[Tensor, "*B Q"] | None,
    ) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B G"]]:
        """log lambda at every event, which is at the end of its gap, and the integral over every
        gap: closed, or from the rates at ``nodes``, of equal weight if ``weights`` is None.
        """
        left = batch.edges[:, :-1]
        if self.has_closed_integral:
            integral = self.closed_integral(history, left, ends).sum(2)
            if batch.places is None:
                logs = self.log_intensity(history, ends[..., None])
                return own_mark(logs[:, :-1, 0], batch.marks), integral
            return self.log_rates_at_events(history, replace(batch, times=ends[:, :-1])), integral
        if batch.places is not None:
            rates = self.total_intensity(history, nodes)
            moved = replace(batch, times=ends[:, :-1])
            mean = weighted_mean(rates, weights)
            return self.log_rates_at_events(history, moved), mean * (ends - left).to(mean)
        mean, logs = self.rates_in_gaps(history, nodes, ends, weights)
        return own_mark(logs[:, :-1], batch.marks), mean * (ends - left).to(mean)

    def rates_in_gaps(
        self,
        history: H,
        nodes: Float[Tensor, "B G Q"],
        ends: Float[Tensor, "B G"],
        weights: Float[Tensor, "*B Q"] | None,
    ) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G M"]]:
        """The mean total rate at each gap's ``nodes``, and log lambda per mark at its end."""
        logs = self.log_intensity(history, torch.cat([nodes, ends[..., None]], 2))
        totals = logs[:, :, :-1].exp().sum(-1)
        return weighted_mean(totals, weights), logs[:, :, -1]

    def scored_gaps(self, batch: Batch, tolerance: float) -> ScoredGaps | None:
        """Both terms of the log-likelihood from one compiled kernel, the discretisation errors of
        all integrals summing to at most ``tolerance``; None if unsupported.
        """
        return None

    # ------------------------------------------------------------------ calendar and covariates

    @property
    def effect_curves(self) -> int:
        """How many curves of time calendar and covariates act on; 0 if unsupported."""
        return 0

    def add_effects(self, spec: EffectsSpec) -> None:
        """Let the rate depend on the calendar and on covariates (`models.effects`), with weights of
        0 at first.
        """
        if not self.effect_curves:
            raise UserError(
                "a model that takes calendar and covariates: poisson, spline-poisson, frailty, "
                "markov-modulated, hawkes, modulated-hawkes, dapp, odapp, deep-dapp, "
                "spatial-hawkes or spatial-dapp",
                type(self).__name__,
                "Choose one of these, or leave out the calendar and the covariates.",
            )
        kind = next(x.dtype for x in self.parameters() if x.is_floating_point())
        self.effects = None
        if not spec.empty:
            self.effects = Effects(spec, self.effect_curves, kind)

    def known_context(self, batch: Batch, before: H | None = None) -> BatchContext | None:
        """What a history has to remember of the sequences' context: nothing without effects."""
        if self.effects is None:
            return None
        return batch.context if before is None else before.context

    # ------------------------------------------------------------------ event features

    @property
    def takes_event_features(self) -> bool:
        """Whether features of events scale what they trigger."""
        return False

    def add_event_features(self, data: Dataset) -> None:
        """Let the features of ``data`` scale what an event triggers (`models.event_features`), with
        weights of 0 at first.
        """
        if not self.takes_event_features:
            raise UserError(
                "a model in which event features scale what an event triggers: hawkes or dapp",
                f"{type(self).__name__} and events with features",
                "Fit one of these, or read the log without them (--event-features none).",
            )
        self.event_features = features_of(data)

    def event_factors(self, batch: Batch) -> Float[Tensor, "B N"] | None:
        """What the features of every event multiply its offspring by; None without features."""
        if self.event_features is None:
            return None
        if batch.features is None:
            if bool(batch.valid.any()):
                raise self.event_features.missing("events without them")
            return torch.ones_like(batch.times)
        self.event_features.check_width(batch.features.shape[-1])
        mean = batch.features.new_tensor(self.event_features.spec.mean)
        padded = torch.where(batch.valid[..., None], batch.features, mean)
        return self.event_features.factor(padded)

    # ------------------------------------------------------------------ integrals

    @property
    def has_closed_integral(self) -> bool:
        """Whether :meth:`closed_integral` is implemented."""
        return False

    def closed_integral(
        self,
        history: H,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """int_a^b lambda per mark in closed form, for models with ``has_closed_integral``."""
        raise NotImplementedError(f"{type(self).__name__} has no integral in closed form")

    def knots(self, history: H) -> Float[Tensor, "B J"] | None:
        """Times at which the rate is not smooth, where integrals are cut; None for none."""
        return None

    def cuts(self, history: H) -> Float[Tensor, "B E"] | None:
        """Times between which the rate may have narrow peaks, where integrals are cut."""
        return self.knots(history)

    def jumps(
        self, history: H, low: Float[Tensor, " B"], high: Float[Tensor, " B"]
    ) -> Float[Tensor, "B J"] | None:
        """Times between ``low`` and ``high`` at which the calendar or covariates make the rate jump
        or bend; None for none. Rows with fewer may have infinite ones.
        """
        if self.effects is None:
            return None
        return self.effects.cuts(low, high, history.context)

    def cut_lags(self, device: torch.device) -> Float[Tensor, " E"]:
        """The same as times since the last event, for integrals over a single gap."""
        return torch.zeros(0, dtype=torch.float64, device=device)

    def log_time_rule(self) -> LogTimeRule | None:
        """A rule in the logarithm of the time since the last event that settles most gaps at once;
        None if there is none.
        """
        return None

    @property
    def numbers_per_time(self) -> int:
        """How many numbers are held for each time at which the total rate is asked for."""
        return self.marks.count

    @property
    def first_nodes(self) -> int:
        """Nodes of each piece of an integral to begin with."""
        return 2

    @property
    def most_nodes(self) -> int:
        """Nodes of a piece before it is cut."""
        return MOST

    def shortest_time(self, history: H) -> Float[Tensor, " B"] | None:
        """The shortest time in which the rate changes by much without events; None if unknown."""
        return None

    def longest_panel(self, elapsed: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """How much of the time after ``elapsed`` a rule of 16 nodes may cover at once."""
        return torch.full_like(elapsed, torch.inf)

    # ------------------------------------------------------------------ sampling

    @property
    def linear(self) -> bool:
        """Whether a history can be gone on from in constant memory."""
        return False

    @property
    def has_upper_bound(self) -> bool:
        """Whether :meth:`upper_bound` is implemented; sampling inverts the compensator if not."""
        return False

    def upper_bound(
        self, history: H, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """A bound of the total rate on [a, b] while nothing happens."""
        raise NotImplementedError(f"{type(self).__name__} has no bound of its rate")

    def inverse(
        self, history: H, a: Float[Tensor, " B"], mass: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """When the integral of the total rate from ``a`` reaches ``mass``."""
        raise NotImplementedError(f"{type(self).__name__} has no inverse compensator")

    def draw_counts(self, batch: Batch, wanted: Wanted) -> NDArray[np.int32] | None:
        """Events of every mark between the edges of ``wanted``, on each of its paths after the
        events of ``batch``, (B, W, M, paths), drawn exactly and without storing the paths; None if
        unsupported: `inference.sampling` draws paths then.

        The exposure of the batch is a factor of the rate.
        """
        return None

    def count_law(self, batch: Batch, edges: NDArray[np.float64]) -> CountLaw | None:
        """The law of the counts of every mark between ``edges`` (B, W + 1) after the events of
        ``batch``; None if it has no closed form, and then counts are drawn (:meth:`draw_counts`).
        """
        return None

    def draw_events(
        self, batch: Batch, wanted: Wanted, most: int | None
    ) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]] | None:
        """Events of each of the paths of ``wanted`` after the events of ``batch``, up to the last
        edge or the first ``most`` of them: their times since the first edge and their marks, path
        by path, and the number of each path, (B, paths); None if unsupported, as in
        :meth:`draw_counts`.
        """
        return None

    def move(self, history: H, time: Float[Tensor, " B"]) -> H:
        """The history at ``time`` with no event until then; the same one if nothing is saved."""
        return history

    def keeping(self, keep: int) -> PointProcess[H]:
        """The same model, remembering at most ``keep`` events per attention head."""
        raise UserError(
            "a DAPP to bound the memory of",
            type(self).__name__,
            "Leave keep out: this model has no attention.",
        )

    # ------------------------------------------------------------------ explanation

    def without(
        self,
        history: H,
        times: Float[Tensor, "B Q"],
        seen: Int[Tensor, "B Q"] | None = None,
    ) -> Float[Tensor, "B Q N M"] | None:
        """The rates if each past event in turn had not happened; None if unsupported."""
        return None

    def mode_effects(self, history: H, time: float) -> list[dict[str, Any]]:
        """What each mode of a deep model adds to the rate."""
        return []

    def attended(
        self, history: H, time: Float[Tensor, " B"], mark: Int[Tensor, " B"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Times, marks and weights of past events per head, for models with ``has_attention``."""
        raise NotImplementedError(f"{type(self).__name__} has no attention")

    # ------------------------------------------------------------------ uncertainty

    @property
    def laplace_parameters(self) -> tuple[str, ...]:
        """Names of the parameters near the output, whose uncertainty a Laplace approximation
        computes (`training.uncertainty`); none if unsupported.
        """
        return ()

    # ------------------------------------------------------------------ training

    def initialise(self, data: Dataset) -> list[str]:
        """Take time scale, base rates and choices left to the data from ``data``; one line for
        each choice.
        """
        return []

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit without gradient steps, for models with ``fits_in_closed_form``."""
        raise NotImplementedError(f"{type(self).__name__} is fitted by gradient steps")

    def keep_best(self, dev: Dataset) -> list[str]:
        """After :meth:`maximum_likelihood`: of the models that it went through, keep the one with
        the highest log-likelihood on ``dev``; one line for each choice.
        """
        return []

    def training_log_likelihood(
        self, batch: Batch, nodes: int, random: torch.Generator, convention: str
    ) -> Float[Tensor, " B"] | None:
        """An exact or compiled log-likelihood with gradient; None: `inference.likelihood` samples
        nodes.
        """
        return None

    def gradients(
        self,
        batch: Batch,
        nodes: int,
        random: torch.Generator,
        convention: str,
        share: float,
        unit: int = 8,
    ) -> tuple[float, Gradients] | None:
        """The summed log-likelihood, and the gradients of ``share`` times it, from one compiled
        kernel; None if unsupported. Gradients of ``unit`` consecutive sequences are summed in
        float32, and those sums in float64.
        """
        return None

    def redraw(self, random: torch.Generator) -> None:
        """Draw what is random in a training step."""

    def draw_training_features(self) -> None:
        """Use few features in the validations of a training run; :meth:`fix_features` ends that."""

    def fix_features(self, features: int | None = None) -> list[str]:
        """Choose the features of evaluation at the end of training; one line for each choice."""
        return []

    def embedded(self, closed_form: PointProcess) -> dict[str, Tensor] | None:
        """Weights with which this model is nearly the given closed-form model; None if there are
        none.
        """
        return None

    def gap_resolution(self) -> float:
        """The timestamp resolution within which the ends of gaps are dequantised now; 0 for
        none.
        """
        return 0.0

    @property
    def rounded_products(self) -> bool:
        """Whether training on a CUDA device may round the factors of matrix products."""
        return False

    # ------------------------------------------------------------------ events with places

    def log_intensity_at(
        self,
        history: H,
        times: Float[Tensor, "B G Q"],
        places: Float[Tensor, "B G Q k"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda_m(t, x), per unit of time and volume, for models whose mark space has a box;
        :meth:`log_intensity` is then the rate of each type in the whole box.
        """
        raise NotImplementedError(f"{type(self).__name__} has no places")

    def draw_places(
        self,
        history: H,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        random: torch.Generator,
    ) -> Float[Tensor, "B k"]:
        """Places of events of known time and type, for models with ``draws_places``."""
        raise NotImplementedError(f"{type(self).__name__} does not draw places")

    def draw_paths(
        self,
        history: H,
        start: Float[Tensor, " B"],
        stop: Float[Tensor, " B"],
        random: torch.Generator,
        limit: int,
    ) -> Any:
        """Whole paths at once, not in the order of time, for models with ``draws_paths``: as
        clusters of immigrants and offspring, say. None where a path has more than ``limit`` events.
        """
        return None

    def envelope(
        self, history: H, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> Float[Tensor, "B C"]:
        """The volume times a bound of lambda in each of C equal cells; its mean is a bound of the
        rate.
        """
        raise NotImplementedError(f"{type(self).__name__} has no bound in space")

    def expected_in_cells(
        self, history: H, paths: Dataset | None, a: float, b: float, cells: Cells
    ) -> Float[Tensor, "C M"] | None:
        """The mean rate in each cell of a map over [a, b], in closed form; None if unsupported."""
        return None

    def in_cells(
        self, history: H, times: Float[Tensor, "B T"], seen: Int[Tensor, "B T"], cells: Cells
    ) -> Float[Tensor, "C M"] | None:
        """The mean over rows and times of the rate in each cell; None if unsupported."""
        return None

    def with_order(self, order: int) -> PointProcess[H]:
        """The same model with another order of the rule for integrals over the box."""
        raise NotImplementedError(f"{type(self).__name__} has no rule for integrals over a box")


def own_mark(logs: Float[Tensor, "B N M"], marks: Int[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """The entry of each event's own mark."""
    return logs.gather(2, marks[..., None])[..., 0]


def weighted_mean(
    rates: Float[Tensor, "B G Q"], weights: Float[Tensor, "*B Q"] | None
) -> Float[Tensor, "B G"]:
    """The mean over nodes, of equal weight if ``weights`` is None."""
    if weights is None:
        return rates.mean(-1)
    return (rates * weights.to(rates)).sum(-1)


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
    model: PointProcess, history: History, start: Float[Tensor, " B"]
) -> Callable[[Tensor], Tensor]:
    """How much time a rule of 16 nodes may cover at once, as a function of the time since
    ``start``.
    """
    passed = start - history.times.gather(1, history.lengths[:, None])[:, 0]
    return lambda elapsed: model.longest_panel(passed + elapsed)


def pieces(
    model: PointProcess,
    history: History,
    edges: Float[Tensor, "B E"],
    weight: BatchSteps | None = None,
) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B H"], dict[str, Any]]:
    """Left and right ends of the pieces in which integrals between ``edges`` are found, and
    :func:`rule`.

    Edges are cut at the model's ``cuts``: where its rate is not smooth, or may have peaks between;
    and at the steps of the ``weight`` that the rate has. Pieces of weight 0 are left out.
    """
    own = edges
    cuts = model.cuts(history)
    jumps = model.jumps(history, edges[:, 0], edges[:, -1])
    if jumps is not None:
        cuts = jumps if cuts is None else torch.cat([cuts, jumps], 1)
    if weight is not None:
        steps = weight.times.to(edges)
        cuts = steps if cuts is None else torch.cat([cuts, steps], 1)
    if cuts is not None:
        inside = cuts.clamp(edges[:, :1], edges[:, -1:])
        edges = torch.cat([edges, inside], 1).sort(1).values
    left = edges[:, :-1].contiguous()
    right = edges[:, 1:].contiguous()
    if weight is not None:
        right = torch.where(weight.at(left)[..., 0] > 0, right, left)
    if cuts is not None:  # most pieces of many cuts are empty
        order = filled(left, right)
        left = left.gather(1, order)
        right = right.gather(1, order)
    how = rule(model, history)
    if (
        cuts is not None and how["shortest"] is not None
    ):  # events raise the rate at edges, not at cuts
        before = own.gather(1, torch.searchsorted(own.contiguous(), left, right=True) - 1)
        how["shortest"] = torch.where(left == before, how["shortest"], torch.inf)
    return left, right, how


def rule(model: PointProcess, history: History) -> dict[str, Any]:
    """Arguments of `quadrature.integrate` for this model's rate: ``first`` nodes, ``most`` before
    it cuts an interval, and the ``shortest`` time in which the rate changes by much.
    """
    shortest = model.shortest_time(history)
    return {
        "first": model.first_nodes,
        "most": model.most_nodes,
        "shortest": None if shortest is None else shortest[:, None],
    }


def filled(left: Float[Tensor, "B H"], right: Float[Tensor, "B H"]) -> Int[Tensor, "B F"]:
    """Which of the pieces [left, right] are not empty; rows with fewer of them have empty ones
    behind.
    """
    full = right > left
    return full.to(torch.int8).argsort(dim=1, descending=True, stable=True)[
        :, : max(1, int(full.sum(1).max()))
    ]


def exposed_pieces(
    block: Batch, exposure: BatchSteps
) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B H"], Int[Tensor, "B H"]]:
    """Left and right ends of the pieces of the window between events and steps of the exposure, and
    the positions they are seen from; pieces without exposure are left out.
    """
    edges = block.edges
    cuts = exposure.times.clamp(edges[:, :1], edges[:, -1:])
    all_edges = torch.cat([edges, cuts], 1).sort(1).values
    left = all_edges[:, :-1].contiguous()
    right = all_edges[:, 1:].contiguous()
    right = torch.where(exposure.at(left)[..., 0] > 0, right, left)
    order = filled(left, right)
    left = left.gather(1, order)
    right = right.gather(1, order)
    return left, right, seen_from(block, left)


def seen_from(block: Batch, left: Float[Tensor, "B H"]) -> Int[Tensor, "B H"]:
    """The positions from which pieces that begin at ``left`` are seen."""
    found = torch.searchsorted(block.times.contiguous(), left.contiguous(), right=True)
    return torch.minimum(found, block.lengths[:, None])


def log_exposure(block: Batch) -> Float[Tensor, "B N"]:
    """log e at every scored event, and 0 elsewhere."""
    exposure = None if block.context is None else block.context.exposure
    if exposure is None:
        return torch.zeros_like(block.times)
    there = torch.where(block.scored, exposure.at(block.times)[..., 0], 1.0)
    return there.log()


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
        in_time = model.removeprefix("spatial-")
        remedy = "Read the events with place=."
        if in_time != model:
            remedy = f"Read the events with place=, or use {in_time}."
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


def which_happened(
    mark: Int[Tensor, " B"], active: Bool[Tensor, " B"] | None
) -> Bool[Tensor, " B"]:
    """The rows in which `extend` adds an event: all where ``active`` is None."""
    if active is None:
        return torch.ones_like(mark, dtype=torch.bool)
    return active


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
