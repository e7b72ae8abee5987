"""Steps on a CUDA device without a word from the host: the data lie there, and a step is one graph.

Sequences are padded on the device to a few lengths and numbers of rows. The first step of a shape
runs as it is, which makes ready what is made once; the second is recorded as a CUDA graph, from the
padding to the optimiser; all later ones replay it. The host names the sequences, the learning rate
and the seed of a step in two small copies and goes on. Losses stay on the device until a validation
asks for them, so a loss that is not finite is noticed there, with its step.

Models of large matrix products (``rounded_products``) let tensor cores round what they multiply
while training; all scores are computed in full float32.

A model whose step cannot be recorded (it asks the host for a number) is trained step by step
instead, and the fit's notes say why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fourpoint.events import Dataset
from fourpoint.events.batching import Batch
from fourpoint.events.dequantise import dequantised_batch
from fourpoint.inference.likelihood import BLOCK, Convention
from fourpoint.training.run import Recipe, Run, TrainingError
from fourpoint.training.sources import InMemory
from fourpoint.training.steps import Steps

KEPT = 4096  # losses held on the device
AHEAD = 64  # steps that the host may be ahead of the device


class Resident:
    """A data set on a device, and one empty sequence behind its last."""

    def __init__(self, data: Dataset, device: torch.device) -> None:
        if data.places is not None or data.context is not None or data.features is not None:
            raise ValueError(
                "expected events without places, features and context, received some with: "
                "their steps are taken in the plain way"
            )
        begin = data.starts[:1]
        end = np.zeros(1, dtype=np.int64)
        self.times, self.marks = (
            torch.from_numpy(x.copy()).to(device) for x in (_some(data.times), _some(data.mark_ids))
        )
        events = [np.concatenate(pair) for pair in ((data.offsets[:-1], end), (data.lengths, end))]
        windows = [np.concatenate(pair) for pair in ((data.starts, begin), (data.stops, begin))]
        self.events, self.windows = (
            torch.from_numpy(np.stack(pair)).to(device) for pair in (events, windows)
        )

    def batch(self, rows: Tensor, room: int) -> Batch:
        """The sequences at ``rows``, padded to ``room`` events."""
        column = torch.arange(room, device=rows.device)
        first, lengths = self.events.index_select(1, rows)
        start, stop = self.windows.index_select(1, rows)
        valid = column < lengths[:, None]
        flat = torch.where(valid, first[:, None] + column, 0)
        return Batch(self.times[flat], self.marks[flat], valid, start, stop)


@dataclass(eq=False)
class Shape:
    """Steps of one shape: which sequences, and the graph once there is one."""

    rows: Tensor
    room: int
    graph: torch.cuda.CUDAGraph | None = None
    warm: bool = False
    parts: int = 1  # in which a batch is taken, so that it fits into memory


class CapturedSteps(Steps):
    """Steps of ``run`` as CUDA graphs; :meth:`able` says whether its data allow that."""

    @staticmethod
    def able(run: Run, device: torch.device) -> bool:
        """Sequences that are not cut into blocks, without places, on a CUDA device."""
        return (
            device.type == "cuda"
            and run.team.size == 1
            and isinstance(run.source, InMemory)
            and run.train.places is None
            and run.train.context is None
            and run.train.features is None
            and int(run.train.lengths.max(initial=0)) <= BLOCK
        )

    def __init__(
        self, run: Run, optimiser: torch.optim.AdamW, recipe: Recipe, convention: Convention
    ) -> None:
        super().__init__(run, optimiser, recipe, convention)
        device = self.weights[0].device
        self.data = Resident(run.train, device)
        self.random = torch.Generator(device)
        self.inputs = torch.ones(
            1 + len(optimiser.param_groups), device=device
        )  # events of the batch, and learning rates
        for i, group in enumerate(optimiser.param_groups):
            group["lr"] = self.inputs[1 + i]
        self.shapes: dict[tuple[int, int], Shape] = {}
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.kept = torch.zeros(KEPT, 2, device=device)
        self.first, self.taken = 0, 0
        self.why = "" if device.type == "cuda" else f"{device} has none"
        self.fences = [torch.cuda.Event() for _ in range(2)] if device.type == "cuda" else []

    def take(self, step: int, rate: float) -> int:
        """The same, without waiting for it."""
        if self.taken == KEPT:
            self._read()
        self.first = self.first if self.taken else step
        _, rows, scored = self.run.source.at(step)
        shape = self._shape(rows)
        padded = np.full(len(shape.rows), len(self.run.train))
        padded[: len(rows)] = rows
        shape.rows.copy_(torch.from_numpy(padded), non_blocking=True)
        rates = [rate * group["pace"] for group in self.optimiser.param_groups]
        self.inputs.copy_(
            torch.tensor([self.run.mean_events * len(rows), *rates]), non_blocking=True
        )
        self.seeded(self.random, step)
        if shape.warm and shape.graph is None and not self.why:
            self._record(shape, step)
        if shape.graph is not None:
            shape.graph.replay()
        else:
            self._work_in_parts(shape, step)
        shape.warm = True
        self.taken = self.taken + 1
        if self.taken % AHEAD == 0 and self.fences:
            self.fences[0].synchronize()
            self.fences.reverse()
            self.fences[0].record()
        return scored

    def drain(self) -> list[float]:
        """The losses since the last call; waits for the device. Raises `TrainingError` where one is
        not finite.
        """
        self._read()
        return super().drain()

    def close(self) -> list[str]:
        parts = max((shape.parts for shape in self.shapes.values()), default=1)
        self.shapes.clear()
        self.model.redraw(self.seeded(torch.Generator(), 0))
        said = [f"steps were not recorded as CUDA graphs: {self.why}"] if self.why else []
        if parts > 1:
            said.append(
                f"a batch was taken in up to {parts} parts, to fit into the device's memory"
            )
        return said

    def _shape(self, rows: np.ndarray) -> Shape:
        room = room_for(int(self.run.train.lengths[rows].max(initial=1)))
        size = min(self.recipe.batch_size, 1 << max(0, len(rows) - 1).bit_length())
        if (size, room) not in self.shapes:
            self.shapes[size, room] = Shape(
                torch.zeros(size, dtype=torch.int64, device=self.inputs.device), room
            )
        return self.shapes[size, room]

    def _record(self, shape: Shape, step: int) -> None:
        pool = next(
            (other.graph.pool() for other in self.shapes.values() if other.graph is not None), None
        )
        # what the first step held is of no use to a graph, whose memory is its own
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.random)
        for p in self.weights:
            p.grad = None
        try:
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self._work(shape)
            shape.graph = graph
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.why = str(error).splitlines()[0]
            self.random = self.seeded(
                torch.Generator(self.inputs.device), step
            )  # the old one waits for a recording that has failed

    def _work_in_parts(self, shape: Shape, step: int) -> None:
        """One step, in twice as many parts whenever memory is short; the weights only move once all
        gradients are there.
        """
        while True:
            try:
                return self._work(shape)
            except torch.OutOfMemoryError as error:
                if shape.parts >= len(shape.rows):
                    raise self._too_large(shape, error) from error
            shape.parts = min(2 * shape.parts, len(shape.rows))
            if self.fences:
                torch.cuda.empty_cache()
            self.seeded(self.random, step)

    def _work(self, shape: Shape) -> None:
        """One step, from rows to weights; nothing in it waits."""
        with _rounded_products(self.model.rounded_products):
            batches = (self._batch(rows, shape.room) for rows in shape.rows.chunk(shape.parts))
            loss = self._gradients(batches, self.random, self.inputs[0])
        norm = nn.utils.get_total_norm([p.grad for p in self.weights if p.grad is not None])
        nn.utils.clip_grads_with_norm_(self.weights, self.recipe.clip, norm)
        self.optimiser.step()
        self.kept.index_copy_(0, self.cursor, torch.stack([loss.float(), norm.float()])[None])
        self.cursor.add_(1).remainder_(KEPT)

    def _batch(self, rows: Tensor, room: int) -> Batch:
        found = self.data.batch(rows, room)
        if not self.run.resolution:
            return found
        return dequantised_batch(
            found, self.run.resolution, self.random, ahead=self.run.stamped_ahead
        )

    def _too_large(self, shape: Shape, error: Exception) -> TrainingError:
        return TrainingError(
            "steps that fit into the device's memory",
            f"{str(error).split('. ')[0]} with one sequence at a time of up to {shape.room} events",
            "Choose a smaller model, cut long sequences, or close what else uses the device.",
        )

    def _read(self) -> None:
        """Take the losses off the device."""
        found = self.kept[: self.taken].tolist()
        self.cursor.zero_()
        for i, (loss, norm) in enumerate(found):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise self.not_finite(self.first + i, loss)
        self.losses += [loss for loss, _ in found]
        self.taken = 0


@contextmanager
def _rounded_products(wanted: bool) -> Iterator[None]:
    """Matrix products of float32 by tensor cores, which round what they multiply to 11 bits and add
    in float32.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = wanted or before
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def room_for(length: int) -> int:
    """The room for sequences of up to ``length`` events: a multiple of an eighth of the power of
    two below, 4 at least.

    >>> [room_for(n) for n in (1, 38, 101, 500)]
    [4, 40, 104, 512]
    """
    unit = max(4, 1 << max(0, length.bit_length() - 4))
    return -(-length // unit) * unit


def _some(array: np.ndarray) -> np.ndarray:
    """The array, or one number where it is empty, since something must be there to be looked up."""
    return array if len(array) else np.zeros(1, dtype=array.dtype)
