"""The service around the engine: one thread that owns the streams, and questions about them.

HTTP handlers and broker loops hand over events (:meth:`Service.submit`) and get a future that is
done after the commit; whatever else must see the streams runs in the same thread
(:meth:`Service.call`). What waits is committed together, so that a slow disk makes batches larger
rather than the queue longer.
"""

from __future__ import annotations

import queue
import threading
import time as clocks
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fourpoint.errors import UserError
from fourpoint.serve.databases import database
from fourpoint.serve.engine import ALL, Engine, Receipt, Request, Scored, Served
from fourpoint.serve.live import Live
from fourpoint.serve.settings import Settings
from fourpoint.serve.store import SqlStore
from fourpoint.storage.checkpoints import about, save
from fourpoint.streaming.bank import StreamBank

T = TypeVar("T")
TOGETHER = 4096  # events that are committed together
PAUSE = 0.05  # seconds between two looks at what else is to be done
STATUS = 1.0  # seconds between two status messages
SHOWN = 200  # events of one message
INTEGRATED = 2048  # entities whose open gaps count when they are sorted by surprise
LOOK = 5.0  # seconds between two looks for silences, or
RARE = 20.0  # times the duration of a look
AGAIN = 0.5  # seconds after a failure of the store before it is tried again


class Busy(Exception):
    """More events wait than the service accepts."""


class Service:
    """A model that is served, from :meth:`start` to :meth:`close`."""

    def __init__(
        self,
        folder: Path,
        url: str,
        settings: Settings,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.settings = settings
        self.live = Live()
        self.tell = tell
        self.started = clocks.time()
        store = SqlStore(database(url))
        try:
            shadow = None if settings.shadow is None else Served.load(settings.shadow)
            self.engine = Engine(
                Served.load(folder),
                store,
                settings,
                shadow=shadow,
                tell=tell,
                on_scored=self._publish,
            )
        except BaseException:
            store.close()
            raise
        warm_up(self.engine)
        self._waiting: queue.Queue[_Task] = queue.Queue()
        self._queued = 0
        self._lock = threading.Lock()
        self._stopping = False
        self._reloading = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fourpoint-engine", daemon=True)

    @property
    def store(self) -> SqlStore:
        """Where everything is kept; questions to it may come from any thread."""
        return self.engine.store

    @property
    def is_ready(self) -> bool:
        """Whether events are accepted."""
        return self._thread.is_alive() and self.engine.degraded is None and not self._stopping

    @property
    def queued(self) -> int:
        """Events that wait for the engine."""
        return self._queued

    def start(self) -> None:
        """Begin to accept events."""
        self._thread.start()

    def close(self) -> None:
        """Finish what waits, write a snapshot and let go of the store."""
        if self._stopping:
            return
        self._stopping = True
        self.live.close()
        if self._thread.is_alive():
            self._waiting.put(_Task())
            self._thread.join()
        self.engine.close()

    def submit(
        self, events: Sequence[object], offsets: Sequence[tuple[str, str, str]] = ()
    ) -> Future[Receipt]:
        """Hand over events as parsed JSON, and how far their source is read with them; the future
        is done once they are committed.

        Raises :class:`Busy` where too many events wait.
        """
        task = _Task(Request(events, offsets))
        with self._lock:
            if self._queued + len(events) > self.settings.limits.queued or self._stopping:
                raise Busy(f"{self._queued:,} events wait")
            self._queued += len(events)
        self._waiting.put(task)
        return task.receipt

    def call(self, question: Callable[[Engine], T]) -> Future[T]:
        """Run a function in the thread of the engine."""
        answer: Future[T] = Future()

        def run(engine: Engine) -> None:
            try:
                answer.set_result(question(engine))
            except BaseException as error:
                answer.set_exception(error)

        self._waiting.put(_Task(question=run))
        return answer

    # ------------------------------------------------------------------ life cycle of models

    def reload(self) -> dict[str, Any]:
        """Follow the model that is in the service's folder now. It goes through the stored events
        in the thread of the caller, while events are accepted; nothing is lost.

        Raises :class:`UserError` where its times or types are not those of the stored events.
        """
        with self._reloading:
            served = Served.load(self.engine.served.folder)
            following = self.call(lambda engine: engine.candidate(served)).result()
            if following is not None:
                following.replay()
                self.call(lambda engine: engine.replace_live(served, following)).result()
            return self._model_fields(changed=following is not None)

    def promote(self) -> dict[str, Any]:
        """Make the shadow model the live one. It is saved in the folder of the live model, whose
        files are kept beside it, in a folder that ends in ``.previous``.
        """
        with self._reloading:
            shadow, live = self.engine.shadow_served, self.engine.served
            if shadow is not None:
                kept = live.folder.with_name(f"{live.folder.name}.previous")
                save(live.model, kept, about=about(live.folder))
                save(shadow.model, live.folder, about=about(shadow.folder))
            self.call(lambda engine: engine.promote()).result()
            return self._model_fields(changed=True)

    def _model_fields(self, *, changed: bool) -> dict[str, Any]:
        live = self.engine.live
        return {
            "changed": changed,
            "model": type(live.model).__name__,
            "fingerprint": live.slot.model,
            "events": live.totals.events,
            "log_likelihood": live.totals.log_likelihood,
        }

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        told = 0.0
        looked = clocks.monotonic()
        pause = LOOK
        while True:
            tasks = self._next()
            requests = [task for task in tasks if task.request is not None]
            if requests:
                self._accept(requests)
            for task in tasks:
                if task.question is not None:
                    task.question(self.engine)
            if any(task.is_end for task in tasks):
                return
            if not requests:
                self._idle()
            if clocks.monotonic() - looked > pause:
                began = clocks.monotonic()
                self._look_for_silences()
                looked = clocks.monotonic()
                pause = max(LOOK, RARE * (looked - began))
            if clocks.monotonic() - told > STATUS and len(self.live):
                told = clocks.monotonic()
                self.live.publish("status", self.brief())

    def _next(self) -> list[_Task]:
        """What waits, up to as many events as are committed together."""
        try:
            tasks = [self._waiting.get(timeout=PAUSE)]
        except queue.Empty:
            return []
        count = tasks[0].size
        while count < TOGETHER:
            try:
                task = self._waiting.get_nowait()
            except queue.Empty:
                break
            tasks.append(task)
            count += task.size
        return tasks

    def _accept(self, tasks: list[_Task]) -> None:
        requests = [task.request for task in tasks if task.request is not None]
        try:
            receipts = self.engine.accept(requests)
        except BaseException as error:
            self.tell(f"not committed, and not acknowledged: {error}")
            for task in tasks:
                task.receipt.set_exception(error)
        else:
            for task, receipt in zip(tasks, receipts, strict=True):
                task.receipt.set_result(receipt)
        with self._lock:
            self._queued -= sum(task.size for task in tasks)

    def _idle(self) -> None:
        try:
            while self.engine.idle() and self._waiting.empty():
                pass
        except Exception as error:
            self._degrade(error)
            clocks.sleep(AGAIN)

    def _look_for_silences(self) -> None:
        try:
            self.engine.note_silences()
        except Exception as error:
            self._degrade(error)

    def _degrade(self, error: Exception) -> None:
        # The thread must live on: what is in memory is dropped, and read back from the store.
        if self.engine.degraded is None:
            self.tell(f"the store cannot be written at present: {error}")
        self.engine.degraded = str(error) or type(error).__name__

    # ------------------------------------------------------------------ what clients see

    def _publish(self, scored: list[Scored], alarms: list[dict[str, Any]]) -> None:
        if not len(self.live):
            return
        if scored:
            events = [self.event_fields(one) for one in scored[-SHOWN:]]
            self.live.publish("events", {"count": len(scored), "events": events})
        for alarm in alarms:
            self.live.publish("alarm", alarm)

    def event_fields(self, scored: Scored) -> dict[str, Any]:
        """A scored event as the API writes it."""
        event, log_density, gap, rate = scored
        names = self.engine.served.model.marks.names
        return {
            "id": event.id,
            "entity": event.entity,
            "time": self.engine.shown(event.moment),
            "mark": names[event.mark] if names else None,
            "log_density": log_density,
            "gap": gap,
            "rate": rate,
        }

    def brief(self) -> dict[str, Any]:
        """Where the service stands; cheap."""
        engine = self.engine
        counters = engine.counters
        return {
            "now": engine.shown(engine.now()),
            "events": counters.events,
            "entities": len(engine.live),
            "late": counters.late,
            "duplicates": counters.duplicates,
            "refused": counters.refused,
            "alarms": counters.alarms,
            "watermark": engine.shown(engine.watermark.frontier),
            "waiting": len(engine.watermark),
            "ready": self.is_ready,
        }

    def entity(self, name: str) -> Future[dict[str, Any] | None]:
        """One entity: events known, rate now, last event and surprise; None if unknown."""

        def look(engine: Engine) -> dict[str, Any] | None:
            entities = engine.live.entities
            if entities is None or name not in entities.bank:
                return None
            entities.bank.table.assign([name])
            return self._entities(engine, [name])[0]

        return self.call(look)

    def entities(
        self, sort: str = "surprise", limit: int = 50, offset: int = 0
    ) -> Future[dict[str, Any]]:
        """The entities in memory, sorted by "surprise", "events", "recent" or "id"."""

        def look(engine: Engine) -> dict[str, Any]:
            entities = engine.live.entities
            if entities is None:
                return {"total": 0, "entities": []}
            bank = entities.bank
            names = list(bank.table.row)
            rows = np.fromiter(bank.table.row.values(), dtype=np.int64, count=len(names))
            if sort == "id":
                order = np.argsort(np.array(names, dtype=object), kind="stable")
            elif sort == "events":
                order = np.argsort(-bank.table.numbers["count"][rows], kind="stable")
            elif sort == "recent":
                order = np.argsort(-bank.table.numbers["at"][rows], kind="stable")
            else:
                # Silences count up to now, unless there are too many entities to integrate.
                few = len(rows) <= INTEGRATED and engine.times.calendar is None
                order = np.argsort(
                    -bank.surprise(rows, engine.now() if few else None), kind="stable"
                )
            some = [names[i] for i in order[offset : offset + limit].tolist()]
            return {"total": len(bank), "entities": self._entities(engine, some)}

        return self.call(look)

    def _entities(self, engine: Engine, names: list[str]) -> list[dict[str, Any]]:
        """Entities in memory as the API writes them."""
        if engine.live.entities is None or not names:
            return []
        bank = engine.live.entities.bank
        table = bank.table
        rows = np.array([table.row[name] for name in names], dtype=np.int64)
        last = table.numbers["at"][rows]
        now = engine.now()
        calendar = engine.times.calendar is not None
        times = last if now is None or calendar else np.maximum(last, now)
        rates = bank.rates(rows, times)
        surprise = bank.surprise(rows, None if calendar else now)
        marks = bank.model.marks.names or (ALL,)
        moments: list[float | None] = last.tolist()
        if calendar:
            stored = [engine.store.recent(1, name) for name in names]
            moments = [events[0].moment if events else None for events in stored]
        found = []
        for i, name in enumerate(names):
            count = int(table.numbers["count"][rows[i]])
            found.append(
                {
                    "id": name,
                    "events": count,
                    "rate": float(rates[i].sum()),
                    "rates": dict(zip(marks, rates[i].tolist(), strict=True)),
                    "last_event": engine.shown(moments[i]),
                    "surprise": float(surprise[i]),
                }
            )
        return found


def warm_up(engine: Engine) -> None:
    """Score events of a stream that nobody keeps, so that the first event does not wait for code
    that is loaded or compiled when it is first used.
    """
    model = engine.served.model
    features = model.event_features
    known = None if features is None else np.zeros((4, len(features.spec.names)))
    start = engine.live.slot.begin or 0.0
    context = engine.settings.scoring.beside.context(engine.times, start)
    bank = StreamBank(model, start=start, alarms=1e-3, fleet=True, threads=1, context=context)
    with suppress(UserError):
        bank.observe_many(["a", "b", "a", "b"], start + np.arange(4.0), np.zeros(4, int), known)
        rows = np.arange(2)
        bank.rates(rows, np.full(2, start + 4.0))
        bank.surprise(rows, start + 4.0)


class _Task:
    """What waits for the engine: events, a question, or the end."""

    def __init__(
        self, request: Request | None = None, question: Callable[[Engine], None] | None = None
    ) -> None:
        self.request = request
        self.question = question
        self.receipt: Future[Receipt] = Future()

    @property
    def size(self) -> int:
        return 0 if self.request is None else len(self.request.events)

    @property
    def is_end(self) -> bool:
        return self.request is None and self.question is None
