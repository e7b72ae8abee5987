"""Every benchmark, one after the other, each in a process of its own; then the table and the
performance page.

    python benchmarks/run.py [--quick] [--only training oracle ...] [--data DIR] [--results DIR]
    [--page FILE]

The full form takes about forty minutes on two cores and writes `benchmarks/results` and
`docs/performance.md`; ``--quick`` takes about five minutes and writes `results/bench` instead,
which is not kept. A benchmark that fails is recorded as failed, and the next one is run. ``--data``
is a folder of public data sets as Parquet files, for the benchmark that compares on them. `gpu.py`,
`budget.py`, `leaderboard.py` and the benchmarks of predictions (`counts.py`, `horizon.py`,
`conformal.py`, `interval_coverage.py`, `influence.py`, `bands.py`, `simulated_logs.py`), of
earthquakes (`etas.py`, `seismic.py`), of consumer groups (`brokers.py`), of scale (`scale.py`) and
of the service (`serve.py`, `serve_faults.py`) are run by themselves.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import page
from records import RESULTS, ROOT, Record

from fourpoint.atomic import write_atomic

HERE = Path(__file__).resolve().parent


class Plan(NamedTuple):
    """Arguments and expected seconds of a benchmark, in full and in the quick form."""

    full: str
    seconds: float
    quick: str
    quick_seconds: float


PLANS: dict[str, Plan] = {
    "training": Plan("--rounds 5 --seconds 0.5", 240, "", 60),
    "oracle": Plan("--limit 60", 1080, "", 60),
    "deep": Plan("", 140, "", 20),
    "scaling": Plan("", 250, "", 30),
    "costs": Plan("", 150, "", 30),
    "peers": Plan("--epochs 10", 30, "--epochs 1 --models thp", 15),
    "sampling": Plan("", 80, "--paths 100 --seconds 3 --theirs 4", 20),
    "forecast_all": Plan("", 100, "--sequences 500 --plain 10 --seconds 3 --repeats 1", 20),
    "streaming": Plan(
        "--events 20000 --keep-events 10000",
        240,
        (
            "--events 2000 --keep-events 2000 --entities 500 --streams 20 --command-events 2000 "
            "--repeats 1 --days 1 --changes 2"
        ),
        45,
    ),
    "hawkes": Plan("", 40, "--events 10000 --repeats 2", 20),
    "reading": Plan("--rows 5000000", 50, "--rows 100000 --repeats 1", 20),
    "memory": Plan(
        "--processes hawkes --steps 300 --more 50 --train .3 --sequences 200",
        40,
        "--processes hawkes --steps 20 --more 5 --train .5 --sequences 20",
        20,
    ),
    "precision": Plan("", 60, "", 15),
    "exactness": Plan("--gaps 5000 --forecasts 1000", 70, "--gaps 500 --forecasts 50", 25),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(PLANS), default=list(PLANS))
    parser.add_argument("--data", type=Path, help="folder of public data sets")
    parser.add_argument("--results", type=Path, help="folder of the results files")
    parser.add_argument("--page", type=Path, help="where the page goes")
    given = parser.parse_args()
    results = (given.results or (ROOT / "results" / "bench" if given.quick else RESULTS)).resolve()
    results.mkdir(parents=True, exist_ok=True)
    failed = run_all(given, results)
    page.write(
        results, given.page or (results / "performance.md" if results != RESULTS else page.PAGE)
    )
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_all(given: argparse.Namespace, results: Path) -> list[str]:
    """Run what was asked for, with progress; the names of those that failed."""
    expected = {
        name: PLANS[name].quick_seconds if given.quick else PLANS[name].seconds
        for name in given.only
    }
    failed, began = [], time.monotonic()
    for n, name in enumerate(given.only, 1):
        left = sum(expected[other] for other in given.only[n - 1 :])
        print(
            (
                f"\n== [{n}/{len(given.only)}] {name}; {time.monotonic() - began:.0f} s so far, "
                f"about {left / 60:.0f} min left"
            ),
            flush=True,
        )
        error = run(name, given, results)
        if error:
            failed.append(name)
            record(name, error, given.quick, results)
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
    return failed


def run(name: str, given: argparse.Namespace, results: Path) -> str:
    """Run one benchmark; why it failed, or nothing."""
    words = [sys.executable, "-W", "ignore", str(HERE / f"{name}.py"), "--results", str(results)]
    words += [
        *["--quick"] * given.quick,
        *(PLANS[name].quick if given.quick else PLANS[name].full).split(),
    ]
    if name == "deep" and given.data:
        words += ["--data", str(given.data.resolve())]
    with subprocess.Popen(words, stdout=None, stderr=subprocess.PIPE, text=True) as process:
        tail = process.stderr.read() if process.stderr else ""
    if process.returncode == 0:
        return ""
    lines = [line for line in tail.splitlines() if line.strip()]
    return f"exit code {process.returncode}: {lines[-1] if lines else 'it printed nothing'}"


def record(name: str, error: str, quick: bool, results: Path) -> None:
    """Put a failure in the place of older figures, which are not those of this tree."""
    file = Record(name, "This benchmark failed.", quick).write(results)
    write_atomic(
        file, json.dumps({**json.loads(file.read_text()), "failed": error}, indent=1) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
