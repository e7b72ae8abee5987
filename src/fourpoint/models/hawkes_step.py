"""A Hawkes process stepped in numpy and compiled loops: R per decay and past type in, R out.

The counterpart of `dapp_step` for `models.hawkes`; equations in `hawkes_loops`. Everything is
float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint import kernels
from fourpoint.kernels.numba_hawkes_stream import follow
from fourpoint.models.following import LARGEST, Events, Numbers, Scored, Stop, not_finite
from fourpoint.models.hawkes import Hawkes

Floats = NDArray[np.float64]


class HawkesSteps:
    """The numbers of a Hawkes process, copied; rows are (J, M) of R at the time of the row."""

    @torch.no_grad()
    def __init__(self, model: Hawkes) -> None:
        M = model.marks.count
        copied = {
            name: np.ascontiguousarray(value, dtype=np.float64)
            for name, value in model.estimates.items()
        }
        self.mu = copied["baseline"]
        self.beta = copied["decay"].reshape(-1)
        self.alpha = copied["branching"].reshape(len(self.beta), M, M)
        self.total = np.ascontiguousarray(self.alpha.sum(1))
        loop = kernels.HAWKES_STREAM.choose()
        self.compiled = loop is not None
        self._loop: Callable[..., int] = loop or follow

    def blank(self, rows: int) -> Floats:
        """Rows before any event."""
        return np.zeros((rows, *self.total.shape))

    def moved(self, rows: Floats, gap: Floats) -> Floats:
        """Rows ``gap`` later."""
        return np.asarray(rows * np.exp(-self.beta * gap[:, None])[..., None])

    def logs(self, rows: Floats) -> Floats:
        """log lambda per mark where the rows are, (R, M)."""
        return np.asarray(
            np.log(self.mu + np.einsum("rjn,jmn->rm", rows, self.beta[:, None, None] * self.alpha))
        )

    def integral(self, rows: Floats, gap: Floats) -> Floats:
        """The integral of the total rate over the next ``gap``, (R,)."""
        lost = -np.expm1(-self.beta * gap[:, None])
        return np.asarray(gap * self.mu.sum() + np.einsum("rj,rjn,jn->r", lost, rows, self.total))

    def follow(
        self, state: Floats, rows: NDArray[np.int64], numbers: Numbers, events: Events, into: Scored
    ) -> Stop | None:
        """Score ``events`` of ``rows`` one after the other and absorb each; None, or where that
        stopped.
        """
        fault = np.empty(2)
        given = (events.times, events.marks, self.mu, self.alpha, self.beta, self.total, LARGEST)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            done = self._loop(state, rows, *numbers, *given, *into, fault)
        if done < 0:
            return None
        return Stop(done, not_finite([float(fault[0])], float(fault[1]), float(events.times[done])))
