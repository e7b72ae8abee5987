"""How many sequences are forecast in a minute: 200 paths of each, with and without the kernels.

    python benchmarks/forecast_all.py [--sequences 6000] [--plain 100] [--paths 200]
                                      [--seconds 20] [--repeats 3]

The data resemble purchases of customers: a Hawkes process with about 20 events in 300 days each.
DAPP at its default settings is fitted to 1,000 of them for ``--seconds``, Hawkes and Poisson in
closed form, and all ``--sequences`` are forecast for 30 days, about 2 events each, in intervals of
a day. The plain sampler forecasts ``--plain`` of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from records import Record, figure, options, ratios

from fourpoint.events import Dataset
from fourpoint.inference.forecasts import forecasts
from fourpoint.inference.sampling import sample
from fourpoint.models import DAPP, Hawkes, Poisson
from fourpoint.models.base import PointProcess
from fourpoint.training.fitting import fit

DAYS, HORIZON, DAY = 300.0, 30.0, 1.0
TRAINED = 1000  # sequences
PART = "200 paths of every sequence"
WANTED = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=6000)
    parser.add_argument("--plain", type=int, default=100, help="sequences for the plain sampler")
    parser.add_argument("--paths", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="time to fit DAPP")
    parser.add_argument("--repeats", type=int, default=3)
    options(parser)
    given = parser.parse_args()
    record = Record(
        "forecast_all",
        "Sequences forecast per minute, by the clock, on all cores.",
        given.quick,
    )
    truth = Hawkes(baseline=0.045, branching=0.33, decay=0.3)
    data = sample(truth, 0.0, DAYS, given.sequences)
    for name, build in MODELS.items():
        model = build(data[:TRAINED], given.seconds)
        forecasts(model, data[:2], HORIZON, DAY, paths=2)  # compile
        fast, plain = [], []
        for _ in range(given.repeats):
            fast.append(per_minute(model, data, given.paths))
            with without_kernels(model):
                plain.append(per_minute(model, data[: given.plain], given.paths))
        one, other = figure(fast, "sequences/min"), figure(plain, "sequences/min")
        times = ratios(one, other)
        figures: dict[str, Any] = {"sequences/min": one, "plain sampler": other, "ratio": times}
        record.row(PART, name, **figures)
        print(
            f"{name:10}{one['median']:>12,.0f} sequences per minute, plain sampler "
            f"{other['median']:,.0f}: {times['median']:,.1f} times faster",
            flush=True,
        )
        if name == "DAPP":
            text = "sequences forecast per minute with DAPP"
            record.bar(text, one, least=WANTED)
    print(f"wrote {record.write(given.results)}")


def dapp(data: Dataset, seconds: float) -> PointProcess:
    model = DAPP(data.marks)
    fit(model, data, time_budget=seconds, progress=False)
    return model


def closed_form(build: Callable[..., PointProcess]) -> Callable[[Dataset, float], PointProcess]:
    def built(data: Dataset, seconds: float) -> PointProcess:
        model = build(data.marks)
        model.maximum_likelihood(data)
        return model

    return built


MODELS: dict[str, Callable[[Dataset, float], PointProcess]] = {
    "DAPP": dapp,
    "Hawkes": closed_form(Hawkes),
    "Poisson": closed_form(Poisson),
}


def without_kernels(model: PointProcess) -> Any:
    """Paths come from the plain sampler meanwhile."""
    return patch.object(type(model), "draw_counts", PointProcess.draw_counts)


def per_minute(model: PointProcess, data: Dataset, paths: int) -> float:
    began = time.perf_counter()
    forecasts(model, data, HORIZON, DAY, paths=paths)
    return 60 * len(data) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
