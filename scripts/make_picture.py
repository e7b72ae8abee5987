"""The picture on the README: the rate of long delays on the busiest unseen day, from the model that
`make demo` fits.

make demo && .venv/bin/python scripts/make_picture.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import fourpoint as fp
from fourpoint.plots import charts as plots

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Draw the picture of the README."""
    import matplotlib

    matplotlib.use("Agg")
    test = fp.load("nyc_delays").part("test")
    model = fp.restore(ROOT / "demo" / "model")
    day = test[int(test.lengths.argmax())]
    times = np.linspace(day.start, day.stop, 1441)
    rate = fp.intensity(model, day, times)
    ax = plots.intensity_plot(
        times,
        rate,
        events=day.times,
        event_marks=day.marks,
        names=test.marks.names,
        stacked=True,
        unit="hours",
    )
    ax.set_title(f"Delays of an hour and more leaving New York, {day.id}")
    figure = ax.figure
    figure.set_size_inches(9, 3.6)
    target = ROOT / "docs" / "images" / "nyc_delays.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120, bbox_inches="tight")
    print(target.relative_to(ROOT))


if __name__ == "__main__":
    main()
