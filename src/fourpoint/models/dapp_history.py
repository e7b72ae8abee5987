"""What DAPP remembers of sequences, whichever form its attention takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Complex, Int
from torch import Tensor

from fourpoint.events import UserError
from fourpoint.models.base import History
from fourpoint.models.baseline import Curves
from fourpoint.models.past import Memory, Past
from fourpoint.ops.fourier import Spectrum
from fourpoint.ops.scores import Score


class Parts(NamedTuple):
    """What all sequences of a history share: the score, and the splines of base and drift."""

    score: Score
    curves: Curves | None


@dataclass(frozen=True)
class DAPPHistory(History):
    """What DAPP remembers: states of the modes at each position (linear forms), the events
    themselves (dense forms), and where memory is bounded the active sets at the last position.
    """

    parts: Parts
    state: Complex[Tensor, "B P K D C"] | None
    past: Past | None
    memory: Memory | None = None

    def latest(self) -> DAPPHistory:
        """The last position alone: all that is needed to go on."""
        state = None if self.state is None or self.memory is not None else self.state[:, -1:]
        past = None if self.memory is None else self.memory.past()
        return DAPPHistory(
            self.times[:, -1:],
            self.start,
            torch.zeros_like(self.lengths),
            self.parts,
            state,
            past,
            self.memory,
            context=self.context,
        )

    def at_positions(
        self, rows: Int[Tensor, " R"], positions: Int[Tensor, " R"]
    ) -> DAPPHistory | None:
        """R positions of any rows, each a row of its own; None for dense forms."""
        if self.state is None or self.memory is not None:
            return None
        times = self.times[rows, positions]
        states = self.state[rows, positions]
        last = torch.zeros_like(positions)
        context = None if self.context is None else self.context.select(rows)
        return DAPPHistory(
            times[:, None],
            self.start[rows],
            last,
            self.parts,
            states[:, None],
            None,
            context=context,
        )


Kept = TypeVar("Kept")


def require(kept: Kept | None) -> Kept:
    """What this form of the model always keeps."""
    if kept is None:
        raise UserError(
            "a history with its events",
            "one that has been extended",
            "Encode the whole sequence instead.",
        )
    return kept


def spectrum_of(parts: Parts) -> Spectrum:
    """The score of a linear form."""
    if not isinstance(parts.score, Spectrum):
        raise TypeError(
            f"expected a spectrum, received {type(parts.score).__name__}: only Fourier "
            "scores have a linear form"
        )
    return parts.score


def last_state(history: DAPPHistory) -> Complex[Tensor, "B K D C"]:
    """The states at the last real position; without a copy where it is the only one."""
    state = require(history.state)
    if state.shape[1] == 1:
        return state[:, 0]
    return state[torch.arange(len(state), device=state.device), history.lengths]
