"""Many independent tasks: in processes of this machine, or as tasks of a Ray cluster.

One interface for both. A task is a value that a function, importable by a fresh process, is called
with; what comes back is its result, or why there is none:

    with open_executor(work, jobs=2) as executor:            # or ray="auto"
        executor.submit(task)
        for task, result in executor.wait(timeout):
            ...

Local workers are fresh processes with one thread that take one task after another. One that dies
(killed, out of memory) is seen at its pipe: its task has failed, and another worker takes its
place. In a Ray cluster a task asks for processors and GPUs. If its node is lost, Ray runs it again
on another, up to RETRIES times, so that a lost node costs the tasks that ran on it and no others.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol

from fourpoint.errors import UserError

Work = Callable[[Any], Any]
RETRIES = 3  # of a task whose node or process is lost, in a Ray cluster


@dataclass(frozen=True)
class Failure:
    """Why a task has no result, and the seconds after which it had failed."""

    reason: str
    seconds: float


class Executor(Protocol):
    """Runs tasks; see the module."""

    def free(self) -> int:
        """How many tasks can begin now."""

    def busy(self) -> int:
        """How many have not ended."""

    def submit(self, task: object) -> None:
        """Begin a task."""

    def wait(self, timeout: float | None = None) -> list[tuple[Any, Any]]:
        """The tasks that have ended since the last call, with their results or a
        :class:`Failure`; none after ``timeout`` seconds.
        """

    def close(self) -> None:
        """End everything that still runs."""


@contextmanager
def open_executor(
    work: Work,
    *,
    jobs: int = 1,
    ray: str | None = None,
    gpus: float = 0.0,
    healthy: Callable[[Any], bool] = lambda result: True,
    threads: bool = False,
) -> Iterator[Executor]:
    """Processes of this machine, or a Ray cluster at the address ``ray``.

    Args:
        work: the function of a task; a fresh process must be able to import it.
        jobs: processes, without Ray.
        ray: "auto" (the cluster of this machine), "local" (a new one), HOST:PORT or
            ray://HOST:PORT.
        gpus: that a task needs, in a Ray cluster.
        healthy: whether a process may go on after this result.
        threads: run tasks in threads of this process, as those do that start processes of their
            own.

    >>> with open_executor(str.upper, jobs=1) as executor:
    ...     executor.submit("a")
    ...     executor.wait()
    [('a', 'A')]
    """
    found: Executor
    if ray is not None:
        found = RayTasks(work, ray, gpus)
    elif threads:
        found = LocalThreads(work, jobs)
    else:
        found = LocalProcesses(work, jobs, healthy)
    try:
        yield found
    finally:
        found.close()


def run_all(
    executor: Executor, tasks: Iterable[Any], *, ended: Callable[[int], None] | None = None
) -> Iterator[Any]:
    """The results of ``tasks`` in their order, as soon as those before them are there.

    At most twice as many tasks as there are workers wait for their turn. Raises :class:`UserError`
    for a task that failed. ``ended`` is called with the number of tasks that have ended.
    """
    waiting = enumerate(tasks)
    held: dict[int, Any] = {}
    given, next_one, done = 0, 0, 0
    exhausted = False
    while not exhausted or executor.busy() or held:
        while not exhausted and executor.free() and given - next_one < 2 * _slots(executor):
            pair = next(waiting, None)
            if pair is None:
                exhausted = True
                break
            executor.submit(pair)
            given += 1
        while next_one in held:
            yield held.pop(next_one)
            next_one += 1
        if not executor.busy():
            continue
        for (number, _), result in executor.wait():
            done += 1
            if ended is not None:
                ended(done)
            if isinstance(result, Failure):
                raise UserError(
                    "tasks that end",
                    f"task {number + 1}, which failed ({result.reason})",
                    "Run the command again; without --ray and --jobs the error is shown in full.",
                )
            held[number] = result


@dataclass(frozen=True)
class Numbered:
    """A function for the tasks of :func:`run_all`, which are pairs of a number and a task."""

    work: Work

    def __call__(self, pair: tuple[int, Any]) -> Any:
        return self.work(pair[1])


def _slots(executor: Executor) -> int:
    return max(1, executor.free() + executor.busy())


# ---------------------------------------------------------------------- processes of this machine


class LocalProcesses:
    """Fresh processes, one task each at a time."""

    def __init__(self, work: Work, jobs: int, healthy: Callable[[Any], bool]) -> None:
        if jobs < 1:
            raise UserError("at least one process", f"--jobs {jobs}", "Type --jobs 2, say.")
        self.work = work
        self.jobs = jobs
        self.healthy = healthy
        self.idle: list[tuple[SpawnProcess, Connection]] = []
        self.at_work: dict[Connection, tuple[SpawnProcess, Any, float]] = {}

    def free(self) -> int:
        return self.jobs - len(self.at_work)

    def busy(self) -> int:
        return len(self.at_work)

    def submit(self, task: object) -> None:
        process, pipe = self.idle.pop() if self.idle else _worker(self.work)
        pipe.send(task)
        self.at_work[pipe] = (process, task, time.monotonic())

    def wait(self, timeout: float | None = None) -> list[tuple[Any, Any]]:
        pipes = list(self.at_work)
        ready = wait(pipes, timeout)
        found: list[tuple[Any, Any]] = []
        for pipe in [pipe for pipe in pipes if pipe in ready]:
            process, task, began = self.at_work.pop(pipe)
            try:
                result = pipe.recv()
            except (EOFError, OSError):
                process.join()
                result = Failure(_death(process.exitcode), round(time.monotonic() - began, 2))
            # What broke a task may have broken its process: errors of a GPU stay with it.
            if isinstance(result, Failure) or not self.healthy(result):
                _end(process, pipe)
            else:
                self.idle.append((process, pipe))
            found.append((task, result))
        return found

    def close(self) -> None:
        for process, pipe in self.idle:
            _end(process, pipe)
        for pipe, (process, _, _) in self.at_work.items():
            _end(process, pipe)
        self.idle, self.at_work = [], {}


class LocalThreads:
    """Threads, for tasks that start processes of their own."""

    def __init__(self, work: Work, jobs: int) -> None:
        self.jobs = jobs
        self.work = work
        self.pool = ThreadPoolExecutor(jobs)
        self.at_work: dict[Future[Any], Any] = {}

    def free(self) -> int:
        return self.jobs - len(self.at_work)

    def busy(self) -> int:
        return len(self.at_work)

    def submit(self, task: object) -> None:
        self.at_work[self.pool.submit(_guarded, self.work, task)] = task

    def wait(self, timeout: float | None = None) -> list[tuple[Any, Any]]:
        ready, _ = futures.wait(self.at_work, timeout, futures.FIRST_COMPLETED)
        return [(self.at_work.pop(one), one.result()) for one in list(self.at_work) if one in ready]

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


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
    """Take tasks until the pipe is closed. Interrupts are left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        began = time.monotonic()
        try:
            result = work(task)
        except Exception as error:  # an error of one task is its result, and the others go on
            result = Failure(_words(error), round(time.monotonic() - began, 2))
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # other processes share the card
        try:
            pipe.send(result)
        except BrokenPipeError:
            return


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, since its results would not be read."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _end(process: SpawnProcess, pipe: Connection) -> None:
    pipe.close()
    if process.is_alive():
        process.terminate()
    process.join()


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


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------------- Ray


class RayTasks:
    """Tasks of a Ray cluster."""

    def __init__(self, work: Work, address: str, gpus: float) -> None:
        try:
            import ray
        except ImportError:
            raise UserError(
                "Ray, for --ray", "a Python without it", "pip install 'fourpoint[ray]'."
            ) from None
        self.ray = ray
        self.gpus = gpus
        self.opened = not ray.is_initialized()
        if self.opened:
            _connect(ray, address)
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": RETRIES}
        if gpus:
            options["num_gpus"] = gpus
        self.remote = ray.remote(**options)(_guarded)
        self.work = ray.put(work)
        self.at_work: dict[Any, tuple[Any, float]] = {}

    def free(self) -> int:
        resources = self.ray.cluster_resources()
        slots = int(resources.get("CPU", 1))
        if self.gpus:
            slots = min(slots, int(resources.get("GPU", 0) / self.gpus))
        return max(1, slots) - len(self.at_work)

    def busy(self) -> int:
        return len(self.at_work)

    def submit(self, task: object) -> None:
        self.at_work[self.remote.remote(self.work, task)] = (task, time.monotonic())

    def wait(self, timeout: float | None = None) -> list[tuple[Any, Any]]:
        ready, _ = self.ray.wait(list(self.at_work), num_returns=1, timeout=timeout)
        found: list[tuple[Any, Any]] = []
        for reference in ready:
            task, began = self.at_work.pop(reference)
            try:
                result = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                result = Failure(reason, round(time.monotonic() - began, 2))
            found.append((task, result))
        return found

    def close(self) -> None:
        for reference in self.at_work:
            self.ray.cancel(reference, force=True)
        self.at_work = {}
        if self.opened:
            self.ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    import logging
    import warnings

    place = None if address == "local" else address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                address=place,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False if place is None else None,
            )
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            "the address of a Ray cluster: auto, local, HOST:PORT or ray://HOST:PORT",
            f"{address!r} ({words[:120]})",
            "Start one with `ray start --head`, or leave out --ray to use local processes.",
        ) from error


def _guarded(work: Work, task: object) -> Any:
    """The result of a task, or its failure; only lost nodes and processes are left to Ray, which
    starts processes with one thread.
    """
    began = time.monotonic()
    try:
        return work(task)
    except Exception as error:  # an error of one task is its result, and it is not run again
        return Failure(_words(error), round(time.monotonic() - began, 2))


def cores() -> int:
    """The cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
