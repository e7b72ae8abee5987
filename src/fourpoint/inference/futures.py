r"""Sampled futures of many sequences at once, as flat arrays for decoders.

Given its events up to a time ``at``, a sequence gets P exact paths, each up to a time ``stop`` or
to its first ``most`` events, whichever comes first. Models with a kernel of their own draw them by
it (`models.path_counts`), all others by `inference.sampling`, on the model's device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.events import Batch, UserError
from fourpoint.inference.evaluation import device_of
from fourpoint.inference.sampling import advance, remember, select_rows
from fourpoint.kernels.compiling import threads_for_loops
from fourpoint.kernels.path_terms import Wanted
from fourpoint.models.base import PointProcess
from fourpoint.models.path_counts import explosion

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST = 10_000  # events of one path, at which a process counts as explosive
PATHS_CPU = 4096  # that are sampled together without a kernel
PATHS_CUDA = 2**20


class Futures(NamedTuple):
    """Events of ``paths`` paths of each of R forecasts: path p of forecast r has those from
    ``offsets[r paths + p]`` on, in order of time. Times are counted from the forecast's beginning.
    """

    times: Floats  # (E,)
    marks: Integers  # (E,)
    offsets: Integers  # (R paths + 1,)
    paths: int

    @property
    def forecasts(self) -> int:
        """R."""
        return (len(self.offsets) - 1) // self.paths

    def counts(self, types: int) -> Integers:
        """Events of each type on each path, (R, P, M)."""
        paths = len(self.offsets) - 1
        path = np.repeat(np.arange(paths), np.diff(self.offsets))
        cell = path * types + self.marks
        flat = np.bincount(cell, minlength=paths * types)
        return flat.reshape(self.forecasts, self.paths, types)


def joined(parts: list[Futures]) -> Futures:
    """Forecasts of several batches with as many paths each, one after the other."""
    offsets = []
    events = 0
    for part in parts:
        offsets.append(part.offsets[:-1] + events)
        events += part.offsets[-1]
    return Futures(
        times=np.concatenate([part.times for part in parts]),
        marks=np.concatenate([part.marks for part in parts]),
        offsets=np.append(np.concatenate(offsets), events),
        paths=parts[0].paths,
    )


def draw_futures(
    model: PointProcess,
    batch: Batch,
    at: Floats,
    stop: Floats,
    paths: int,
    keys: NDArray[np.uint64],
    most: int | None = None,
) -> Futures:
    """Paths after the events of ``batch``, all of which are known at the times (R,) ``at``.

    The model must be in evaluation mode. ``keys`` (R,) are the seeds of the forecasts. Raises
    :class:`UserError` if the model explodes before ``stop``.
    """
    wanted = Wanted(np.stack([at, stop], 1), keys, paths, MOST)
    device = device_of(model)
    if device.type == "cpu":
        with threads_for_loops(True):
            found = model.draw_events(batch, wanted, most)
        if found is not None:
            times, marks, counts = found
            offsets = np.concatenate([[0], np.cumsum(counts.ravel())])
            return Futures(times, marks.astype(np.int64), offsets, paths)
    return _plain(model, batch, wanted, most, device)


def _plain(
    model: PointProcess, batch: Batch, wanted: Wanted, most: int | None, device: torch.device
) -> Futures:
    """By `sampling.advance`: what every model can do."""
    past = remember(model, batch.to(device))
    paths = wanted.paths
    rows = torch.arange(len(batch.start), device=device)
    every_edge = torch.from_numpy(wanted.edges).to(device)
    together = PATHS_CPU if device.type == "cpu" else PATHS_CUDA
    parts = []
    for some in rows.split(max(1, together // paths)):
        own = some.repeat_interleave(paths)
        edges = every_edge[own]
        begin = edges[:, 0]
        seed = int(wanted.keys[int(some[0])]) % 2**63
        try:
            drawn = advance(
                model,
                select_rows(past, own),
                begin,
                edges[:, 1],
                torch.Generator(device).manual_seed(seed),
                most=most,
                limit=wanted.limit,
            ).data
        except UserError as error:
            raise explosion(error.received) from error
        since = drawn.times - np.repeat(begin.cpu().numpy(), drawn.lengths)
        parts.append(Futures(since, drawn.mark_ids, drawn.offsets, paths))
    return joined(parts)
