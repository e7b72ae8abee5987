"""The process that serves: it listens, and ends in good order."""

from __future__ import annotations

import logging
import math
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from fourpoint.errors import UserError
from fourpoint.serve.service import Service
from fourpoint.serve.settings import Settings
from fourpoint.streaming.feed.feed import short_collections

IDLE = 2.0  # times the patience until a connection that is kept open must have the next request
LAST = 5.0  # seconds that open connections have when the service ends


class Server(uvicorn.Server):
    """uvicorn's server, which calls ``at_end`` when it is told to end: streams of server-sent
    events would never end by themselves.
    """

    def __init__(self, config: uvicorn.Config, at_end: Callable[[], None]) -> None:
        super().__init__(config)
        self._at_end = at_end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came. uvicorn would raise it again at the end, before a snapshot is written."""
        self._at_end()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def serve(app: FastAPI, settings: Settings, listening: socket.socket | None = None) -> None:
    """Run ``app`` until SIGTERM or SIGINT, on a socket that :func:`listen` made."""
    service: Service = app.state.service
    config = configuration(app, settings)
    with (
        closing(listen(settings) if listening is None else listening) as found,
        short_collections(),
    ):
        Server(config, service.live.close).run([found])


def listen(settings: Settings) -> socket.socket:
    """The socket on which the service listens, so that it is known before anything is loaded
    whether one is available.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sends small writes at once where a socket names TCP; otherwise the body of an answer
    # waits for the acknowledgement of its head, 40 ms as a rule.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except OSError as error:
        found.close()
        raise UserError(
            "an address and a port to listen on",
            f"{settings.host} and {settings.port} ({error.strerror})",
            "End the other program, or choose another --port.",
        ) from None
    return found


def check_settings(settings: Settings) -> None:
    """Refuse a service that others can reach without tokens, and half of what TLS needs."""
    if settings.tokens is None and not settings.is_loopback:
        raise UserError(
            "tokens for a service that others can reach",
            f"--host {settings.host} without --token-file",
            "Make tokens with: fourpoint token FILE --name NAME --scope read,write.",
        )
    if (settings.certificate is None) != (settings.key is None):
        raise UserError(
            "a certificate with its key", "one of them", "Type --tls-certificate and --tls-key."
        )
    for file in (settings.certificate, settings.key):
        if file is not None and not file.is_file():
            raise UserError("a file in PEM format", f"{file}, which is not one", "Check the path.")


def configuration(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """How the server listens. Lines of the log hold no headers and no query."""
    check_settings(settings)
    logging.getLogger("uvicorn.access").disabled = True
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol(settings.limits.patience),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=settings.limits.connections,
        timeout_keep_alive=math.ceil(IDLE * settings.limits.patience),
        timeout_graceful_shutdown=int(LAST),
        h11_max_incomplete_event_size=64 * 1024,
        ssl_certfile=None if settings.certificate is None else str(settings.certificate),
        ssl_keyfile=None if settings.key is None else str(settings.key),
        proxy_headers=False,
    )


def protocol(patience: float) -> type[H11Protocol]:
    """uvicorn's HTTP protocol, which closes connections that send no whole head of a request in
    time: the first one, or one after an answer. uvicorn itself waits for as long as bytes come.
    """

    class PatientProtocol(H11Protocol):
        def connection_made(self, transport: object) -> None:
            super().connection_made(transport)  # type: ignore[arg-type]
            self.loop.call_later(patience, self._close_if_silent, self.cycle)

        def on_response_complete(self) -> None:
            self.loop.call_later(IDLE * patience, self._close_if_silent, self.cycle)
            super().on_response_complete()

        def _close_if_silent(self, last: object) -> None:
            """Close the connection if no request has come after the ``last`` one."""
            if self.cycle is last and not self.transport.is_closing():
                self.transport.close()

    return PatientProtocol


def announce(settings: Settings, listening: socket.socket, tell: Callable[[str], None]) -> None:
    """Tell where the service listens."""
    scheme = "http" if settings.certificate is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    tell(f"serving on {scheme}://{host}:{listening.getsockname()[1]}/")
