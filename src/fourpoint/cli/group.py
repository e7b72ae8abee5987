"""Brokers on the command line: workers of consumer groups, and services that read from a broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fourpoint.cli.console import print_notice
from fourpoint.cli.options import BrokerOptions, ReadingOptions, WorkerOptions
from fourpoint.errors import UserError

if TYPE_CHECKING:
    from fourpoint.serve.brokers.sinks import Sink
    from fourpoint.serve.brokers.stream_group import Broker
    from fourpoint.serve.service import Service
    from fourpoint.serve.settings import Settings

SHORTEST_SECRET = 16  # bytes


def run_worker(
    folder: Path,
    brokers: BrokerOptions,
    worker: WorkerOptions,
    reading: ReadingOptions,
    *,
    files: dict[str, object],
    output: str,
    by: str | None,
    start: str | None,
    alarms: str,
    keep: int | None,
    limit: int | None,
    max_gap: str,
    attended: bool,
) -> None:
    """Work in a consumer group, or write its scores to a file."""
    from fourpoint.data.context_tables import checked_impute
    from fourpoint.serve.brokers.stream_group import GroupOptions, stream_group
    from fourpoint.serve.databases import StoreError
    from fourpoint.storage.checkpoints import about, restore
    from fourpoint.streaming.feed.beside import Beside
    from fourpoint.streaming.feed.training_window import Trained

    group, store = _required(brokers, worker)
    if worker.export:
        _export(group, store, output)
        return
    _refuse(files, output, attended=attended)
    options = GroupOptions(
        group=group,
        store=store,
        broker=broker_of(brokers),
        by=by,
        time=reading.time,
        mark=reading.mark,
        time_unit=reading.time_unit,
        timezone=reading.timezone,
        start=start,
        alarms=alarms,
        keep=keep,
        limit=limit,
        max_gap=max_gap,
        id=worker.id,
        alarms_to=tuple(brokers.alarms_to or ()),
        secret=secret_of(brokers),
        lease=brokers.lease,
        until_end=worker.until_end,
        beside=Beside(
            None if reading.covariates is None else Path(reading.covariates),
            None if reading.exposure is None else Path(reading.exposure),
            checked_impute(reading.impute),
        ),
    )
    try:
        stream_group(restore(folder), options, Trained.from_about(about(folder)))
    except StoreError as error:
        raise UserError(
            "a store that can be read and written", str(error), "Check --store, and start again."
        ) from None
    except OSError as error:
        raise UserError("a broker that responds", str(error), "Start it, and then this.") from None


@contextmanager
def connected(service: Service, brokers: BrokerOptions | None) -> Iterator[None]:
    """Read events from the broker that the options name, if any, and send alarms to the sinks that
    they name, while the context is open.
    """
    from fourpoint.serve.brokers.feeding import AlarmSender, BrokerFeed

    given = brokers or BrokerOptions()
    with ExitStack() as open_things:
        if given.alarms_to:
            sender = AlarmSender(service, _sinks(given), print_notice)
            sender.start()
            open_things.callback(sender.close)
        if given.redis is not None or given.kafka is not None:
            broker = broker_of(given)
            broker.check()
            name = f"{'kafka' if broker.redis is None else 'redis'} {broker.topic}"
            feed = BrokerFeed(
                service, name, lambda: broker.source("fourpoint", print_notice), print_notice
            )
            feed.start()
            open_things.callback(feed.close)
            print_notice(f"reading events from {name}")
        yield


def _sinks(brokers: BrokerOptions) -> dict[str, Sink]:
    from fourpoint.serve.brokers.sinks import sink_at
    from fourpoint.serve.databases import without_password

    secret = secret_of(brokers)
    return {without_password(url): sink_at(url, secret) for url in brokers.alarms_to or ()}


def run_group_service(
    folder: Path,
    store: str,
    settings: Settings,
    brokers: BrokerOptions,
    reading: ReadingOptions,
    *,
    data: str | None,
) -> None:
    """Serve as a worker of a consumer group until SIGTERM or SIGINT."""
    try:
        from fourpoint.serve.brokers.group_app import GroupService, create_group_app
        from fourpoint.serve.server import Server, announce, check_settings, configuration, listen
    except ImportError as error:
        raise UserError(
            "the packages fastapi and uvicorn for a service",
            f"an installation without {error.name}",
            "Install fourpoint[serve].",
        ) from None
    from fourpoint.serve.brokers.stream_group import GroupOptions
    from fourpoint.storage.checkpoints import about, restore
    from fourpoint.streaming.feed.training_window import Trained

    if data is not None or settings.shadow is not None:
        received = "--shadow" if data is None else "--data"
        raise UserError(
            "events from a broker alone, and one model, with --group", received, "Leave it out."
        )
    scoring = settings.scoring
    options = GroupOptions(
        group=brokers.group or "",
        store=store,
        broker=broker_of(brokers),
        by=scoring.by,
        time=reading.time,
        mark=reading.mark,
        start=scoring.start,
        alarms=scoring.alarms,
        limit=scoring.limit,
        max_gap=scoring.max_gap,
        id="id",
        alarms_to=tuple(brokers.alarms_to or ()),
        secret=secret_of(brokers),
        lease=brokers.lease,
        beside=scoring.beside,
    )
    options.broker.check()
    check_settings(settings)
    listening = listen(settings)
    service = GroupService(
        restore(folder), Trained.from_about(about(folder)), options, print_notice
    )
    try:
        app = create_group_app(service, settings)
        server = Server(configuration(app, settings), lambda: None)

        def end() -> None:
            server.should_exit = True

        service.at_failure = end
        service.start()
        announce(settings, listening, print_notice)
        server.run([listening])
    finally:
        service.close()
        listening.close()
    if service.failed is not None:
        raise service.failed


def _required(brokers: BrokerOptions, worker: WorkerOptions) -> tuple[str, str]:
    """The group and its store."""
    if worker.store is None:
        raise UserError(
            "--store with --group, since workers share their state",
            "none",
            "Type --store sqlite:///group.db, or postgresql://USER@HOST/NAME for many machines.",
        )
    return brokers.group or "", worker.store


def broker_of(brokers: BrokerOptions) -> Broker:
    """The broker that the options name."""
    from fourpoint.serve.brokers.stream_group import Broker

    if brokers.begin_at not in ("first", "last"):
        raise UserError("--from first or last", f"{brokers.begin_at!r}", "Type --from first.")
    return Broker(
        redis=brokers.redis,
        kafka=brokers.kafka,
        topic=brokers.topic,
        partitions=brokers.partitions,
        latest=brokers.begin_at == "last",
        kafka_options=tuple(brokers.kafka_option or ()),
    )


def secret_of(brokers: BrokerOptions) -> bytes | None:
    """The secret of webhooks, without the line end of its file."""
    path = brokers.webhook_secret
    if path is None:
        return None
    secret = path.read_bytes().strip()
    if len(secret) < SHORTEST_SECRET:
        raise UserError(
            f"a secret of at least {SHORTEST_SECRET} bytes",
            f"{len(secret)} in {path}",
            "Write one: openssl rand -hex 32 > FILE.",
        )
    return secret


def _refuse(files: dict[str, object], output: str, *, attended: bool) -> None:
    given = [name for name, value in files.items() if value not in (None, "-", False)]
    if output != "-":
        given.append("output")
    if attended:
        given.append("attended")
    if given:
        name = given[0] if given[0].isupper() else f"--{given[0]}"
        remedy = f"Leave {name} out."
        if name == "--output":
            remedy = "Scores are stored: write them with --export --output FILE."
        raise UserError("messages of a broker and a shared store with --group", name, remedy)


def _export(group: str, store: str, output: str) -> None:
    from fourpoint.serve.brokers.stream_group import export_scores

    if output == "-":
        raise UserError("a file for --export", "none", "Type --output scores.jsonl.")
    events = export_scores(store, group, Path(output))
    typer.echo(f"{events:,} events in {output}")
