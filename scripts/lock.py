"""Write what pip would install for every extra, and what each of those packages requires, for the
test of the pins.

    python -m venv scratch
    extras=fast,hub,tune,bench,dev,serve,postgres,redis,kafka,ray,docs,dist,browser
    scratch/bin/pip install --dry-run --ignore-installed --report report.json \
        -c constraints.txt ".[$extras]"
    python scripts/lock.py report.json          # writes tests/reference/requirements.json

Run it after a change of the dependencies, and pin in constraints.txt what `tests/test_pins.py`
names. Several reports, one for each extra, are joined. Requirements are kept as the packages state
them, those of extras only where the extra is asked for.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = "fourpoint"
TARGET = Path(__file__).resolve().parents[1] / "tests" / "reference" / "requirements.json"


def main() -> None:
    """Read the reports of pip and write the lock file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="+", type=Path)
    given = parser.parse_args()
    packages = {}
    for report in given.reports:
        for entry in json.loads(report.read_text(encoding="utf-8"))["install"]:
            packages[canonicalize_name(entry["metadata"]["name"])] = entry["metadata"]
    packages.pop(OURS, None)
    asked = _extras_asked_for(packages)
    lock = {}
    for name, about in sorted(packages.items()):
        kept = [line for line in about.get("requires_dist", []) if _applies(line, asked[name])]
        lock[name] = {"version": about["version"].partition("+")[0], "requires": kept}
    TARGET.write_text(json.dumps(lock, indent=1) + "\n", encoding="utf-8")
    print(f"{TARGET}: {len(lock)} packages")


def _extras_asked_for(packages: dict[str, Any]) -> dict[str, set[str]]:
    """The extras that packages ask of each other, followed until no more are found."""
    asked = defaultdict[str, set[str]](set)
    while True:
        before = sum(map(len, asked.values()))
        for name, about in packages.items():
            lines = [line for line in about.get("requires_dist", []) if _applies(line, asked[name])]
            for wanted in map(Requirement, lines):
                asked[canonicalize_name(wanted.name)] |= wanted.extras
        if sum(map(len, asked.values())) == before:
            return asked


def _applies(line: str, extras: set[str]) -> bool:
    """Whether a requirement holds here, without an extra or with one of those that are asked
    for.
    """
    marker = Requirement(line).marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


if __name__ == "__main__":
    main()
