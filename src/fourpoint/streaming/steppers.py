"""Ways to follow one stream with a model: by the methods that every model has, and by the states of
a DAPP's modes.

All answer what :class:`~fourpoint.streaming.stream.Stream` asks: the log-rates at a time and the
integral of the rate until then, before the event there is absorbed. :class:`ByHistory` keeps a
history of one row (`streaming.model_queries`); :class:`ByStates` keeps the modes' states and steps
them with `models.dapp_step`; with bounded memory it is `streaming.kept`. All work in float64, and
tests hold them together.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.events import Context, UserError
from fourpoint.inference.sampling import eval_mode
from fourpoint.kernels.score_table import ScoreTable, largest
from fourpoint.models.base import PointProcess
from fourpoint.models.dapp import DAPP
from fourpoint.models.dapp_step import Steps, supports
from fourpoint.models.following import LARGEST, Events, Numbers, Scored, Stop, not_finite
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.hawkes_step import HawkesSteps
from fourpoint.ops import attention
from fourpoint.ops.quadrature import Unconverged
from fourpoint.streaming.kept import ByActiveSets, ByModes, supports_kept
from fourpoint.streaming.model_queries import (
    check_recorded,
    empty_history,
    in_float64,
    integrals,
    log_intensities,
)
from fourpoint.streaming.state import Arrays, arrays_of, history_from

Floats = NDArray[np.float64]
# Times, marks and weights of past events, (K, N) each.
Weights = tuple[Floats, NDArray[np.int64], Floats]


class Stepper(Protocol):
    """A place in time and the past behind it."""

    model: Any  # to which :meth:`history` belongs

    def restart(self, start: float) -> None:
        """A window that opens at ``start``, without events."""

    def score(self, time: float) -> tuple[Floats, float]:
        """log lambda per mark just before ``time``, and the integral of the total rate from here to
        it; nothing changes.
        """

    def logs(self, time: float) -> Floats:
        """log lambda per mark just before ``time``; nothing changes."""

    def absorb(self, time: float, mark: int, features: Floats | None = None) -> None:
        """An event at the time that was scored last; ``features`` (F,) where the model has event
        features.
        """

    def move(self, time: float) -> None:
        """Here is now the time that was scored last, with no event in between."""

    def weights(
        self, time: float, mark: int, times: Floats, marks: NDArray[np.int64], top: int
    ) -> Weights | None:
        """What each head pays to the ``top`` past events that it attends to most, the first most,
        of those at ``times`` or, where it remembers them, its own; times are NaN where there are
        fewer. None without heads.
        """

    def follow(self, numbers: Numbers, events: Events, into: Scored) -> Stop | None:
        """Score a block of events and absorb each, from where the numbers of the only row are;
        None, or where that stopped.
        """

    def history(self) -> Any:
        """The model's own history here, of one row."""

    def arrays(self) -> Arrays:
        """All that is remembered."""

    def load(self, arrays: Arrays) -> None:
        """Remember what :meth:`arrays` gave."""


def stepper(model: PointProcess, context: Context | None = None) -> Stepper:
    """The faster of the ways that ``model`` allows, with what is known besides events."""
    # Compiled steps know no calendar, exposure or event features.
    if context is not None or model.event_features is not None:
        return ByHistory(model, context)
    if isinstance(model, DAPP) and supports(model):
        return ByStates(model)
    if isinstance(model, Hawkes):
        return ByExcitation(model)
    if isinstance(model, DAPP) and supports_kept(model):
        return ByActiveSets(model)
    return ByHistory(model)


def check_recorded_at(stepper: Stepper, time: float) -> None:
    """Refuse an event at a time of exposure 0."""
    if isinstance(stepper, ByHistory):
        check_recorded(stepper.history(), np.array([time]))


@torch.no_grad()
def score_table(model: DAPP) -> ScoreTable:
    """The model's scores in evaluation mode, as a function of lag."""
    spectrum = model.spectrum(fixed=True)
    decay = spectrum.decay
    if decay is None:
        decay = torch.zeros_like(spectrum.frequency)
    parts = (spectrum.frequency, decay, spectrum.shift, spectrum.weight)
    frequency, decays, shift, weight = (part.detach().cpu().double().numpy() for part in parts)
    return ScoreTable(frequency, decays, shift, weight, float(model.time_scale))


def follow_by_steps(
    stepper: Stepper, numbers: Numbers, events: Events, into: Scored
) -> Stop | None:
    """:meth:`Stepper.follow` event by event: the plain counterpart of the compiled loops."""
    times = events.times.tolist()
    marks = events.marks.tolist()
    for i, time in enumerate(times):
        try:
            check_recorded_at(stepper, time)
            found, integral = stepper.score(time)
        except (Unconverged, UserError) as error:
            return Stop(i, error)
        logs: list[float] = found.tolist()
        if not all(log < LARGEST for log in logs) or not math.isfinite(integral):
            return Stop(i, not_finite(logs, integral, time))
        features = None
        if events.features is not None:
            features = events.features[i]
        try:
            stepper.absorb(time, marks[i], features)
        except UserError as error:  # features far from those of training
            return Stop(i, error)
        log_rate = logs[marks[i]]
        gap = float(numbers.pending[0]) + integral
        total = sum(map(math.exp, logs))
        into.density[i] = log_rate - gap
        into.gap[i] = gap
        into.rate[i] = total
        if into.shares.shape[1]:
            into.shares[i] = np.exp(found) / total
        numbers.at[0] = time
        numbers.pending[0] = 0.0
        numbers.likelihood[0] += log_rate - integral
        numbers.seen[0] += 1
    return None


class ByHistory:
    """Any model, by its own methods: a copy of it, in float64 and evaluation mode."""

    def __init__(self, model: PointProcess, context: Context | None = None) -> None:
        self.model = in_float64(model)
        self._context = context
        self.table: ScoreTable | None = None
        if isinstance(model, DAPP) and model.scanned:
            self.table = score_table(model)
        self.restart(0.0)

    def restart(self, start: float) -> None:
        self._history = empty_history(self.model, start, context=self._context)
        self._at = start

    def score(self, time: float) -> tuple[Floats, float]:
        logs = self.logs(time)
        here = np.array([self._at])
        there = np.array([time])
        integral = integrals(self.model, self._history, here, there)
        return logs, float(integral[0])

    def logs(self, time: float) -> Floats:
        return log_intensities(self.model, self._history, np.array([time]))[0]

    @torch.no_grad()
    def absorb(self, time: float, mark: int, features: Floats | None = None) -> None:
        known = None
        if features is not None:
            known = torch.from_numpy(features)[None]
        self._history = self.model.extend(
            self._history,
            torch.tensor([time], dtype=torch.float64),
            torch.tensor([mark]),
            features=known,
        )
        self._at = time

    def move(self, time: float) -> None:
        self._at = time

    def follow(self, numbers: Numbers, events: Events, into: Scored) -> Stop | None:
        return follow_by_steps(self, numbers, events, into)

    @torch.no_grad()
    def weights(
        self, time: float, mark: int, times: Floats, marks: NDArray[np.int64], top: int
    ) -> Weights | None:
        if self.table is not None:
            places, scores = self.table.largest(time - times, marks, mark, top)
            shares = scores / self._whole(time, mark)[:, None]
            return times[places], marks[places], shares
        if not self.model.has_attention:
            return None
        now = torch.tensor([time], dtype=torch.float64)
        own = self.model.attended(self._history, now, torch.tensor([mark]))
        past, kinds, weights = (part[0].T.detach().numpy() for part in own)
        places, found = largest(weights, top)
        past = np.take_along_axis(past, places, 1)
        kinds = np.take_along_axis(kinds, places, 1)
        return past, kinds, found

    def history(self) -> Any:
        return self._history

    def arrays(self) -> Arrays:
        return {"at": np.array(self._at), **arrays_of(self._history)}

    def load(self, arrays: Arrays) -> None:
        self._history = history_from(self._history, arrays)
        self._at = float(arrays["at"])

    def _whole(self, time: float, mark: int) -> Floats:
        """What a linear form divides each head's scores by: their sum over all of the past, 1 where
        they are not normalised.
        """
        history = self._history
        if history.state.shape[-1] == 1:
            return np.ones(history.state.shape[2])
        now = torch.tensor([[[time]]], dtype=torch.float64)
        lag = now - history.times[..., None]
        scaled = lag / self.model.time_scale
        sums = attention.read(history.parts.score, history.state, scaled)
        return np.asarray(sums[0, 0, 0, :, mark, 1].numpy())


class ByStates(ByModes):
    """A linear DAPP, by the states of its modes in float64; its numbers are copied when the stream
    begins.
    """

    def __init__(self, model: DAPP) -> None:
        self.model = model
        self.steps = Steps(model)
        self.table = score_table(model)
        self.restart(0.0)

    def restart(self, start: float) -> None:
        self._begin(start)

    def absorb(self, time: float, mark: int, features: Floats | None = None) -> None:
        self.move(time)
        since = np.array([time - self._start])
        self._state = self._state + self.steps.added(since, np.array([mark]))

    def follow(self, numbers: Numbers, events: Events, into: Scored) -> Stop | None:
        rows = np.zeros(len(events.times), dtype=np.int64)
        stopped = self.steps.follow(
            self._state,
            rows,
            numbers,
            self._start,
            events,
            into,
        )
        self._at = float(numbers.at[0])
        self._ahead = (self._at, self._state)
        return stopped

    def weights(
        self, time: float, mark: int, times: Floats, marks: NDArray[np.int64], top: int
    ) -> Weights | None:
        places, scores = self.table.largest(time - times, marks, mark, top)
        return times[places], marks[places], scores

    def history(self) -> Any:
        with eval_mode(self.model):
            blank = empty_history(self.model, self._start)
        state = torch.from_numpy(self._state.copy()).to(blank.state.dtype)
        return dataclasses.replace(
            blank,
            times=torch.full_like(blank.times, self._at),
            state=state.reshape(blank.state.shape),
        )

    def arrays(self) -> Arrays:
        return {
            "start": np.array(self._start),
            "at": np.array(self._at),
            "state": self._state,
        }

    def load(self, arrays: Arrays) -> None:
        self._start = float(arrays["start"])
        self._at = float(arrays["at"])
        self._state = arrays["state"].copy()
        self._ahead = (self._at, self._state)


class ByExcitation:
    """A Hawkes process, by the sums R of its decays; its parameters are copied at first."""

    def __init__(self, model: Hawkes) -> None:
        self.model = model
        self.steps = HawkesSteps(model)
        self.restart(0.0)

    def restart(self, start: float) -> None:
        self._start = start
        self._at = start
        self._state = self.steps.blank(1)

    def score(self, time: float) -> tuple[Floats, float]:
        gap = np.array([time - self._at])
        integral = self.steps.integral(self._state, gap)
        return self.logs(time), float(integral[0])

    def logs(self, time: float) -> Floats:
        gap = np.array([time - self._at])
        later = self.steps.moved(self._state, gap)
        return np.asarray(self.steps.logs(later)[0])

    def absorb(self, time: float, mark: int, features: Floats | None = None) -> None:
        self.move(time)
        self._state[0, :, mark] += 1.0

    def move(self, time: float) -> None:
        gap = np.array([time - self._at])
        self._state = self.steps.moved(self._state, gap)
        self._at = time

    def follow(self, numbers: Numbers, events: Events, into: Scored) -> Stop | None:
        rows = np.zeros(len(events.times), dtype=np.int64)
        stopped = self.steps.follow(self._state, rows, numbers, events, into)
        self._at = float(numbers.at[0])
        return stopped

    def weights(
        self, time: float, mark: int, times: Floats, marks: NDArray[np.int64], top: int
    ) -> Weights | None:
        return None

    def history(self) -> Any:
        """A copy, so that it stays as it is while the stream goes on."""
        with eval_mode(self.model):
            blank = empty_history(self.model, self._start)
        return dataclasses.replace(
            blank,
            times=torch.full_like(blank.times, self._at),
            excitation=torch.from_numpy(self._state[:, None].copy()),
        )

    def arrays(self) -> Arrays:
        """As those of :class:`ByHistory`, so that a state does not depend on whether numba is
        installed.
        """
        return {"at": np.array(self._at), **arrays_of(self.history())}

    def load(self, arrays: Arrays) -> None:
        history = history_from(self.history(), arrays)
        excitation = history.excitation[:, -1].numpy()
        self._start = float(history.start[0])
        self._at = float(history.times[0, -1])
        self._state = excitation.copy()
        self.move(float(arrays["at"]))
