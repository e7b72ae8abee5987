"""What every request passes: limits on its size and rate, security headers, and its entry in the
statistics.

A pure ASGI application around another one, so that streams of server-sent events pass through.
"""

from __future__ import annotations

import time as clocks
from collections import OrderedDict, defaultdict
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fourpoint.errors import UserError
from fourpoint.serve.settings import LOOPBACK, Settings

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
}
VERSION = "/v1"  # of the interface, which a path may leave out
VERSIONED = ("events", "entities", "forecast", "explain", "alarms", "live", "digest", "status")
UNVERSIONED = ("healthz", "readyz", "metrics", "openapi.json")  # and these may have it
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
CLIENTS = 10_000  # whose rates are remembered
EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # of the histogram, in seconds


class Statistics:
    """Requests by path and status, and how long they took."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self.buckets = [0] * (len(EDGES) + 1)
        self.seconds = 0.0

    def add(self, method: str, path: str, status: int, seconds: float) -> None:
        """One request more. Clients choose the names of methods, so that unknown ones are counted
        together.
        """
        self.requests[method if method in METHODS else "other", path, status] += 1
        self.buckets[sum(seconds > edge for edge in EDGES)] += 1
        self.seconds += seconds


class Buckets:
    """A bucket of requests for each client, which fills again with time.

    >>> buckets = Buckets(rate=1.0)
    >>> [buckets.take("a", now=0.0) for _ in range(3)], buckets.take("a", now=1.5)
    ([True, True, False], True)
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float) -> bool:
        """Whether a client may make a request now."""
        most = 2.0 * self.rate
        left, since = self._clients.pop(client, (most, now))
        left = min(most, left + (now - since) * self.rate)
        allowed = left >= 1.0
        self._clients[client] = (left - 1.0 if allowed else left, now)
        if len(self._clients) > CLIENTS:
            self._clients.popitem(last=False)
        return allowed


class Guard:
    """Checks requests before ``app`` sees them."""

    def __init__(self, app: ASGIApp, settings: Settings, statistics: Statistics) -> None:
        self.app = app
        self.settings = settings
        self.statistics = statistics
        self._buckets = Buckets(settings.limits.requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = clocks.monotonic()
        status = 500
        scope = {**scope, "path": known_path(scope["path"])}

        async def guarded_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                known = {name.lower() for name, _ in message["headers"]}
                more = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                if b"cache-control" not in known:
                    more.append((b"cache-control", b"no-store"))
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in more if pair[0] not in known),
                ]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, guarded_send)
            else:
                await self.app(scope, receive, guarded_send)
        finally:
            route: Any = scope.get("route")
            path = "other" if route is None else str(route.path)
            self.statistics.add(scope["method"], path, status, clocks.monotonic() - began)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if self.settings.tokens is None and not self._is_own_host(headers.get("host", "")):
            return problem(
                421,
                UserError(
                    "this service addressed as localhost or 127.0.0.1",
                    f"the host {headers.get('host', '')!r:.80}",
                    "Use --allow-host NAME, and tokens if others can reach it.",
                ),
            )
        length = headers.get("content-length", "0")
        most = self.settings.limits.body
        if not length.isdigit() or int(length) > most:
            return problem(
                413,
                UserError(
                    f"a body of at most {most:,} bytes", f"{length:.20} bytes", "Send fewer events."
                ),
            )
        client = scope.get("client") or ("", 0)
        if not self._buckets.take(str(client[0]), clocks.monotonic()):
            return problem(
                429,
                UserError(
                    f"at most {self.settings.limits.requests:g} requests per second",
                    "more of them",
                    "Send more events per request, or raise --rate-limit.",
                ),
            )
        return None

    def _is_own_host(self, host: str) -> bool:
        """Whether a request names this service: a page of another site that points its name here
        does not.
        """
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        return name.strip("[]").lower() in (*LOOPBACK, *self.settings.hosts)


def known_path(path: str) -> str:
    """The path that is meant, with and without the version of the interface.

    >>> known_path("/entities/north"), known_path("/v1/healthz"), known_path("/v1/events")
    ('/v1/entities/north', '/healthz', '/v1/events')
    """
    first, _, rest = path[1:].partition("/")
    if first in VERSIONED:
        return VERSION + path
    if f"/{first}" == VERSION and rest in UNVERSIONED:
        return f"/{rest}"
    return path


def problem(status: int, error: Exception) -> JSONResponse:
    """An error as JSON."""
    headers = {"retry-after": "1"} if status in (429, 503) else None
    return JSONResponse({"error": str(error)}, status, headers=headers)
