"""What the dashboard asks for: rates, counts, verdicts and futures against known values."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fourpoint.data.synthetic import simulate
from fourpoint.events import MarkSpace, Sequence
from fourpoint.inference.evaluation import intensity
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.poisson import Poisson
from fourpoint.serve import recent
from fourpoint.serve.recent import Track

pytest.importorskip("fastapi", reason="the service needs fourpoint[serve]")


def tracks_of(model: Hawkes, count: int, stop: float, seed: int = 0) -> list[Track]:
    from fourpoint.inference.sampling import sample

    data = sample(model, 0.0, stop, count, seed)
    return [Track(f"e{i}", s.times, s.marks) for i, s in enumerate(data)]


HAWKES = Hawkes(baseline=1.0, branching=0.5, decay=2.0).double()


def test_rates_of_many_are_the_sum_of_each() -> None:
    tracks = tracks_of(HAWKES, 70, 10.0)
    times = np.linspace(2.0, 10.0, 9)
    found = recent.rates_at(HAWKES, tracks, times)
    alone = sum(
        intensity(HAWKES, Sequence(t.times, t.marks, start=0.0, stop=11.0), times) for t in tracks
    )
    np.testing.assert_allclose(found, alone, rtol=1e-9)


def test_expected_counts_are_the_integral_of_the_rate() -> None:
    tracks = tracks_of(HAWKES, 3, 20.0, seed=1)
    found = recent.picture(HAWKES, tracks, 5.0, 20.0, bins=5)
    exact = np.zeros(5)
    for track in tracks:
        for bin, (left, right) in enumerate(zip(found.edges, found.edges[1:], strict=False)):
            exact[bin] += right - left
            for time in track.times:
                a, b = max(left, time), max(right, time)
                exact[bin] += 0.5 * (np.exp(-2 * (a - time)) - np.exp(-2 * (b - time)))
    np.testing.assert_allclose(found.expected, exact, rtol=2e-3)
    every = np.concatenate([t.times for t in tracks])
    assert found.observed.sum() == (every >= 5.0).sum() == found.counts.sum()


def test_averages_over_gaps_have_the_integral_of_the_scores() -> None:
    tracks = tracks_of(HAWKES, 100, 30.0, seed=2)
    names, times, gaps = [], [], []
    for track in tracks:
        compensator = track.times + 0.5 * np.array(
            [(1 - np.exp(-2 * (t - track.times[track.times < t]))).sum() for t in track.times]
        )
        names += [track.entity] * len(track.times)
        times.append(track.times)
        gaps.append(np.diff(compensator, prepend=0.0))
    when = np.concatenate(times)
    order = np.argsort(when)
    found = recent.averaged(
        [names[i] for i in order],
        when[order],
        np.zeros(len(when), dtype=np.int64),
        np.concatenate(gaps)[order],
        1,
        5.0,
        25.0,
    )
    truth = recent.picture(HAWKES, tracks, 5.0, 25.0)
    assert abs(found.expected.sum() / truth.expected.sum() - 1) < 0.02
    np.testing.assert_allclose(found.expected, truth.expected, rtol=0.25)


def test_a_true_model_is_consistent_and_a_wrong_one_deviates() -> None:
    tracks = tracks_of(HAWKES, 5, 60.0, seed=3)
    good = recent.verdict(HAWKES, tracks, 10.0, 60.0)
    assert good["verdict"] == "consistent"
    assert good["events"] == sum(int((t.times >= 10.0).sum()) for t in tracks)
    assert sum(good["histogram"]) == good["events"]
    wrong = Hawkes(baseline=4.0, branching=0.1, decay=2.0).double()
    assert recent.verdict(wrong, tracks, 10.0, 60.0)["verdict"] == "deviates"
    few = recent.verdict(HAWKES, tracks, 59.0, 60.0)
    assert (few["verdict"], few["p_value"]) == (None, None)


def test_futures_have_the_mean_of_the_process() -> None:
    none = np.zeros(0, dtype=np.int64)
    tracks = [Track(f"e{i}", np.zeros(0), none) for i in range(3)]
    found = recent.outlook(HAWKES, tracks, 0.0, 50.0, paths=200)
    # A stationary rate of 1 / (1 - .5), less what the empty past costs: 1 / (2 (1 - .5)).
    mean = 3 * (2.0 * 50.0 - 1.0)
    counts = found.counts.sum(1)
    error = counts.std() / np.sqrt(len(counts))
    assert abs(counts.mean() - mean) < 4 * error
    assert found.rates.shape == (100, 40)
    # Towards the end the rate of each is the stationary one.
    late = found.rates[:, 20:]
    assert abs(late.mean() - 6.0) < 0.5


def test_kernel_and_offspring_of_a_hawkes_process() -> None:
    found = recent.kernel(HAWKES, 3.0)
    assert found is not None
    lags = np.array(found["lags"])
    np.testing.assert_allclose(found["values"]["an event"], np.exp(-2 * lags), rtol=1e-6)
    assert abs(found["offspring"]["an event"] - 0.5) < 0.005
    assert recent.kernel(Poisson().double(), 0.0) is None


def test_three_marks_have_one_curve_each() -> None:
    branching = [[0.2] * 3] * 3
    space = MarkSpace.of(["a", "b", "c"])
    model = Hawkes(space, baseline=1.0, branching=branching, decay=1.0).double()
    found = recent.kernel(model, 0.0)
    assert found is not None
    assert set(found["values"]) == {"a → any", "b → any", "c → any"}
    np.testing.assert_allclose(list(found["offspring"].values()), 0.6, rtol=0.01)


# ---------------------------------------------------------------------- the routes


@dataclass
class Served:
    """A service with a model without dates, and its application called without a socket."""

    service: Any
    app: Any

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return asyncio.run(_get(self.app, path))

    def json(self, path: str) -> Any:
        status, _, body = self.get(path)
        assert status == 200, body
        return json.loads(body)


async def _get(app: Any, path: str) -> tuple[int, dict[str, str], bytes]:
    name, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": name,
        "raw_path": name.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "root_path": "",
    }
    status, headers, body = 0, {}, b""

    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:  # the client stays until it is answered
            await asyncio.Event().wait()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, headers, body
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            body += message.get("body", b"")

    await app(scope, receive, send)
    return status, headers, body


@pytest.fixture
def served(tmp_path: Path) -> Any:
    from fourpoint.serve.app import create_app
    from fourpoint.serve.service import Service
    from fourpoint.serve.settings import Scoring, Settings
    from fourpoint.storage.checkpoints import save

    space = MarkSpace.of(["call", "fire"])
    model = Hawkes(space, baseline=1.0, branching=0.3, decay=2.0)
    save(model, tmp_path / "model", about={"unit": "hours", "sequences": 2})
    settings = Settings(scoring=Scoring(start="0"))
    service = Service(tmp_path / "model", f"sqlite:///{tmp_path / 'x.db'}", settings)
    service.start()
    yield Served(service, create_app(service, settings))
    service.close()


def test_a_service_without_events_answers_everything(served: Served) -> None:
    assert served.json("/v1/status")["now"] is None
    assert served.json("/v1/history")["total"] == 0
    assert served.json("/v1/outlook")["reason"] == "no events"
    assert served.json("/v1/model")["kernel"]["lags"][0] == 0.0


def test_the_routes_agree_with_the_events(served: Served) -> None:
    data = simulate("hawkes", 1, seed=0)[0]
    times = np.sort(data.times / data.times.max() * 12.0)
    events = [
        {"time": float(t), "entity": f"e{i % 2}", "mark": ("call", "fire")[i % 3 == 0]}
        for i, t in enumerate(times)
    ]
    receipt = served.service.submit(events).result()
    assert receipt.accepted == len(events)
    status = served.json("/v1/status")
    assert (status["events"], status["entities"], status["dated"]) == (len(events), 2, False)
    assert status["windows"][0] <= status["window"] <= status["windows"][-1]
    history = served.json("/v1/history?hours=6")
    inside = [e for e in events if e["time"] >= 6.0]
    assert history["total"] == len(inside) == sum(history["observed"])
    assert history["counts"]["fire"] == sum(e["mark"] == "fire" for e in inside)
    assert [e["time"] for e in history["events"]] == [e["time"] for e in inside]
    assert history["times"][0] == pytest.approx(6.0)
    alone = served.json("/v1/history?hours=6&entity=e1")
    assert alone["total"] == sum(e["entity"] == "e1" for e in inside)
    rate_now = sum(values[-1] for values in history["rates"].values())
    entities = served.json("/v1/entities")["entities"]
    surprises = [e["surprise"] for e in entities]
    assert surprises == sorted(surprises, reverse=True)
    assert rate_now == pytest.approx(sum(e["rate"] for e in entities), rel=1e-4)
    outlook = served.json("/v1/outlook?hours=2")
    total = sum(own["mean"] for own in outlook["counts"].values())
    assert outlook["total"]["mean"] == pytest.approx(total)
    assert len(outlook["bands"]["mean"]) == len(outlook["bands"]["times"]) == 40


def test_answers_are_used_again_while_no_event_comes(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fourpoint.serve import views

    monkeypatch.setitem(views.AGE, "history", (1e9, 0.0))
    monkeypatch.setattr(views, "REST", 0.0)
    served.service.submit([{"time": 1.0, "entity": "a", "mark": "call"}]).result()
    calls = []
    plain = views.picture
    monkeypatch.setattr(views, "picture", lambda *a, **k: calls.append(1) or plain(*a, **k))
    first = served.json("/v1/history?hours=6")
    assert served.json("/v1/history?hours=6") == first
    assert len(calls) == 1
    served.service.submit([{"time": 1.5, "entity": "a", "mark": "call"}]).result()
    assert served.json("/v1/history?hours=6")["total"] == first["total"] + 1


def test_many_entities_have_averages(served: Served) -> None:
    events = [{"time": 0.01 * i + 0.5, "entity": f"e{i % 70}", "mark": "call"} for i in range(420)]
    served.service.submit(events).result()
    history = served.json("/v1/history?hours=6")
    assert history["approximate"]
    assert history["total"] == 420
    assert "at most 16" in served.json("/v1/outlook")["reason"]


def test_the_page_and_its_files_are_local_and_strict(served: Served, root: Path) -> None:
    status, headers, page = served.get("/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    text = page.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|https?://", text)
    folder = root / "src/fourpoint/serve/dashboard"
    for name in re.findall(r'(?:src|href)="(assets/[^"]+)"', text):
        status, headers, _ = served.get(f"/{name}")
        assert status == 200, name
    for file in folder.glob("*.js"):
        code = file.read_text()
        assert "innerHTML" not in code, file.name
        assert "eval(" not in code, file.name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", code), file.name
    assert (folder / "uplot/LICENSE").read_text().startswith("The MIT License")


@pytest.mark.parametrize("path", ["/assets/../views.py", "/assets/%2e%2e/views.py", "/assets/x.js"])
def test_only_files_of_the_page_are_served(served: Served, path: str) -> None:
    assert served.get(path)[0] == 404


# ---------------------------------------------------------------------- make serve


def test_the_replay_is_the_log_with_one_marked_incident(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from fourpoint.serve import demo

    every = demo.departures()
    assert len(every) == 27_058
    assert every == sorted(every, key=lambda event: event.time)
    assert {event.airport for event in every} == {"EWR", "JFK", "LGA"}
    made_up = demo.incident()
    assert len(made_up) == demo.DELAYS
    assert {event.airport for event in made_up} == {demo.AIRPORT}
    log = demo.as_log(made_up)
    assert (log.ids, log.unit, len(log[0])) == ((demo.AIRPORT,), "hours", demo.DELAYS)
    assert capsys.readouterr().err == ""  # no notes about options that the demo has not


def test_a_speed_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from fourpoint.serve import demo

    assert demo.main(["--speed", "0"]) == 2
    assert "expected a speed between 0 and" in capsys.readouterr().err


def test_a_port_in_use_is_refused_before_the_fit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import socket

    from fourpoint.serve import demo

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        words = ["--port", str(other.getsockname()[1]), "--folder", str(tmp_path / "x")]
        assert demo.main(words) == 2
    assert "expected a free port; received" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


# ---------------------------------------------------------------------- deployment


def test_the_image_is_slim_and_has_no_superuser(root: Path) -> None:
    lines = (root / "deploy/Dockerfile").read_text().splitlines()
    words = [line.split(None, 1) for line in lines if line and not line.startswith(("#", " "))]
    images = [rest.split()[0] for word, rest in words if word == "FROM"]
    assert images
    assert all(image.endswith("-slim") for image in images)
    users = [rest for word, rest in words if word == "USER"]
    assert users
    assert users[-1].split(":")[0].isdigit()
    assert int(users[-1].split(":")[0]) > 0
    names = [word for word, _ in words]
    assert names.index("HEALTHCHECK") < names.index("CMD")
    copied = [rest.split()[:-1] for word, rest in words if word == "COPY"]
    sources = {name for part in copied for name in part if not name.startswith(("--", "/"))}
    for name in sources:
        assert (root / name).exists(), name
    ignored = (root / ".dockerignore").read_text().split()
    assert {f"!{name}" for name in sources} <= set(ignored)


def test_options_of_the_deployment_exist(root: Path) -> None:
    from typer.main import get_command

    from fourpoint.cli.main import app

    command = get_command(app)
    serve = command.commands["serve"]  # type: ignore[attr-defined]
    known = {name for parameter in serve.params for name in parameter.opts}
    for name in ("Dockerfile", "compose.yaml", "fourpoint.service"):
        text = (root / "deploy" / name).read_text()
        assert "fourpoint serve" in text
        after = "\n".join(part for part in text.split("fourpoint serve ")[1:])
        ends = re.split(r"\n\s*(?:read_only|Restart)\b", after)
        used = {w for part in ends[:1] for w in re.findall(r"(?<![\w-])--[a-z-]+", part)}
        assert used, name
        assert used <= known, name


def test_extras_of_the_image_exist(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    text = (root / "deploy/Dockerfile").read_text()
    wanted = re.search(r'"\.\[([a-z,]+)\]"', text)
    assert wanted is not None
    assert set(wanted[1].split(",")) <= set(project["optional-dependencies"])


def test_the_composition_has_its_services_and_secrets(root: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="pyyaml reads the compose file")
    found = yaml.safe_load((root / "deploy/compose.yaml").read_text())
    services = found["services"]
    assert set(services) == {"fourpoint", "postgres", "redis"}
    assert all(one.get("healthcheck") for name, one in services.items() if name != "fourpoint")
    for one in services.values():
        assert set(one.get("secrets", [])) <= set(found["secrets"])
        for volume in one.get("volumes", []):
            name = volume.split(":")[0]
            assert name in found["volumes"] or volume.startswith("${")
        for port in one.get("ports", []):
            assert port.startswith("127.0.0.1:")
    text = json.dumps(found)
    assert "PASSWORD=" not in text.replace('PGPASSWORD=\\"$$(cat', "")


def test_the_unit_is_an_ordinary_service(root: Path) -> None:
    text = (root / "deploy/fourpoint.service").read_text()
    sections = re.findall(r"^\[(\w+)\]$", text, re.MULTILINE)
    assert sections == ["Unit", "Service", "Install"]
    pairs = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert pairs["DynamicUser"] == "yes"
    assert pairs["Restart"] == "on-failure"
    assert pairs["ExecStart"].startswith("/opt/fourpoint/bin/fourpoint serve ")
