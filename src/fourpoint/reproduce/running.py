"""Cells in processes of their own, several at once; a cell that fails or is killed does not affect
the others.

Each worker is a fresh process with one thread that takes one cell after another. An error inside a
cell comes back as its reason. A worker that dies (killed, out of memory) is seen at its pipe: its
cell is recorded as failed with the signal, and another worker takes its place. The parent alone
writes records, so that a run killed half-way leaves whole records only, and its workers end with
it. The longest cells go first (`pace.py`), so that all workers end together. Where time is limited
no cell is begun that is not expected to end, and what still runs when time is up is stopped and
leaves no record.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from fourpoint.report.printing import plain_console, text_column
from fourpoint.reproduce.cells import DONE, FAILED, NO_DATA, Record
from fourpoint.reproduce.pace import Pace
from fourpoint.reproduce.plan import Cell
from fourpoint.reproduce.sets import NoData
from fourpoint.sanitising import console_text

Work = Callable[[Cell], Record]
Keep = Callable[[Cell, Record], None]


def run_cells(
    cells: list[Cell],
    work: Work,
    keep: Keep,
    *,
    jobs: int = 1,
    progress: bool = True,
    until: float = math.inf,
    pace: Pace | None = None,
) -> list[Cell]:
    """Run ``work`` on every cell, in ``jobs`` processes (0: in this one), and hand each outcome to
    ``keep`` as it comes.

    ``work`` must be importable by a fresh process. An outcome is a dict with ``status``,
    ``reason``, ``seconds`` and what ``work`` returned. ``until`` is when to stop, by
    `time.monotonic`; ``pace`` says which cells are long, and learns from those that end. Returns
    the cells for which there was no time.
    """
    pace = pace or Pace()
    queue = sorted(cells, key=lambda cell: (-pace.cost(cell), cell.id))
    left = list(queue)
    with _progress(queue, max(1, jobs), progress, pace) as ended:

        def keep_and_tell(cell: Cell, outcome: Record) -> None:
            keep(cell, outcome)
            left.remove(cell)
            # A cell without data takes no time, from which nothing can be learned about others.
            if outcome["status"] == DONE:
                pace.learn(cell, float(outcome["seconds"]))
            ended(cell, outcome)

        if jobs == 0:
            for cell in queue:
                if pace.fits(cell, until - time.monotonic()):
                    keep_and_tell(cell, attempt(work, cell))
        else:
            _in_processes(queue, work, keep_and_tell, min(jobs, max(1, len(queue))), until, pace)
    return left


def cores() -> int:
    """The cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def attempt(work: Work, cell: Cell) -> Record:
    """What ``work`` found, or why it did not."""
    began = time.monotonic()
    used = time.process_time()
    try:
        outcome: Record = {"status": DONE, "reason": "", **work(cell)}
    except NoData as error:
        outcome = {"status": NO_DATA, "reason": error.received}
    except Exception as error:  # an error of one cell is recorded with it, and the others go on
        outcome = {"status": FAILED, "reason": f"{type(error).__name__}: {error}"}
    clocks = dict(
        seconds=round(time.monotonic() - began, 2),
        processor_seconds=round(time.process_time() - used, 2),
    )
    return {**outcome, **clocks}


def _in_processes(
    queue: list[Cell], work: Work, keep: Keep, jobs: int, until: float, pace: Pace
) -> None:
    waiting = list(queue)
    busy: dict[Connection, tuple[SpawnProcess, Cell, float]] = {}
    idle = [_worker(work) for _ in range(jobs)]
    try:
        while True:
            while idle:
                left = until - time.monotonic()
                fitting = next((cell for cell in waiting if pace.fits(cell, left)), None)
                if fitting is None:
                    break
                process, pipe = idle.pop()
                waiting.remove(fitting)
                pipe.send(fitting)
                busy[pipe] = (process, fitting, time.monotonic())
            heard = _heard(list(busy), until) if busy else []
            if not heard:
                return
            for pipe in heard:
                process, cell, began = busy.pop(pipe)
                try:
                    outcome = pipe.recv()
                except (EOFError, OSError):
                    process.join()
                    reason = _death(process.exitcode)
                    seconds = round(time.monotonic() - began, 2)
                    outcome = {"status": FAILED, "reason": reason, "seconds": seconds}
                keep(cell, outcome)
                if outcome["status"] != FAILED:
                    idle.append((process, pipe))
                    continue
                # What broke a cell may have broken its process: errors of a GPU stay with it.
                _end(process, pipe)
                if waiting:
                    idle.append(_worker(work))
    finally:
        for process, pipe in idle:
            _end(process, pipe)
        for pipe, (process, _, _) in busy.items():
            _end(process, pipe)


def _heard(pipes: list[Connection], until: float) -> list[Connection]:
    """The pipes that can be read, or that were closed; none of them once time is up."""
    patience = None if math.isinf(until) else max(0.0, until - time.monotonic())
    ready = wait(pipes, patience)
    return [pipe for pipe in pipes if pipe in ready]


def _end(process: SpawnProcess, pipe: Connection) -> None:
    pipe.close()
    if process.is_alive():
        process.terminate()
    process.join()


def _worker(work: Work) -> tuple[SpawnProcess, Connection]:
    """A fresh process and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work), daemon=True)
    with _one_thread():
        process.start()
    theirs.close()
    return process, ours


def _serve(pipe: Connection, work: Work) -> None:
    """Take cells until the pipe is closed. Interrupts are left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            cell = pipe.recv()
        except EOFError:
            return
        outcome = attempt(work, cell)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # other processes share the card
        try:
            pipe.send(outcome)
        except BrokenPipeError:
            return


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, since its results would not be read."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The environment in which a process uses one thread from its first import on."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
        except ValueError:
            return f"killed by signal {-code}"
    return f"its process ended with exit code {code}"


@contextmanager
def _progress(cells: list[Cell], jobs: int, show: bool, pace: Pace) -> Iterator[Keep]:
    """A bar over cells: how many are done, what ended last, and the time left."""
    if not show or not cells:
        yield lambda cell, outcome: None
        return
    from rich.progress import BarColumn, Progress, TimeElapsedColumn

    console = plain_console(stderr=True)
    left = list(cells)
    columns = (
        text_column(),
        BarColumn(),
        text_column("{task.completed}/{task.total} cells"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, text_column("{task.fields[left]}"), console=console, transient=True
    ) as bar:
        task = bar.add_task("reproducing", total=len(cells), left="")

        def ended(cell: Cell, outcome: Record) -> None:
            left.remove(cell)
            rest = sum(pace.seconds(one) for one in left) / jobs
            name = "/".join(part for part in (cell.model, cell.data) if part)
            if not console.is_terminal or outcome["status"] == FAILED:
                why = f": {outcome['reason']}" if outcome.get("reason") else ""
                text = (
                    f"{len(cells) - len(left)}/{len(cells)} {cell.kind} {name} seed {cell.seed}: "
                    f"{outcome['status']}{why}"
                )
                line = f"{text} ({outcome.get('seconds', 0):.0f} s, about {_time(rest)} left)"
                bar.console.print(console_text(line), soft_wrap=True)
            later = f"about {_time(rest)} left" if left else ""
            bar.update(task, advance=1, description=console_text(name), left=later)

        yield ended


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s"
