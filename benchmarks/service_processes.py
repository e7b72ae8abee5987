"""Private servers for benchmarks and tests: PostgreSQL and Redis in folders of their own,
`fourpoint serve` on a free port, with a client and a reproducible stream of events.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

PLACES = "/usr/lib/postgresql/*/bin"
OWNER = "postgres"  # PostgreSQL refuses to run as root


def postgres_programs() -> Path | None:
    """The folder of PostgreSQL's programs; None where it is not installed."""
    found = sorted(Path("/").glob(f"{PLACES[1:]}/initdb"))
    if found:
        return found[-1].parent
    other = shutil.which("initdb")
    return None if other is None else Path(other).parent


class Postgres:
    """A PostgreSQL server in a temporary folder, reached by ``url``. ``durable`` says that commits
    wait for the disk, as they do by default.
    """

    def __init__(self, *, durable: bool) -> None:
        programs = postgres_programs()
        if programs is None:
            raise FileNotFoundError("PostgreSQL is not installed")
        self._programs = programs
        self._durable = durable
        self._folder = Path(tempfile.mkdtemp(prefix="fourpoint-postgres-"))
        self._as = ["runuser", "-u", OWNER, "--"] if os.geteuid() == 0 else []
        if self._as:
            shutil.chown(self._folder, OWNER, OWNER)
        self.url = f"postgresql://{OWNER}@/postgres?host={self._folder}"
        self._run(
            "initdb", "-D", str(self._data), "-U", OWNER, "-A", "trust", "--no-sync", "-E", "UTF8"
        )
        self.start()

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        """Start the server and wait for it."""
        options = f"-c listen_addresses='' -k {self._folder} -c max_connections=50"
        if not self._durable:
            options += " -c fsync=off"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-o", options, "-l", log, "start")

    def kill(self) -> None:
        """End the server as kill -9 does, with all its processes."""
        first = int((self._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for process in (first, *map(int, children)):
            os.kill(process, signal.SIGKILL)
        while any(Path(f"/proc/{process}").exists() for process in (first, *map(int, children))):
            time.sleep(0.01)

    def close(self) -> None:
        """End the server and remove its folder."""
        subprocess.run(
            [
                *self._as,
                str(self._programs / "pg_ctl"),
                "-D",
                str(self._data),
                "-m",
                "immediate",
                "stop",
            ],
            check=False,
            capture_output=True,
            cwd="/",
        )
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*self._as, str(self._programs / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )


class Redis:
    """Debian's redis-server in ``folder``, with an append-only file; it can be killed and started
    again.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self.start()

    def start(self) -> None:
        """Start the server and wait for it."""
        words = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        words += ["--appendonly", "yes", "--dir", str(self._folder)]
        self._process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not self._answers():
            time.sleep(0.02)

    def _answers(self) -> bool:
        import redis

        try:
            with contextlib.closing(self.client()) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    def client(self) -> Any:
        """A client of the package redis."""
        import redis

        return redis.Redis(port=self.port)

    def kill(self) -> None:
        """End the server as kill -9 does."""
        self._process.kill()
        self._process.wait()


class Service:
    """A process of `fourpoint serve`, which can be killed and started again."""

    def __init__(self, model: Path, store: str, *options: str, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.store = store
        self.words = [
            *(sys.executable, "-m", "fourpoint", "serve", str(model)),
            *("--store", store, "--port", str(self.port), *options),
        ]
        self._log = Path(tempfile.mkstemp(prefix="fourpoint-serve-", suffix=".log")[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> int:
        """The number of the process."""
        if self._process is None:
            raise RuntimeError("the service has not been started")
        return self._process.pid

    @property
    def text(self) -> str:
        """What the service has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def start(self, seconds: float = 900.0) -> float:
        """Start the service and wait until it accepts events; how long that took."""
        began = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.words, stdout=log, stderr=log)
        while time.monotonic() < began + seconds:
            if self._process.poll() is not None:
                raise RuntimeError(f"the service ended: {self.text[-2000:]}")
            with contextlib.suppress(OSError):
                if self.get("/readyz")[0] == 200:
                    return time.monotonic() - began
            time.sleep(0.02)
        raise TimeoutError(f"the service is not ready: {self.text[-2000:]}")

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a GET."""
        with contextlib.closing(Client(self.port)) as client:
            return client.get(path)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End the service in good order."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()

    def close(self) -> None:
        """End the service, and remove its log."""
        self.stop()
        self._log.unlink(missing_ok=True)

    def resident_mb(self) -> float:
        """Memory of the process."""
        pages = int(Path(f"/proc/{self.process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def processor_seconds(self) -> float:
        """Processor time of the process so far."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client:
    """A connection to a service that is kept open; it is opened again after an error."""

    def __init__(self, port: int, timeout: float = 60.0, token: str | None = None) -> None:
        self._port, self._timeout = port, timeout
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a GET."""
        return self._ask("GET", path, None)

    def post(self, path: str, content: object) -> tuple[int, Any]:
        """Status and JSON of a POST of ``content`` as JSON; text is sent as it is."""
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self._ask("POST", path, text)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, path: str, body: bytes | None) -> tuple[int, Any]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                "127.0.0.1", self._port, timeout=self._timeout
            )
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise OSError(f"{type(error).__name__}: {error}") from None
        kind = answer.headers.get("content-type", "")
        return answer.status, json.loads(content) if "json" in kind else content


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def save_model(folder: Path, origin: str, rate: float = 1.0) -> None:
    """A Hawkes process with two types, for events with dates and entities: ``rate`` events per hour
    and entity.
    """
    import torch

    from fourpoint.events import MarkSpace
    from fourpoint.log_format import LogFormat
    from fourpoint.models.hawkes import Hawkes
    from fourpoint.storage.checkpoints import save

    marks = MarkSpace(("fire", "medical"))
    model = Hawkes(marks, baseline=0.45 * rate, branching=0.05, decay=2.0)
    with torch.no_grad():
        model.eval()
    log = LogFormat(
        "time",
        mark="mark",
        sequence="entity",
        clock="stamps",
        zone="UTC",
        zoned=True,
        origin=origin,
    )
    about = {
        "unit": "hours",
        "start": 0.0,
        "stop": 1.0,
        "events": 1000,
        "sequences": 1000,
        "log": log.to_dict(),
    }
    save(model, folder, about=about)


def batch_of_events(
    origin: datetime, first: int, count: int, entities: int, per_hour: float
) -> list[dict[str, Any]]:
    """The events ``first`` to ``first + count`` of a reproducible stream: those of all entities
    together come ``per_hour`` times an hour.
    """
    rng = np.random.default_rng([first, count])
    offsets = (first + np.sort(rng.random(count)) * count) / per_hour * 3600.0
    who = rng.integers(entities, size=count).tolist()
    what = (rng.random(count) < 0.5).tolist()
    return [
        {
            "id": f"e{first + i}",
            "entity": f"unit-{who[i]}",
            "time": (origin + timedelta(seconds=offset)).isoformat(timespec="microseconds"),
            "mark": "fire" if what[i] else "medical",
        }
        for i, offset in enumerate(offsets.tolist())
    ]
