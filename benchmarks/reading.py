"""Reading events: processor time and peak memory of fourpoint.read beside polars' read followed by a numpy stable sort.

    python benchmarks/reading.py [--rows 20000000] [--repeats 3] [--formats parquet csv] [--folder DIR] [--json FILE]

Files have columns seq, time and mark, in two orders: "log" (by time, sequences mixed, as a system writes them) and
"grouped" (sequence after sequence, where nothing has to move). Each reading runs in a process of its own; its processor
seconds (user and system, all threads) are counted from after the imports, and its peak memory is that of the whole
process. The two readers take turns, and the least of each is compared, since other processes only add. The rule: at most
1.3 times the seconds and 1.5 times the memory. Fourpoint's side ends with a checked Dataset, polars' with three numpy
arrays in order of sequence.
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

ROOT = Path(__file__).resolve().parents[1]
SECONDS, MEMORY = 1.3, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--formats", nargs="+", choices=["parquet", "csv"], default=["parquet", "csv"])
    parser.add_argument("--orders", nargs="+", choices=["log", "grouped"], default=["log", "grouped"])
    parser.add_argument("--folder", type=Path, help="where the files are kept; a temporary folder by default")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    if options.make:
        make(options.make, options.rows, options.orders, options.formats)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        rows = compare(folder, options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    sys.exit(0 if all(row["seconds"] <= SECONDS and row["memory"] <= MEMORY for row in rows) else 1)


def compare(folder: Path, options: argparse.Namespace) -> list[dict[str, float | str]]:
    """Both readers on every file, in turns; one printed line each."""
    print(f"{options.rows:,} rows; processor seconds and peak MB, least of {options.repeats}; ratios against polars + stable sort")
    print(f"{'file':<18} {'fourpoint':>16} {'polars':>16} {'seconds':>9} {'memory':>8}")
    rows: list[dict[str, float | str]] = []
    for kind in options.formats:
        for order in options.orders:
            file = folder / f"{order}_{options.rows}.{kind}"
            if not file.exists():
                # In a process of its own: a child's peak begins at the memory of the process that started it.
                again = [sys.executable, __file__, "--make", str(folder), "--rows", str(options.rows), "--orders", order, "--formats", kind]
                subprocess.run(again, check=True)
            found: dict[str, list[dict[str, float]]] = {"fourpoint": [], "polars": []}
            for _ in range(options.repeats):
                for reader, results in found.items():
                    done = subprocess.run(
                        [sys.executable, __file__, "--one", reader, str(file)], check=True, capture_output=True, text=True
                    )
                    results.append(json.loads(done.stdout.splitlines()[-1]))
            ours, theirs = ({key: min(r[key] for r in results) for key in results[0]} for results in found.values())
            if ours["events"] != theirs["events"] or abs(ours["sum"] - theirs["sum"]) > 1e-6 * abs(theirs["sum"]):
                raise SystemExit(f"{file.name}: the readers disagree: {ours} and {theirs}")
            row = {"file": f"{order} {kind}", "seconds": ours["seconds"] / theirs["seconds"], "memory": ours["mb"] / theirs["mb"]}
            row |= {f"{who}_{key}": one[key] for who, one in (("fourpoint", ours), ("polars", theirs)) for key in ("seconds", "mb", "wall")}
            rows.append(row)
            mine, other = (f"{one['seconds']:6.2f} s {one['mb']:5.0f} MB" for one in (ours, theirs))
            print(f"{row['file']:<18} {mine:>16} {other:>16} {row['seconds']:>8.2f}x {row['memory']:>7.2f}x", flush=True)
    return rows


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
    return {"seconds": seconds, "wall": wall, "mb": mb, "events": len(times), "sum": float(times[some] @ (marks[some] + 1.0))}


def prepare(reader: str) -> Callable[[str], Callable[[], tuple[Any, Any]]]:
    """A reader with everything imported. What it read gives times and marks by number of the sequence, to compare readers by."""
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
