"""Reading events: processor time and peak memory of fourpoint.read beside polars' read followed by
a numpy stable sort.

    python benchmarks/reading.py [--rows 20000000] [--repeats 3] [--formats parquet csv] [--folder
    DIR]

Files have columns seq, time and mark, in two orders: "log" (by time, sequences mixed, as a system
writes them) and "grouped" (sequence after sequence, where nothing has to move). Each reading runs
in a process of its own; its processor seconds (user and system, all threads) are counted from after
the imports, and its peak memory is that of the whole process. The two readers take turns, and
medians of the ratios of each turn are compared. The rule: at most 1.3 times the seconds and 1.5
times the memory. Fourpoint's side ends with a checked Dataset, polars' with three numpy arrays in
order of sequence.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from records import ROOT, Figure, Record, figure, options, ratios

SECONDS, MEMORY = 1.3, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--formats", nargs="+", choices=["parquet", "csv"], default=["parquet", "csv"]
    )
    parser.add_argument(
        "--orders", nargs="+", choices=["log", "grouped"], default=["log", "grouped"]
    )
    parser.add_argument(
        "--folder", type=Path, help="where the files are kept; a temporary folder by default"
    )
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options(parser)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(*given.one)))
        return
    if given.make:
        make(given.make, given.rows, given.orders, given.formats)
        return
    record = Record("reading", "Reading events beside polars and a stable sort.", given.quick)
    with tempfile.TemporaryDirectory() as temporary:
        compare(record, given.folder or Path(temporary), given)
    print(f"wrote {record.write(given.results)}")


def compare(record: Record, folder: Path, given: argparse.Namespace) -> None:
    """Both readers on every file, in turns; one printed line each."""
    part = f"{given.rows:,} rows, ratios against polars + stable sort"
    print(f"{part}; processor seconds and peak MB, medians of {given.repeats}")
    print(f"{'file':<18} {'fourpoint':>16} {'polars':>16} {'seconds':>9} {'memory':>8}")
    for kind in given.formats:
        for order in given.orders:
            file, label = folder / f"{order}_{given.rows}.{kind}", f"{order} {kind}"
            if not file.exists():
                # In a process of its own: a child's peak begins at the memory of the process that
                # started it.
                again = [
                    sys.executable,
                    __file__,
                    "--make",
                    str(folder),
                    "--rows",
                    str(given.rows),
                    "--orders",
                    order,
                    "--formats",
                    kind,
                ]
                subprocess.run(again, check=True)
            try:
                found = in_turns(file, given.repeats)
            except ImportError as error:
                print(f"{label:<18} polars is missing ({error})")
                record.missing(part, label, error)
                continue
            report(record, part, label, found)


def in_turns(file: Path, repeats: int) -> dict[str, dict[str, Figure]]:
    """Figures of both readers, each reading in a process of its own; what they read must agree."""
    found: dict[str, list[dict[str, float]]] = {"fourpoint": [], "polars": []}
    for _ in range(repeats):
        for reader, results in found.items():
            done = subprocess.run(
                [sys.executable, __file__, "--one", reader, str(file)],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                last = done.stderr.strip().splitlines()[-1]
                raise (
                    ImportError(last)
                    if "ModuleNotFoundError" in last
                    else SystemExit(f"{file.name}: {reader} failed: {last}")
                )
            results.append(json.loads(done.stdout.splitlines()[-1]))
    ours, theirs = (results[0] for results in found.values())
    if ours["events"] != theirs["events"] or abs(ours["sum"] - theirs["sum"]) > 1e-6 * abs(
        theirs["sum"]
    ):
        raise SystemExit(f"{file.name}: the readers disagree: {ours} and {theirs}")
    return {
        reader: {key: figure([r[key] for r in results]) for key in ("seconds", "mb")}
        for reader, results in found.items()
    }


def report(record: Record, part: str, label: str, found: dict[str, dict[str, Figure]]) -> None:
    ours, theirs = found["fourpoint"], found["polars"]
    seconds, memory = (ratios(ours[key], theirs[key]) for key in ("seconds", "mb"))
    told = {
        f"{who}, {unit}": one[key]
        for who, one in found.items()
        for key, unit in (("seconds", "s"), ("mb", "MB"))
    }
    record.row(part, label, **told, **{"seconds, ratio": seconds, "memory, ratio": memory})
    mine, other = (
        f"{one['seconds']['median']:6.2f} s {one['mb']['median']:5.0f} MB" for one in (ours, theirs)
    )
    print(
        f"{label:<18} {mine:>16} {other:>16} {seconds['median']:>8.2f}x {memory['median']:>7.2f}x",
        flush=True,
    )
    record.bar(f"reading {label}: processor seconds beside polars", seconds, most=SECONDS)
    record.bar(f"reading {label}: peak memory beside polars", memory, most=MEMORY)


def measure(reader: str, file: str) -> dict[str, float]:
    """Processor seconds, wall seconds and peak megabytes of one reading in this process."""
    import resource
    import time

    read = prepare(reader)

    def processor() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    began, before = time.perf_counter(), processor()
    ordered = read(file)
    seconds, wall = processor() - before, time.perf_counter() - began
    mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    times, marks = ordered()
    some = slice(None, None, 1009)
    return {
        "seconds": seconds,
        "wall": wall,
        "mb": mb,
        "events": len(times),
        "sum": float(times[some] @ (marks[some] + 1.0)),
    }


def prepare(reader: str) -> Callable[[str], Callable[[], tuple[Any, Any]]]:
    """A reader with everything imported. What it read gives times and marks by number of the
    sequence, to compare readers by.
    """
    import numpy as np

    if reader == "polars":
        import polars

        def with_polars(file: str) -> Callable[[], tuple[Any, Any]]:
            frame = polars.read_csv(file) if file.endswith("csv") else polars.read_parquet(file)
            sequence, times, marks = (frame[name].to_numpy() for name in ("seq", "time", "mark"))
            order = np.argsort(sequence, kind="stable")
            sequence, times, marks = sequence[order], times[order], marks[order]
            return lambda: (times, marks)

        return with_polars
    sys.path.insert(0, str(ROOT / "src"))
    for module in ("pyarrow.csv", "pyarrow.parquet"):  # what is imported later is not to be timed
        import_module(module)
    from fourpoint.data.readers import read_with_notes

    def with_fourpoint(file: str) -> Callable[[], tuple[Any, Any]]:
        data = read_with_notes(file).data

        def ordered() -> tuple[Any, Any]:
            # Here sequences come in order of first appearance.
            rows = data.select(np.argsort(np.array(data.ids).astype(np.int64)))
            return rows.times, rows.mark_ids

        return ordered

    return with_fourpoint


def make(folder: Path, rows: int, orders: list[str], formats: list[str]) -> None:
    """Write the files: sequences of 200 events on average, times to the microsecond, 20 types."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    times = np.round(np.cumsum(rng.exponential(1000 / rows, rows)), 6)
    sequence, marks = rng.integers(0, max(rows // 200, 1), rows), rng.integers(0, 20, rows)
    for order in orders:
        by = slice(None) if order == "log" else np.argsort(sequence, kind="stable")
        table = pa.table({"seq": sequence[by], "time": times[by], "mark": marks[by]})
        for kind in formats:
            write = pc.write_csv if kind == "csv" else pq.write_table
            write(table, folder / f"{order}_{rows}.{kind}")


if __name__ == "__main__":
    main()
