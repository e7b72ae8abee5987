"""The commands ``fourpoint data``: list what is embedded, summarise a data set, look at a file,
convert between formats.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fourpoint.cli import options as typed
from fourpoint.cli.checks import check_applies, check_picture
from fourpoint.cli.console import catalogue, print_all, print_notice, print_result, save_plot
from fourpoint.cli.examples import example_text
from fourpoint.cli.reading import asked, open_events


class DataCommands(TyperGroup):
    """The subcommands of ``data``; a word that is none of them is the data set to summarise."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """As click's; the help of a command ends with its example."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.epilog = example_text(f"data {cmd_name}")
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer's, with ``summary`` before a word that is no command."""
        known = bool(args) and args[0] in self.commands
        return super().resolve_command(ctx, args if known else ["summary", *args])


data_app = typer.Typer(cls=DataCommands, invoke_without_command=True, add_completion=False)


@data_app.callback()
def data(ctx: typer.Context) -> None:
    """List what comes with Fourpoint, summarise a data set (fourpoint data NAME|FILE), or look at a
    file of your own.
    """
    if ctx.invoked_subcommand is None:
        for table in catalogue():
            print_result(table)
        print_notice(
            "next: fourpoint data nyc_delays, or fourpoint data inspect FILE for events of your own"
        )


@data_app.command()
@typed.takes_reading_options()
def summary(
    source: typed.Source,
    split: typed.Split = None,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Summarise one data set; the same as fourpoint data NAME|FILE."""
    from fourpoint.data.facts import facts, table_of

    found = open_events(source, reading)
    part = found if split is None else found.part(split)
    print_result(table_of(part.name or "events", facts(part)))


@data_app.command()
@typed.takes_reading_options(without=("sort",))
def inspect(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="CSV, TSV (also .gz, .zst), JSON Lines, Parquet or Arrow."
        ),
    ],
    *,
    reading: typed.ReadingOptions,
    json: typed.Json = False,
    plot: typed.Plot = None,
) -> None:
    """Inspect a file of events: its columns, counts, time span, marks, ties and gaps, and
    the command to run next.
    """
    from fourpoint.data.inspecting import inspect as look

    check_picture(plot)
    found = look(source, asked(reading))
    save_plot(found.plot() if plot else None, plot)
    print_all(found.to_dict(), [found], json)
    print_notice(f"next: {found.command}")


@data_app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A file or folder of events.")],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="File or folder to write; its extension gives the format."
        ),
    ],
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="F", help="Format or source of IN; guessed by default."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="F", help="Format of OUT; by default given by its extension."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of a source; repeatable."),
    ] = None,
    seed: typed.Seed = 0,
) -> None:
    """Convert between file formats of other libraries, or from a source: mimic, memetracker,
    lobster, trades, congestion.
    """
    from fourpoint.data.formats import convert as converted, guess_source
    from fourpoint.data.sources import SOURCES
    from fourpoint.settings import parameters, parse_settings

    name = from_ or guess_source(source)
    options: dict[str, Any] = {}
    if name in SOURCES:
        options, _ = parse_settings(set_ or [], SOURCES[name], lambda: None)
        options |= {"seed": seed} if "seed" in parameters(SOURCES[name]) else {}
    else:
        check_applies(f"the format {name}", "--set", not set_)
    done = converted(source, target, from_, to, options)
    for note in done.notes:
        print_notice(note)
    print_result(f"{target}: {done.data} ({done.to})")
    if done.to == "fourpoint":
        print_notice(f"next: fourpoint fit {target} --model dapp -o model")
    else:
        print_notice(f"read as {done.from_}, written as {done.to}")


@data_app.command()
@typed.takes_reading_options(without=typed.BESIDE[:5])
def partition(
    source: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder or URL of Parquet files.")
    ],
    output: typed.Folder,
    files: Annotated[
        int | None, typer.Option(help="Files to write; about a million rows each by default.")
    ] = None,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Regroup Parquet files by sequence, with bounded memory: logs that are written by time become
    files that fit, evaluate and forecast read chunk by chunk.
    """
    from fourpoint.data.opened import progress
    from fourpoint.data.parquet_files import Store
    from fourpoint.data.partitioning import partition as regroup

    with progress(Path(source).name, Store.open(source).rows) as advance:
        found = regroup(source, output, asked(reading), files=files, progress=advance)
    for note in found.notes:
        print_notice(note)
    counted = f"{found.files:,} files, {found.sequences:,} sequences, {found.events:,} events"
    print_result(f"{output}/: {counted}")
    print_notice(f"next: fourpoint fit {output} --model dapp -o model")
