"""The performance page, made from the results files and nothing else.

    python benchmarks/page.py [--results benchmarks/results] [--page docs/performance.md]

Reads every `NAME.json` of the folder (`records.py`) and writes the page.
The page is not edited by hand: a test compares it with the files.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from records import RESULTS, ROOT, read

from fourpoint.atomic import write_atomic

PAGE = ROOT / "docs" / "performance.md"
Found = dict[str, Any]

HEAD = """# Performance
This page compares the speed of Fourpoint with that of other libraries, and shows how its costs
grow with the size of the data. `benchmarks/page.py` generates it from the files in
`benchmarks/results`, which the commands below write:

    make bench                             # every benchmark, forty minutes on two cores
    make bench BENCH="--quick"             # small sizes, about five minutes, into results/bench
    make bench BENCH="--data DIR"          # with public data sets, which only one comparison needs
    python benchmarks/training.py --help   # one of them

- **Medians.** A figure is the median of repeats, with the smallest and the largest in brackets; a
  ratio is the median of the ratios within each round. Libraries take turns, so that other work on
  the machine affects all of them.
- **Same work.** Other libraries run their own code on the same data, with the same batches, on the
  same machine and in the same run. One-time costs (imports, compilation, caches) are excluded,
  except where start-up itself is measured.
- **Other libraries** are installed with the extra `bench`. A library that cannot be installed is
  shown as missing.
- **Load** is the mean number of processes that ran or waited in the minute before a benchmark
  began. On a busy machine, ratios are more reliable than wall-clock times.
- **Targets** that are missed stay on the page; the command that measures prints the verdict.
"""

SECTIONS: dict[str, tuple[str, str]] = {
    "training": (
        "Training throughput",
        "Events per second of training on 500 Hawkes sequences of about 30 events, batches "
        "of 64, times by the clock: `fp.fit` beside "
        "EasyTPP's own loader and loop, at the defaults of each library and at equal sizes "
        "and nodes per gap.",
    ),
    "oracle": (
        "Time to the oracle",
        "Seconds of training until 200 held-out sequences score within .01 nats per event of "
        "the process that generated the data (`gaps` "
        "convention, refined integral). Scoring is not timed. EasyTPP's models at two "
        "learning rates; its default is 1e-3.",
    ),
    "deep": (
        "Deep DAPP beside S2P2",
        "Training steps on public data, batches of 256 sequences of mixed lengths, 8 nodes "
        "per gap, about equal numbers of parameters; "
        "processor time on one thread.",
    ),
    "scaling": (
        "Growth",
        (
            "Processor seconds of one training step as one size grows; an exponent of 1 is "
            "linear. One thread."
        ),
    ),
    "peers": (
        "The neural baselines",
        "Fourpoint's RMTPP, NHP, SAHP and THP beside EasyTPP's after equally many epochs: "
        "nats per event by one refined integral, the same "
        "by the library's own loss, and events per second of processor time on one thread.",
    ),
    "costs": (
        "Evaluation, start-up and memory",
        "Log-likelihoods with refined integrals, start-up of new processes, and peak memory of "
        "one epoch of training.",
    ),
    "sampling": ("Sampling", "Events per second of drawn paths on one thread."),
    "forecast_all": (
        "Forecasts of many sequences",
        "Sequences per minute with 200 paths of 30 days each, in intervals of a day, on all cores; "
        "`fp.forecasts` with the kernels beside the plain sampler.",
    ),
    "streaming": (
        "Live streams",
        (
            "Time, state and memory per event of a stream, a bank of 10,000 entities, and the "
            "false-alarm rate and delay of alarms."
        ),
    ),
    "hawkes": (
        "Fitting a Hawkes process",
        "Seconds to the maximum of the likelihood on one thread, and the log-likelihood reached.",
    ),
    "reading": (
        "Reading files",
        "Processor seconds and peak memory beside polars' read followed by a stable sort.",
    ),
    "memory": (
        "Loss by bounded memory",
        "Nats per event that are lost if each head remembers only some of the events.",
    ),
    "exactness": (
        "Exactness of the sampler",
        "Every model's own samples, rescaled by its own integral; coverage of forecasts.",
    ),
    "precision": (
        "Precision of matrix products",
        "Deep DAPP's log-likelihood and gradient with factors rounded as tensor cores round "
        "them, compared with float64. For this reason it trains in tf32 "
        "on a GPU, and not in bf16.",
    ),
    "gpu": (
        "On a GPU",
        (
            "Measured by `python benchmarks/gpu.py` on the GPU that is named below. At 8 nodes per "
            "gap the processor that starts its kernels limits S2P2: in a third run on a machine of "
            "the same kind (`--repeats 3`, commit 40e5c2b) Deep DAPP was as fast as here, but S2P2 "
            "had 506,361 events/s on taxi and 779,145 on stackoverflow, and the ratio on "
            "stackoverflow was 17.3. At its own number of nodes S2P2 had 454,571 events/s there, "
            "as here."
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    write(given.results, given.page)


def write(results: Path, where: Path) -> None:
    """Write the page of the results in one folder."""
    write_atomic(where, page(read(results)))
    print(f"wrote {where}")


def page(records: dict[str, Found]) -> str:
    """The whole page as Markdown."""
    parts = [HEAD, *promises(records)]
    for name in [*SECTIONS, *sorted(name for name in records if name not in SECTIONS)]:
        parts += section(name, records.get(name))
    return "\n".join(parts).rstrip("\n") + "\n"


def promises(records: dict[str, Found]) -> Iterator[str]:
    """All bars with their verdicts."""
    bars = [(name, bar) for name in ordered(records) for bar in records[name].get("bars", [])]
    if not bars:
        return
    yield "## Promises"
    verdicts = {True: "kept", False: "**not kept**", None: "not measured"}
    rows = []
    for name, bar in bars:
        found = bar["reason"] if bar["found"] is None else shown(bar["found"])
        rows.append(
            (
                bar["bar"],
                bar["wanted"],
                found,
                verdicts[bar["met"]] + (" (quick run)" if records[name].get("quick") else ""),
            )
        )
    yield from grid(("promise", "wanted", "found", "verdict"), rows)
    yield ""


def section(name: str, record: Found | None) -> Iterator[str]:
    """One benchmark: what it measures, where it ran, its tables."""
    title, words = SECTIONS.get(
        name, (name.replace("_", " ").replace("gpu", "GPU:", 1), (record or {}).get("about", ""))
    )
    yield f"## {title}"
    yield words + "\n"
    if record is None:
        yield "Not measured.\n"
        return
    yield provenance(record) + "\n"
    if "failed" in record:
        yield f"The run failed: {escaped(record['failed'])}\n"
    for part in dict.fromkeys(row["part"] for row in record.get("rows", [])):
        rows = [row for row in record["rows"] if row["part"] == part]
        columns = list(dict.fromkeys(column for row in rows for column in row["figures"]))
        yield f"**{part}**\n"
        yield from grid(("", *columns), (cells(row, columns) for row in rows))
        yield ""


def provenance(record: Found) -> str:
    """Command, commit, day and machine in one line."""
    machine = record.get("machine", {})
    versions = ", ".join(
        f"{name} {version}" for name, version in machine.get("packages", {}).items()
    )
    cores = f"{machine['cores']} cores" if machine.get("cores") else ""
    load = f"load {machine['load_before']:g} before it began" if "load_before" in machine else ""
    place = [machine.get("gpu", ""), machine.get("cpu", ""), cores, load, versions]
    words = f"`{record['command']}` at commit {record['commit']}, {record['date']}; " + ", ".join(
        word for word in place if word
    )
    return words + ("; a quick run, whose figures say little" if record.get("quick") else "") + "."


def ordered(records: dict[str, Found]) -> list[str]:
    """Names in the order of the page."""
    return [name for name in SECTIONS if name in records] + sorted(
        name for name in records if name not in SECTIONS
    )


def cells(row: Found, columns: list[str]) -> list[str]:
    if "missing" in row:
        return [row["name"], f"missing: {row['missing']}", *[""] * (len(columns) - 1)]
    return [row["name"], *(shown(row["figures"].get(column, "")) for column in columns)]


def shown(value: Found | float | str) -> str:
    """A figure with its spread, a number, or words.

    >>> shown(
    ...     dict(
    ...         median=12345.6,
    ...         min=12000.0,
    ...         max=13000.0,
    ...         repeats=[12000.0, 12345.6, 13000.0],
    ...         unit="events/s",
    ...     )
    ... )
    '12,346 (12,000 to 13,000)'
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return number(value)
    return number(value["median"]) + (
        f" ({number(value['min'])} to {number(value['max'])})" if len(value["repeats"]) > 1 else ""
    )


def number(value: float) -> str:
    """Whole from 1,000 upwards, four digits where there are fewer, three for small ones."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"


def grid(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table."""
    heads = list(heads)
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(escaped(cell) for cell in row)} |"


def escaped(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
