"""Arguments and options that several commands share, each declared once.

The options for reading a file are the fields of :class:`ReadingOptions`. A command takes
them all as one parameter, which :func:`takes_reading_options` replaces by the options themselves.
Every other name is the type of one parameter of a command.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from fourpoint.errors import UserError

Command = Callable[..., None]
GROUPED_BY = (
    "The column that identifies sequences, or a calendar unit (hour, day or week), or none; "
    "guessed by default."
)


# Fields of the reading options that say what is known besides times, types and places.
BESIDE = (
    "gaps",
    "observed",
    "exposure",
    "covariates",
    "entities",
    "sequence_covariates",
    "event_features",
    "impute",
    "covariates_as_of",
)
# Those that are about a file of events, and not about tables beside it.
OF_EVENTS = (
    "ties",
    "window",
    "time",
    "mark",
    "sequence",
    "place",
    "bounds",
    "time_unit",
    "timezone",
    "sort",
    "entities",
    "sequence_covariates",
    "event_features",
)


@dataclass(frozen=True)
class ReadingOptions:
    """How a file of events is read, as typed: ties and window, which column is what, and what its
    times mean.
    """

    ties: Annotated[
        str, typer.Option("--ties", help="Events at the same time: keep, error, jitter or drop.")
    ] = "keep"
    window: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--window",
            metavar="A B|each|all",
            help="Window observed: two numbers, times such as 2024-01-01, or columns with a value "
            "for each sequence; each: from the first event of a sequence to its last; all: one "
            "window for all events.",
        ),
    ] = None
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="COLUMN",
            help="The column of times, or date+time for two columns; guessed by default.",
        ),
    ] = None
    mark: Annotated[
        str | None,
        typer.Option(
            "--mark", metavar="COLUMN", help="The column of types, or none; guessed by default."
        ),
    ] = None
    sequence: Annotated[
        str | None, typer.Option("--sequence", "--by", metavar="COLUMN|day", help=GROUPED_BY)
    ] = None
    place: Annotated[
        list[str] | None,
        typer.Option(
            "--place",
            metavar="COLUMN",
            help="A column of coordinates: --place longitude --place latitude; or none.",
        ),
    ] = None
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            "--bounds",
            metavar="COLUMN=LOW:HIGH",
            help="Bounds of a coordinate; taken from the events by default.",
        ),
    ] = None
    time_unit: Annotated[
        str | None,
        typer.Option(
            "--time-unit",
            metavar="UNIT",
            help="Unit of times read from timestamps, for example hours.",
        ),
    ] = None
    timezone: Annotated[
        str | None,
        typer.Option(
            "--timezone",
            metavar="ZONE",
            help="Time zone of the calendar and of timestamps without one: Europe/Berlin.",
        ),
    ] = None
    sort: Annotated[bool, typer.Option("--sort", help="Sort the rows by time.")] = False
    gaps: Annotated[
        str | None,
        typer.Option(
            "--gaps",
            metavar="FILE",
            help="Table of recording gaps: start, stop and optionally sequence.",
        ),
    ] = None
    observed: Annotated[
        str | None,
        typer.Option(
            "--observed",
            metavar="FILE",
            help="Instead of gaps: table of the observed intervals.",
        ),
    ] = None
    exposure: Annotated[
        str | None,
        typer.Option(
            "--exposure",
            metavar="FILE",
            help="Table of a known factor of the rate: time, exposure and optionally sequence.",
        ),
    ] = None
    covariates: Annotated[
        str | None,
        typer.Option(
            "--covariates",
            metavar="FILE",
            help="Table of covariates of time: time, columns and optionally sequence; none leaves "
            "out those of an embedded set.",
        ),
    ] = None
    entities: Annotated[
        str | None,
        typer.Option(
            "--entities",
            metavar="FILE",
            help="Table with one row for each sequence, also for those without events; --window "
            "and --sequence-covariates may name its columns.",
        ),
    ] = None
    sequence_covariates: Annotated[
        str | None,
        typer.Option(
            "--sequence-covariates",
            metavar="A,B",
            help="Columns of --entities, or columns of the event file that are constant in each "
            "sequence.",
        ),
    ] = None
    event_features: Annotated[
        str | None,
        typer.Option(
            "--event-features",
            metavar="A,B",
            help="Numeric columns that describe each event, such as a magnitude.",
        ),
    ] = None
    impute: Annotated[
        str | None,
        typer.Option(
            "--impute",
            metavar="previous|mean",
            help="How missing values of covariates are imputed; by default they are an error.",
        ),
    ] = None
    covariates_as_of: Annotated[
        str | None,
        typer.Option(
            "--covariates-as-of",
            metavar="PERIOD",
            help="Use covariates of time as known when the day (1d), the week (1w) or a part of "
            "the day (6h) began, for forecasts made then; a model remembers it.",
        ),
    ] = None

    def typed(self, without: Collection[str] = ()) -> list[str]:
        """The options that differ from the defaults, as they are typed, except fields ``without``.

        >>> ReadingOptions(time="ts", place=["x", "y"], window=("0", "24"), sort=True).typed()
        ['--window', '0', '24', '--time', 'ts', '--place', 'x', '--place', 'y', '--sort']
        """
        words: list[str] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name in without:
                continue
            flag = option_flag(field.name)
            if isinstance(value, bool):
                words.append(flag)
            elif isinstance(value, list):
                words += [word for one in value for word in (flag, one)]
            elif isinstance(value, tuple):
                words += [flag, *value]
            else:
                words += [flag, value]
        return words


@dataclass(frozen=True)
class BrokerOptions:
    """Where a consumer group reads events and keeps its state, and where it sends alarms, as
    typed.
    """

    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="NAME",
            help="Run as a worker of this consumer group, which shares entities by key.",
        ),
    ] = None
    redis: Annotated[
        str | None,
        typer.Option(
            "--redis",
            metavar="URL",
            help="Redis server to read from: redis://localhost:6379/0.",
        ),
    ] = None
    kafka: Annotated[
        str | None,
        typer.Option(
            "--kafka", metavar="SERVERS", help="Kafka brokers to read from: localhost:9092."
        ),
    ] = None
    kafka_option: Annotated[
        list[str] | None,
        typer.Option(
            "--kafka-option",
            metavar="NAME=VALUE",
            help="An option of librdkafka, such as security.protocol=SSL; repeatable.",
        ),
    ] = None
    topic: Annotated[
        str,
        typer.Option("--topic", metavar="NAME", help="The topic, or the name of the streams."),
    ] = "events"
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            metavar="P",
            help="Number of Redis streams, NAME:0 to NAME:P-1; 16 by default; 1: the stream NAME.",
        ),
    ] = None
    begin_at: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="first|last",
            help="Where a new group begins: with the first existing message, or with the next.",
        ),
    ] = "first"
    alarms_to: Annotated[
        list[str] | None,
        typer.Option(
            "--alarms-to",
            metavar="URL",
            help="Send alarms: https://..., redis://HOST/0?stream=NAME, kafka://HOST/TOPIC.",
        ),
    ] = None
    webhook_secret: Annotated[
        Path | None,
        typer.Option(
            "--webhook-secret",
            metavar="FILE",
            help="File with the secret that signs webhook requests.",
        ),
    ] = None
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            metavar="SECONDS",
            help="Time without a heartbeat after which other workers take over.",
        ),
    ] = 10.0


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker of `fourpoint stream --group` takes besides, as typed."""

    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="State that workers share: sqlite:///FILE on one machine, or postgresql://...",
        ),
    ] = None
    id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="FIELD",
            help="The field with an event's id; an event with a known id is not counted again.",
        ),
    ] = None
    until_end: Annotated[
        bool,
        typer.Option("--until-end", help="End once all messages present at the start are scored."),
    ] = False
    export: Annotated[
        bool,
        typer.Option("--export", help="Write the scores of the group to --output, and exit."),
    ] = False


def refuse_without_group(*typed: BrokerOptions | WorkerOptions) -> None:
    """Refuse options of a consumer group where there is none."""
    for options in typed:
        for field in dataclasses.fields(options):
            if getattr(options, field.name) != field.default:
                flag = "--from" if field.name == "begin_at" else option_flag(field.name)
                raise UserError(
                    f"--group NAME with {flag}", "no --group", f"Type --group, or leave {flag} out."
                )


def takes_options_of(kind: type[Any]) -> Callable[[Command], Command]:
    """A decorator that gives a command the options that are the fields of the dataclass ``kind``,
    in place of its parameter of that type.
    """
    types = get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        taken = next(one.name for one in own if one.annotation is kind)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [one.replace(kind=keyword) for one in own if one.name != taken]
        parameters += [
            inspect.Parameter(
                field.name, keyword, default=field.default, annotation=types[field.name]
            )
            for field in fields
        ]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            options = kind(**{field.name: given.pop(field.name) for field in fields})
            command(**given, **{taken: options})

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def option_flag(field: str) -> str:
    """The first name of a reading option on the command line.

    >>> option_flag("time_unit")
    '--time-unit'
    """
    return f"--{field.replace('_', '-')}"


def takes_reading_options(
    *,
    without: Collection[str] = (),
    rename: Mapping[str, str] | None = None,
    also: Mapping[str, str] | None = None,
    describe: Mapping[str, str] | None = None,
) -> Callable[[Command], Command]:
    """A decorator that gives a command the options of its parameter of type
    :class:`ReadingOptions`, in that parameter's place.

    Args:
        without: fields that the command does not take; they keep their defaults.
        rename: fields whose option has another name here, such as ``{"sequence": "by"}`` where
            ``--sequence`` means something else.
        also: a second name of such an option, as it is typed.
        describe: fields whose help has other words here.
    """
    renamed = rename or {}
    described = describe or {}
    kept = [field for field in dataclasses.fields(ReadingOptions) if field.name not in without]
    types = get_type_hints(ReadingOptions, include_extras=True)
    names = {renamed.get(field.name, field.name): field.name for field in kept}

    def parameter(name: str, field: dataclasses.Field[object]) -> inspect.Parameter:
        kind, option = get_args(types[field.name])
        option = copy(option)
        if name != field.name:
            _rename(option, option_flag(name), (also or {}).get(field.name))
        option.help = described.get(field.name, option.help)
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[kind, option],
        )

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        taken = next(one.name for one in own if one.annotation is ReadingOptions)
        parameters: list[inspect.Parameter] = []
        for one in own:
            if one.name == taken:
                shared = zip(names, kept, strict=True)
                parameters += [parameter(name, field) for name, field in shared]
            else:
                parameters.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def run(**given: Any) -> None:
            reading = {field: given.pop(name) for name, field in names.items()}
            command(**given, **{taken: dataclasses.replace(ReadingOptions(), **reading)})

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _rename(option: OptionInfo, flag: str, second: str | None) -> None:
    """Give an option one name, or two, in place of those it has."""
    option.default = flag
    option.param_decls = () if second is None else (second,)


Source = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Name of an embedded data set, a file (CSV, TSV, JSON Lines, Parquet, Arrow), or a "
        "folder or URL of Parquet files.",
    ),
]
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
Buffer = Annotated[
    int | None,
    typer.Option(
        metavar="EVENTS",
        help="Read a folder or URL of Parquet files chunk by chunk, with about this many events in "
        "memory; by default 2,000,000, from 5,000,000 rows on.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on a Ray cluster instead of local processes: auto, local, HOST:PORT or "
        "ray://HOST:PORT (extra ray).",
    ),
]
Jobs = Annotated[int | None, typer.Option(metavar="N", help="Run in N local processes.")]
Folder = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder to write.")]
File = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Parquet file to write.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A setting of the model or of training; repeatable."
    ),
]
Truth = Annotated[
    str | None,
    typer.Option(
        metavar="PROCESS",
        help="The process that generated the data; adds its likelihood and the regret.",
    ),
]
Amplitude = Annotated[
    str,
    typer.Option(
        help="How the factor U[0, 1] of the paper's rates is read: fixed at its mean, or random."
    ),
]

MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help=(
            "Memory that a file may expand to or a model may take, for example 16G; half of the "
            "free memory by default."
        ),
    ),
]
Saved = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of a model that `fourpoint fit` saved.")
]
Which = Annotated[
    str | None,
    typer.Option(metavar="ID", help="The sequence to use; not needed if there is only one."),
]
NOW = (
    "Time of the forecast or explanation, up to which events are known: a number, or a date such "
    "as '2025-06-03 14:00'; by default the end."
)
At = Annotated[str | None, typer.Option(metavar="TIME|DATE", help=NOW)]
Horizon = Annotated[
    str,
    typer.Option(
        metavar="LENGTH",
        help="Length of the forecast: a number in the data's unit of time, or 4h, 30d, 15min, 1w.",
    ),
]
SplitAt = Annotated[
    str | None,
    typer.Option(
        metavar="A B",
        help=(
            "Cut every sequence by time: train before A, dev from A to B, test from B on, each "
            "with the events before as history. Dates, numbers, or three shares such as .8 .1 .1."
        ),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw a picture: .png, .svg or .pdf.")
]
