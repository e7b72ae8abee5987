"""`make serve`: a service that runs on embedded data, replayed faster than time.

The delayed departures of New York's three airports in 2013 are a log with an entity (the airport),
a time and a type (one to two hours late, or more). A Hawkes process with the hour of the day and
the day of the week is fitted to January to November, and December is replayed to the service as if
it happened now. Because that December had no incident that the model would not expect, one is made
up a few hours after the beginning: a burst of long delays at one airport. The program says so, and
``--no-incident`` leaves it out.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time as clocks
from collections.abc import Iterator, Sequence as Ordered
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from fourpoint.data.datasets import load
from fourpoint.data.readers import Asked, read_with_notes
from fourpoint.errors import UserError
from fourpoint.events import Dataset
from fourpoint.models.hawkes import Hawkes
from fourpoint.serve.service import Busy, Service
from fourpoint.serve.settings import Scoring, Settings
from fourpoint.storage.checkpoints import CheckpointError, restore
from fourpoint.training.fitting import fit

ZONE = "America/New_York"
FIRST = datetime(2013, 12, 1, tzinfo=ZoneInfo(ZONE))  # of the events that the model has not seen
NOW = datetime(2013, 12, 4, 14, 0, tzinfo=ZoneInfo(ZONE))  # when the replay begins
INCIDENT = NOW + timedelta(hours=4)
DELAYS = 40  # made-up events of the incident, in 40 minutes
AIRPORT = "LGA"
TICK = 0.25  # seconds between two steps of the replay
FASTEST = 1e6


class Departure(NamedTuple):
    """A late departure: when, from where and how late."""

    time: datetime
    airport: str
    delay: str


def departures() -> list[Departure]:
    """All of the year 2013, in order.

    >>> first = departures()[0]
    >>> first.airport, first.delay, first.time.isoformat(timespec="minutes")
    ('LGA', '1-2 h', '2013-01-01T08:11-05:00')
    """
    log = load("nyc_delays_log")
    dates = log.dates(0)
    if dates is None:
        raise UserError("embedded data with dates", "none", "Install Fourpoint again.")
    words = [name.split(" ", 1) for name in log.marks.names]
    times = [datetime.fromisoformat(dates.iso(time)) for time in log.times.tolist()]
    return [
        Departure(time, *words[mark])
        for time, mark in zip(times, log.mark_ids.tolist(), strict=True)
    ]


def incident() -> list[Departure]:
    """The made-up burst."""
    minutes = np.linspace(0.0, 40.0, DELAYS).tolist()
    return [Departure(INCIDENT + timedelta(minutes=m), AIRPORT, "2 h+") for m in minutes]


def as_log(events: Ordered[Departure]) -> Dataset:
    """Departures as a log with one sequence per airport, in hours."""
    columns = {
        "time": [event.time.isoformat() for event in events],
        "airport": [event.airport for event in events],
        "delay": [event.delay for event in events],
    }
    asked = Asked(time="time", mark="delay", sequence="airport", time_unit="hours", timezone=ZONE)
    return read_with_notes(columns, asked).data  # the notes name options that the demo has not


def fitted(folder: Path, events: Ordered[Departure]) -> Path:
    """The folder of a model of ``events``; one that is there already is taken as it is."""
    place = folder / "model"
    try:
        restore(place)
    except CheckpointError:
        data = as_log(events)
        fit(Hawkes(marks=data.marks), data, folder=place, calendar="hour,weekday", progress=False)
    return place


@dataclass
class Replay:
    """Hands events to a service when they are due on a clock that runs ``speed`` times as fast as
    time, from ``begin`` on; earlier events are due at once.
    """

    service: Service
    events: list[Departure]
    begin: datetime
    speed: float

    def __post_init__(self) -> None:
        self._started = clocks.monotonic()
        self._ended = threading.Event()

    def now(self) -> datetime:
        """The time of the replay."""
        passed = (clocks.monotonic() - self._started) * self.speed
        return self.begin + timedelta(seconds=passed)

    def run(self) -> None:
        """Replay all events, or until :meth:`stop`."""
        waiting = self._numbered()
        following = next(waiting, None)
        while following is not None and not self._ended.is_set():
            now = self.now()
            due = []
            while following is not None and following[0] <= now:
                due.append(following[1])
                following = next(waiting, None)
            if due:
                self._send(due)
            self._ended.wait(TICK)

    def _numbered(self) -> Iterator[tuple[datetime, dict[str, str]]]:
        for number, (time, airport, delay) in enumerate(self.events):
            fields = {"time": time.isoformat(), "entity": airport, "delay": delay}
            yield time, {"id": f"replay-{number}", **fields}

    def _send(self, events: list[dict[str, str]]) -> None:
        while not self._ended.is_set():
            try:
                self.service.submit(events).result()
                return
            except Busy:
                self._ended.wait(TICK)

    def stop(self) -> None:
        """End the replay."""
        self._ended.set()


def run(folder: Path, port: int, speed: float, *, with_incident: bool = True) -> None:
    """Fit, serve and replay until SIGTERM or SIGINT."""
    from fourpoint.serve.app import create_app
    from fourpoint.serve.server import serve

    _check_port(port)
    folder.mkdir(parents=True, exist_ok=True)
    _tell("fitting a Hawkes process with a calendar to eleven months of flight delays")
    every = departures()
    model = fitted(folder, [event for event in every if event.time < FIRST])
    live = [event for event in every if event.time >= FIRST]
    if with_incident:
        live = sorted([*live, *incident()])
        _tell(
            f"a simulated burst of {DELAYS} long delays at {AIRPORT} is inserted at "
            f"{INCIDENT:%A %d %B %H:%M} (--no-incident leaves it out)"
        )
    url = f"sqlite:///{_fresh(folder / 'events.db')}"
    settings = Settings(port=port, scoring=Scoring(start=FIRST.isoformat()))
    service = Service(model, url, settings, tell=lambda text: None)
    service.start()
    replay = Replay(service, live, NOW, speed)
    service.engine.present = replay.now
    thread = threading.Thread(target=replay.run, name="fourpoint-replay", daemon=True)
    thread.start()
    _tell(f"replaying December 2013 at {speed:g} times real time (SPEED=...)")
    _tell(f"the dashboard is at http://127.0.0.1:{port}/ (Ctrl+C ends it)")
    try:
        serve(create_app(service, settings), settings)
    finally:
        replay.stop()
        thread.join()
        service.close()


def _check_port(port: int) -> None:
    """Refuse a port that another program listens on, before anything is fitted."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise UserError(
                "a free port", f"{port} ({error})", "Type make serve PORT=8001, say."
            ) from None


def _fresh(path: Path) -> Path:
    """A path for a new database: what an earlier run left there is removed."""
    for end in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    return path.resolve()


def _tell(text: str) -> None:
    print(text, flush=True)


def main(words: Ordered[str] | None = None) -> int:
    """The command ``python -m fourpoint.serve.demo``."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    asked = argparse.ArgumentParser(
        prog="python -m fourpoint.serve.demo", description="A live dashboard on replayed data."
    )
    asked.add_argument("--port", type=int, default=8000)
    asked.add_argument("--speed", type=float, default=600.0, help="600: ten minutes a second")
    asked.add_argument("--folder", type=Path, default=Path("serve-demo"))
    asked.add_argument("--no-incident", action="store_true", help="insert no simulated burst")
    given = asked.parse_args(words)
    try:
        if not 0 < given.speed <= FASTEST:
            raise UserError(
                f"a speed between 0 and {FASTEST:g}", f"{given.speed:g}", "Type --speed 600."
            )
        run(given.folder, given.port, given.speed, with_incident=not given.no_incident)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
