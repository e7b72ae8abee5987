"""The report: one page that reads on its own, as ``report.html`` (self-contained, offline) and
``report.md``, from one list of parts.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import fourpoint
from fourpoint.plots import charts as plots
from fourpoint.report.page import Page
from fourpoint.reproduce import table1 as first, table2 as second
from fourpoint.reproduce.cells import DONE, FAILED, NO_DATA, Record, write_text
from fourpoint.reproduce.drawing import Drawn
from fourpoint.reproduce.experiments import experiment_parts
from fourpoint.reproduce.parts import Part
from fourpoint.reproduce.plan import SYNTHETIC, Setting
from fourpoint.reproduce.reasons import REASONS
from fourpoint.reproduce.tallies import tally
from fourpoint.reproduce.verdicts import Verdict, left_behind, verdicts
from fourpoint.sanitising import console_lines, markup_text

TITLE = "What we could and could not reproduce"
QUICK = (
    " This is the **quick** setting: small data and short training, to show that everything "
    "runs. Judge by the full one."
)
JUDGED = (
    "## Which claims hold\n\nEach claim of the paper, and what we ask of our own default, "
    "judged by the numbers below. *Beats* and "
    "*loses to* mean that the interval over seeds excludes 0, *leads* and *trails* that only "
    "the mean says so."
)


def write_report(
    output: Path, setting: Setting, records: list[Record], drawn: list[Drawn], command: str
) -> Path:
    """Write both files; returns the path of the page."""
    parts = _parts(setting, records, drawn, command)
    lead, footer = (
        _lead(setting, records),
        f"Fourpoint {fourpoint.__version__}. {_machines(records)}",
    )
    page = Page(
        TITLE,
        lead,
        dark=plots.DARK,
        kicker=f"Deep Fourier kernels, {setting.name} setting",
        footer=footer,
    )
    for part in parts:
        _onto(page, part)
    write_text(
        output / "report.md",
        f"# {TITLE}\n{lead}\n\n"
        + "\n\n".join(_markdown(part) for part in parts)
        + f"\n\n{footer}\n",
    )
    return page.write(output / "report.html")


def _parts(setting: Setting, records: list[Record], drawn: list[Drawn], command: str) -> list[Part]:
    judged = [verdict for verdict in verdicts(records) if verdict.holds != "not judged"]
    parts = [Part("numbers", _numbers(records, judged))]
    if judged:
        rows = [[v.claim, f"**{v.holds}**", v.evidence] for v in judged]
        caption = f"Claims and evidence, {setting.name} setting; likelihoods in nats per event."
        parts += [
            Part("text", JUDGED),
            Part("table", (["claim", "verdict", "evidence"], rows), caption),
        ]
    parts += _tables(records)
    later = ("theory", "memory")
    if any(one.name not in later for one in drawn):
        parts.append(Part("text", "## Figures"))
        parts += [
            Part("figure", one, one.caption, one.title) for one in drawn if one.name not in later
        ]
    parts += experiment_parts(records, [one for one in drawn if one.name in later])
    parts.append(
        Part(
            "text",
            "## Why some numbers differ\n\n" + "\n".join(f"- {reason}" for reason in REASONS),
        )
    )
    parts += _without(records)
    parts.append(
        Part(
            "text",
            "## How it was made\n\n" + "\n".join(f"- {line}" for line in _made(setting, records)),
        )
    )
    made = list(
        dict.fromkeys(
            r["command"]
            for r in sorted(records, key=lambda r: r.get("ended", ""))
            if r.get("command")
        )
    ) or [command]
    parts.append(
        Part("code", "\n".join(made), title="The commands; a rerun fills only what is missing")
    )
    return parts


def _lead(setting: Setting, records: list[Record]) -> str:
    fits = [r for r in records if r["kind"] == "fit"]
    done = sum(r["status"] == DONE for r in fits)
    models, sets, seeds = (len({r[key] for r in fits}) for key in ("model", "data", "seed"))
    what = (
        (
            f"{done:,} fits of {models} models on {sets} data sets with {seeds} "
            f"seed{'s' * (seeds != 1)}"
        )
        if fits
        else "experiments alone"
    )
    paper = (
        "The tables, figures and propositions of *Deep Fourier Kernel for Self-Attentive Point "
        "Processes*, computed again"
    )
    return f"{paper}: {what}.{QUICK * (setting.name == 'quick')}"


def _numbers(records: list[Record], judged: list[Verdict]) -> list[tuple[str, str, str]]:
    ends = Counter(r["status"] for r in records)
    items = [
        (
            "cells done",
            f"{ends[DONE]:,}",
            f"of {len(records):,}; {ends[FAILED]} failed, {ends[NO_DATA]} without data",
        )
    ]
    regrets = {data: tally(records, "dapp", data, "regret_per_event") for data in SYNTHETIC}
    known = {data: found.mean for data, found in regrets.items() if found.values}
    if known:
        best, worst = (choose(known, key=lambda data: known[data]) for choose in (min, max))
        note = f"nats per event on {best}; {known[worst]:.3f} on {worst}"
        items.append(
            ("our DAPP from the oracle", f"{known[best]:.4f}".replace("-", "\u2212"), note)
        )
    if judged:
        full = sum(v.holds in ("holds", "holds, and is loose") for v in judged)
        items.append(("claims that hold", f"{full}", f"in full, of {len(judged)} judged"))
    hours = (
        sum(float(r.get("processor_seconds") or r.get("seconds") or 0.0) for r in records) / 3600
    )
    items.append(
        (
            "processor time",
            f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min",
            "over all cells",
        )
    )
    return items


def _tables(records: list[Record]) -> list[Part]:
    fits = [r for r in records if r["kind"] == "fit"]
    seeds = len({r["seed"] for r in fits})
    interval = (
        f" Intervals: 95%, over {seeds} seeds." if seeds > 1 else " One seed, hence no intervals."
    )
    parts: list[Part] = []
    if any(r["data"] in SYNTHETIC for r in fits):
        parts.append(Part("text", "## The paper's Table 1: recovering the intensity"))
        parts.append(Part("table", first.table1(records), first.CAPTION + interval))
    if any("table2" in r["tables"] for r in fits):
        parts.append(Part("text", "## The paper's Table 2: log-likelihood"))
        parts += [
            Part("table", second.table2(records, which), second.CAPTIONS[which] + interval)
            for which in second.CAPTIONS
        ]
        parts += [
            Part("text", words) for words in (left_behind(records), _about_data(fits)) if words
        ]
    return parts


def _about_data(fits: list[Record]) -> str:
    found: dict[str, str] = {}
    for record in fits:
        if record["status"] == DONE and record["data"] not in SYNTHETIC:
            found.setdefault(markup_text(record["data"]), markup_text(record["settings"]["data"]))
    return (
        "\n".join(f"- **{name}**: {words}." for name, words in found.items())
        or "No real data set was scored."
    )


def _without(records: list[Record]) -> list[Part]:
    """The cells that have no number, with the reason of each."""
    header = ["kind", "model", "data", "seed", "status", "reason"]
    rows = [[markup_text(r[name]) for name in header] for r in records if r["status"] != DONE]
    caption = "What has no number, and why. The next run tries these again, and only these."
    table = Part("table", (header, rows), caption)
    return [Part("text", "## Cells without a number"), table] if rows else []


def _made(setting: Setting, records: list[Record]) -> list[str]:
    commits = sorted({markup_text(r["commit"]) for r in records if r.get("commit")})
    seconds = sum(float(r.get("seconds") or 0.0) for r in records)
    sizes = "all" if not setting.real_train else f"at most {setting.real_train:,}"
    changes = {f"models, {name}": options for name, options in setting.building.items()}
    changes |= {
        f"training, {'all' if name == '*' else name}": options
        for name, options in setting.training.items()
    }
    return [
        f"Setting **{setting.name}**: {setting.sequences:,} sequences of each synthetic set, "
        "a tenth of them for early stopping, and "
        f"{setting.test:,} fresh ones for the scores; integrals to {setting.tolerance:g} "
        "nats per event.",
        f"Real sets: {sizes} training and at most {setting.real_test:,} test sequences; "
        "where windows end at the last event, at most "
        f"{setting.longest:,} events of each.",
        *(
            f"{name}: {', '.join(f'{k} {v}' for k, v in options.items())}."
            for name, options in changes.items()
        ),
        f"Commit {', '.join(commits) or 'unknown'} (+: with local changes). {_machines(records)}",
        f"All cells together took {seconds / 60:,.0f} minutes, with one thread each.",
    ]


def _machines(records: list[Record]) -> str:
    machines = sorted({markup_text(r["machine"]) for r in records if r.get("machine")})
    found = [r["versions"] for r in records if r.get("versions")]
    versions = sorted(
        {markup_text(f"Python {one['python']}, torch {one['torch']}") for one in found}
    )
    return " ".join(f"{'; '.join(words)}." for words in (machines, versions) if words)


def _onto(page: Page, part: Part) -> None:
    if part.kind == "numbers":
        page.numbers(part.content)
    elif part.kind == "table":
        header, rows = part.content
        page.table(header, rows, part.caption)
    elif part.kind == "figure":
        page.figure(part.content.figure, part.caption, title=part.title)
    elif part.kind == "code":
        page.code(part.content, part.title)
    else:
        page.text(part.content)


def _markdown(part: Part) -> str:
    if part.kind == "numbers":
        return "\n".join(f"- **{label}**: {value} ({note})" for label, value, note in part.content)
    if part.kind == "table":
        header, rows = part.content
        lines = [header, ["---"] * len(header), *rows]
        return (
            "\n".join(
                "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                for line in lines
            )
            + f"\n\n{part.caption}"
        )
    if part.kind == "figure":
        return (
            f"### {part.title}\n![{part.title}](figures/{part.content.name}.png)\n\n{part.caption}"
        )
    if part.kind == "code":
        code = console_lines(part.content.strip())
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
        return f"{part.title}:\n\n{fence}sh\n{code}\n{fence}"
    return str(part.content).strip()
