"""What `fit` returns under a time budget, beside the best closed-form model; and how much it
depends on the seed.

    python benchmarks/budget.py [--budget 60] [--data DIR] [--models dapp deep-dapp] [--sets
    nyc_delays calls taxi hawkes log] [--seeds 20]

Every set is fitted with the default settings and the given budget in seconds. The score is the
log-likelihood per event on the development data, for ``nyc_delays`` on the test data as well. Sets:
``nyc_delays`` (embedded), ``calls`` (90 simulated days of calls in whole minutes, with a daily and
a weekly rhythm and no excitation), ``taxi`` (`DIR/taxi.parquet`), ``hawkes`` (1,000 sequences) and
``log`` (one sequence of 100,000 events of a Hawkes process). With ``--seeds N`` DAPP is fitted to
200 sequences of a Hawkes process with N seeds, and regret per event and the squared error of the
intensity are measured on 500 new sequences.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from records import Record, options

SETS = ("nyc_delays", "calls", "taxi", "hawkes", "log")
NYC_TEST = -0.81  # what DAPP has to reach on the test days
REGRET, SQUARED_ERROR = 0.002, 0.5  # what every seed has to stay below
STEPS: int | None = None  # of a fit; None: the default
LOG_EVENTS, TRAIN_SEQUENCES, TEST_SEQUENCES = 100_000, 200, 500


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--models", nargs="+", default=["dapp", "deep-dapp"])
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--seeds", type=int, default=0)
    options(parser)
    given = parser.parse_args()
    record = Record(
        "budget",
        "What a fit returns within its time budget, beside closed-form models.",
        given.quick,
    )
    for name in given.sets:
        parts = _parts(name, given.data)
        if parts is None:
            record.missing(name, "all models", f"needs --data DIR with {name}.parquet")
            continue
        for model in given.models:
            _fit(record, name, model, parts, given.budget)
    if given.seeds:
        _seeds(record, given.seeds)
    print(f"wrote {record.write(given.results)}")


def _fit(record: Record, name: str, model: str, parts: list[Any], budget: float) -> None:
    import fourpoint as fp
    from fourpoint.models import MODELS

    train, dev, *test = parts
    began = time.perf_counter()
    done = fp.fit(
        MODELS[model](train.marks), train, dev, steps=STEPS, time_budget=budget, progress=False
    )
    seconds = time.perf_counter() - began
    best = max(done.closed_forms, key=lambda one: done.closed_forms[one])
    own, closed = (_score(one, dev) for one in (done.model, _closed(best, train)))
    figures: dict[str, Any] = {"dev": own, f"best closed form ({best})": closed, "seconds": seconds}
    if test:
        figures["test"] = _score(done.model, test[0])
    record.row(name, f"{model}, returned: {done.name or model}", **figures)
    shown = ", ".join(f"{key} {value:.4f}" for key, value in figures.items())
    print(f"{name}: {model}, returned {done.name or model}: {shown}", flush=True)
    record.bar(
        f"{name}, {model}: nats per event on dev above the best closed form",
        own - closed,
        least=-1e-4,
    )
    if test and model == "dapp":
        record.bar("nyc_delays, dapp: nats per event on test", figures["test"], least=NYC_TEST)


def _closed(name: str, train: Any) -> Any:
    import fourpoint as fp
    from fourpoint.models import MODELS

    model = MODELS[name](train.marks)
    fp.fit(model, train, train[:1], progress=False)
    return model


def _score(model: Any, data: Any) -> float:
    import fourpoint as fp

    return float(fp.evaluate(model, data).scores["window"].per_event)


def _seeds(record: Record, seeds: int) -> None:
    """DAPP on few sequences of a Hawkes process, with several seeds of its weights and of the
    split.
    """
    import fourpoint as fp
    from fourpoint.data.synthetic import simulate

    train, test = (
        simulate("hawkes", TRAIN_SEQUENCES, seed=1),
        simulate("hawkes", TEST_SEQUENCES, seed=99),
    )
    found = []
    for seed in range(seeds):
        model = fp.DAPP(train.marks, seed=seed)
        fp.fit(model, train, steps=STEPS, seed=seed, progress=False)
        report = fp.evaluate(model, test, truth="hawkes").to_dict()
        found.append((report["regret_per_event"], report["intensity_mse"]))
        print(
            f"hawkes, seed {seed}: regret {found[-1][0]:.5f}, squared error {found[-1][1]:.3f}",
            flush=True,
        )
    regret, error = (float(worst) for worst in np.array(found).max(0))
    record.row(
        f"{TRAIN_SEQUENCES} sequences of hawkes",
        f"dapp, worst of {seeds} seeds",
        regret=regret,
        error=error,
    )
    record.bar(f"hawkes, worst of {seeds} seeds: regret per event", regret, most=REGRET)
    record.bar(
        f"hawkes, worst of {seeds} seeds: squared error of the intensity", error, most=SQUARED_ERROR
    )


def _parts(name: str, folder: Path | None) -> list[Any] | None:
    """Training and development data, and test data where they are looked at; None where there are
    none.
    """
    import fourpoint as fp
    from fourpoint.data.synthetic import simulate

    if name == "nyc_delays":
        data = fp.load(name)
        return [data.part(part) for part in ("train", "dev", "test")]
    if name == "taxi":
        file = None if folder is None else folder / "taxi.parquet"
        if file is None or not file.is_file():
            return None
        data = fp.read(file)
        return [data.part("train"), data.part("dev")]
    made = {"calls": call_log, "hawkes": lambda: simulate("hawkes", 1000, seed=1), "log": long_log}[
        name
    ]()
    return list(made.split((0.9, 0.1), by="sequence", seed=0))


def call_log(days: int = 90, seed: int = 0) -> Any:
    """Days of calls in whole minutes: a Poisson process with a daily and a weekly rhythm."""
    from fourpoint.events import Dataset, Sequence

    rng, found = np.random.default_rng(seed), []
    for day in range(days):
        level = 9.2 * (0.6 if day % 7 >= 5 else 1.1)
        times = rng.uniform(0, 24, rng.poisson(2 * level * 24))
        kept = rng.uniform(0, 2, len(times)) < 1 + 0.9 * np.sin((times - 9) / 24 * 2 * np.pi)
        found.append(Sequence(np.sort(np.floor(times[kept] * 60) / 60), start=0.0, stop=24.0))
    return Dataset.from_sequences(found, unit="hours", name="calls")


def long_log(
    seed: int = 0, baseline: float = 0.5, branching: float = 0.5, decay: float = 2.0
) -> Any:
    """One sequence of a Hawkes process, drawn as clusters: immigrants, their offspring, and
    theirs.
    """
    from fourpoint.events import Dataset, Sequence

    rng, stop = np.random.default_rng(seed), LOG_EVENTS * (1 - branching) / baseline
    parents = rng.uniform(0, stop, rng.poisson(baseline * stop))
    times = [parents]
    while len(parents):
        children = rng.poisson(branching, len(parents))
        parents = np.repeat(parents, children) + rng.exponential(1 / decay, children.sum())
        parents = parents[parents < stop]
        times.append(parents)
    return Dataset.from_sequences(
        [Sequence(np.sort(np.concatenate(times)), start=0.0, stop=stop)], name="log"
    )


if __name__ == "__main__":
    main()
