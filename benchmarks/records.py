"""What a benchmark found, in one form for all: rows of figures and bars, with commit, machine and
command, as `results/NAME.json`.

A figure is a median of repeats with its spread: ``{"median": 4.0, "min": 3.9, "max": 4.2,
"repeats": [3.9, 4.0, 4.2], "unit": "s"}``. A row belongs to a part (a table of the page) and has a
name and figures by column; a plain number or text may stand for a figure that is not repeated. What
is not installed is a row with the reason under ``missing``. A bar is a promise with what was found:

    record = Record("training", "events per second of training")
    record.row("default settings", "Fourpoint dapp", **{"events/s": figure([1.0, 2.0, 3.0])})
    record.missing("default settings", "EasyTPP THP", "No module named 'easy_tpp'")
    record.bar("DAPP trains 5 times as fast as THP", figure([6.0]), least=5)
    record.write(folder)

`page.py` turns the files into Markdown; `run.py` runs all benchmarks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from fourpoint.atomic import write_atomic

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("torch", "numpy", "numba", "triton", "easy-tpp", "tick", "HawkesPyLib", "polars")
PACKAGES += ("prophet", "statsforecast", "statsmodels", "pandas")
Figure = dict[str, Any]


def figure(values: Sequence[float], unit: str = "") -> Figure:
    """The median of repeats with its spread.

    >>> figure([3.0, 1.0, 2.0], "s")
    {'median': 2.0, 'min': 1.0, 'max': 3.0, 'repeats': [3.0, 1.0, 2.0], 'unit': 's'}
    """
    if not values:
        raise ValueError(
            "expected at least one repeat; received none. Run the benchmark with --repeats 1 "
            "or more."
        )
    kept = [float(v) for v in values]
    return dict(
        median=statistics.median(kept), min=min(kept), max=max(kept), repeats=kept, unit=unit
    )


def ratios(above: Figure, below: Figure) -> Figure:
    """How many times as large ``above`` is, round by round: what disturbed one round disturbed both
    of its sides.

    >>> ratios(figure([4.0, 9.0]), figure([2.0, 3.0]))["repeats"]
    [2.0, 3.0]
    """
    return figure([a / b for a, b in zip(above["repeats"], below["repeats"], strict=True)], "x")


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost against log size, by least squares; 1 is linear.

    >>> round(exponent([10, 100, 1000], [2.0, 20.0, 200.0]), 6)
    1.0
    """
    x, y = ([math.log(v) for v in values] for values in (sizes, costs))
    return statistics.linear_regression(x, y).slope


@dataclass
class Record:
    """The results of one benchmark; ``about`` is one sentence that says what was measured."""

    name: str
    about: str
    quick: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    bars: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 1))

    def row(self, part: str, name: str, **figures: Figure | float | str | None) -> None:
        """A row of table ``part``; what is None stays out."""
        self.rows.append(
            dict(part=part, name=name, figures={k: v for k, v in figures.items() if v is not None})
        )

    def missing(self, part: str, name: str, reason: object) -> None:
        """A row that could not be measured, and why."""
        self.rows.append(dict(part=part, name=name, figures={}, missing=str(reason)))

    def bar(
        self,
        text: str,
        found: Figure | float | None,
        *,
        least: float | None = None,
        most: float | None = None,
        reason: str = "",
    ) -> None:
        """A promise: ``found`` is to be at least or at most so much; None where it could not be
        measured, for ``reason``. Printed.
        """
        value = found["median"] if isinstance(found, dict) else found
        met = (
            None
            if value is None
            else (least is None or value >= least) and (most is None or value <= most)
        )
        wanted = f"at least {least:g}" if least is not None else f"at most {most:g}"
        self.bars.append(dict(bar=text, wanted=wanted, found=found, met=met, reason=reason))
        verdict = {True: "met", False: "NOT MET", None: f"not measured ({reason})"}[met]
        said = "" if value is None else f"{value:.4g}"
        print(f"BAR {text}: {said} ({wanted}): {verdict}", flush=True)

    def write(self, folder: Path, extra: dict[str, Any] | None = None) -> Path:
        """Write `NAME.json` into ``folder``; ``extra`` facts of the machine (a GPU's name, say) are
        added.
        """
        found = dict(
            name=self.name,
            about=self.about,
            command=command(),
            commit=commit(),
            date=datetime.now(UTC).date().isoformat(),
            seconds=round(time.monotonic() - self.began, 1),
            quick=self.quick,
            machine=machine() | dict(load_before=self.load) | (extra or {}),
            bars=self.bars,
            rows=self.rows,
        )
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.name}.json"
        write_atomic(file, json.dumps(found, indent=1) + "\n")
        return file


def options(parser: argparse.ArgumentParser) -> None:
    """What every benchmark takes."""
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few repeats, to see that it runs"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for NAME.json")


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The records of a folder by name."""
    return {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(folder.glob("*.json"))
    }


def command() -> str:
    """How this process was called, without the folders of this machine."""
    given = ["DIR" if Path(word).is_absolute() else word for word in sys.argv[1:]]
    kept = [
        word
        for i, word in enumerate(given)
        if word != "--results" and (i == 0 or given[i - 1] != "--results")
    ]
    return " ".join([f"python benchmarks/{Path(sys.argv[0]).name}", *kept])


def commit() -> str:
    """The commit of the tree, "with changes" where source or benchmarks differ from it; "unknown"
    outside a repository.
    """
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--", "src", "benchmarks/*.py")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head} with changes" if changed else head


def machine() -> dict[str, Any]:
    """Processor, cores, threads of torch in this process (where it uses torch), memory, and the
    versions of what was measured.
    """
    torch = sys.modules.get("torch")
    versions = {name: version for name in PACKAGES if (version := _version(name)) is not None}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return dict(
        cpu=_processor(),
        cores=cores,
        threads=torch.get_num_threads() if torch else None,
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        system=platform.system(),
        python=platform.python_version(),
        packages=versions,
    )


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
