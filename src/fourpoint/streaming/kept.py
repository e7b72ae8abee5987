r"""A DAPP with bounded memory (ODAPP) followed by kernels: active sets as in `ops.selection`,
rates by the states of modes.

The sum over a head's active events is the same sum over modes as in `models.dapp_step`, with S_k
formed from the active events alone. So an event that comes is added to the states, one that is
dropped is taken off again,

    S_k  <-  exp(a_k gap) S_k + exp(-i psi_k(m)) v_k - exp(a_k (t - t_e)) exp(-i psi_k(m_e)) v_ke,

and rates and integrals cost what they cost in the exact stream. Only the selection compares events,
with exact scores:

    |nu_k(x, x_i)| is added to each active event's sum; once the set is full the event with the
    smallest mean is dropped, of equals the oldest.

Every so often the states are formed anew from the active sets, so that rounding cannot pile up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint import kernels
from fourpoint.inference.sampling import eval_mode
from fourpoint.kernels.numba_dapp_stream import sinusoids
from fourpoint.kernels.score_table import largest
from fourpoint.models.base import PointProcess
from fourpoint.models.dapp import DAPP, DAPPHistory
from fourpoint.models.dapp_step import Steps
from fourpoint.models.following import Events, Numbers, Scored, Stop
from fourpoint.models.past import Memory
from fourpoint.ops.selection import NEVER, Active
from fourpoint.streaming.model_queries import empty_history
from fourpoint.streaming.state import Arrays

Floats = NDArray[np.float64]
ANEW = 1024  # events after which the states are formed anew
# What is known of each active event, by head and slot, and its type; index counts events and is -1
# in an empty slot.
FIELDS: dict[str, type] = {
    "times": np.float64,
    "marks": np.int64,
    "values": np.float64,
    "total": np.float64,
    "count": np.int64,
    "index": np.int64,
}


def supports_kept(model: PointProcess) -> bool:
    """Whether ``model`` can be followed here: a DAPP that keeps a number of events and has
    unnormalised, paired Fourier scores.
    """
    if not isinstance(model, DAPP):
        return False
    settings = model.settings()
    paired = settings["score"] == "fourier" and settings["phase"] == "paired"
    bounded = isinstance(settings["keep"], int)
    loops = kernels.DAPP_STREAM.choose(
        linear=paired and bounded,
        normalise=settings["normalise"],
    )
    return loops is not None


class ByModes:
    """One stream of a DAPP by the states of its modes: what a stepper with bounded memory and one
    without have in common.
    """

    steps: Steps

    def _begin(self, start: float) -> None:
        """The states before any event."""
        self._start = start
        self._at = start
        self._state = self.steps.blank(1)
        self._ahead = (start, self._state)

    def score(self, time: float) -> tuple[Floats, float]:
        since_start = np.array([self._at - self._start])
        gap = np.array([time - self._at])
        found = self.steps.reach(self._state, since_start, gap)
        self._ahead = (time, found.state)
        return found.logs[0], float(found.integral[0])

    def logs(self, time: float) -> Floats:
        gap = np.array([time - self._at])
        since_start = np.array([time - self._start])
        state = self.steps.moved(self._state, gap)
        return np.asarray(self.steps.logs(state, since_start)[0])

    def move(self, time: float) -> None:
        at, state = self._ahead
        if at != time:
            state = self.steps.moved(self._state, np.array([time - self._at]))
        self._state = state
        self._at = time


class ByActiveSets(ByModes):
    """One stream of a DAPP with ``keep``: a :class:`~fourpoint.streaming.steppers.Stepper`."""

    def __init__(self, model: DAPP) -> None:
        self.model = model
        self.steps = Steps(model)
        self.keep = int(model.settings()["keep"])
        with torch.no_grad():
            spectrum = model.spectrum(fixed=True)
        self.weight = spectrum.weight.detach().cpu().double().numpy()  # (K, D)
        self.frequency = self.steps.frequency.reshape(self.weight.shape)
        self.decay = self.steps.fading.reshape(self.weight.shape)
        shift = spectrum.shift.detach().cpu().double().numpy()
        self.shift = shift.transpose(0, 2, 1)  # (K, M, D)
        self.phase = np.stack([np.cos(self.shift), np.sin(self.shift)], 2)  # (K, M, 2, D)
        self.heads = np.arange(len(self.weight))
        self._loops = kernels.DAPP_STREAM.load()
        self._sinusoids = sinusoids(self.frequency.ravel(), -self.decay.ravel(), np.float64)
        self.restart(0.0)

    def restart(self, start: float) -> None:
        shape = (len(self.weight), self.keep)
        self._begin(start)
        self._slots: Arrays = {name: np.zeros(shape, kind) for name, kind in FIELDS.items()}
        self._slots["index"][:] = -1
        self._seen = 0
        self._compared: tuple[float, int, int, Floats] | None = None

    def absorb(self, time: float, mark: int, features: Floats | None = None) -> None:
        slots = self._slots
        valid = slots["index"] >= 0
        scores = np.abs(self._scores(time, mark))
        slots["total"] += np.where(valid, scores, 0.0)
        slots["count"] += valid
        self.move(time)
        slot = self._vacated(valid)
        state = self._without(self._state, slot, time)
        since_start = np.array([time - self._start])
        marks = np.array([mark])
        event = {
            "times": time,
            "marks": mark,
            "values": self.steps.values(since_start, marks)[0],
            "total": 0.0,
            "count": 0,
            "index": self._seen,
        }
        for name, value in event.items():
            slots[name][self.heads, slot] = value
        self._state = state + self.steps.added(since_start, marks)
        self._seen += 1
        if self._seen % ANEW == 0:
            self._state = self._anew(time)

    def follow(self, numbers: Numbers, events: Events, into: Scored) -> Stop | None:
        """Event by event: each changes which events are remembered."""
        from fourpoint.streaming.steppers import follow_by_steps

        return follow_by_steps(self, numbers, events, into)

    def weights(
        self, time: float, mark: int, times: Floats, marks: NDArray[np.int64], top: int
    ) -> tuple[Floats, NDArray[np.int64], Floats]:
        slots = self._slots
        valid = slots["index"] >= 0
        scores = np.where(valid, self._scores(time, mark), 0.0)
        slot, weights = largest(scores, top)
        place = (self.heads[:, None], slot)
        past = np.where(valid[place], slots["times"][place], np.nan)
        return past, slots["marks"][place], weights

    def history(self) -> DAPPHistory:
        with eval_mode(self.model):
            blank = empty_history(self.model, self._start)
        times, marks, values, total, count, index = (
            torch.from_numpy(self._slots[name].T[None].copy()) for name in FIELDS
        )
        like = blank.memory.values
        memory = Memory(times, marks, values.to(like), Active(index, total.to(like), count))
        return DAPPHistory(
            torch.full_like(blank.times, self._at),
            blank.start,
            blank.lengths,
            blank.parts,
            None,
            memory.past(),
            memory,
        )

    def arrays(self) -> Arrays:
        found = {
            "start": np.array(self._start),
            "at": np.array(self._at),
            "seen": np.array(self._seen),
            "state": self._state,
        }
        for name, array in self._slots.items():
            found[f"slots.{name}"] = array
        return found

    def load(self, arrays: Arrays) -> None:
        self.restart(float(arrays["start"]))
        self._at = float(arrays["at"])
        self._seen = int(arrays["seen"])
        self._state = arrays["state"].copy()
        self._slots = {name: arrays[f"slots.{name}"].copy() for name in FIELDS}
        self._ahead = (self._at, self._state)

    def _scores(self, time: float, mark: int) -> Floats:
        """nu_k of an event on every slot, (K, E): used twice per event, and formed once."""
        key = (time, mark, self._seen)
        if self._compared is None or self._compared[:3] != key:
            lags = (time - self._slots["times"]) / self.steps.scale
            found = np.empty_like(lags)
            self._loops.scores(
                lags,
                self._slots["marks"],
                mark,
                self._sinusoids,
                self.weight,
                self.phase,
                found,
            )
            self._compared = (*key, found)
        return self._compared[3]

    def _vacated(self, valid: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The slot that a new event takes in each head: the first empty one, or that of the
        smallest mean.
        """
        slots = self._slots
        mean = slots["total"] / np.maximum(slots["count"], 1)
        mean = np.where(valid, mean, np.inf)
        smallest = valid & (mean == mean.min(1, keepdims=True))
        index = np.where(smallest, slots["index"], NEVER)
        oldest = index.argmin(1)
        first_empty = valid.argmin(1)
        return np.where(valid.all(1), oldest, first_empty)

    def _without(self, state: NDArray[Any], slot: NDArray[np.int64], time: float) -> NDArray[Any]:
        """``state`` without what the events in a slot of each head add to it at ``time``; empty
        slots add nothing.
        """
        slots = self._slots
        left = state.copy()
        place = (self.heads, slot)
        lags = (time - slots["times"][place]) / self.steps.scale
        valid = slots["index"][place] >= 0
        values = np.where(valid, slots["values"][place], 0.0)
        self._loops.forget(
            left[0],
            lags,
            slots["marks"][place],
            values,
            self._sinusoids,
            self.phase,
        )
        return left

    def _anew(self, time: float) -> NDArray[Any]:
        """The states from the active sets."""
        state = self.steps.blank(1)
        for e in range(self.keep):
            slot = np.full(len(self.heads), e)
            state = self._without(state, slot, time)
        return -state
