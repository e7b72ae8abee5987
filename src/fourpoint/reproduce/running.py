"""Cells as tasks of their own, several at once; a cell that fails or is killed does not affect the
others.

They run in processes of this machine or on a Ray cluster (`fourpoint.workers`). An error inside a
cell comes back as its reason, and so does the signal that killed its process. The parent alone
writes records, so that a run killed half-way leaves whole records only, and its workers end with
it. The longest cells go first (`pace.py`), so that all workers end together. Where time is limited
no cell is begun that is not expected to end, and what still runs when time is up is stopped and
leaves no record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from fourpoint.report.printing import plain_console, text_column
from fourpoint.reproduce.cells import DONE, FAILED, NO_DATA, Record
from fourpoint.reproduce.pace import Pace
from fourpoint.reproduce.plan import Cell
from fourpoint.reproduce.sets import NoData
from fourpoint.sanitising import console_text
from fourpoint.workers import Executor, Failure, open_executor

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
    ray: str | None = None,
    gpus: float = 0.0,
) -> list[Cell]:
    """Run ``work`` on every cell, in ``jobs`` processes (0: in this one) or on the Ray cluster at
    the address ``ray``, and hand each outcome to ``keep`` as it comes.

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

        if jobs == 0 and ray is None:
            for cell in queue:
                if pace.fits(cell, until - time.monotonic()):
                    keep_and_tell(cell, attempt(work, cell))
        else:
            with open_executor(
                partial(attempt, work),
                jobs=min(max(1, jobs), max(1, len(queue))),
                ray=ray,
                gpus=gpus,
                healthy=lambda outcome: outcome["status"] != FAILED,
            ) as executor:
                _hand_out(executor, queue, keep_and_tell, until, pace)
    return left


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


def _hand_out(executor: Executor, queue: list[Cell], keep: Keep, until: float, pace: Pace) -> None:
    """Give cells to workers that are free until there are none left, or no time."""
    waiting = list(queue)
    while True:
        while executor.free() > 0:
            left = until - time.monotonic()
            fitting = next((cell for cell in waiting if pace.fits(cell, left)), None)
            if fitting is None:
                break
            waiting.remove(fitting)
            executor.submit(fitting)
        if not executor.busy():
            return
        patience = None if math.isinf(until) else max(0.0, until - time.monotonic())
        heard = executor.wait(patience)
        if not heard:
            return
        for cell, outcome in heard:
            if isinstance(outcome, Failure):
                seconds = outcome.seconds
                outcome = {"status": FAILED, "reason": outcome.reason, "seconds": seconds}
            keep(cell, outcome)


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
