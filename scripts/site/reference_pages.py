"""Pages that are made from the code: the API reference and the command line reference."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fourpoint as fp
from fourpoint.cli.examples import EXAMPLES


@dataclass(frozen=True)
class Group:
    """Public names that serve one task."""

    page: str
    title: str
    about: str
    names: tuple[str, ...]
    packages: tuple[str, ...] = ()  # of names that are listed nowhere


GROUPS = (
    Group(
        "data",
        "Read and write events",
        "A data set holds sequences of events: times, types (marks) and the window in which they "
        "were observed.",
        ("read", "write", "load", "available", "Dataset", "Sequence", "MarkSpace", "Box", "Batch"),
        ("events", "data"),
    ),
    Group(
        "simulate",
        "Simulate",
        "Samples of fitted models, and processes whose rate is known.",
        ("simulate", "PROCESSES", "sample", "sample_paths", "impute"),
    ),
    Group(
        "models",
        "Models",
        "Every model is a `torch.nn.Module` that derives from one contract: `encode` and "
        "`log_intensity`. [Which model to use](../models/index.md).",
        ("MODELS",),
        ("models",),
    ),
    Group(
        "fitting",
        "Fit, compare and save",
        "From a data set to a fitted model in a folder.",
        ("fit", "compare", "tune", "save", "restore", "features_needed"),
        ("training", "storage"),
    ),
    Group(
        "evaluation",
        "Evaluate",
        "Log-likelihoods on data that were not used for the fit, goodness of fit, and scores of "
        "predictions.",
        (
            "evaluate",
            "log_likelihood",
            "marginal_log_likelihood",
            "resolution_score",
            "goodness_of_fit",
            "prediction_scores",
            "difference",
            "anomalies",
        ),
    ),
    Group(
        "forecasting",
        "Forecast and predict",
        "What comes next: distributions, counts, one best answer, and calibrated intervals.",
        ("forecast", "forecasts", "predict", "calibrate", "coverage"),
        ("inference",),
    ),
    Group(
        "explaining",
        "Explain",
        "The rate and what it is made of: past events, types that lead to others, maps.",
        (
            "intensity",
            "explain",
            "influence",
            "uncertainty",
            "intensity_map",
            "expected_map",
            "plot_map",
            "plot_style",
        ),
        ("ops", "plots"),
    ),
    Group(
        "streams",
        "Streams",
        "Events scored one by one as they arrive, in constant memory.",
        ("Stream", "StreamBank"),
        ("streaming",),
    ),
    Group(
        "other",
        "Errors and version",
        "What a program catches, and what it reports.",
        ("UserError", "EventDataError", "__version__"),
        ("",),
    ),
)

# What the values among the public names are; the others have docstrings.
VALUES = {
    "MODELS": "The constructor of every model by its name on the command line.",
    "PROCESSES": "The processes that `fp.simulate` draws from, by name.",
    "__version__": "The version of Fourpoint.",
}


def grouped_names() -> dict[str, list[str]]:
    """The public names of each group; a name that is listed nowhere belongs to its package."""
    found = {group.page: list(group.names) for group in GROUPS}
    listed = {name for group in GROUPS for name in group.names}
    for name in sorted(set(fp.__all__) - listed, key=str.lower):
        home = inspect.getmodule(getattr(fp, name))
        package = "" if home is None else home.__name__.split(".")[1]
        group = next((g for g in GROUPS if package in g.packages), GROUPS[-1])
        found[group.page].append(name)
    public = set(fp.__all__)
    return {page: [name for name in names if name in public] for page, names in found.items()}


def api_pages() -> Iterator[tuple[str, str]]:
    """Paths and texts of the API reference."""
    names = grouped_names()
    lines = [
        "# API reference",
        "",
        "All public names, by task. `import fourpoint as fp` is assumed; the examples are run by "
        "the tests.",
        "",
    ]
    for group in GROUPS:
        if not names[group.page]:
            continue
        lines += [f"## [{group.title}]({group.page}.md)", "", group.about, ""]
        lines += _summary(names[group.page], f"{group.page}.md")
    yield "api/index.md", "\n".join(lines) + "\n"
    for group in GROUPS:
        if not names[group.page]:
            continue
        body = [f"# {group.title}", "", group.about, "", *_summary(names[group.page], "")]
        for name in names[group.page]:
            body += _entry(name)
        yield f"api/{group.page}.md", "\n".join(body) + "\n"


def _entry(name: str) -> list[str]:
    return [f"::: fourpoint.{name}", ""]


def _summary(names: list[str], page: str) -> list[str]:
    rows = ["| name | purpose |", "|---|---|"]
    for name in names:
        rows.append(f"| [`fp.{name}`]({page}#fourpoint.{name}) | {first_sentence(name)} |")
    return [*rows, ""]


def first_sentence(name: str) -> str:
    """The first sentence of the documentation of a public name."""
    about = VALUES.get(name) or inspect.getdoc(getattr(fp, name)) or ""
    paragraph = " ".join(about.partition("\n\n")[0].split())
    sentence = paragraph.partition(". ")[0].rstrip(".").replace("|", "\\|")
    return f"{sentence.replace('``', '`')}."


def command_pages() -> Iterator[tuple[str, str]]:
    """Paths and texts of the command line reference, one page for each command."""
    for words, command in commands():
        yield f"cli/{'-'.join(words)}.md", _command_page(words, command)


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words, such as ``("data", "inspect")``."""
    import typer

    from fourpoint.cli.main import app

    yield from _below((), typer.main.get_command(app))


def _below(words: tuple[str, ...], group: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in sorted(group.commands):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from _below((*words, name), command)
        else:
            yield (*words, name), command


def _command_page(words: tuple[str, ...], command: Any) -> str:
    name = " ".join(words)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join(["fourpoint", name, *(_metavar(a) for a in arguments), "[OPTIONS]"])
    lines = [f"# fourpoint {name}", "", " ".join((command.help or "").split()), ""]
    lines += [
        "```text",
        usage,
        "```",
        "",
        "## Example",
        "",
        "```sh",
        *EXAMPLES.get(name, ()),
        "```",
        "",
    ]
    if arguments:
        lines += ["## Arguments", "", "| argument | |", "|---|---|"]
        lines += [f"| `{_metavar(a)}` | {_cell(a.help)} |" for a in arguments] + [""]
    if options:
        lines += ["## Options", "", "| option | value | default | |", "|---|---|---|---|"]
        lines += [_option_row(option) for option in options] + [""]
    return "\n".join(lines) + "\n"


def _option_row(option: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f"`{_metavar(option)}`"
    default = "required" if option.required else ""
    if not option.required and option.default not in (None, False, ()) and not option.is_flag:
        default = f"`{option.default}`"
    elif option.is_flag and option.default is True:
        default = "on"
    return f"| {flags} | {_cell(value)} | {_cell(default)} | {_cell(option.help)} |"


def _metavar(parameter: Any) -> str:
    kinds = {"int": "N", "float": "NUMBER", "Path": "PATH"}
    kind = parameter.type_descriptor.annotation
    return str(parameter.metavar or kinds.get(kind.__name__, "TEXT"))


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
