"""The command line: one function per command.

    fourpoint demo | data | simulate | compare | fit | tune | evaluate | difference | calibrate |
    forecast | predict | explain | influence | anomalies | stream | serve | refit | token |
    reproduce

Results go to stdout, notices and errors to stderr. An error that the user can correct ends with
exit code 2 and three clauses (expected, received, what to do), without a traceback, and before
anything is written. Only typer and the standard library are imported here, so that ``fourpoint
--help`` starts fast; each command imports what it needs.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from fourpoint.cli import options as typed
from fourpoint.cli.checks import (
    check_applies,
    check_picture,
    joined_values,
    one_of,
    with_both_edges,
)
from fourpoint.cli.console import (
    abandon_stdout,
    open_standard_streams,
    print_all,
    print_notice,
    print_result,
    report_error,
    save_plot,
    short_unit,
)
from fourpoint.cli.data import data_app
from fourpoint.cli.distributed import told_to_parent
from fourpoint.cli.examples import example_text
from fourpoint.cli.reading import (
    CHECKED,
    catalogue_columns,
    chosen_sequence,
    cut_by_time,
    horizon_after,
    open_events,
    open_large,
    open_large_with_model,
    open_with_model,
    scored_files,
    scored_part,
    some_of,
    train_and_dev,
    train_and_dev_files,
)
from fourpoint.errors import UserError
from fourpoint.memory import set_memory_limit

if TYPE_CHECKING:
    from fourpoint.data.event_files import EventFiles
    from fourpoint.events import Dataset


class Commands(TyperGroup):
    """Runs a command, and turns errors and interruptions into messages and exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click's; the several values of ``--split-at`` are joined into one, and the one word
        of ``--window each`` is given twice.
        """
        words = with_both_edges(joined_values(args, "--split-at"))
        return list(super().parse_args(ctx, words))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """As click's; the help of a command ends with its example."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.epilog = example_text(cmd_name)
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            print_notice(
                "interrupted: saved results are kept; fit --resume continues from them",
                style="yellow",
            )
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader of the output has closed it, as `head` does: no message can be shown.
            abandon_stdout()
            raise typer.Exit(1) from None
        except (ValueError, ArithmeticError, OSError, MemoryError, RuntimeError) as error:
            if isinstance(error, OSError):
                abandon_stdout()
            code = report_error(error)
            if code is None:
                raise
            raise typer.Exit(told_to_parent(code)) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=(
        "Fourpoint: models of event data in continuous time. Fit, evaluate, forecast and explain "
        "event logs."
    ),
    epilog="Start with: fourpoint demo",
)
app.add_typer(
    data_app,
    name="data",
    help="List the embedded data sets, summarise a data set, or inspect a file of your own.",
)

AMPLITUDES: tuple[Literal["fixed", "random"], ...] = ("fixed", "random")
CONVENTIONS: tuple[Literal["window", "gaps"], ...] = ("window", "gaps")
FILLS: tuple[Literal["none", "sample"], ...] = ("none", "sample")
# Reading options that are saved with a model.
OF_MODEL = ("time_unit", "timezone", "bounds")
# Seconds of a time budget that are left to a fit when reading has used up all of it.
LEAST_BUDGET = 1e-3
Version = Annotated[
    bool,
    typer.Option(
        "--version",
        callback=lambda asked: _print_version(asked),
        is_eager=True,
        help="Print the version.",
    ),
]


def main() -> None:
    """The entry point of the command ``fourpoint``.

    Idle threads wait asleep rather than spinning: on a machine that others use too, spinning costs
    several times the work.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Matrices of closed-form fits are small: threads of numpy's BLAS cost more than they save.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    open_standard_streams()
    app()


@app.callback()
def root(
    version: Version = False,
    memory_limit: typed.MemoryLimit = None,
) -> None:
    """Fourpoint: models of event data in continuous time. Fit, evaluate, forecast and explain
    event logs.
    """
    set_memory_limit(memory_limit)


@app.command()
def demo(
    output: typed.Folder = Path("demo"),
    seed: typed.Seed = 0,
    time_budget: typed.Budget = None,
) -> None:
    """Train four models on New York's flight delays, compare them, and write an HTML report of the
    results.
    """
    from fourpoint.cli.demo import TIME_BUDGET, run_demo

    budget = TIME_BUDGET if time_budget is None else time_budget
    run_demo(output, seed=seed, time_budget=budget)


@app.command()
@typed.takes_reading_options(without=typed.OF_EVENTS)
def simulate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PROCESS|DIR",
            help="A process listed by `fourpoint data`, or a model's folder.",
        ),
    ],
    output: typed.File,
    sequences: Annotated[int, typer.Option(help="Number of sequences.")] = 1000,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|DATE",
            help="Start of the window; that of the training data by default.",
        ),
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|DATE",
            help="End of the window; that of the training data, or of the process, by default.",
        ),
    ] = None,
    seed: typed.Seed = 0,
    most: Annotated[
        int | None,
        typer.Option(
            help="Largest number of events per sequence of a model; truncation is reported."
        ),
    ] = None,
    amplitude: typed.Amplitude = "fixed",
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Draw sequences from a fitted model, or from a process with a known rate."""
    from fourpoint.data.readers import write

    kind = one_of("--amplitude", amplitude, AMPLITUDES)
    if (Path(source) / "model.json").is_file() or "/" in source:
        check_applies(f"the model in {source}", "--amplitude", amplitude == "fixed")
        from fourpoint.cli.drawing import draw_from_model

        drawn, told = draw_from_model(Path(source), sequences, start, stop, seed, most, reading)
    else:
        from fourpoint.data.synthetic import process
        from fourpoint.events.dates import time_at

        known = process(source, kind)
        check_applies(f"the process {known.name}", "--start", not time_at(None, start or 0.0))
        check_applies(f"the process {known.name}", "--most", most is None)
        check_applies(f"the process {known.name}", "tables", not reading.typed())
        drawn = known.simulate(sequences, seed, None if stop is None else time_at(None, stop))
        told = str(drawn)
    write(drawn, output)
    print_result(f"{output}: {told}")
    print_notice(f"next: fourpoint fit {output} --model dapp -o model")


@app.command()
@typed.takes_reading_options()
def compare(
    source: typed.Source,
    models: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Models to compare, among poisson, calendar, frailty, hawkes, dapp and deep-dapp.",
        ),
    ] = "poisson,calendar,frailty,hawkes,dapp,deep-dapp",
    calendar: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Terms of the calendar: hour, weekday, week, month, monthday, holidays:XX, auto "
            "or none.",
        ),
    ] = "auto",
    outages: Annotated[
        str,
        typer.Option(
            metavar="auto|none",
            help="Whether silences that are too long are treated as not recorded.",
        ),
    ] = "auto",
    time_budget: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Largest total time, including reading."),
    ] = 60.0,
    seed: typed.Seed = 0,
    json: typed.Json = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="Write a page, NAME.html, or a folder with report.html and comparison.json.",
        ),
    ] = None,
    jobs: typed.Jobs = None,
    ray: typed.Ray = None,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Find out what explains a log (calendar, covariates, past events or more) by scores on
    held-out data, and print the answer as sentences.
    """
    from fourpoint.cli.compare import Asked, run_comparison

    asked = Asked(models, calendar, outages, time_budget, seed, json, output, jobs, ray)
    run_comparison(source, reading, asked, monotonic())


@app.command()
@typed.takes_reading_options()
def fit(
    source: typed.Source,
    output: typed.Folder,
    model: Annotated[
        str,
        typer.Option(
            help="dapp, deep-dapp, odapp, dapp-paper, hawkes, nhp, rmtpp, sahp, thp, poisson, ..."
        ),
    ] = "dapp",
    set_: typed.Settings = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run in the same folder.")
    ] = False,
    split: typed.Split = None,
    split_at: typed.SplitAt = None,
    calendar: Annotated[
        str,
        typer.Option(
            metavar="TERMS",
            help="Calendar terms of the baseline: hour, weekday, week, month, monthday, "
            "holidays:US, with commas; auto (those that explain held-out time better), or none.",
        ),
    ] = "auto",
    fill: Annotated[
        str,
        typer.Option(
            metavar="none|sample",
            help="Events of recording gaps (--gaps): none, or sampled from a Hawkes process that "
            "is fitted in turn.",
        ),
    ] = "none",
    seed: typed.Seed = 0,
    time_budget: typed.Budget = None,
    device: Annotated[
        str,
        typer.Option(help="cpu, cuda, mps, or auto: the first available of cuda, mps and cpu."),
    ] = "cpu",
    buffer: typed.Buffer = None,
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Train in N processes on this machine, one for each core or GPU; torchrun "
            "--nproc-per-node N -m fourpoint fit ... does the same, on several machines too.",
        ),
    ] = None,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Train a model on a data set and save it in a folder."""
    if processes is not None:
        from fourpoint.cli.distributed import run_in_processes

        run_in_processes(processes, output, resume)
        return
    from fourpoint.cli.distributed import only_the_first_speaks

    with only_the_first_speaks():
        _fit(
            *(source, output, model, set_, resume, split, split_at, calendar, fill, seed),
            *(time_budget, device, buffer, reading),
        )


def _fit(
    source: str,
    output: Path,
    model: str,
    set_: list[str] | None,
    resume: bool,
    split: str | None,
    split_at: str | None,
    calendar: str,
    fill: str,
    seed: int,
    time_budget: float | None,
    device: str,
    buffer: int | None,
    reading: typed.ReadingOptions,
) -> None:
    """The fit of this process."""
    began = monotonic()
    from fourpoint.cli.distributed import resumes
    from fourpoint.data.event_files import BUFFER, EventFiles
    from fourpoint.former_names import FORMER_MODELS, FORMER_SETTINGS, FORMER_VALUES
    from fourpoint.inference.branching import branching_ratios
    from fourpoint.models import CATALOGUE, MODELS
    from fourpoint.settings import current_pairs, parameters, parse_settings
    from fourpoint.training.fitting import fit as train_model

    if model in FORMER_MODELS:
        print_notice(f"--model {model} is now called {FORMER_MODELS[model]}")
    name = one_of("--model", FORMER_MODELS.get(model, model), tuple(MODELS))
    if name in CATALOGUE:
        reading = catalogue_columns(source, reading)
        events: Dataset | EventFiles = open_events(source, reading, project=True)
    else:
        events = open_large(source, reading, buffer)
    if events.marks.box is not None and f"spatial-{name}" in MODELS:
        name = f"spatial-{name}"
        print_notice(
            f"model: {name}, since events have places ({events.marks.box}); --place none leaves "
            "them out"
        )
    build = MODELS[name]
    former = (FORMER_SETTINGS.get(name, {}), FORMER_VALUES.get(name, {}))
    pairs, renamed = current_pairs(set_ or [], *former)
    for notice in renamed:
        print_notice(notice)
    filling = one_of("--fill", fill, FILLS)
    of_model, of_training = parse_settings(pairs, build, train_model)
    if filling != "none":
        of_training["fill"] = filling
    if "seed" in parameters(build):
        of_model["seed"] = seed
    made = build(marks=events.marks, **of_model)
    everything = None
    train: Dataset | EventFiles
    dev: Dataset | EventFiles | None
    if isinstance(events, EventFiles):
        check_applies("a fit of files that are read chunk by chunk", "--split-at", split_at is None)
        train, dev = train_and_dev_files(events, split, seed)
    elif split_at is None:
        train, dev, everything = train_and_dev(
            events, split, seed, closed_form=made.fits_in_closed_form
        )
    else:
        check_applies("a fit with --split-at", "--split", split is None)
        train, dev = cut_by_time(events, split_at)
    resume = resumes(output, resume)
    if time_budget is not None and time_budget > 0:
        # Reading is part of the budget; what is left allows for at least one step.
        time_budget = max(time_budget - (monotonic() - began), LEAST_BUDGET)
    result = train_model(
        made,
        train,
        dev,
        everything=everything,
        seed=seed,
        time_budget=time_budget,
        device=device,
        folder=output,
        resume=resume,
        calendar=calendar,
        buffer=BUFFER if buffer is None else buffer,
        **of_training,
    )
    for note in dict.fromkeys(result.notes):
        print_notice(note)
    choice = f"best at step {result.best_step:,}"
    if result.model.fits_in_closed_form:
        choice = "closed form"
    print_result(f"saved {result.name or name} in {output}/ ({choice})")
    ratios = branching_ratios(result.model)
    if ratios is not None:
        print_result(ratios)
    next_words = [str(output), source, *reading.typed(without=OF_MODEL)]
    if filling != "none":
        next_words += ["--fill", filling]
    print_notice(f"next: fourpoint evaluate {shlex.join(next_words)}")


@app.command()
@typed.takes_reading_options()
def tune(
    source: typed.Source,
    output: typed.Folder,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Total time of the search: 10m, 1h, or seconds.")
    ] = "10m",
    model: Annotated[
        str,
        typer.Option(help="auto (dapp and deep-dapp), dapp, deep-dapp, rmtpp, nhp, sahp or thp."),
    ] = "auto",
    split: typed.Split = None,
    split_at: typed.SplitAt = None,
    calendar: Annotated[
        str,
        typer.Option(metavar="A,B", help="Terms of the calendar, as for fit."),
    ] = "auto",
    seed: typed.Seed = 0,
    device: Annotated[
        str,
        typer.Option(help="cpu, cuda, mps, or auto: the first available of cuda, mps and cpu."),
    ] = "cpu",
    json: typed.Json = False,
    jobs: typed.Jobs = None,
    ray: typed.Ray = None,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Search for a model and settings that are better on the development data, within a time
    budget. The first fit is the default model; run the command again to continue an interrupted
    search.
    """
    from fourpoint.cli.tune import Asked, run_tuning

    asked = Asked(model, budget, output, split, split_at, calendar, device, seed, json, jobs, ray)
    run_tuning(source, reading, asked)


@app.command()
@typed.takes_reading_options()
def evaluate(
    folder: typed.Saved,
    source: typed.Source,
    truth: typed.Truth = None,
    amplitude: typed.Amplitude = "fixed",
    split: typed.Scored = None,
    convention: Annotated[
        str,
        typer.Option(
            help="window (everything observed) or gaps (events 2 to N, as published tables)."
        ),
    ] = "window",
    tolerance: Annotated[
        float, typer.Option(help="Tolerance of the integral, in nats per event.")
    ] = 1e-4,
    fit_check: Annotated[
        bool,
        typer.Option("--fit-check/--no-fit-check", help="Whether to test the goodness of fit."),
    ] = True,
    predictions: Annotated[
        bool,
        typer.Option(
            "--predictions", help="Score predictions of the next event and up to a horizon."
        ),
    ] = False,
    fill: Annotated[
        str,
        typer.Option(
            metavar="none|sample",
            help="sample: add the likelihood with the unknown events of recording gaps integrated "
            "out.",
        ),
    ] = "none",
    json: typed.Json = False,
    plot: typed.Plot = None,
    seed: typed.Seed = 0,
    buffer: typed.Buffer = None,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Score a saved model on a data set: log-likelihood per event, goodness of fit, predictions,
    and regret if the true process is known.
    """
    from fourpoint.data.event_files import EventFiles
    from fourpoint.data.synthetic import process
    from fourpoint.events import check_marks
    from fourpoint.inference.branching import branching_ratios
    from fourpoint.inference.evaluation import evaluate as judge
    from fourpoint.inference.goodness import goodness_of_fit
    from fourpoint.inference.imputation import marginal_log_likelihood
    from fourpoint.inference.predictions import prediction_scores

    asked = one_of("--convention", convention, CONVENTIONS)
    filling = one_of("--fill", fill, FILLS)
    check_picture(plot)
    if plot is not None:
        check_applies("an evaluation with --no-fit-check", "--plot", fit_check)
    oracle = None
    if truth is not None:
        oracle = process(truth, one_of("--amplitude", amplitude, AMPLITUDES)).truth()
    model, events = open_large_with_model(folder, source, reading, buffer)
    check_marks(model.marks, events.marks)
    whole: Dataset | EventFiles
    if isinstance(events, EventFiles):
        check_applies("files that are read chunk by chunk", "--fill", filling == "none")
        whole = scored_files(model, events, split)
        part = whole.sample(CHECKED, seed)
        if whole.events > part.events:
            print_notice(f"checks use {part.events:,} events in {len(part):,} sequences")
    else:
        whole = part = scored_part(model, events, split)
    report = judge(model, whole, truth=oracle, tolerance=tolerance, convention=asked, progress=True)
    numbers = report.to_dict()
    blocks: list[Any] = [report]
    if filling == "sample":
        marginal = marginal_log_likelihood(model, part, seed)
        numbers["marginal"] = {
            "log_likelihood_per_event": marginal.per_event,
            "gaps": marginal.gaps,
        }
        blocks.append(str(marginal))
    ratios = branching_ratios(model)
    if ratios is not None:
        numbers["branching"] = ratios.to_dict()
        blocks.append(ratios)
    if fit_check and part.events:
        some = some_of(part, seed)
        verdict = goodness_of_fit(model, some, tolerance=tolerance, seed=seed, progress=True)
        numbers["goodness"] = {
            "events": some.scored_events,
            "sequences": len(some),
            **verdict.to_dict(),
        }
        blocks.append(verdict)
        save_plot(verdict.plot() if plot else None, plot)
    if predictions:
        scores = prediction_scores(model, part, seed=seed, progress=True)
        numbers["predictions"] = scores.to_dict()
        blocks.append(scores)
    print_all(numbers, blocks, json)


@app.command()
@typed.takes_reading_options()
def difference(
    folder: typed.Saved,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="Folder of another model.")],
    source: typed.Source,
    split: typed.Scored = None,
    seed: typed.Seed = 0,
    json: typed.Json = False,
    plot: typed.Plot = None,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Compare two saved models on the same data: log-likelihood and CRPS, with bootstrap intervals
    over sequences or blocks of a log, and where one is better.
    """
    from fourpoint.cli.judging import run_difference

    run_difference((folder, other), source, reading, split, seed, json, plot)


@app.command()
@typed.takes_reading_options()
def anomalies(
    folder: typed.Saved,
    source: typed.Source,
    split: typed.Scored = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write all sequences, .csv or .parquet."
        ),
    ] = None,
    seed: typed.Seed = 0,
    json: typed.Json = False,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Rank whole sequences by how unlikely they are under a saved model: p-values, and the
    sequences that are anomalous or have gone quiet, at a false discovery rate of 10%.
    """
    from fourpoint.cli.judging import run_anomalies

    run_anomalies(folder, source, reading, split, output, seed, json)


@app.command()
@typed.takes_reading_options()
def calibrate(
    folder: typed.Saved,
    source: typed.Source,
    split: Annotated[
        str | None,
        typer.Option(
            help="Part to calibrate with: dev, held-out (what fit did not train on) or all."
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="split (sequences in any order), adaptive (one long log), or auto.",
        ),
    ] = "auto",
    horizon: Annotated[
        str | None,
        typer.Option(metavar="LENGTH", help="Calibrate counts up to this horizon too: 7d, 4h."),
    ] = None,
    windows: Annotated[
        int, typer.Option(help="Equal parts of the horizon in which events are counted.")
    ] = 1,
    events: Annotated[int, typer.Option(help="Largest number of events to use.")] = 4000,
    check: Annotated[
        str | None,
        typer.Option(metavar="PART", help="Measure coverage on another part, such as test."),
    ] = None,
    seed: typed.Seed = 0,
    json: typed.Json = False,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Calibrate the intervals of a saved model to their stated coverage, on data that it was not
    trained on; forecasts and streams use the result.
    """
    from fourpoint.cli.calibrate import Asked, run_calibration

    asked = Asked(split, method, horizon, windows, events, check, seed, json)
    run_calibration(folder, source, reading, asked)


@app.command()
@typed.takes_reading_options(rename={"sequence": "group_by"})
def forecast(
    folder: typed.Saved,
    source: typed.Source,
    horizon: typed.Horizon,
    sequence: typed.Which = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Forecast every sequence, into the file -o.")
    ] = False,
    at: typed.At = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTH", help="Length of the intervals in which events are counted: 1d, 6h."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write a table, .parquet or .csv: one row per sequence, interval and type.",
        ),
    ] = None,
    paths: Annotated[
        int | None,
        typer.Option(help="Number of futures to sample; by default 1000, or 200 for a table."),
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option(help="Parts of the horizon in which events are counted; 4 by default."),
    ] = None,
    quantiles: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Quantiles of a table; .05,.5,.95 by default."),
    ] = None,
    probability: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="P",
            help="Add low and high to a table: limits of a count with a probability near P.",
        ),
    ] = None,
    pool: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="MODEL_DIR",
            help="Average the distributions of a table with those of another model; repeatable.",
        ),
    ] = None,
    seed: typed.Seed = 0,
    buffer: typed.Buffer = None,
    jobs: typed.Jobs = None,
    ray: typed.Ray = None,
    uncertain: Annotated[
        bool,
        typer.Option(
            "--uncertainty",
            help="Include parameter uncertainty, saved by `fourpoint uncertainty` (not with -o).",
        ),
    ] = False,
    json: typed.Json = False,
    plot: typed.Plot = None,
    map: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw a map of the expected rate, for events with locations."
        ),
    ] = None,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Forecast the events after a given time: the next event, its mark, and counts up to a horizon.
    With -o, write counts per sequence, interval and type as a table; with --all, for every
    sequence.
    """
    from fourpoint.cli.forecast_table import (
        WINDOWS,
        TableOptions,
        interval_or_column,
        write_table,
    )
    from fourpoint.inference.forecasting import forecast as look_ahead

    check_picture(plot)
    check_picture(map)
    interval, reading = interval_or_column(by, reading)
    table = TableOptions(
        output,
        everything,
        horizon,
        interval,
        at,
        paths,
        quantiles,
        seed,
        probability,
        pooled=tuple(pool or ()),
    )
    others = {"--plot": plot is None, "--map": map is None, "--windows": windows is None}
    others["--uncertainty"] = not uncertain
    table.check(sequence, others)
    if everything:
        model, all_events = open_large_with_model(folder, source, reading, buffer)
        write_table(model, all_events, sequence, table, json, jobs, ray)
        return
    for option, value in (("--buffer", buffer), ("--jobs", jobs), ("--ray", ray)):
        check_applies("a forecast without --all", option, value is None)
    model, events = open_with_model(folder, source, reading)
    if table.wanted:
        write_table(model, events, sequence, table, json)
        return
    one = chosen_sequence(events, sequence)
    length = horizon_after(events, one, at, horizon)
    table.check_intervals(events, length, windows)
    futures = 1000 if paths is None else paths
    draws = None
    if uncertain:
        from fourpoint.inference.uncertainties import Uncertainty

        draws = Uncertainty.restore(folder)
    found = look_ahead(
        *(model, one, length, futures, seed),
        at=at,
        windows=WINDOWS if windows is None else windows,
        by=table.printed_by(events),
        uncertainty=draws,
        progress=True,
    )
    save_plot(found.plot(unit=short_unit(events.unit)) if plot else None, plot)
    if map is not None:
        from fourpoint.inference.maps import expected_map

        save_plot(expected_map(model, found, progress=True).plot(unit=short_unit(events.unit)), map)
    print_all(found.to_dict(), [found], json)


@app.command()
@typed.takes_reading_options(rename={"sequence": "group_by"}, also={"sequence": "--by"})
def predict(
    folder: typed.Saved,
    source: typed.Source,
    score: Annotated[
        str,
        typer.Option(metavar="NAME", help="otd, tmap, mae, rmse, counts or smape."),
    ] = "otd",
    steps: Annotated[int, typer.Option(help="How many events otd predicts.")] = 10,
    horizon: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTH",
            help="How far to predict: a number or 30d; the time of --steps events by default.",
        ),
    ] = None,
    sequence: Annotated[
        str | None, typer.Option(metavar="ID", help="One sequence; all by default.")
    ] = None,
    at: typed.At = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write all predictions, .parquet or .csv."
        ),
    ] = None,
    paths: Annotated[int, typer.Option(help="Number of futures to sample.")] = 500,
    insert: Annotated[
        float | None,
        typer.Option(help="otd: cost of a missed event; the mean gap by default."),
    ] = None,
    delete: Annotated[
        float | None,
        typer.Option(help="otd: cost of a spurious predicted event; the mean gap by default."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="tmap: largest distance of a match; two mean gaps by default."),
    ] = None,
    time_budget: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Draw fewer futures if it would take longer."),
    ] = None,
    seed: typed.Seed = 0,
    json: typed.Json = False,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Make one point prediction per sequence (a list of events, a time or a count): the one with
    the least expected loss. The scores are described in docs/predictions.md.
    """
    from fourpoint.cli.predict import PredictionOptions, print_predictions

    typed_options = PredictionOptions(
        score, steps, horizon, at, output, paths, insert, delete, delta, time_budget, seed
    )
    typed_options.check()
    model, events = open_with_model(folder, source, reading)
    print_predictions(model, events, sequence, typed_options, json)


@app.command()
@typed.takes_reading_options(rename={"sequence": "group_by"}, also={"sequence": "--by"})
def explain(
    folder: typed.Saved,
    source: typed.Source,
    sequence: typed.Which = None,
    at: typed.At = None,
    json: typed.Json = False,
    plot: typed.Plot = None,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Compute the effect of each past event on the rate at a given time, per mark: the rate minus
    the rate without that event.
    """
    from fourpoint.inference.branching import branching_ratios
    from fourpoint.inference.explaining import explain as account_for

    check_picture(plot)
    model, events = open_with_model(folder, source, reading)
    found = account_for(model, chosen_sequence(events, sequence), at, progress=True)
    save_plot(found.plot(unit=short_unit(events.unit)) if plot else None, plot)
    numbers = found.to_dict()
    blocks: list[Any] = [found]
    ratios = branching_ratios(model)
    if ratios is not None:
        numbers["branching"] = ratios.to_dict()
        blocks.append(ratios)
    print_all(numbers, blocks, json)


@app.command()
@typed.takes_reading_options()
def uncertainty(
    folder: typed.Saved,
    source: typed.Source,
    method: Annotated[
        str,
        typer.Option(help="laplace (parameters near the output, seconds) or bootstrap (refits)."),
    ] = "laplace",
    draws: Annotated[
        int | None,
        typer.Option(help="Number of draws; by default 200 for laplace and 20 for bootstrap."),
    ] = None,
    seed: typed.Seed = 0,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Draw the parameters of a saved model from their distribution given the training data, and
    save the draws with the model, for forecast --uncertainty.
    """
    from fourpoint.training.uncertainty import METHODS, uncertainty as draw_parameters

    chosen = one_of("--method", method, METHODS)
    model, events = open_with_model(folder, source, reading)
    found = draw_parameters(model, events, chosen, draws=draws, seed=seed, progress=True)
    found.save(folder)
    for note in found.notes:
        print_notice(note)
    print_result(f"saved {found!r} in {folder}/")


@app.command()
@typed.takes_reading_options()
def influence(
    folder: typed.Saved,
    source: typed.Source,
    fdr: Annotated[
        float, typer.Option(metavar="SHARE", help="False discovery rate of the edges.")
    ] = 0.1,
    correction: Annotated[
        str,
        typer.Option(help="by (Benjamini-Yekutieli, any dependence) or bh (Benjamini-Hochberg)."),
    ] = "by",
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    horizon: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTH",
            help="Time after an event to consider (not for hawkes); 50 mean gaps by default.",
        ),
    ] = None,
    seed: typed.Seed = 0,
    json: typed.Json = False,
    plot: typed.Plot = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write all pairs as CSV."),
    ] = None,
    *,
    reading: typed.ReadingOptions,
) -> None:
    """Estimate which types of events lead to which others: expected numbers with intervals, and
    edges at a false discovery rate. The influence is predictive, not causal.
    """
    from fourpoint.cli.influence import Asked, run_influence

    asked = Asked(fdr, correction, level, horizon, seed, json, plot, output)
    run_influence(folder, source, reading, asked)


@app.command()
@typed.takes_options_of(typed.WorkerOptions)
@typed.takes_options_of(typed.BrokerOptions)
@typed.takes_reading_options(
    without=(
        "ties",
        "window",
        "sequence",
        "place",
        "bounds",
        "sort",
        "gaps",
        "observed",
        "entities",
        "sequence_covariates",
        "event_features",
    ),
    describe={
        "time": "The column of times; as in training by default.",
        "exposure": "Table of a known factor of the rate: time and exposure.",
        "covariates": "Table of the covariates that the model was fitted to: time and columns.",
        "mark": "The column of types; as in training by default.",
        "time_unit": "The unit of time, which must be that of training.",
        "timezone": "The time zone, which must be that of training.",
    },
)
def stream(
    folder: typed.Saved,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="Events as CSV, TSV or JSON Lines; standard input by default."
        ),
    ] = None,
    input: Annotated[
        str, typer.Option(metavar="FILE", help="The same as FILE; - is standard input.")
    ] = "-",
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Scores, one line per event; - is standard output.",
        ),
    ] = "-",
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File from which to continue after a stop or a crash; each line counts once.",
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of past events that each head of a DAPP remembers; all by default.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN|none",
            help="The column that names an event's entity: one stream for each.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Entities in memory, the others on disk; 512 MiB by default."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for more at the end of the file, until SIGTERM.")
    ] = False,
    every: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Lines between two states; by default 1,000, or more if that is slow."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|first",
            help="When the observation began; by default from the training window.",
        ),
    ] = None,
    alarms: Annotated[
        str,
        typer.Option(
            metavar="LEVEL|none",
            help="False alarms per 1,000 events, at most: of entities, types and fleet together.",
        ),
    ] = "0.001",
    *,
    reading: typed.ReadingOptions,
    attended: Annotated[
        bool,
        typer.Option(
            "--attended", help="Report the past events with the largest weights, per head; slower."
        ),
    ] = False,
    max_gap: Annotated[
        str,
        typer.Option(
            metavar="TIME|none",
            help="Longest plausible gap; by default from the model's rate and the clock.",
        ),
    ] = "auto",
    max_skipped: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Share of skipped lines above which the exit code is 1."
        ),
    ] = 0.05,
    brokers: typed.BrokerOptions,
    worker: typed.WorkerOptions,
) -> None:
    """Score a live feed: for each input line, print one JSON line with scores and alarms. With
    --state, each line is scored exactly once. With --group, run as a worker of a consumer group
    that shares the entities of Redis Streams or of a Kafka topic through a common --store; each
    event is scored exactly once.
    """
    if brokers.group is not None:
        from fourpoint.cli.group import run_worker

        run_worker(
            folder,
            brokers,
            worker,
            reading,
            files=dict(FILE=source, input=input, state=state, follow=follow, every=every),
            output=output,
            by=by,
            start=start,
            alarms=alarms,
            keep=keep,
            limit=limit,
            max_gap=max_gap,
            attended=attended,
        )
        return
    typed.refuse_without_group(brokers, worker)
    from fourpoint.data.context_tables import checked_impute
    from fourpoint.storage.checkpoints import about, restore
    from fourpoint.streaming.feed.beside import Beside
    from fourpoint.streaming.feed.feed import score_feed
    from fourpoint.streaming.feed.training_window import Trained

    model = restore(folder)
    trained = Trained.from_about(about(folder))
    if source is not None and input != "-":
        raise UserError("one input", f"{source} and --input {input}", "Leave one of them out.")
    read, written = (None if name == "-" else Path(name) for name in (source or input, output))
    ended = score_feed(
        model,
        input=read,
        output=written,
        state=state,
        keep=keep,
        by=by,
        start=start,
        alarms=alarms,
        every=every,
        follow=follow,
        max_gap=max_gap,
        max_skipped=max_skipped,
        trained=trained,
        time=reading.time,
        mark=reading.mark,
        time_unit=reading.time_unit,
        timezone=reading.timezone,
        attended=attended,
        limit=limit,
        beside=Beside(
            None if reading.covariates is None else Path(reading.covariates),
            None if reading.exposure is None else Path(reading.exposure),
            checked_impute(reading.impute),
        ),
    )
    raise typer.Exit(ended.code)


@app.command()
@typed.takes_options_of(typed.BrokerOptions)
@typed.takes_reading_options(
    without=(
        "sequence",
        "window",
        "sort",
        "gaps",
        "observed",
        "entities",
        "time_unit",
        "timezone",
    ),
    describe={
        "exposure": "Table of a known factor of the rate: time and exposure.",
        "covariates": "Table of the covariates that the model was fitted to: time and columns.",
    },
)
def serve(
    folder: typed.Saved,
    data: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Events to begin with, such as the training log."),
    ] = None,
    store: Annotated[
        str,
        typer.Option(metavar="URL", help="sqlite:///FILE or postgresql://USER@HOST/NAME."),
    ] = "sqlite:///fourpoint.db",
    host: Annotated[
        str,
        typer.Option(help="The address to listen on; addresses other than localhost need tokens."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File of tokens and their scopes, written by `fourpoint token`."
        ),
    ] = None,
    shadow: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A second model that is scored on the same events."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD|none", help="The field that names an event's entity; as in training."
        ),
    ] = None,
    lateness: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How late events may arrive and still be scored in order."
        ),
    ] = "0",
    alarms: Annotated[
        str,
        typer.Option(metavar="LEVEL|none", help="False alarms per 1,000 events, at most."),
    ] = "0.001",
    start: Annotated[
        str | None,
        typer.Option(metavar="TIME|first", help="When the observation began."),
    ] = None,
    max_gap: Annotated[
        str, typer.Option(metavar="TIME|none", help="Longest plausible gap between events.")
    ] = "auto",
    retention: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long events are kept, such as 90d; without limit by default."
        ),
    ] = None,
    snapshot_events: Annotated[
        int, typer.Option(min=1, metavar="N", help="Events between two snapshots of the state.")
    ] = 20_000,
    max_entities: Annotated[
        int, typer.Option(min=1, metavar="N", help="Largest number of entities.")
    ] = 100_000,
    max_body: Annotated[
        int, typer.Option(min=1, metavar="BYTES", help="Largest size of a request in bytes.")
    ] = 4 * 2**20,
    rate_limit: Annotated[
        float, typer.Option(min=0.1, metavar="N", help="Requests per second and client.")
    ] = 500.0,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="Entities in memory, the others in the store."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An additional host name of the service."),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate for HTTPS (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its private key (PEM).")
    ] = None,
    *,
    reading: typed.ReadingOptions,
    brokers: typed.BrokerOptions,
) -> None:
    """Serve a model: receive events over HTTP, return rates, forecasts and alarms, and show a
    dashboard at /. With --redis or --kafka, also read events from a broker. With --group, run as a
    worker of a consumer group that shares entities with other workers through a common --store.
    """
    from fourpoint.cli.serve import run_service
    from fourpoint.data.context_tables import checked_impute
    from fourpoint.serve.settings import Keeping, Limits, Scoring, Settings
    from fourpoint.streaming.feed.beside import Beside
    from fourpoint.streaming.feed.feed import alarm_level

    beside = Beside(
        None if reading.covariates is None else Path(reading.covariates),
        None if reading.exposure is None else Path(reading.exposure),
        checked_impute(reading.impute),
    )
    settings = Settings(
        host=host,
        port=port,
        tokens=token_file,
        hosts=tuple(allow_host or ()),
        certificate=tls_certificate,
        key=tls_key,
        shadow=shadow,
        scoring=Scoring(by, start, alarm_level(alarms), lateness, max_gap, limit, beside),
        keeping=Keeping(snapshot_events=snapshot_events, retention=retention),
        limits=Limits(body=max_body, entities=max_entities, requests=rate_limit),
    )
    if brokers.group is not None:
        from fourpoint.cli.group import run_group_service

        run_group_service(folder, store, settings, brokers, reading, data=data)
        return
    run_service(folder, store, settings, data, reading, brokers)


@app.command()
def refit(
    folder: typed.Saved,
    store: Annotated[
        str, typer.Option(metavar="URL", help="The store of the service that serves the model.")
    ],
    output: typed.Folder,
    held_out: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share of the time, at its end, to compare both models on; 0: none.",
        ),
    ] = 0.2,
    seed: typed.Seed = 0,
    time_budget: typed.Budget = None,
    json: typed.Json = False,
) -> None:
    """Refit a served model to the events that its service has stored, and compare the two."""
    from fourpoint.cli.serve import run_refit

    run_refit(folder, store, output, held_out, seed, time_budget, json)


@app.command()
def token(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The token file.")],
    name: Annotated[str, typer.Option(help="Name of the token's owner.")],
    scope: Annotated[
        str, typer.Option(metavar="SCOPES", help="read, write or admin, with commas.")
    ] = "read",
) -> None:
    """Make a token for `fourpoint serve --token-file FILE`, and print it once."""
    from fourpoint.cli.serve import run_token

    run_token(file, name, scope)


@app.command()
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="table1, table2, figure, theory, all, report (of existing results) or "
            "earthquakes (catalogues in --real).",
        ),
    ],
    figure: Annotated[
        str,
        typer.Argument(
            metavar="[FIGURE]",
            help="score-transformation, score-visualization, intensity or learning-curves.",
        ),
    ] = "",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Small data and short training: minutes instead of hours, one seed."
        ),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds; by default 3, or 1 with --quick.")
    ] = None,
    output: typed.Folder = Path("results"),
    real: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the real data sets, as Parquet files."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Models or data, or MODEL/DATA, with *; a leading ! excludes."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Processes, one thread each; one per core by default, 0 runs in this process."
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Where models are trained and scored: cpu or cuda.")
    ] = "cpu",
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Recompute existing results; by default only missing ones are computed."
        ),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Compute only missing results (the default).")
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Stop after this time; the next run computes the rest."
        ),
    ] = None,
    ray: typed.Ray = None,
) -> None:
    """Reproduce the paper's tables, figures and propositions, cell by cell; a rerun computes only
    what is missing.
    """
    if what == "earthquakes":
        from fourpoint.reproduce.earthquakes import reproduce_earthquakes

        for page in reproduce_earthquakes(real, output, quick=quick):
            print_result(f"wrote {page}")
        return
    from fourpoint.reproduce.commands import Options, portable_command, reproduce as run_all
    from fourpoint.workers import cores

    check_applies("a run that starts over with --fresh", "--resume", not (fresh and resume))
    name = "quick" if quick else "full"
    usual_seeds = 1 if quick else 3
    options = Options(
        setting=name,
        seeds=usual_seeds if seeds is None else seeds,
        output=output,
        real=real,
        only=tuple(only or ()),
        jobs=cores() if jobs is None else jobs,
        device=device,
        fresh=fresh,
        time_limit=time_limit,
        ray=ray,
    )
    run_all(what, figure, options, portable_command(sys.argv[1:]))


def _print_version(asked: bool) -> None:
    if asked:
        from fourpoint import __version__

        sys.stdout.write(f"fourpoint {__version__}\n")
        raise typer.Exit()


if __name__ == "__main__":
    main()
