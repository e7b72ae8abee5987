"""The dashboard in a real browser: what it shows, what it survives, and who can read it.

A service is started as a user would start it, on December 2013 of the embedded delays, and Chromium
opens its page. With FOURPOINT_SCREENSHOTS=docs/images the test also writes the pictures of the
documentation.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service needs fourpoint[serve]")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="tests of the dashboard need fourpoint[browser]"
)

from fourpoint.serve import demo  # noqa: E402

FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync"
).split()
PATIENCE = 60_000  # milliseconds until something that should happen counts as failed
POLL = 40  # milliseconds between two looks
SCRIPT = "<img src=x onerror=\"document.title='taken'\">"
DOCUMENTED = ("dashboard-light.png", "dashboard-dark.png", "dashboard-phone.png")
# How often a key on the chart is answered.
ANSWERS = """async () => { let times = 0;
const seen = new MutationObserver((changes) => { times += changes.length; });
seen.observe(document.querySelector('#spoken'), {childList: true});
const key = new KeyboardEvent('keydown', {key: 'Home'});
document.querySelector('#rate-chart').dispatchEvent(key);
await new Promise((resolve) => setTimeout(resolve, 0));
seen.disconnect(); return times; }"""
# A refused connection is reported by the browser itself, whatever the page does about it.
WHILE_DOWN = re.compile(r"ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET")


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("there is no chromium on this machine: apt install chromium")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """`fourpoint serve`, on a port and a store that outlast its process."""

    model: Path
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *more: str) -> None:
        words = [sys.executable, "-m", "fourpoint", "serve", str(self.model)]
        words += ["--store", f"sqlite:///{self.folder / 'events.db'}", "--port", str(self.port)]
        words += ["--start", demo.FIRST.isoformat(), *more]
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, cwd=self.folder)
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert self.process.poll() is None, (self.folder / "log.txt").read_text()
                time.sleep(0.1)
        raise AssertionError((self.folder / "log.txt").read_text())

    def stop(self, *, kill: bool = False) -> None:
        if self.process is not None:
            if kill:
                self.process.kill()
            else:
                self.process.terminate()
            self.process.wait(60)
            self.process = None

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return json.load(response)

    def post(self, events: list[dict[str, str]]) -> Any:
        request = urllib.request.Request(
            f"{self.url}/v1/events",
            json.dumps(events).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    every = demo.departures()
    model = demo.fitted(tmp_path, [event for event in every if event.time < demo.FIRST])
    found = Server(model, tmp_path)
    found.start()
    past = [event for event in every if demo.FIRST <= event.time < demo.NOW]
    receipt = found.post(fields_of(past))
    assert receipt["accepted"] == len(past)
    yield found
    found.stop()


def fields_of(events: list[demo.Departure]) -> list[dict[str, str]]:
    return [
        {"time": event.time.isoformat(), "entity": event.airport, "delay": event.delay}
        for event in events
    ]


@pytest.fixture
def browser() -> Iterator[Any]:
    program = chromium()
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=program, args=FLAGS)
        yield opened
        opened.close()


@dataclass
class Watched:
    """A page, with what it said on the console and whom it asked."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.said.append(f"{message.type}: {message.text}")

    def wait(self, condition: str) -> None:
        """Until an expression of JavaScript holds. The page's own policy forbids the evaluation of
        text, by which playwright waits for a condition.
        """
        for _ in range(PATIENCE // POLL):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(POLL)
        raise AssertionError(f"{condition} did not come true; the page said {self.said}")

    def text(self, name: str) -> str:
        return str(self.page.text_content(f"#{name}"))


def test_the_dashboard_in_a_browser(
    server: Server, browser: Any, root: Path, tmp_path: Path
) -> None:
    context = browser.new_context(viewport={"width": 1360, "height": 900}, color_scheme="light")
    watched = Watched(context.new_page())
    watched.page.goto(server.url)
    watched.page.keyboard.press("Tab")
    assert watched.page.evaluate("document.activeElement.className") == "skip"
    watched.wait("document.querySelector('#connection').dataset.state === 'live'")
    shows_everything(watched, server)
    posted_events_appear(watched, server)
    raised = burst_raises_an_alarm(watched, server)
    take_pictures(browser, server, root, tmp_path)
    alarm_is_acknowledged(watched, server, raised)
    names_are_text(watched, server)
    keyboard_is_enough(watched)
    assert watched.said == []
    recovers_after_a_restart(watched, server)
    asks_for_a_token(watched, server, tmp_path)
    own = f"127.0.0.1:{server.port}"
    others = [url for url in watched.asked if url.split("/")[2] != own]
    assert others == []
    assert [said for said in watched.said if not WHILE_DOWN.search(said)] == []


def shows_everything(watched: Watched, server: Server) -> None:
    watched.wait("document.querySelectorAll('#entities tr').length === 3")
    watched.wait("document.querySelectorAll('#types tr').length === 2")
    watched.wait("document.querySelectorAll('#model-parts .part').length === 3")
    watched.wait("document.querySelector('#tile-next').textContent !== '–'")
    status = server.get("/v1/status")
    assert (status["model"], status["dated"], status["entities"]) == ("Hawkes", True, 3)
    history = server.get("/v1/history?hours=24")
    assert watched.text("tile-count").split()[0] == str(history["total"])
    assert sum(history["observed"]) == history["total"] == sum(history["counts"].values())
    # The chart is drawn: the canvas of the rates is not of one colour.
    colours = watched.page.evaluate(
        """() => { const canvas = document.querySelector('#rate-chart canvas');
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let i = 0; i < data.length; i += 4) seen.add(data[i] * 65536 + data[i + 1] * 256
          + data[i + 2]); return seen.size; }"""
    )
    assert colours > 20
    assert "agree with" in watched.text("fit-verdict") or "deviate" in watched.text("fit-verdict")


def latest(server: Server) -> datetime:
    return datetime.fromisoformat(server.get("/v1/status")["now"])


def posted_events_appear(watched: Watched, server: Server) -> None:
    """Within a second of their acknowledgement; the median of three."""
    passed = []
    for minutes, airport in ((4, "JFK"), (9, "EWR"), (15, "JFK")):
        due = demo.NOW + timedelta(minutes=minutes)
        server.post(fields_of([demo.Departure(due, airport, "1-2 h")]))
        began = time.perf_counter()
        shown = f"{airport}, 1-2 h, {due:%H:%M}"
        watched.wait(f"document.querySelector('#latest').textContent.endsWith('{shown}')")
        passed.append(time.perf_counter() - began)
    assert statistics.median(passed) < 1.0
    total = server.get("/v1/history?hours=24")["total"]
    watched.wait(f"document.querySelector('#tile-count').textContent.startsWith('{total} ')")


def names_are_text(watched: Watched, server: Server) -> None:
    due = latest(server) + timedelta(minutes=1)
    server.post(fields_of([demo.Departure(due, SCRIPT, "1-2 h")]))
    watched.wait("document.querySelectorAll('#entities tr').length === 4")
    names = watched.page.eval_on_selector_all(
        "#entities button", "found => found.map(x => x.textContent)"
    )
    assert SCRIPT in names
    assert watched.page.query_selector("img") is None
    assert watched.page.title() != "taken"


def burst_raises_an_alarm(watched: Watched, server: Server) -> dict[str, Any]:
    now = latest(server)
    burst = [
        demo.Departure(now + timedelta(minutes=3 + i), demo.AIRPORT, "2 h+")
        for i in range(demo.DELAYS)
    ]
    raised = server.post(fields_of(burst))["alarms"]
    found = next(a for a in raised if (a["kind"], a["name"]) == ("burst", demo.AIRPORT))
    place = f"#alarms [data-id='{found['id']}']"
    watched.wait(f"document.querySelector({json.dumps(place)}) !== null")
    item = watched.page.text_content(place)
    assert f"Burst at {demo.AIRPORT}" in item
    assert "times the modelled rate" in item
    unseen = len(server.get("/v1/alarms?open=true")["alarms"])
    watched.wait(f"document.title === '({unseen}) Fourpoint'")
    return dict(found)


def alarm_is_acknowledged(watched: Watched, server: Server, alarm: dict[str, Any]) -> None:
    before = watched.page.locator("#alarms .alarm").count()
    watched.page.click(f"#alarms [data-id='{alarm['id']}'] button:has-text('Acknowledge')")
    watched.wait(f"document.querySelectorAll('#alarms .alarm').length === {before - 1}")
    watched.wait("document.querySelectorAll('#acknowledged .alarm').length === 1")
    stored = {own["id"]: own for own in server.get("/v1/alarms")["alarms"]}
    assert stored[alarm["id"]]["acknowledged"] is not None


def keyboard_is_enough(watched: Watched) -> None:
    page = watched.page
    page.focus("#rate-chart")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    watched.wait("document.querySelector('#spoken').textContent.includes('together')")
    page.keyboard.press("Escape")
    # An entity is chosen, and left again, with the keyboard.
    page.focus("#entities button")
    name = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    watched.wait(f"document.querySelector('#entity').value === {json.dumps(name)}")
    page.select_option("#entity", "")
    page.focus("#windows input:checked")
    page.keyboard.press("ArrowRight")
    watched.wait("document.querySelector('#tile-count-title').textContent.endsWith('3 days')")
    for theme in ("light", "dark", "system"):
        page.focus("#theme-button")
        page.keyboard.press("Enter")
        watched.wait(f"document.querySelector('#theme-name').textContent === '{theme}'")


def take_pictures(browser: Any, server: Server, root: Path, tmp_path: Path) -> None:
    """In light, dark and on a phone: no serious violation, nothing wider than the screen, and a
    picture each.
    """
    wanted = os.environ.get("FOURPOINT_SCREENSHOTS")
    folder = tmp_path if wanted is None else root / wanted
    axe = gzip.decompress((root / "tests/reference/axe-core/axe.min.js.gz").read_bytes()).decode()
    wide = {"width": 1360, "height": 900}
    phone: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}
    kinds: list[dict[str, Any]] = [
        {"viewport": wide, "color_scheme": "light"},
        {"viewport": wide, "color_scheme": "dark"},
        {**phone, "color_scheme": "light", "device_scale_factor": 2, "has_touch": True},
    ]
    forecast_is_new(server)
    for kind, name in zip(kinds, DOCUMENTED, strict=True):
        context = browser.new_context(**kind, reduced_motion="reduce")
        watched = Watched(context.new_page())
        watched.page.goto(server.url)
        watched.wait("document.querySelectorAll('#model-parts .part').length === 3")
        watched.wait("document.querySelector('#tile-next').textContent !== '–'")
        watched.wait("document.querySelectorAll('#alarms .alarm').length > 0")
        verdict_is_of_the_last_day(watched, server)
        page = watched.page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert serious_violations(page.evaluate, axe) == []
        page.screenshot(path=folder / name, full_page="phone" not in name)
        assert (folder / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert watched.said == []
        context.close()


def verdict_is_of_the_last_day(watched: Watched, server: Server) -> None:
    """Wait until the verdict counts the events of the last 24 hours, which old ones leave."""
    for _ in range(PATIENCE // (10 * POLL)):
        events = server.get("/v1/history?hours=24")["total"]
        if f"{events} ev" in watched.page.evaluate(
            "document.querySelector('#fit-verdict').textContent"
        ):
            return
        watched.page.wait_for_timeout(10 * POLL)
    raise AssertionError("the verdict did not come to count the events of the last day")


def forecast_is_new(server: Server) -> None:
    """Wait until the forecast begins now: an answer is used again for a few seconds."""
    now = server.get("/v1/status")["now"]
    for _ in range(PATIENCE // POLL):
        if server.get("/v1/outlook?hours=6")["at"] == now:
            return
        time.sleep(POLL / 1000)
    raise AssertionError("the forecast stays old")


def serious_violations(evaluate: Callable[..., Any], axe: str) -> list[str]:
    """What axe-core finds that is serious or critical, each with its first place."""
    evaluate(axe)
    found = evaluate("async () => (await axe.run({resultTypes: ['violations']})).violations")
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:120]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def recovers_after_a_restart(watched: Watched, server: Server) -> None:
    server.stop(kill=True)
    watched.wait("document.querySelector('#connection').dataset.state === 'lost'")
    server.start()
    watched.wait("document.querySelector('#connection').dataset.state === 'live'")
    due = latest(server) + timedelta(minutes=2)
    server.post(fields_of([demo.Departure(due, "EWR", "2 h+")]))
    shown = f"EWR, 2 h+, {due:%H:%M}"
    watched.wait(f"document.querySelector('#latest').textContent.endsWith('{shown}')")
    # What was acknowledged before is so after it.
    watched.wait("document.querySelectorAll('#acknowledged .alarm').length === 1")
    # The chart that was drawn before does not answer keys any more.
    answers = 0
    for _ in range(PATIENCE // POLL):
        answers = watched.page.evaluate(ANSWERS)
        if answers:
            break
        watched.page.wait_for_timeout(POLL)
    assert answers == 1


def asks_for_a_token(watched: Watched, server: Server, tmp_path: Path) -> None:
    from fourpoint.serve.tokens import add_token

    token = add_token(tmp_path / "tokens", "viewer", "read")
    server.stop()
    server.start("--token-file", str(tmp_path / "tokens"))
    page = watched.page
    page.wait_for_selector("#token-dialog[open]")
    said = len(watched.said)
    page.fill("#token", "fp_wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#token-dialog[open]")
    page.fill("#token", token)
    page.keyboard.press("Enter")
    watched.wait("document.querySelector('#connection').dataset.state === 'live'")
    assert page.evaluate("sessionStorage.getItem('fourpoint-token')") == token
    # Each refusal is reported by the browser itself.
    watched.said[:] = [*watched.said[:said], *[s for s in watched.said[said:] if "401" not in s]]
    watched.said[:] = [s for s in watched.said if "401" not in s]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_documentation_shows_the_pictures(root: Path, name: str) -> None:
    content = (root / "docs/images" / name).read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(content) < 400_000
    assert f"images/{name}" in (root / "docs/dashboard.md").read_text()
