r"""A live stream of events: each is scored before it is absorbed, in constant memory where the
model allows it.

    observe(t, m)    log lambda_m(t) - int lambda    the event's term of the log-likelihood, given
                                                     the events before it
                     int lambda                      the rescaled gap since the last event, a unit
                                                     exponential under the true model
    advance(t)       nothing happened until t        silence is evidence: the integral grows, the
                                                     likelihood falls

The sum over a window is the log-likelihood of the window, for every model. A linear DAPP is stepped
by `models.dapp_step`, all others by the methods of `models.base` (`streaming.steppers`); both in
float64. Integrals have closed forms or are refined until they settle to 1e-6, absolute and
relative. Memory is constant for linear models and with ``keep``; softmax and other dense models
remember every event. `streaming.monitoring` watches the rescaled gaps.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.events import Context, MarkSpace, Sequence, UserError
from fourpoint.inference.sampling import eval_mode
from fourpoint.models.base import PointProcess
from fourpoint.models.following import LARGEST, Events, Numbers, Scored, Stop, not_finite
from fourpoint.ops.quadrature import Unconverged
from fourpoint.streaming.kept import ByActiveSets
from fourpoint.streaming.model_queries import stream_context
from fourpoint.streaming.monitoring import Alarm, Monitor
from fourpoint.streaming.state import (
    FAULTS,
    Arrays,
    check_arrays,
    damaged,
    fingerprint,
    is_finite,
    number,
    pack,
    unpack,
    whole,
)
from fourpoint.streaming.steppers import check_recorded_at, stepper
from fourpoint.streaming.watching import TypeWatch, families, type_watch

if TYPE_CHECKING:
    from fourpoint.inference.forecasting import Forecast
    from fourpoint.models.calibration import Calibration

Floats = NDArray[np.float64]
LONGEST_PAST = 10_000_000  # recent events that a stream may be told to remember


class Attended(NamedTuple):
    """A past event and its weight in a head."""

    time: float
    mark: int
    weight: float


@dataclass(frozen=True, slots=True)
class Observation:
    """What :meth:`Stream.observe` says of an event, all of it from the events before.

    ``log_density`` is what the event adds to the log-likelihood in the user's time unit, ``gap``
    the rescaled gap since the last event, ``rate`` the total intensity just before. ``attended``
    has, for each head, the most attended past events, the largest weight (in size) first; it is
    empty for models without heads.
    """

    time: float
    mark: int
    log_density: float
    gap: float
    rate: float
    attended: tuple[tuple[Attended, ...], ...]
    alarms: tuple[Alarm, ...]

    def to_dict(self, marks: MarkSpace) -> dict[str, Any]:
        """As JSON can hold it: marks by their names (None where there are none), and None for what
        is not finite.
        """
        numbers = {"log_density": self.log_density, "gap": self.gap, "rate": self.rate}
        heads = [
            [{"time": a.time, "mark": _name(marks, a.mark), "weight": a.weight} for a in head]
            for head in self.attended
        ]
        return {
            "time": self.time,
            "mark": _name(marks, self.mark),
            **{key: value if math.isfinite(value) else None for key, value in numbers.items()},
            "attended": heads,
            "alarms": [a.to_dict() for a in self.alarms],
        }


@dataclass(frozen=True)
class Observations:
    """Per event of a block, in the order given: what :class:`Observation` says of one. NaN where an
    event is ``refused``.
    """

    log_density: Floats
    gap: Floats
    rate: Floats
    alarms: list[tuple[Alarm, ...]]
    refused: dict[int, UserError]

    @staticmethod
    def joined(parts: list[Observations]) -> Observations:
        """Blocks one after the other as one block; there is at least one."""
        if len(parts) == 1:
            return parts[0]
        alarms: list[tuple[Alarm, ...]] = []
        refused: dict[int, UserError] = {}
        for part in parts:
            refused |= {len(alarms) + place: error for place, error in part.refused.items()}
            alarms += part.alarms
        return Observations(
            np.concatenate([part.log_density for part in parts]),
            np.concatenate([part.gap for part in parts]),
            np.concatenate([part.rate for part in parts]),
            alarms,
            refused,
        )


class Stream:
    """One stream of events, scored by a fitted model. The model must not be changed meanwhile.

    Args:
        model: any model; it is used in evaluation mode.
        start: the beginning of the observation, in the user's time unit, which is also the origin
            of the model's functions of time.
        keep: for DAPP, the number of events that each head remembers (ODAPP); None for all events.
        recent: the number of past events considered for ``attended``; a model with bounded memory
            uses its stored events.
        top: the number of events reported per head; 0 for none.
        alarms: largest number of false alarms per 1,000 events of the true model, on average and of
            all kinds; None: no monitoring. Half of it is for the stream (`streaming.monitoring`)
            and half for its types (`streaming.watching`), if it has several.
        context: additional data of one sequence: the covariates of the model, and an exposure,
            which multiplies the rate. Their last values are carried forward. A model with a
            calendar uses the origin of its training data unless ``origin`` is given.

    ``time`` is that of the last event or advance, ``count`` the events seen, ``log_likelihood`` the
    running total. A time before the last, one that is not finite, or an unknown mark is a
    :class:`UserError`, and changes nothing.

    >>> from fourpoint.models.hawkes import Hawkes
    >>> stream = Stream(Hawkes(baseline=1.0, branching=0.5, decay=2.0))
    >>> first = stream.observe(0.5)
    >>> first.gap, first.rate, first.log_density
    (0.5, 1.0, -0.5)
    >>> round(stream.observe(1.0).rate, 4)  # 1 + exp(-2 * .5)
    1.3679
    >>> stream.advance(2.0)
    ()
    >>> Stream.restore(
    ...     Hawkes(baseline=1.0, branching=0.5, decay=2.0), stream.state()
    ... ).log_likelihood == stream.log_likelihood
    True
    """

    def __init__(
        self,
        model: PointProcess,
        *,
        start: float = 0.0,
        keep: int | None = None,
        recent: int = 256,
        top: int = 3,
        alarms: float | None = 1e-3,
        context: Context | None = None,
    ) -> None:
        if recent < 1 or top < 0:
            raise UserError(
                "recent of at least 1 and top of at least 0",
                f"recent={recent}, top={top}",
                "Raise them.",
            )
        if max(recent, top) > LONGEST_PAST:
            raise UserError(
                f"recent and top of at most {LONGEST_PAST:,}",
                f"recent={recent}, top={top}",
                "Lower them.",
            )
        self.model = model
        self.keep = keep
        self.recent = recent
        self.top = top
        self.monitor: Monitor | None = None
        if alarms is not None:
            self.monitor = Monitor(alarms, 1 / families(model.marks.count, fleet=False))
        self._followed = model if keep is None else model.keeping(keep)
        self._names = {name: i for i, name in enumerate(model.marks.names)}
        with eval_mode(model):
            self.context = stream_context(model, context)
            self._stepper = stepper(self._followed, self.context)
        self.reset(start)

    def reset(self, start: float = 0.0) -> None:
        """Forget everything, and begin anew at ``start``."""
        start = finite(start)
        self._stepper.restart(start)
        features = self.model.event_features
        self._recent = Recent(
            self.recent,
            growing=not self._followed.linear,
            features=0 if features is None else len(features.spec.names),
        )
        self.start = start
        self.time = start
        self.count = 0
        self.log_likelihood = 0.0
        self._open = 0.0  # the integral since the last event
        self.calibration = self.model.calibration
        self._types: TypeWatch | None = None
        if self.monitor is not None:
            self.monitor.reset()
            self._types = type_watch(self.model.marks, self.monitor.level)

    def observe(
        self, time: float, mark: int | str | None = None, features: ArrayLike | None = None
    ) -> Observation:
        """Score an event at ``time``, then remember it.

        ``mark`` is a name or a number; None where the model has no marks. ``features`` are those of
        the event, in the order of training, where the model has event features. Events may share a
        time: each sees those before it by order. Raises :class:`UserError` for a time before the
        last, for an unknown mark, while the exposure is 0, and where the rate explodes.
        """
        when = self._later(time)
        kind = known_mark(self.model.marks, self._names, mark)
        row = None if features is None else np.atleast_2d(np.asarray(features))
        known = known_features(self.model, row, 1)
        if known is not None and not np.isfinite(known).all():
            raise unknown_feature(self.model, known[0])
        check_recorded_at(self._stepper, when)
        attended = self._attended(when, kind)
        events = Events(np.array([when]), np.array([kind]), known)
        found = Scored.empty(1, self._watched_types)
        stopped = self._follow(events, found)
        if stopped is not None:
            raise _refusal(stopped.error)
        density = float(found.density[0])
        gap = float(found.gap[0])
        rate = float(found.rate[0])
        self._recent.append(when, kind, rate, None if known is None else known[0])
        alarms = self._watched(events, found, {})[0]
        return Observation(when, kind, density, gap, rate, attended, alarms)

    def observe_many(
        self, times: ArrayLike, marks: ArrayLike | None = None, features: ArrayLike | None = None
    ) -> Observations:
        """Score events one after the other, as :meth:`observe` does, without ``attended``: many
        times faster.

        ``marks`` are numbers; None where the model has no marks. ``features`` (N, F) are those of
        the events where the model has event features. An event that :meth:`observe` would refuse
        changes nothing, and is among ``refused`` of what is returned; the events after it are
        scored.
        """
        when = np.ascontiguousarray(times, dtype=np.float64)
        kinds = np.zeros(len(when), dtype=np.int64)
        if marks is not None:
            kinds = np.ascontiguousarray(marks, dtype=np.int64)
        if when.shape != kinds.shape or when.ndim != 1:
            raise UserError(
                "one mark per time",
                f"shapes {when.shape} and {kinds.shape}",
                "Make the lengths equal.",
            )
        known = known_features(self.model, features, len(when))
        events = Events(when, kinds, known)
        found = Scored.empty(len(when), self._watched_types)
        refused: dict[int, UserError] = {}
        done = 0
        while done < len(when):
            done = self._observe_until_stopped(events, found, refused, done)
        accepted = [i for i in range(len(when)) if i not in refused] if refused else slice(None)
        kept = None if known is None else known[accepted]
        self._recent.extend(when[accepted], kinds[accepted], found.rate[accepted], kept)
        alarms = self._watched(events, found, refused)
        return Observations(found.density, found.gap, found.rate, alarms, refused)

    def _observe_until_stopped(
        self,
        events: Events,
        found: Scored,
        refused: dict[int, UserError],
        first: int,
    ) -> int:
        """Events from ``first`` on, up to the next one that cannot be scored; the place after it,
        or after the last.
        """
        when, kinds, features = events
        times = when[first:]
        marks = kinds[first:]
        is_finite_time = np.isfinite(times)
        known = np.where(is_finite_time, times, -np.inf)
        latest = np.maximum.accumulate(np.concatenate([[self.time], known]))[:-1]
        known_marks = (marks >= 0) & (marks < self.model.marks.count)
        sound = (times >= latest) & is_finite_time & known_marks
        if features is not None:
            sound &= np.isfinite(features[first:]).all(1)
        if not sound.all():
            place = int(sound.argmin())
            last = first + place
        else:
            place = -1
            last = len(when)
        some = slice(first, last)
        stopped = self._follow(events.part(some), Scored(*(values[some] for values in found)))
        if stopped is not None:
            refused[first + stopped.done] = _refusal(stopped.error)
            return first + stopped.done + 1
        if place < 0:
            return last
        try:
            self._later(float(when[last]))
            known_mark(self.model.marks, self._names, int(kinds[last]))
            if features is not None:
                raise unknown_feature(self.model, features[last])
        except UserError as error:
            refused[last] = error
        return last + 1

    def _follow(self, events: Events, into: Scored) -> Stop | None:
        """Score and absorb events; the stream's own numbers follow."""
        at = np.array([self.time])
        pending = np.array([self._open])
        numbers = Numbers(at, pending, np.array([self.log_likelihood]), np.array([self.count]))
        stopped = self._stepper.follow(numbers, events, into)
        self.time = float(at[0])
        self._open = float(pending[0])
        self.log_likelihood = float(numbers.likelihood[0])
        self.count = int(numbers.seen[0])
        return stopped

    @property
    def _watched_types(self) -> int:
        return 0 if self._types is None else len(self._types.names)

    def _watched(
        self, events: Events, found: Scored, refused: dict[int, UserError]
    ) -> list[tuple[Alarm, ...]]:
        """The alarms that each event raises."""
        self._adapt(found, refused)
        if self.monitor is None:
            return [()] * len(events.times)
        watch = self.monitor.gap
        times = events.times.tolist()
        gaps = found.gap.tolist()
        if not refused:
            alarms = [watch(gap, time) for gap, time in zip(gaps, times, strict=True)]
        else:
            alarms = [
                () if i in refused else watch(gap, time)
                for i, (gap, time) in enumerate(zip(gaps, times, strict=True))
            ]
        if self._types is not None:
            kept = np.array([i for i in range(len(times)) if i not in refused], dtype=np.int64)
            seen = self._types.observe(
                events.times[kept], events.marks[kept], found.shares[kept], found.gap[kept]
            )
            for place, raised in seen.items():
                alarms[kept[place]] += tuple(raised)
        return alarms

    def _adapt(self, found: Scored, refused: dict[int, UserError]) -> None:
        """Go on with adaptive levels of the model's calibration."""
        if self.calibration is None or self.calibration.method != "adaptive":
            return
        gaps = [gap for i, gap in enumerate(found.gap.tolist()) if i not in refused]
        self.calibration = self.calibration.after(gaps)

    def advance(self, time: float) -> tuple[Alarm, ...]:
        """No event until ``time``: the silence counts, and an alarm tells when it is too long to be
        believed.
        """
        when = self._later(time)
        integral = self._score(when)[1]
        self._stepper.move(when)
        self.time = when
        self._open += integral
        self.log_likelihood -= integral
        return () if self.monitor is None else self.monitor.silence(self._open, when)

    def intensity(self, time: float) -> Floats:
        """lambda per mark at ``time``, not before the last one, as if nothing more happened until
        then; (M,).
        """
        return np.asarray(np.exp(self._stepper.logs(self._later(time))))

    def forecast(self, horizon: float, paths: int = 1000, seed: int = 0) -> Forecast:
        """What the model expects from now until ``horizon`` later: as `forecasting.forecast`, from
        the stream's own memory.

        Its ``past`` holds the recent events only, with the rates that they met.
        """
        from fourpoint.inference.forecasting import forecast_from

        past = self._past()
        earlier = (past.times, self._recent.in_order(self._recent.rates))
        return forecast_from(
            self._stepper.model,
            self._stepper.history(),
            past,
            earlier,
            self.time,
            horizon,
            paths,
            seed,
            calibration=self.calibration,
        )

    def state(self) -> bytes:
        """All of the stream as bytes; :meth:`restore` goes on from them as if nothing had been
        between.
        """
        numbers = ("start", "time", "count", "log_likelihood", "keep", "recent", "top")
        header: dict[str, Any] = {name: getattr(self, name) for name in numbers} | {
            "open": self._open
        }
        arrays = {**self._stepper.arrays(), **self._recent.arrays()}
        if self.monitor is not None:
            header["monitor"], arrays["monitor"] = self.monitor.state()
        if self._types is not None:
            arrays["types"] = self._types.state()
        if self.calibration is not None and self.calibration.method == "adaptive":
            header["calibration"] = self.calibration.stream_levels()
        return pack("stream", fingerprint(self.model), header, arrays)

    @staticmethod
    def restore(model: PointProcess, state: bytes, *, context: Context | None = None) -> Stream:
        """The stream whose :meth:`state` this is; ``context`` is given anew, since tables of
        covariates and exposure grow. Raises :class:`UserError` for other bytes and for those of
        another model.
        """
        header, arrays = unpack("stream", fingerprint(model), state)
        stream = Stream(model, alarms=None, context=context, **_settings(header, arrays))
        stream.load(header, arrays)
        if stream.state() != bytes(state):
            raise damaged(
                "what a stream remembers and no more", "other entries or numbers that do not agree"
            )
        return stream

    def load(self, header: dict[str, Any], arrays: Arrays) -> None:
        """Go on with the content of a :meth:`state`; raises :class:`UserError` where it cannot be
        right.
        """
        self.time = number(header, "time", least=self.start)
        self.count = whole(header, "count")
        self._open = number(header, "open", least=0.0)
        total = header.get("log_likelihood")
        if not isinstance(total, float) or math.isnan(total):
            raise damaged("a number 'log_likelihood'", f"{total!r}"[:80])
        self.log_likelihood = total
        self._load(arrays)
        if "calibration" in header:
            self.calibration = self._restored_calibration(header["calibration"])
        if "monitor" in header:
            self.monitor = restored_monitor(header["monitor"], arrays.get("monitor"))
            self._types = type_watch(self.model.marks, self.monitor.level)
        if self._types is not None:
            try:
                self._types.load(arrays["types"])
            except FAULTS as error:
                raise damaged("the watch over types", f"another ({type(error).__name__})") from None

    def _restored_calibration(self, found: object) -> Calibration:
        """The model's calibration with the levels of a state."""
        if self.model.calibration is None:
            raise damaged("a state of a model without calibration", "levels of a calibration")
        try:
            return self.model.calibration.with_stream_levels(found)
        except FAULTS as error:
            raise damaged("levels of a calibration", f"others ({type(error).__name__})") from None

    def _load(self, arrays: Arrays) -> None:
        """Remember the arrays of a state, each of which is checked."""
        own = {
            name: array
            for name, array in arrays.items()
            if not name.startswith("recent.") and name not in ("monitor", "types")
        }
        fixed = bool(self._followed.linear) or isinstance(self._stepper, ByActiveSets)
        check_arrays(own, self._stepper.arrays(), fixed=fixed, marks=self.model.marks.count)
        several = [
            name for name, array in own.items() if name.startswith("history.") and len(array) != 1
        ]
        if several:
            raise damaged(f"one row of {several[0]!r}", f"{len(own[several[0]]):,} rows")
        for name, expected in (("at", self.time), ("start", self.start)):
            if name in own and float(own[name]) != expected:
                raise damaged(f"{name!r} at {expected!r}", f"{float(own[name])!r}")
        recent = {name: array for name, array in arrays.items() if name.startswith("recent.")}
        check_arrays(recent, self._recent.arrays(), fixed=False, marks=self.model.marks.count)
        lengths = {len(array) for array in recent.values()}
        if lengths != {self.count if self._recent.growing else min(self.count, self.recent)}:
            raise damaged(f"the last of {self.count:,} events", f"{sorted(lengths)} of them")
        try:
            self._stepper.load(own)
            # A memory that cannot be asked is damaged, whatever its shapes are.
            self._stepper.score(self.time)
            self._stepper.load(own)
        except (Unconverged, *FAULTS) as error:
            raise damaged("a memory of this model", f"another ({type(error).__name__})") from None
        self._recent.load(recent)

    def _later(self, time: float) -> float:
        when = finite(time)
        if when < self.time:
            raise UserError(
                f"a time of at least {self.time!r}, the last one",
                f"{when!r}",
                "Sort the events, or start again with reset().",
            )
        return when

    def _score(self, time: float) -> tuple[list[float], float]:
        try:
            found, integral = self._stepper.score(time)
        except Unconverged as error:
            raise _refusal(error) from error
        logs: list[float] = found.tolist()
        if not all(x < LARGEST for x in logs) or not math.isfinite(integral):
            raise not_finite(logs, integral, time)
        return logs, integral

    def _attended(self, time: float, mark: int) -> tuple[tuple[Attended, ...], ...]:
        """Per head, the past events of the largest weights."""
        if not self.top:
            return ()
        found = self._stepper.weights(time, mark, self._recent.times, self._recent.marks, self.top)
        if found is None:
            return ()
        heads = zip(*(x.tolist() for x in found), strict=True)
        return tuple(
            [tuple([one for one in map(Attended, *head) if one.time == one.time]) for head in heads]
        )

    def _past(self) -> Sequence:
        """The recent events as a sequence that ends now."""
        times = self._recent.in_order(self._recent.times)
        begin = float(times[0]) if len(times) < self.count else self.start
        marks = self._recent.in_order(self._recent.marks)
        # A window holds no event at its end; it is cut below.
        after = math.nextafter(self.time + 1.0, math.inf)
        features = self._recent.features
        known = Sequence(
            times,
            marks,
            start=begin,
            stop=after,
            space=self.model.marks,
            features=None if features is None else self._recent.in_order(features),
            context=self.context,
        )
        return known.until(self.time)


class Recent:
    """The last ``size`` events, in the order in which their slots were filled: constant memory. A
    ``growing`` one keeps all.
    """

    def __init__(self, size: int, *, growing: bool = False, features: int = 0) -> None:
        self.size = size
        self.growing = growing
        self.seen = 0
        self._kept: tuple[NDArray[Any], ...] = (
            np.zeros(size),
            np.zeros(size, dtype=np.int64),
            np.zeros(size),
        )
        if features:
            self._kept += (np.zeros((size, features)),)
        self._narrow()

    def append(self, time: float, mark: int, rate: float, features: Floats | None = None) -> None:
        """Remember an event, in place of the oldest where all slots are taken."""
        if self.growing and self.seen == self.size:
            self._double()
        slot = self.seen % self.size
        event = (time, mark, rate) if features is None else (time, mark, rate, features)
        for values, value in zip(self._kept, event, strict=True):
            values[slot] = value
        self.seen += 1
        if self.seen <= self.size:
            self._narrow()

    def extend(
        self,
        times: Floats,
        marks: NDArray[np.int64],
        rates: Floats,
        features: Floats | None = None,
    ) -> None:
        """Remember events in their order."""
        skipped = 0 if self.growing else max(0, len(times) - self.size)
        self.seen += skipped
        while self.growing and self.seen + len(times) > self.size:
            self._double()
        slots = np.arange(self.seen, self.seen + len(times) - skipped) % self.size
        events = (times, marks, rates) if features is None else (times, marks, rates, features)
        for values, new in zip(self._kept, events, strict=True):
            values[slots] = new[skipped:]
        self.seen += len(slots)
        self._narrow()

    def in_order(self, values: NDArray[Any]) -> NDArray[Any]:
        """``times``, ``marks`` or ``rates``, the oldest first."""
        if self.seen <= self.size:
            return values.copy()
        return np.roll(values, -(self.seen % self.size), axis=0)

    def arrays(self) -> Arrays:
        """All that is remembered, the oldest first."""
        own = {"times": self.times, "marks": self.marks, "rates": self.rates}
        if self.features is not None:
            own["features"] = self.features
        return {f"recent.{name}": self.in_order(values) for name, values in own.items()}

    def load(self, arrays: Arrays) -> None:
        """Remember what :meth:`arrays` gave."""
        self.seen = 0
        names = ["times", "marks", "rates"]
        if self.features is not None:
            names.append("features")
        for event in zip(*(arrays[f"recent.{name}"].tolist() for name in names), strict=True):
            self.append(*event)

    def _double(self) -> None:
        self._kept = tuple(np.concatenate([x, np.zeros_like(x)]) for x in self._kept)
        self.size *= 2

    def _narrow(self) -> None:
        self.times, self.marks, self.rates = (x[: self.seen] for x in self._kept[:3])
        self.features = self._kept[3][: self.seen] if len(self._kept) > 3 else None


def _refusal(error: UserError | Unconverged) -> UserError:
    """Why an event cannot be scored, in three clauses."""
    if isinstance(error, UserError):
        return error
    return UserError(
        "a rate that can be integrated",
        str(error).rstrip("."),
        "Fit the model again, or reset the stream.",
    )


def restored_monitor(numbers: object, gaps: NDArray[Any] | None) -> Monitor:
    """The monitor of a state. Whatever it would not have written itself is refused."""
    if not isinstance(numbers, dict) or gaps is None or gaps.ndim != 1 or gaps.dtype != np.float64:
        raise damaged("the numbers and gaps of a monitor", "others")
    if not (np.isfinite(gaps) & (gaps >= 0)).all() or not _is_sound(numbers):
        raise damaged("finite gaps and sums of a monitor, none below 0", "others")
    try:
        monitor = Monitor.restore(numbers, gaps)
        again, same = monitor.state()
    except FAULTS as error:
        raise damaged(
            "the numbers and gaps of a monitor", f"others ({type(error).__name__})"
        ) from None
    if json.dumps(again) != json.dumps(numbers) or not np.array_equal(same, gaps):
        raise damaged("the numbers and gaps of a monitor", "others that do not agree")
    return monitor


def _is_sound(value: object) -> bool:
    """Whether all numbers inside are finite and none is below 0."""
    if isinstance(value, dict):
        return all(map(_is_sound, value.values()))
    if isinstance(value, list):
        return all(map(_is_sound, value))
    return (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or (is_finite(value) and value >= 0)
    )


def _settings(header: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    """The settings of a saved stream. What would take more room than the state itself speaks of is
    refused.
    """
    keep = None if header.get("keep") is None else whole(header, "keep", least=1)
    sizes = {size for array in arrays.values() for size in array.shape}
    if keep is not None and keep not in sizes:
        raise damaged("arrays for the events that are kept", f"keep={keep:,} and none of that size")
    recent = whole(header, "recent", least=1, most=LONGEST_PAST)
    return {
        "start": number(header, "start"),
        "keep": keep,
        "recent": recent,
        "top": whole(header, "top", most=LONGEST_PAST),
    }


def finite(time: float) -> float:
    """``time`` as a float; :class:`UserError` where it is none or not finite."""
    try:
        when = float(time)
    except (TypeError, ValueError):
        when = math.nan
    if not math.isfinite(when):
        raise UserError("a finite time", f"{time!r}", "Correct or leave out the event.")
    return when


def known_mark(marks: MarkSpace, names: dict[str, int], mark: int | str | None) -> int:
    """The number of a mark given by number or name; None stands for the only one where there is
    one.
    """
    found: int | None = None
    if isinstance(mark, str):
        found = names.get(mark)
    elif mark is None:
        found = 0 if marks.count == 1 else None
    elif (
        isinstance(mark, int | np.integer)
        and not isinstance(mark, bool)
        and 0 <= mark < marks.count
    ):
        found = int(mark)
    if found is None:
        listed = "none or 0"
        if names:
            more = ", ..." if len(names) > 8 else ""
            listed = f"one of {', '.join(list(names)[:8])}{more}"
        raise UserError(
            f"a mark that the model knows, {listed}",
            f"{mark!r}",
            "Use a name or a number of the model's marks.",
        )
    return found


def known_features(
    model: PointProcess, features: ArrayLike | None, count: int
) -> NDArray[np.float64] | None:
    """The features of ``count`` events, (N, F), as the model needs them; None where it has none."""
    own = model.event_features
    if own is None:
        if features is None:
            return None
        raise UserError(
            "no event features, since the model was fitted without any",
            "some",
            "Leave them out, or fit a model with --event-features.",
        )
    if features is None:
        if not count:
            return np.zeros((0, len(own.spec.names)))
        raise own.missing("events without them")
    try:
        found = np.array(features, dtype=np.float64)
    except (TypeError, ValueError):
        raise own.missing("some that are no numbers") from None
    if found.shape != (count, len(own.spec.names)):
        raise own.missing(f"features of shape {found.shape} for {count:,} events")
    return found


def unknown_feature(model: PointProcess, features: Floats) -> UserError:
    """The error of an event with a feature that is not finite."""
    names = () if model.event_features is None else model.event_features.spec.names
    pairs = zip(names, features.tolist(), strict=True)
    name, value = next((pair for pair in pairs if not math.isfinite(pair[1])), ("a feature", 0.0))
    return UserError(f"a finite {name!r}", f"{value}", "Correct or leave out the event.")


def _name(marks: MarkSpace, mark: int) -> str | None:
    return marks.names[mark] if marks.names else None
