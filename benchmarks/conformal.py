"""Coverage of prediction regions for the next event on public data sets: calibrated on dev, scored
on test.

    python benchmarks/conformal.py --data DIR [--model dapp] [--budget 60] [--sets taxi ...]

``DIR`` holds one Parquet file per data set. For each of them a model is fitted to the train part
under a time budget, calibrated on the dev part and scored on all events of the test part. Users and
drivers are exchangeable sequences (split conformal); consecutive windows of one log, as those of
earthquakes and of the order book, are not (adaptive). The last line says in how many sets all
regions cover between 89% and 91%.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from records import Record, options

import fourpoint as fp
from fourpoint.inference.calibration import Coverage, coverage

METHODS = {
    "taxi": "split",
    "stackoverflow_easytpp": "split",
    "taobao": "split",
    "retweet": "split",
    "earthquake_japan": "adaptive",
    "bookorder_w50": "adaptive",
}
LOW, HIGH = 0.89, 0.91


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the Parquet files")
    parser.add_argument("--model", default="dapp")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each fit")
    parser.add_argument("--events", type=int, default=10**9, help="of each part, at most")
    parser.add_argument("--sets", nargs="+", default=list(METHODS))
    options(parser)
    given = parser.parse_args()
    about = "Coverage of 90% regions for the next event, calibrated on dev and scored on test."
    record = Record("conformal", about, given.quick)
    within = 0
    for name in given.sets:
        method = METHODS.get(name, "auto")
        found = measured(name, method, given)
        print(f"{name}, {given.model}, {method}, {found.events:,} events of the test part")
        print("  region     covers  of events  mean size  uncalibrated  of events  mean size")
        for kind, own in found.regions.items():
            print(
                f"  {kind:9} {own.coverage:7.4f} {own.of_events:10.4f} {own.size:10.4g} "
                f"{own.plain_coverage:13.4f} {own.plain_of_events:10.4f} {own.plain_size:10.4g}",
                flush=True,
            )
            figures = {
                "covers": own.coverage,
                "of all events": own.of_events,
                "mean size": own.size,
                "uncalibrated": own.plain_coverage,
                "its mean size": own.plain_size,
            }
            shown = {column: f"{value:.4g}" for column, value in figures.items()}
            record.row(f"{name}, {given.model}, {method}", kind, **shown)
        within += all(LOW <= own.coverage <= HIGH for own in found.regions.values())
    print(f"all regions between {LOW} and {HIGH}: {within} of {len(given.sets)} sets")
    print(f"wrote {record.write(given.results)}")


def measured(name: str, method: str, given: argparse.Namespace) -> Coverage:
    """Fit to train, calibrate on dev, score on test."""
    data = fp.read(given.data / f"{name}.parquet")
    train, dev, test = (data.part(part) for part in ("train", "dev", "test"))
    model = fp.MODELS[given.model](marks=data.marks)
    fp.fit(model, train, dev, time_budget=given.budget)
    fp.calibrate(model, dev, method=method, events=given.events)
    return coverage(model, test, events=given.events)


if __name__ == "__main__":
    main()
