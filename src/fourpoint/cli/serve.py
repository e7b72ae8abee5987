"""`fourpoint serve` and its companions: the service, its tokens, and a refit on stored events."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from fourpoint.cli.checks import check_folder
from fourpoint.cli.console import print_all, print_notice, print_result
from fourpoint.cli.group import connected
from fourpoint.cli.options import BrokerOptions, ReadingOptions
from fourpoint.cli.reading import open_with_model
from fourpoint.errors import UserError
from fourpoint.serve.settings import Settings


def run_service(
    folder: Path,
    url: str,
    settings: Settings,
    data: str | None,
    reading: ReadingOptions,
    brokers: BrokerOptions | None = None,
) -> None:
    """Serve the model in ``folder`` until SIGTERM or SIGINT; events in ``data`` are read first."""
    try:
        from fourpoint.serve.app import create_app
        from fourpoint.serve.server import announce, check_settings, listen, serve
    except ImportError as error:
        raise UserError(
            "the packages fastapi and uvicorn for a service",
            f"an installation without {error.name}",
            "Install fourpoint[serve].",
        ) from None
    from fourpoint.serve.loading import load_events
    from fourpoint.serve.service import Service
    from fourpoint.serve.tokens import Tokens

    check_settings(settings)
    if settings.tokens is not None:
        Tokens.read(settings.tokens)
    listening = listen(settings)
    past = None if data is None else open_with_model(folder, data, reading)[1]
    service = Service(folder, url, settings, tell=print_notice)
    try:
        app = create_app(service, settings)
        if past is not None:
            found = load_events(service.engine, past, progress=True)
            known = f", {found.duplicates:,} of them known already" if found.duplicates else ""
            print_notice(f"{data}: {found.accepted + found.duplicates:,} events{known}")
        service.start()
        with connected(service, brokers):
            announce(settings, listening, print_notice)
            serve(app, settings, listening)
    finally:
        service.close()
        listening.close()


def run_refit(
    folder: Path,
    url: str,
    output: Path,
    held_out: float,
    seed: int,
    time_budget: float | None,
    json: bool,
) -> None:
    """Fit the model in ``folder`` again to the events in a store."""
    from fourpoint.serve.databases import database
    from fourpoint.serve.engine import Served
    from fourpoint.serve.refit import refit
    from fourpoint.serve.store import SqlStore

    check_folder(output, resume=False)
    served = Served.load(folder)
    store = SqlStore(database(url), writable=False)
    try:
        found = refit(served, store, output, held_out=held_out, seed=seed, time_budget=time_budget)
    finally:
        store.close()
    for note in found.notes:
        print_notice(note)
    numbers = {
        "events": found.events,
        "gain": None if found.gain is None else found.gain.to_dict()["log_likelihood_per_event"],
        "saved": str(output),
    }
    blocks: list[Any] = [f"saved a model fitted to {found.events:,} stored events in {output}/"]
    if found.gain is not None:
        blocks.insert(0, found.gain)
        print_notice(
            f"first: fitted to the events before the last {held_out:.0%} of the time; second: "
            f"{folder}; both scored on the rest"
        )
    print_all(numbers, blocks, json)
    if output.resolve() == folder.resolve():
        print_notice("next: POST /v1/model/reload makes a running service follow it")
        return
    print_notice(
        f"next: try it beside the live one with fourpoint serve {folder} --shadow {output}, or "
        f"refit with -o {folder} and POST /v1/model/reload"
    )


def run_token(path: Path, name: str, scope: str) -> None:
    """Add a token to a file and print it."""
    from fourpoint.serve.tokens import add_token

    print_result(add_token(path, name, scope))
    print_notice(
        f"its hash is in {path}; the token itself is stored nowhere. Use it as: "
        f"curl -H {shlex.quote('Authorization: Bearer TOKEN')} ..."
    )
