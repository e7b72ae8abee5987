"""What can be typed after a command: arguments and options that several commands share, declared
once.

Each name is the type of a parameter of a command in :mod:`fourpoint.cli.main` or
:mod:`fourpoint.cli.data`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Name of an embedded data set, or a file: CSV, TSV, JSON Lines, Parquet, Arrow.",
    ),
]
Ties = Annotated[str, typer.Option(help="Events at one time: keep, error, jitter or drop.")]
Window = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="A B", help="Window observed: two numbers, or times such as 2024-01-01."),
]
Time = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column of times; guessed by default.")
]
Mark = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The column of types, or none; guessed by default."),
]
BY = (
    "The column that tells sequences apart, or hour, day or week of the calendar, or none; "
    "guessed by default."
)
Grouped = Annotated[str | None, typer.Option("--sequence", "--by", metavar="COLUMN|day", help=BY)]
By = Annotated[str | None, typer.Option("--by", metavar="COLUMN|day", help=BY)]
Place = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="A column of numbers that says where: --place longitude --place latitude; or none.",
    ),
]
Bounds = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=LOW:HIGH",
        help="Bounds of a column of the place; by default read off the events.",
    ),
]
TimeUnit = Annotated[
    str | None,
    typer.Option(metavar="UNIT", help="Unit of times that are read from stamps: hours, say."),
]
Timezone = Annotated[
    str | None,
    typer.Option(
        metavar="ZONE",
        help="Zone of the calendar, and of stamps that name none: Europe/Berlin, say.",
    ),
]
Sort = Annotated[bool, typer.Option("--sort", help="Put rows in order of time.")]
Split = Annotated[str | None, typer.Option(help="Part of the data: train, dev, test or all.")]
Scored = Annotated[
    str | None,
    typer.Option(
        "--split",
        help="Part of the data: train, dev, test, all, or held-out (what fit did not train on).",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Budget = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="Fit within this many seconds: reading, training and checks."
    ),
]
Folder = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder to write.")]
File = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Parquet file to write.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of model or training; repeatable."),
]
Truth = Annotated[
    str | None,
    typer.Option(metavar="PROCESS", help="The process that made the data: adds oracle and regret."),
]
Amplitude = Annotated[
    str, typer.Option(help="Reading of U[0, 1] in the paper's rates: fixed or random.")
]

MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help=(
            "What a file may expand into, or a model take: 16G, say; half of the free memory by "
            "default."
        ),
    ),
]
Saved = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of a model that `fourpoint fit` saved.")
]
Which = Annotated[
    str, typer.Option(metavar="ID", help="The sequence whose events are the history.")
]
NOW = "Now; the end of the window by default. Events up to and including it are known."
At = Annotated[float | None, typer.Option(metavar="TIME", help=NOW)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw a picture: .png, .svg or .pdf.")
]
