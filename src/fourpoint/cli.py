"""The command line: one function per command, in the words of the library.

    fourpoint demo | data | simulate | fit | evaluate | forecast | explain | stream

Results go to stdout, notices and errors to stderr. A mistake the user can mend ends with exit code 2 and three clauses
(what was expected, what came, what to do), never a traceback, and before anything is written. Only typer and the
standard library are imported here, so that ``fourpoint --help`` is instant; each command imports what it needs.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from fourpoint.console import catalogue, check_picture, print_all, print_result, report_error, save_plot, say, short_unit, summary_of

if TYPE_CHECKING:
    from fourpoint.events import Dataset


Fitted = tuple[str | None, tuple[str, ...] | None]
CHECKED = 20_000  # events that the goodness of fit looks at


class Commands(TyperGroup):
    """Runs a command, and turns errors and interruptions into messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("interrupted: what was saved before stays; fit --resume goes on from it", style="yellow")
            raise typer.Exit(130) from None
        except (ValueError, ArithmeticError, OSError) as error:
            code = report_error(error)
            if code is None:
                raise
            raise typer.Exit(code) from None


class DataCommands(TyperGroup):
    """The subcommands of ``data``; a word that is none of them is the data set to summarise."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = args and args[0] in self.commands
        return super().resolve_command(ctx, args if known else ["summary", *args])


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Fourpoint: Fourier kernels for point processes. Fit, judge and simulate models of event logs.",
    epilog="Start with: fourpoint demo",
)

data_app = typer.Typer(cls=DataCommands, invoke_without_command=True, add_completion=False)
app.add_typer(data_app, name="data", help="List what comes with Fourpoint, summarise a data set, or look at a file of your own.")

Source = Annotated[
    str, typer.Argument(metavar="DATA", help="Name of an embedded data set, or a file: CSV, TSV, JSON Lines, Parquet, Arrow.")
]
Ties = Annotated[str, typer.Option(help="Events at one time: keep, error, jitter or drop.")]
Window = Annotated[tuple[str, str] | None, typer.Option(metavar="A B", help="Window observed: two numbers, or times such as 2024-01-01.")]
Time = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of times; guessed by default.")]
Mark = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of types, or none; guessed by default.")]
BY = "The column that tells sequences apart, or hour, day or week of the calendar, or none; guessed by default."
Grouped = Annotated[str | None, typer.Option("--sequence", "--by", metavar="COLUMN|day", help=BY)]
By = Annotated[str | None, typer.Option("--by", metavar="COLUMN|day", help=BY)]
TimeUnit = Annotated[str | None, typer.Option(metavar="UNIT", help="Unit of times that are read from stamps: hours, say.")]
Timezone = Annotated[
    str | None, typer.Option(metavar="ZONE", help="Zone of the calendar, and of stamps that name none: Europe/Berlin, say.")
]
Sort = Annotated[bool, typer.Option("--sort", help="Put rows in order of time.")]
Split = Annotated[str | None, typer.Option(help="Part of the data: train, dev, test or all.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Budget = Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop training after this many seconds.")]
Folder = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder to write.")]
File = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Parquet file to write.")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of model or training; repeatable.")]
Truth = Annotated[str | None, typer.Option(metavar="PROCESS", help="The process that made the data: adds oracle and regret.")]
Version = Annotated[bool, typer.Option("--version", callback=lambda asked: _print_version(asked), is_eager=True, help="Print the version.")]
Amplitude = Annotated[str, typer.Option(help="Reading of U[0, 1] in the paper's rates: fixed or random.")]

Saved = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a model that `fourpoint fit` saved.")]
Which = Annotated[str, typer.Option(metavar="ID", help="The sequence whose events are the history.")]
At = Annotated[float | None, typer.Option(metavar="TIME", help="Now; the end of the window by default. Later events are not looked at.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a picture: .png, .svg or .pdf.")]


def main() -> None:
    """The entry point of the command ``fourpoint``.

    Idle threads wait asleep rather than spinning: on a machine that others use too, spinning costs several times the work.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app()


@app.callback()
def root(
    version: Version = False,
) -> None:
    """Fourpoint: Fourier kernels for point processes. Fit, judge and simulate models of event logs."""


@app.command()
def demo(
    output: Folder = Path("demo"),
    seed: Seed = 0,
    time_budget: Budget = None,
) -> None:
    """Train on New York's flight delays, compare four models, and write one page that explains what was found."""
    from fourpoint.demo import run_demo

    run_demo(output, seed=seed) if time_budget is None else run_demo(output, seed=seed, time_budget=time_budget)


@data_app.callback()
def data(ctx: typer.Context) -> None:
    """List what comes with Fourpoint, summarise a data set (fourpoint data NAME|FILE), or look at a file of your own."""
    if ctx.invoked_subcommand is None:
        for table in catalogue():
            print_result(table)
        say("next: fourpoint data nyc_delays, or fourpoint data inspect FILE for events of your own")


@data_app.command()
def summary(
    source: Source,
    ties: Ties = "keep",
    window: Window = None,
    split: Split = None,
    time: Time = None,
    mark: Mark = None,
    sequence: Grouped = None,
    time_unit: TimeUnit = None,
    timezone: Timezone = None,
    sort: Sort = False,
) -> None:
    """Summarise one data set; the same as fourpoint data NAME|FILE."""
    found = _open(source, ties, window, How(time, mark, sequence, time_unit, timezone, sort))
    print_result(summary_of(found if split is None else found.part(split)))


@data_app.command()
def inspect(
    source: Annotated[str, typer.Argument(metavar="FILE", help="CSV, TSV (also .gz, .zst), JSON Lines, Parquet or Arrow.")],
    ties: Ties = "keep",
    window: Window = None,
    time: Time = None,
    mark: Mark = None,
    sequence: Grouped = None,
    time_unit: TimeUnit = None,
    timezone: Timezone = None,
    json: Json = False,
    plot: Plot = None,
) -> None:
    """Look at a file of events: its columns, counts, span, marks, ties and gaps, with pictures, and the command to type next."""
    from fourpoint.data.inspecting import inspect as look

    check_picture(plot)
    policy = _one_of("--ties", ties, ("keep", "error", "jitter", "drop"))
    found = look(
        source, time=time, mark=mark, sequence=sequence, window=_window(window), time_unit=time_unit, timezone=timezone, ties=policy
    )
    save_plot(found.plot() if plot else None, plot)
    print_all(found.to_dict(), [found], json)
    say(f"next: {found.command}")


@data_app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A file or folder of events.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File or folder to write; its ending says the format.")],
    from_: Annotated[str | None, typer.Option("--from", metavar="F", help="Format or source of IN; guessed by default.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="F", help="fourpoint, easytpp, pickle, du, tick or hotpp.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of a source; repeatable.")] = None,
    seed: Seed = 0,
) -> None:
    """Convert between the formats of the field, or from a source: mimic, memetracker, lobster, trades, congestion."""
    from fourpoint.data.formats import convert as converted
    from fourpoint.data.formats.guessing import guess_source
    from fourpoint.data.sources import SOURCES
    from fourpoint.settings import parameters, parse_settings

    name = from_ or guess_source(source)
    options: dict[str, Any] = {}
    if name in SOURCES:
        options, _ = parse_settings(set_ or [], SOURCES[name], lambda: None)
        options |= {"seed": seed} if "seed" in parameters(SOURCES[name]) else {}
    else:
        _only(f"the format {name}", "--set", not set_)
    done = converted(source, target, from_, to, options)
    for note in done.notes:
        say(note)
    print_result(f"{target}: {done.data} ({done.to})")
    say(f"next: fourpoint fit {target} --model dapp -o model" if done.to == "fourpoint" else f"read as {done.from_}, written as {done.to}")


@app.command()
def simulate(
    source: Annotated[str, typer.Argument(metavar="PROCESS|DIR", help="A process that `fourpoint data` lists, or a model's folder.")],
    output: File,
    sequences: Annotated[int, typer.Option(help="Number of sequences.")] = 1000,
    start: Annotated[float | None, typer.Option(help="Start of the window; that of the training data by default.")] = None,
    stop: Annotated[float | None, typer.Option(help="End of the window; that of the training data, or of the process, by default.")] = None,
    seed: Seed = 0,
    most: Annotated[int | None, typer.Option(help="Cap on the events of one sequence of a model; what it cuts is reported.")] = None,
    amplitude: Amplitude = "fixed",
) -> None:
    """Draw sequences from a fitted model, or from a process whose truth is known."""
    from fourpoint.data.readers import write

    kind = _one_of("--amplitude", amplitude, ("fixed", "random"))
    if (Path(source) / "model.json").is_file() or "/" in source:
        _only(f"the model in {source}", "--amplitude", amplitude == "fixed")
        drawn, told = _draw_from_model(Path(source), sequences, start, stop, seed, most)
    else:
        from fourpoint.data.synthetic import process

        known = process(source, kind)
        _only(f"the process {known.name}", "--start", not start)
        _only(f"the process {known.name}", "--most", most is None)
        drawn = known.simulate(sequences, seed, stop)
        told = str(drawn)
    write(drawn, output)
    print_result(f"{output}: {told}")
    say(f"next: fourpoint fit {output} --model dapp -o model")


@app.command()
def fit(
    source: Source,
    output: Folder,
    model: Annotated[str, typer.Option(help="dapp, dapp-paper, hawkes, poisson or spline-poisson.")] = "dapp",
    set_: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run in the same folder.")] = False,
    split: Split = None,
    seed: Seed = 0,
    time_budget: Budget = None,
    ties: Ties = "keep",
    window: Window = None,
    time: Time = None,
    mark: Mark = None,
    sequence: Grouped = None,
    time_unit: TimeUnit = None,
    timezone: Timezone = None,
    sort: Sort = False,
) -> None:
    """Train a model on a data set and save it in a folder."""
    from fourpoint.models import MODELS
    from fourpoint.settings import parameters, parse_settings
    from fourpoint.training import fit as train_model

    build = MODELS[_one_of("--model", model, tuple(MODELS))]
    of_model, of_training = parse_settings(set_ or [], build, train_model)
    how = How(time, mark, sequence, time_unit, timezone, sort)
    events = _open(source, ties, window, how)
    train, dev = _train_and_dev(events, split, seed)
    if "seed" in parameters(build):
        of_model["seed"] = seed
    made = build(marks=events.marks, **of_model)
    _check_folder(output, resume)
    result = train_model(made, train, dev, seed=seed, time_budget=time_budget, folder=output, resume=resume, **of_training)
    for note in dict.fromkeys(result.notes):
        say(note)
    print_result(f"saved {model} in {output}/ (best at step {result.best_step:,})")
    say(f"next: fourpoint evaluate {shlex.join([str(output), source, *how.words(ties, window)])}")


@app.command()
def evaluate(
    folder: Saved,
    source: Source,
    truth: Truth = None,
    amplitude: Amplitude = "fixed",
    split: Split = None,
    convention: Annotated[str, typer.Option(help="window (everything observed) or gaps (events 2 to N, as published tables).")] = "window",
    tolerance: Annotated[float, typer.Option(help="Error of the integral allowed, in nats per event.")] = 1e-4,
    fit_check: Annotated[bool, typer.Option("--fit-check/--no-fit-check", help="Whether to test the goodness of fit.")] = True,
    predictions: Annotated[bool, typer.Option("--predictions", help="Score predictions of the next event and up to a horizon.")] = False,
    json: Json = False,
    plot: Plot = None,
    seed: Seed = 0,
    ties: Ties = "keep",
    window: Window = None,
    time: Time = None,
    mark: Mark = None,
    sequence: Grouped = None,
    time_unit: TimeUnit = None,
    timezone: Timezone = None,
    sort: Sort = False,
) -> None:
    """Score a saved model on a data set: log-likelihood per event, goodness of fit, predictions, and regret where the truth is known."""
    from fourpoint.checkpoints import restore
    from fourpoint.data.synthetic import process
    from fourpoint.evaluation import evaluate as judge
    from fourpoint.goodness import goodness_of_fit
    from fourpoint.predictions import prediction_scores
    from fourpoint.sampling import check_marks

    asked = _one_of("--convention", convention, ("window", "gaps"))
    check_picture(plot)
    if plot is not None:
        _only("an evaluation with --no-fit-check", "--plot", fit_check)
    oracle = None if truth is None else process(truth, _one_of("--amplitude", amplitude, ("fixed", "random"))).truth()
    model = restore(folder)
    events = _open(source, ties, window, How(time, mark, sequence, time_unit, timezone, sort), _of_model(folder, model))
    part = events.part(split or _default_split(events, "test"))
    check_marks(model, part.marks)
    report = judge(model, part, truth=oracle, tolerance=tolerance)
    numbers = report.to_dict(asked)
    blocks: list[Any] = [report]
    if fit_check and part.events:
        some = _some_of(part, seed)
        verdict = goodness_of_fit(model, some, tolerance=tolerance)
        numbers["goodness"] = {"events": some.events, "sequences": len(some), **verdict.to_dict()}
        blocks.append(verdict)
        save_plot(verdict.plot() if plot else None, plot)
    if predictions:
        scores = prediction_scores(model, part, seed=seed)
        numbers["predictions"] = scores.to_dict()
        blocks.append(scores)
    print_all(numbers, blocks, json)


@app.command()
def forecast(
    folder: Saved,
    source: Source,
    sequence: Which,
    horizon: Annotated[float, typer.Option(help="How far to look, in the data's unit of time.")],
    at: At = None,
    paths: Annotated[int, typer.Option(help="Number of futures to sample.")] = 1000,
    windows: Annotated[int, typer.Option(help="Parts of the horizon in which events are counted.")] = 4,
    seed: Seed = 0,
    json: Json = False,
    plot: Plot = None,
    ties: Ties = "keep",
    window: Window = None,
    time: Time = None,
    mark: Mark = None,
    by: By = None,
    time_unit: TimeUnit = None,
    timezone: Timezone = None,
    sort: Sort = False,
) -> None:
    """What happens next after a sequence's events up to a time: next event, its mark, and counts up to a horizon."""
    from fourpoint.checkpoints import restore
    from fourpoint.forecasting import forecast as look_ahead

    check_picture(plot)
    model = restore(folder)
    events = _open(source, ties, window, How(time, mark, by, time_unit, timezone, sort), _of_model(folder, model))
    found = look_ahead(model, events.find(sequence), horizon, paths, seed, at=at, windows=windows)
    save_plot(found.plot(unit=short_unit(events.unit)) if plot else None, plot)
    print_all(found.to_dict(), [found], json)


@app.command()
def explain(
    folder: Saved,
    source: Source,
    sequence: Which,
    at: At = None,
    json: Json = False,
    plot: Plot = None,
    ties: Ties = "keep",
    window: Window = None,
    time: Time = None,
    mark: Mark = None,
    by: By = None,
    time_unit: TimeUnit = None,
    timezone: Timezone = None,
    sort: Sort = False,
) -> None:
    """What each past event of a sequence adds to the rate at a time, per mark: the rate less the rate without that event."""
    from fourpoint.checkpoints import restore
    from fourpoint.explaining import explain as account_for

    check_picture(plot)
    model = restore(folder)
    events = _open(source, ties, window, How(time, mark, by, time_unit, timezone, sort), _of_model(folder, model))
    found = account_for(model, events.find(sequence), at)
    save_plot(found.plot(unit=short_unit(events.unit)) if plot else None, plot)
    print_all(found.to_dict(), [found], json)


@app.command()
def stream(
    folder: Saved,
    input: Annotated[str, typer.Option(metavar="FILE", help="Events, one JSON object per line; - is standard input.")] = "-",
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Scores, one line per event; - is standard output.")] = "-",
    state: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to go on after a stop or a crash: each line once.")] = None,
    keep: Annotated[int | None, typer.Option(metavar="N", help="Past events that each head of a DAPP remembers; all by default.")] = None,
    by: Annotated[str | None, typer.Option(metavar="COLUMN", help="The field that names an event's entity: one stream for each.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more at the end of the file, until SIGTERM.")] = False,
    every: Annotated[int | None, typer.Option(metavar="N", help="Lines between two states; 1,000, or more if that is slow.")] = None,
    start: Annotated[float | None, typer.Option(metavar="TIME", help="When the observation began; as in training by default.")] = None,
) -> None:
    """Score a live feed: one JSON line in, one out, with alarms; exactly once with --state, whatever stops it."""
    from fourpoint.checkpoints import about, restore
    from fourpoint.feeds.feed import score_feed

    model = restore(folder)
    begin = float(about(folder).get("start") or 0.0) if start is None else start
    if start is None and (state is None or not state.exists()):
        say(f"the observation begins at {begin:g}, as in training; --start sets another time")
    source, target = (None if name == "-" else Path(name) for name in (input, output))
    ended = score_feed(model, input=source, output=target, state=state, keep=keep, by=by, start=begin, every=every, follow=follow)
    raise typer.Exit(ended.code)


def _draw_from_model(
    folder: Path, sequences: int, start: float | None, stop: float | None, seed: int, most: int | None
) -> tuple[Dataset, str]:
    """Sequences of a saved model, in its training window by default, and what to say of them."""
    from dataclasses import replace

    from fourpoint.checkpoints import about, restore
    from fourpoint.events import UserError
    from fourpoint.sampling import sample_paths

    model, known = restore(folder), about(folder)
    begin, end = known.get("start") if start is None else start, known.get("stop") if stop is None else stop
    if begin is None or end is None:
        raise UserError("a window to simulate", f"none was saved in {folder}", "Give it with --start and --stop.")
    found = sample_paths(model, float(begin), float(end), sequences, seed, most=most)
    return replace(found.data, unit=str(known.get("unit") or "")), str(found)


def _some_of(events: Dataset, seed: int) -> Dataset:
    """All sequences, or a seeded draw of them with about ``CHECKED`` events; of one that is longer still, its beginning."""
    import numpy as np

    from fourpoint.events import Dataset

    if events.events <= CHECKED:
        return events
    order = np.random.default_rng(seed).permutation(len(events))
    rows = order[: max(1, int((np.cumsum(events.lengths[order]) <= CHECKED).sum()))]
    some = events.select(np.sort(rows))
    what = f"{len(some):,} of {len(events):,} sequences, drawn with seed {seed}"
    if some.events > 2 * CHECKED:
        one = some[0]
        some = Dataset.from_sequences([one.before(one.start + one.duration * CHECKED / len(one))], unit=events.unit)
        what = f"the first {100 * CHECKED / len(one):.2g}% of the window of sequence {one.id}"
    say(f"goodness of fit: {some.events:,} of {events.events:,} events, {what}")
    return some


def _open(source: str, ties: str, window: tuple[str, str] | None, how: How | None = None, fitted: Fitted = (None, None)) -> Dataset:
    """An embedded data set by its name, or a file, with ties and window as asked; what was decided is said aloud.

    Where the data is for a fitted model, its unit of time and the names of its types are ``fitted``, and the default.
    """
    from dataclasses import replace

    import numpy as np

    from fourpoint.data.datasets import available, load
    from fourpoint.data.readers import describe_choices, read_with_notes
    from fourpoint.events import UserError

    policy = _one_of("--ties", ties, ("keep", "error", "jitter", "drop"))
    how, bounds = how or How(), _window(window)
    file = Path(source).exists() or Path(source).suffix or "/" in source
    if not file or (source in available() and not Path(source).exists()):
        found = load(source).with_ties(policy)
        _only(f"the embedded data set {source}", "--time, --mark, --sequence, --time-unit, --timezone and --sort", how == How())
        if bounds is not None and not isinstance(bounds[0], float):
            raise UserError("a window in numbers", f"{bounds[0]} {bounds[1]}", "Pass --window 0 24, say.")
        if bounds is not None:
            found = replace(found, starts=np.full(len(found), bounds[0]), stops=np.full(len(found), bounds[1]), inferred=False)
        notes = describe_choices(found, policy)
    else:
        unit, names = fitted
        reading = read_with_notes(
            source,
            time=how.time,
            mark=how.mark,
            sequence=how.sequence,
            window=bounds,
            time_unit=how.time_unit or unit,
            timezone=how.timezone,
            ties=policy,
            sort=how.sort,
            marks=names,
        )
        found, notes = reading.data, list(reading.notes)
    for notice in notes:
        say(notice)
    return found


@dataclass(frozen=True)
class How:
    """How to read a file: which column is what, and what its times mean."""

    time: str | None = None
    mark: str | None = None
    sequence: str | None = None
    time_unit: str | None = None
    timezone: str | None = None
    sort: bool = False

    def words(self, ties: str, window: tuple[str, str] | None) -> list[str]:
        """The options as they are typed, for the command that comes next; the unit is the model's."""
        typed = {"--time": self.time, "--mark": self.mark, "--sequence": self.sequence, "--timezone": self.timezone}
        words = [word for option, value in typed.items() if value is not None for word in (option, value)]
        words += ["--ties", ties] if ties != "keep" else []
        return words + (["--window", *window] if window else []) + ["--sort"] * self.sort


def _of_model(folder: Path, model: Any) -> Fitted:
    """The unit of time and the types that a saved model was fitted to, where they have names."""
    from fourpoint.checkpoints import about
    from fourpoint.data.clocks import SECONDS

    unit = str(about(folder).get("unit") or "")
    return unit if unit in SECONDS else None, tuple(model.marks.names) or None


def _window(window: tuple[str, str] | None) -> tuple[float, float] | tuple[str, str] | None:
    """A window in numbers where both parts are, else in times."""
    if window is None:
        return None
    try:
        return float(window[0]), float(window[1])
    except ValueError:
        return window


def _default_split(events: Dataset, wanted: str) -> str:
    return wanted if events.splits is not None and (events.splits == wanted).any() else "all"


def _train_and_dev(events: Dataset, split: str | None, seed: int) -> tuple[Dataset, Dataset]:
    """The part to train on and the part to stop by: the data's own, else a seeded 90/10 by sequence."""
    name = split or _default_split(events, "train")
    if name == "train" and events.splits is not None and (events.splits == "dev").any():
        return events.part("train"), events.part("dev")
    part = events.part(name)
    train, dev = part.split((0.9, 0.1), by="sequence", seed=seed)
    kept = f"{len(dev):,} of {len(part):,} sequences, drawn with seed {seed}, are" if len(part) > 1 else "the last tenth of the window is"
    say(f"no dev split: {kept} kept for early stopping")
    return train, dev


def _check_folder(folder: Path, resume: bool) -> None:
    """A folder for a model must be new, empty, or a model's: nothing else is written into or over."""
    from fourpoint.events import UserError

    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        fault = "cannot be written to" if nearest.is_dir() else "is a file"
        raise UserError("a folder for the model", f"{folder}: {nearest} {fault}", "Choose another place with -o.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not any((folder / name).is_file() for name in ("model.json", "training.json")):
        raise UserError("a new or empty folder, or one with a model", f"{folder}, which holds other files", "Choose another name with -o.")
    if not resume:
        say(f"{folder} holds a model already: it is replaced once the new one has been validated")


def _only(what: str, option: str, fine: bool) -> None:
    """Refuse an option that would be ignored."""
    from fourpoint.events import UserError

    if not fine:
        raise UserError(f"options that {what} has", option, f"Leave {option} out.")


def _one_of(option: str, text: str, allowed: tuple[str, ...]) -> Any:
    from difflib import get_close_matches

    from fourpoint.events import UserError

    if text in allowed:
        return text
    near = get_close_matches(text, allowed, n=1, cutoff=0.4)
    remedy = f"Did you mean {near[0]!r}?" if near else "Choose one of them."
    raise UserError(f"{option} to be one of {', '.join(allowed)}", f"{text!r}", remedy)


def _print_version(asked: bool) -> None:
    if asked:
        from fourpoint import __version__

        sys.stdout.write(f"fourpoint {__version__}\n")
        raise typer.Exit()


if __name__ == "__main__":
    main()
