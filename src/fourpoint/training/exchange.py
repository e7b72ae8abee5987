"""Sums over the processes of one machine, through memory that they share.

A sum by gloo goes through sockets and threads of its own, which wait for a processor that the steps
of the fit are using. Here each process writes its numbers to a file that all have in memory, sends
one byte to each of the others, waits for theirs, and adds up all rows in the order of ranks, so
that all of them have the same sum.

Every process has two rows, which it uses in turn. It writes to a row again after the others have
sent their bytes of the exchange between, and hence have read it. The bytes go through system calls,
after which what was written before is seen by the other processes. A process that died closes its
connections, and the others raise `RuntimeError`, as torch's own sums do.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

SHARED = Path("/dev/shm")  # a folder in memory, where a system has one


def possible() -> bool:
    """Whether this system has the connections that are needed.

    >>> isinstance(possible(), bool)
    True
    """
    return hasattr(socket, "AF_UNIX")


class SharedSum:
    """Sums of ``count`` numbers in float64 over the ``size`` processes of the process group, all
    of which are on this machine.
    """

    def __init__(self, rank: int, size: int, count: int) -> None:
        self.rank, self.size = rank, size
        self.turn = 0
        held = [_new_folder(size, count)] if rank == 0 else [""]
        dist.broadcast_object_list(held, src=0)
        folder = Path(held[0])
        self.rows = np.memmap(folder / "rows", np.float64, "r+", shape=(2, size, count))
        self.others = _connected(folder, rank, size)
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)  # what is open stays, until the last process ends

    def add(self, numbers: torch.Tensor) -> None:
        """Replace the ``numbers`` of this process by their sum over all processes."""
        rows = self.rows[self.turn]
        self.turn = 1 - self.turn
        rows[self.rank] = numbers.numpy()
        try:
            for other in self.others:
                other.sendall(b"\0")
            lost = any(not other.recv(1) for other in self.others)
        except ConnectionError:
            lost = True
        if lost:
            # no OSError, which the command reports as a mistake of its user and ends with
            raise RuntimeError("another process of the fit has ended")
        np.sum(rows, 0, out=numbers.numpy())

    def close(self) -> None:
        """End the connections."""
        for other in self.others:
            other.close()


def _new_folder(size: int, count: int) -> str:
    """A folder with the file of all rows."""
    folder = tempfile.mkdtemp(prefix="fourpoint-", dir=SHARED if SHARED.is_dir() else None)
    with (Path(folder) / "rows").open("wb") as file:
        file.truncate(2 * size * count * 8)
    return folder


def _connected(folder: Path, rank: int, size: int) -> list[socket.socket]:
    """Connections with all other processes: those of lower rank are called, the others call."""
    found = []
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / str(rank)))
        door.listen(size)
        dist.barrier()
        for lower in range(rank):
            other = socket.socket(socket.AF_UNIX)
            other.connect(str(folder / str(lower)))
            found.append(other)
        for _ in range(rank + 1, size):
            found.append(door.accept()[0])
    return found
