r"""Processes that take the steps of one fit together.

Every process has the same data and the same weights. A step's batch is shared out by the lengths of
its sequences; each process computes the gradient of its part over the expected number of events of
the whole batch, and the sum over processes,

    g = sum_r g_r,    g_r = - grad sum_{s in part r} log L_s / (expected events of the batch),

is the gradient that one process would have computed for the batch, to rounding: random numbers are
drawn for the whole batch by everyone (`events.draws`). Clipping, the optimiser and validations then
do the same everywhere. Only the first process writes.

Rounding grows from step to step, so that sums in float32 in another order give another curve after
some hundred steps. Hence a batch is dealt out in units of consecutive sequences that do not depend
on the number of processes (`unit_of`). Compiled gradients are sums over a unit in float32, the same
wherever it is computed, and everything after that is summed in float64 and rounded once at the end.

Gradients go as one array: through shared memory between processes on one machine (`exchange`), else
by one all-reduce (gloo on processors, NCCL on GPUs). The models have some
ten thousand weights, for which buckets and hooks of DistributedDataParallel cost more than they
hide (`benchmarks/scale.py` measures both), and compiled gradients have no hooks.

The processes are those of `torchrun`, which sets RANK, WORLD_SIZE and the address of the first one;
`launch` starts some on this machine. A process that dies ends the group, the agent starts it again,
and the run goes on from the last validation.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.errors import UserError
from fourpoint.events.draws import RowGenerator
from fourpoint.training.exchange import SharedSum, possible

RESTARTS = 3  # of the group of processes
TIMEOUT = 600.0  # seconds in which all processes have started
POLL = 0.01  # seconds between two looks at the store
OUTCOME = "FOURPOINT_OUTCOME"  # the file in which a process leaves its exit code
UNITS = 32  # in which a batch is dealt out, or more
LARGEST_UNIT = 8  # sequences


def unit_of(sequences: int) -> int:
    """How many consecutive sequences of a batch of so many stay together, whose gradients are
    summed in float32.

    >>> [unit_of(sequences) for sequences in (6, 64, 128, 1000)]
    [1, 2, 4, 8]
    """
    return max(1, min(LARGEST_UNIT, sequences // UNITS))


class Team:
    """The processes of a fit: one, unless torchrun has started more."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self._shared: SharedSum | None = None

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def share(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of this process among the sequences of a batch, in their order.

        Units of consecutive sequences are dealt out, see :func:`unit_of`. The longest one goes
        first, each to the process with the fewest events so far; a sequence costs its events and
        one.

        >>> [Team(rank, 2).share(np.array([9, 1, 5, 5])).tolist() for rank in (0, 1)]
        [[0, 1], [2, 3]]
        """
        if self.size == 1:
            return np.arange(len(lengths))
        unit = unit_of(len(lengths))
        costs = np.add.reduceat(lengths + 1, np.arange(0, len(lengths), unit))
        loads = [0] * self.size
        owner = np.zeros(len(costs), dtype=np.int64)
        for place in np.argsort(-costs, kind="stable").tolist():
            least = loads.index(min(loads))
            owner[place] = least
            loads[least] += int(costs[place])
        return np.flatnonzero(np.repeat(owner == self.rank, unit)[: len(lengths)])

    def generator(self, places: NDArray[np.int64], total: int) -> torch.Generator:
        """A generator for these rows of a batch of so many."""
        if self.size == 1:
            return torch.Generator()
        return RowGenerator.of(torch.from_numpy(places), total)

    def add(
        self, weights: list[nn.Parameter], gradients: list[Tensor | None], loss: float
    ) -> tuple[float, list[Tensor | None]]:
        """The loss and the gradients in the weights, summed over all processes in float64; a weight
        that has no gradient in any process has none.
        """
        if self.size == 1:
            return loss, gradients
        sizes = [p.numel() for p in weights]
        first = len(weights) + 1
        place = weights[0].device
        head = [float(gradient is not None) for gradient in gradients]
        whole = torch.zeros(first + sum(sizes), dtype=torch.float64, device=place)
        whole[:first] = torch.tensor([*head, loss], dtype=torch.float64)
        for into, gradient in zip(whole[first:].split(sizes), gradients, strict=True):
            if gradient is not None:
                into.copy_(gradient.detach().reshape(-1))
        self._sum(whole)
        *counts, total = whole[:first].tolist()
        parts = whole[first:].split(sizes)
        summed = zip(weights, parts, counts, strict=True)
        return total, [part.view(p.shape) if count else None for p, part, count in summed]

    def _sum(self, numbers: Tensor) -> None:
        """Sum over all processes in place, through shared memory where they have one."""
        if numbers.device.type != "cpu" or not on_one_machine():
            dist.all_reduce(numbers)
            return
        if self._shared is None or self._shared.rows.shape[2] != len(numbers):
            self.close()
            self._shared = SharedSum(self.rank, self.size, len(numbers))
        self._shared.add(numbers)

    def close(self) -> None:
        """End the connections with other processes."""
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def agree(self, value: float) -> float:
        """The value of the first process."""
        if self.size == 1:
            return value
        return float(self.tell(value))

    def tell(self, what: object) -> Any:
        """What the first process has, in all."""
        if self.size == 1:
            return what
        held = [what]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def gather(self, own: list[Any]) -> list[Any]:
        """The elements of all processes' lists, dealt out in turn: element i is that of process
        i mod size.
        """
        if self.size == 1:
            return own
        lists: list[Any] = [None] * self.size
        dist.all_gather_object(lists, own)
        longest = max(map(len, lists))
        return [one[i] for i in range(longest) for one in lists if i < len(one)]

    def mine(self, items: list[Any]) -> list[Any]:
        """The items of this process, dealt out in turn."""
        return items[self.rank :: self.size]


def local_device(name: str) -> str:
    """The device of this process among those of its machine: "cuda" is "cuda:1" for the second."""
    local = os.environ.get("LOCAL_RANK", "")
    return f"{name}:{local}" if name == "cuda" and local and group_size() > 1 else name


def group_size() -> int:
    """How many processes torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def on_one_machine() -> bool:
    """Whether all processes that torchrun has started are on this machine and can share memory."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return possible() and local == group_size() > 1


def started_again() -> bool:
    """Whether torchrun has started this process in place of one that died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def team_of(place: torch.device) -> Iterator[Team]:
    """The processes that torchrun has started, or this one alone."""
    if group_size() == 1:
        yield Team()
        return
    opened = not dist.is_initialized()
    if opened:
        if place.type == "cuda":
            torch.cuda.set_device(place)
        store, rank, size = next(iter(dist.rendezvous("env://")))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo",
            store=dist.PrefixStore(agreed_prefix(store, rank, size), store),
            rank=rank,
            world_size=size,
        )
    try:
        team = Team(dist.get_rank(), dist.get_world_size())
        yield team
        team.close()
    finally:
        if opened:
            dist.destroy_process_group()


def agreed_prefix(store: dist.Store, rank: int, size: int, timeout: float = TIMEOUT) -> str:
    """A prefix of keys that the processes of this start have in common and no earlier start had.

    The agent of torchrun keeps one store through all restarts, with the addresses of processes that
    have died. A process that connects to those waits until its timeout. Hence each process r writes
    a number of its own to ``hello/r``; the first one answers it under that number with the prefix,
    until each has confirmed, since a number that it read may be that of a dead process.

    Raises :class:`UserError` where the others do not come within ``timeout`` seconds.
    """
    until = time.monotonic() + timeout
    if rank != 0:
        own = uuid.uuid4().hex
        store.set(f"hello/{rank}", own)
        _wait_until(lambda: store.check([f"prefix/{own}"]), until, size)
        prefix = store.get(f"prefix/{own}").decode()
        store.set(f"{prefix}/known/{rank}", "yes")
        return prefix
    prefix = uuid.uuid4().hex
    missing = set(range(1, size))

    def all_know() -> bool:
        for other in sorted(missing):
            if store.check([f"{prefix}/known/{other}"]):
                missing.discard(other)
            elif store.check([f"hello/{other}"]):
                store.set("prefix/" + store.get(f"hello/{other}").decode(), prefix)
        return not missing

    _wait_until(all_know, until, size)
    return prefix


def _wait_until(done: Callable[[], bool], until: float, size: int) -> None:
    while not done():
        if time.monotonic() > until:
            raise UserError(
                f"{size} processes that find each other",
                "fewer of them",
                "Look for an error of another process, and start the command again.",
            )
        time.sleep(POLL)


def launch(processes: int, arguments: list[str]) -> int:
    """Run ``fourpoint`` with these arguments in so many processes on this machine, and start the
    group again where one of them dies. Returns the exit code; after a signal 128 and its number.

    Raises :class:`UserError` where they died more than RESTARTS times.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    cores = os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=RESTARTS,
        monitor_interval=0.2,
    )
    with tempfile.TemporaryDirectory() as folder:
        outcome = Path(folder) / "outcome"
        os.environ[OUTCOME] = str(outcome)
        try:
            elastic_launch(config, sys.executable)("-m", "fourpoint", *arguments)
        except ChildFailedError as error:
            failure = min(error.failures.values(), key=lambda one: one.timestamp)
            raise UserError(
                f"{processes} processes that end",
                f"one that ended with exit code {failure.exitcode}, after {RESTARTS} new starts",
                "Look at its message above; fit --resume goes on from the last validation.",
            ) from error
        except SignalException as error:
            return 128 + int(error.sigval)
        finally:
            os.environ.pop(OUTCOME)
        return int(outcome.read_text()) if outcome.is_file() else 0
