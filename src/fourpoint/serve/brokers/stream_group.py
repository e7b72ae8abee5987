"""``fourpoint stream --group``: what a worker of a consumer group is made of, from its options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from fourpoint.atomic import write_atomic
from fourpoint.errors import UserError
from fourpoint.models.base import PointProcess
from fourpoint.serve.brokers.group import LEASE, LEAST, Progress, Worker, worker_name
from fourpoint.serve.brokers.group_store import GroupStore, Value
from fourpoint.serve.brokers.kafka_source import KafkaSource
from fourpoint.serve.brokers.partition import Scoring
from fourpoint.serve.brokers.redis_source import RedisSource
from fourpoint.serve.brokers.sinks import Outbox, Sink, sink_at
from fourpoint.serve.databases import StoreError, without_password
from fourpoint.streaming.bank import StreamBank
from fourpoint.streaming.feed.beside import Beside
from fourpoint.streaming.feed.events import ALARMS, BUDGET, FEWEST
from fourpoint.streaming.feed.feed import (
    alarm_level,
    check_clock,
    collected_signals,
    entity_column,
    longest_gap,
    short_collections,
    start_time,
    time_check,
    to_stderr,
    usual_rate,
)
from fourpoint.streaming.feed.plausibility import Reached, TimeCheck
from fourpoint.streaming.feed.reading import Asked, EventReader
from fourpoint.streaming.feed.state import Header
from fourpoint.streaming.feed.times import TimeReader
from fourpoint.streaming.feed.training_window import Trained, inferred_start
from fourpoint.streaming.state import fingerprint

PARTITIONS = 16
START = "start of the observation"  # the setting that the first event of the group decides


@dataclass(frozen=True)
class Broker:
    """Where a group reads: one of ``redis`` (a URL) and ``kafka`` (servers), and the stream or
    topic.

    ``partitions`` are the streams of Redis; those of Kafka are known to it. ``latest`` says that
    messages from before the group's first start are not read.
    """

    redis: str | None = None
    kafka: str | None = None
    topic: str = "events"
    partitions: int | None = None
    latest: bool = False
    kafka_options: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse options that do not go together."""
        if (self.redis is None) == (self.kafka is None):
            raise UserError(
                "one broker for --group",
                "none" if self.redis is None else "--redis and --kafka",
                "Type --redis redis://localhost:6379/0 or --kafka localhost:9092, say.",
            )
        if self.partitions is not None and (self.kafka is not None or self.partitions < 1):
            raise UserError(
                "--partitions as the number of streams of Redis, at least 1",
                f"--partitions {self.partitions}"
                + ("" if self.kafka is None else " for Kafka, which knows its own"),
                "Leave --partitions out, or type 16, say.",
            )

    def source(self, group: str, tell: Callable[[str], None]) -> RedisSource | KafkaSource:
        """A connection."""
        if self.redis is not None:
            count = self.partitions or PARTITIONS
            return RedisSource(self.redis, self.topic, count, group, latest=self.latest, tell=tell)
        options = self.client_options()
        return KafkaSource(
            self.kafka or "", self.topic, group, latest=self.latest, options=options, tell=tell
        )

    def client_options(self) -> dict[str, str]:
        """Those of librdkafka."""
        return dict(_option(text) for text in self.kafka_options)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(
            "--kafka-option as NAME=VALUE", f"{text!r}", "Type security.protocol=SSL, say."
        )
    return name, value


@dataclass(frozen=True)
class GroupOptions:
    """The options of a worker, as they are typed."""

    group: str
    store: str
    broker: Broker
    by: str | None = None
    time: str | None = None
    mark: str | None = None
    time_unit: str | None = None
    timezone: str | None = None
    start: str | None = None
    alarms: float | str | None = ALARMS
    keep: int | None = None
    limit: int | None = None
    max_gap: float | str = "auto"
    id: str | None = None
    keep_scores: bool = True
    alarms_to: tuple[str, ...] = ()
    secret: bytes | None = None
    lease: float = LEASE
    every: float = LEAST
    until_end: bool = False
    beside: Beside | None = None


def stream_group(
    model: PointProcess,
    options: GroupOptions,
    trained: Trained | None = None,
    *,
    told: Sequence[int] | None = None,
    tell: Callable[[str], None] = to_stderr,
) -> Progress:
    """Work in a consumer group until SIGTERM or SIGINT, or until the end of what is there.

    Scores, refusals, alarms and positions are in the store (:class:`GroupStore`). Raises
    :class:`UserError` for options that do not go together, or that differ from those of the group's
    other workers, and OSError where the broker or the store stays away.
    """
    options.broker.check()
    _check(options)
    trained = trained or Trained()
    check_clock(trained, options.time_unit, options.timezone)
    with ExitStack() as open_things:
        if told is None:
            told = open_things.enter_context(collected_signals())
        sinks = {without_password(url): sink_at(url, options.secret) for url in options.alarms_to}
        store = GroupStore(options.store, options.group, tell=tell)
        open_things.callback(store.close)
        scoring = _scoring(model, options, trained, store, tell)
        source = options.broker.source(options.group, tell)
        worker = Worker(
            store,
            source,
            replace(scoring, limit=_limit(model, options, source)),
            sinks=list(sinks),
            name=worker_name(),
            lease=options.lease,
            every=options.every,
            tell=tell,
        )
        if sinks:
            open_things.callback(_outbox(options, sinks, worker.name).close)
        tell(f"worker {worker.name} of group {options.group} reads {source.name}")
        with short_collections():
            progress = worker.run(told, until_end=options.until_end)
        tell(str(progress))
    return progress


def _outbox(options: GroupOptions, sinks: dict[str, Sink], worker: str) -> Outbox:
    store = GroupStore(options.store, options.group)
    outbox = Outbox(store, sinks, worker, options.lease)
    outbox.start()
    return outbox


def _check(options: GroupOptions) -> None:
    for name, number in (("--keep", options.keep), ("--limit", options.limit)):
        if number is not None and number < 1:
            raise UserError(f"{name} of at least 1", f"{number}", f"Raise {name}, or leave it out.")
    if not options.group.strip():
        raise UserError("a name for --group", f"{options.group!r}", "Type --group watch, say.")
    if not 0.5 <= options.lease <= 3600:
        raise UserError(
            "--lease from 0.5 to 3600 seconds", f"{options.lease}", "Type --lease 10, say."
        )
    if options.start == "first":
        raise UserError(
            "a time for --start with --group, since workers see different first events",
            "--start first",
            "Type when the observation began, or leave --start out.",
        )


def _scoring(
    model: PointProcess,
    options: GroupOptions,
    trained: Trained,
    store: GroupStore,
    tell: Callable[[str], None],
) -> Scoring:
    """How messages are scored, as the first worker of the group has settled it."""
    times = TimeReader(trained.log, trained.unit)
    by = entity_column(trained.log, options.by, times, tell)
    if by is None or times.calendar is not None:
        received = "one stream" if by is None else f"a model fitted to each {times.calendar}"
        raise UserError(
            "--by COLUMN with --group, since workers share entities", received, "Name the column."
        )
    level = alarm_level(options.alarms)
    gap = longest_gap(options.max_gap)
    tables = options.beside or Beside()
    typed = None if options.start is None else start_time(options.start, times)
    settings: dict[str, Value] = {
        "model": fingerprint(model),
        "by": by,
        "topic": options.broker.topic,
        "partitions": (options.broker.partitions or PARTITIONS) if options.broker.redis else None,
        "broker": "kafka" if options.broker.redis is None else "redis",
        "start": typed,
        "alarms": level,
        "keep": options.keep,
        "max_gap": options.max_gap,
        "time": options.time,
        "mark": options.mark,
        "id": options.id,
        **tables.settings(),
    }
    _check_same(store.settle(settings), settings, options.group)
    begin = typed if typed is not None else store.settings().get(START)
    asked = Asked(options.time, options.mark, by)
    names = {name: i for i, name in enumerate(model.marks.names)}
    features = () if model.event_features is None else model.event_features.spec.names

    def reader() -> EventReader:
        clock = TimeReader(trained.log, trained.unit)
        return EventReader(names, asked, clock, options.broker.topic, Header(), features)

    def check(start: float, reached: Reached) -> TimeCheck | None:
        if options.max_gap == "none":
            return None
        return time_check(model, trained, times, start, by, gap, reached)

    def start(first: float) -> float:
        found = begin if isinstance(begin, int | float) else store.settings().get(START)
        if found is None:
            found = store.settle({START: _inferred(model, trained, first, tell)})[START]
        return float(found or 0.0)

    return Scoring(
        model=model,
        reader=reader,
        check=check,
        start=start,
        alarms=level,
        keep=options.keep,
        id=options.id,
        dates=times.dates(),
        context=tables.context(times, float(begin or 0.0)),
        keep_scores=options.keep_scores,
    )


def _inferred(
    model: PointProcess, trained: Trained, first: float, tell: Callable[[str], None]
) -> float:
    """When the observation began, by the rule of `streaming.feed.training_window`."""
    try:
        return inferred_start(trained, first, usual_rate(model, trained, pooled=False), tell)
    except UserError as error:
        remedy = "Type when the observation of these events began."
        raise UserError(error.expected, error.received, remedy) from None


def _check_same(settled: dict[str, Value], mine: dict[str, Value], group: str) -> None:
    for name, value in mine.items():
        if settled.get(name) != value:
            option = "the model" if name == "model" else f"--{name.replace('_', '-')}"
            raise UserError(
                f"{option} {settled.get(name)}, as the group {group!r} began with",
                f"{value}",
                "Use the same model and options for all workers, or another --group.",
            )


def _limit(
    model: PointProcess, options: GroupOptions, source: RedisSource | KafkaSource
) -> int | None:
    """Entities of each partition that stay in memory, so that all partitions fit the budget."""
    followed = model if options.keep is None else model.keeping(options.keep)
    bank = StreamBank(followed, alarms=alarm_level(options.alarms), threads=1)
    if not bank.fixed:
        return options.limit
    partitions = source.partitions if isinstance(source, RedisSource) else len(source.ends())
    most = options.limit or BUDGET // bank.bytes_per_entity
    return max(1 if options.limit else FEWEST, most // max(1, partitions))


def exported(store: GroupStore) -> Iterator[bytes]:
    """The scores of a group, by partition and in their order, as JSON Lines with the partition."""
    for part, lines in store.scores():
        begin = f'{{"partition": {part}, "line": '.encode()
        yield lines.replace(b'{"line": ', begin)


def export_scores(url: str, group: str, output: Path) -> int:
    """Write the scores of a group to a file: how many events they are."""
    store = GroupStore(url, group)
    with closing(store):
        if not store.settings():
            raise UserError(
                f"a group that has worked with {without_password(url)}",
                f"{group!r}, which has no data in the store",
                "Check --group and --store.",
            )
        events = store.events()

        def write(draft: Path) -> None:
            with draft.open("wb") as file:
                file.writelines(exported(store))

        write_atomic(output, write)
    return events


__all__ = ["Broker", "GroupOptions", "StoreError", "export_scores", "stream_group"]
