"""What a service is told: how it scores, how much it accepts, and where it listens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fourpoint.streaming.feed.beside import Beside

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Scoring:
    """How events are scored.

    Arguments
        by: the field that names an event's entity; "none": one stream; None: as in training.
        start: when the observation began, in the model's unit or as a timestamp; None: by the first
            event (`streaming.feed.training_window`).
        alarms: false alarms per 1,000 events; None: no alarms.
        lateness: how late an event may come and still be put in its place, in the model's unit of
            time or as a duration such as "5min".
        max_gap: the longest plausible gap ("auto" or "none"), as of `fourpoint stream`.
        limit: entities that stay in memory; None: as many as fit 512 MiB.
        beside: tables of covariates and of an exposure.
    """

    by: str | None = None
    start: str | None = None
    alarms: float | None = 1e-3
    lateness: float | str = 0.0
    max_gap: str = "auto"
    limit: int | None = None
    beside: Beside = Beside()


@dataclass(frozen=True)
class Keeping:
    """What is stored, and for how long.

    Arguments
        snapshot_events, snapshot_seconds: after how many events and after how long the states of
            entities are written again.
        retention: how long events are kept, as a duration such as "90d" or a number in the model's
            unit; None: for ever.
    """

    snapshot_events: int = 20_000
    snapshot_seconds: float = 60.0
    retention: float | str | None = None


@dataclass(frozen=True)
class Limits:
    """How much a client may send.

    Arguments
        body: bytes of a request.
        events: events of a request.
        entities: entities that the service follows; events of others are refused.
        name: characters of an id or of an entity's name.
        requests: requests per second and client, on average; twice as many in a burst.
        connections: that are open at once.
        patience: seconds within which a request must have arrived.
        queued: events that may wait for the engine.
        paths: futures that a forecast may sample.
    """

    body: int = 4 * 2**20
    events: int = 10_000
    entities: int = 100_000
    name: int = 256
    requests: float = 500.0
    connections: int = 512
    patience: float = 15.0
    queued: int = 100_000
    paths: int = 2000


@dataclass(frozen=True)
class Settings:
    """A service: where it listens and who may use it, with all of the above.

    ``tokens`` is the file of tokens (`serve.tokens`); None: nobody needs one, which is allowed on
    the loopback interface alone. ``hosts`` are further names by which the service is addressed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    tokens: Path | None = None
    hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    shadow: Path | None = None
    scoring: Scoring = Scoring()
    keeping: Keeping = Keeping()
    limits: Limits = Limits()

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in LOOPBACK
