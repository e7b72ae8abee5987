"""How fast a Hawkes process is fitted, beside HawkesPyLib and tick on the same events, and how
honest its intervals are.

    python benchmarks/hawkes.py [--events 100000 1000000] [--repeats 5] [--coverage 1000]
                                [--calendar 20000]

One sequence of each size is drawn from mu = .5, alpha = .5, beta = 1 as a branching process: exact,
and quick enough for a million events. Fourpoint and HawkesPyLib estimate all three numbers; tick is
given the true decay and estimates the other two (``gofit="likelihood"``, ``solver="bfgs"``; that
solver admits no penalty but a ridge, which is turned off with C = 1e12). Each attained
log-likelihood is computed by Fourpoint's exact function from the estimates. The window ends at the
last event, since tick knows no other. All run on one thread, in turn, after fits that take
compiling out of the times. HawkesPyLib starts from random values, with a fixed seed for each
repeat. What is not installed is shown as missing.

``--coverage N`` fits N data sets of 20 sequences on [0, 100) each and counts how often the truth
lies within 1.96 standard errors; 93 to 97 percent are expected of 1,000 intervals with a true level
of 95 percent.

``--calendar N`` times one sweep over N events of a Hawkes process whose baseline follows the hour
of the day (likelihood, gradient and information, of which a fit with a calendar takes dozens): the
kernel beside the same function in plain Python, in turn, in processor time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from records import Record, figure, options, ratios

from fourpoint import kernels
from fourpoint.events import Context, Dataset
from fourpoint.inference.sampling import sample
from fourpoint.kernels.numba_hawkes_effects import sweep as plain_sweep
from fourpoint.models import Hawkes
from fourpoint.models.effects import effects_of
from fourpoint.models.hawkes_effects import points_of
from fourpoint.ops.ages import timeline
from fourpoint.ops.excitation import log_likelihood

MU, ALPHA, BETA = 0.5, 0.5, 1.0
Times = NDArray[np.float64]
Estimates = tuple[float, float, float]
Fitter = Callable[[Times, Dataset, int], Estimates]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--coverage", type=int, default=0, help="data sets in the study of confidence intervals"
    )
    parser.add_argument(
        "--calendar", type=int, default=20_000, help="events of the part with a calendar; 0: none"
    )
    options(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    record = Record("hawkes", "Seconds to fit a Hawkes process, one thread.", given.quick)
    compiled = "numba" if find_spec("numba") else "without numba"
    print(
        f"one thread, {compiled}; medians of {given.repeats} fits after a warm-up, compiling "
        "excluded"
    )
    for events in given.events:
        compare(record, events, given.repeats)
    if given.calendar:
        calendar(record, given.calendar, given.repeats)
    if given.coverage:
        coverage(record, given.coverage)
    print(f"wrote {record.write(given.results)}")


def compare(record: Record, events: int, repeats: int) -> None:
    times = branching_process(events, seed=events)
    line, data = timeline(*_flat(times), 1), Dataset(*_flat(times), inferred=True)
    fourpoint(times, data, 0)  # loads the compiled loops, which small data do not use
    part = f"{len(times):,} events of mu = {MU}, alpha = {ALPHA}, beta = {BETA}"
    print(f"\n{part}")
    print(
        f"{'':22}{'seconds':>9}{'mu':>10}{'alpha':>10}{'beta':>10}"
        f"{'log-likelihood':>20}{'less ours':>12}"
    )
    runs: dict[str, list[tuple[float, Estimates]]] = {
        name: [] for name in FITTERS if ready(record, part, name, times[:2000])
    }
    for repeat in range(repeats):
        for name in runs:
            began = time.perf_counter()
            estimates = FITTERS[name](times, data, repeat)
            runs[name].append((time.perf_counter() - began, estimates))
    took = {name: figure([run[0] for run in each], "s") for name, each in runs.items()}
    attained = {
        name: max((log_likelihood(line, *_arrays(run[1])), run[1]) for run in each)
        for name, each in runs.items()
    }
    best = attained["Fourpoint"][0]
    for name, (value, estimates) in attained.items():
        numbers = "".join(f"{x:>10.5f}" for x in estimates)
        beside = ratios(took[name], took["Fourpoint"]) if name != "Fourpoint" else None
        values = dict(zip(("mu", "alpha", "beta"), estimates, strict=True))
        less = {
            "Fourpoint is N times faster": beside,
            "log-likelihood less Fourpoint's": value - best,
        }
        record.row(part, name, seconds=took[name], **values, **less)
        print(f"{name:22}{took[name]['median']:>9.3f}{numbers}{value:>20.6f}{value - best:>12.6f}")
        if beside:
            higher = "at least as high" if best >= value - 1e-12 * abs(value) else "LOWER"
            print(
                f"Fourpoint is {beside['median']:.1f} times as fast as {name}, its "
                f"log-likelihood {higher}"
            )


def calendar(record: Record, events: int, repeats: int) -> None:
    """One sweep of the likelihood with a calendar baseline, compiled and in plain Python."""
    times = branching_process(events, seed=1)
    flat = Dataset(*_flat(times), inferred=True)
    data = replace(flat, unit="hours", context=Context(origin=np.zeros(1)))
    points = points_of(data, effects_of(data, ("hour",)))
    theta = np.zeros((int(points.active.max()) + 1, 1))
    theta[0] = np.log(MU)
    given = (points, theta, np.full((1, 1, 1), ALPHA), np.array([BETA]), np.zeros(0))
    size = theta.size + 2
    sweeps = {"Fourpoint": kernels.HAWKES_EFFECTS.load(), "the same in plain Python": plain_sweep}
    took: dict[str, list[float]] = {name: [] for name in sweeps}
    values: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for name, sweep in sweeps.items():
            if name != "Fourpoint" and not repeat:
                continue  # the first round loads the kernel
            gradient, information = np.zeros(size), np.zeros((size, size))
            began = time.process_time()
            values[name] = sweep(*given, gradient, information)
            if repeat:
                took[name].append(time.process_time() - began)
    found = {name: figure(each, "s") for name, each in took.items()}
    part = f"calendar baseline, {len(times):,} events"
    print(f"\n{part}: one sweep, seconds of the processor")
    for name, seconds in found.items():
        beside = ratios(seconds, found["Fourpoint"]) if name != "Fourpoint" else None
        record.row(part, name, seconds=seconds, **{"Fourpoint is N times faster": beside})
        factor = f", {beside['median']:,.0f} times the kernel's" if beside else ""
        print(f"{name:26}{seconds['median']:>10.5f}{factor}")
    apart = abs(values["Fourpoint"] - values["the same in plain Python"])
    if apart > 1e-9 * abs(values["Fourpoint"]):
        raise RuntimeError(f"expected equal log-likelihoods; received values {apart:g} apart.")


def ready(record: Record, part: str, name: str, times: Times) -> bool:
    """Whether a library is there; a first small fit takes its compiling out of what is measured."""
    try:
        FITTERS[name](times, Dataset(*_flat(times), inferred=True), 0)
    except ImportError as error:
        print(f"{name:22}missing ({error})")
        record.missing(part, name, error)
        return False
    return True


def fourpoint(times: Times, data: Dataset, repeat: int) -> Estimates:
    model = Hawkes()
    model.maximum_likelihood(data)
    found = model.estimates
    return found["baseline"].item(), found["branching"].item(), found["decay"].item()


def hawkes_py_lib(times: Times, data: Dataset, repeat: int) -> Estimates:
    from HawkesPyLib import inference

    inference.rng = np.random.default_rng(repeat)
    mu, eta, theta = inference.ExpHawkesProcessInference().estimate(
        times, float(times[-1]), return_params=True
    )
    return float(mu), float(eta), 1 / float(theta)


def tick(times: Times, data: Dataset, repeat: int) -> Estimates:
    from tick.hawkes import HawkesExpKern

    learner = HawkesExpKern(BETA, gofit="likelihood", solver="bfgs", penalty="l2", C=1e12)
    learner.fit([[times]])
    return learner.baseline.item(), learner.adjacency.item(), BETA


FITTERS: dict[str, Fitter] = {
    "Fourpoint": fourpoint,
    "HawkesPyLib": hawkes_py_lib,
    "tick, decay given": tick,
}


def _flat(times: Times) -> tuple[Times, NDArray[np.int64], NDArray[np.int64], Times, Times]:
    """One sequence as a data set or a timeline holds it; the window is [0, last event]."""
    return (
        times.copy(),
        np.zeros(len(times), dtype=np.int64),
        np.array([0, len(times)]),
        np.zeros(1),
        times[-1:].copy(),
    )


def _arrays(estimates: Estimates) -> tuple[Times, Times, Times]:
    mu, alpha, beta = estimates
    return np.array([mu]), np.array([[[alpha]]]), np.array([beta])


def branching_process(events: int, seed: int) -> Times:
    """About so many events: immigrants at rate mu, each event with a Poisson number of offspring at
    exponential distances.
    """
    rng = np.random.default_rng(seed)
    stop = events * (1 - ALPHA) / MU
    born = rng.uniform(0, stop, rng.poisson(MU * stop))
    all_times = [born]
    while len(born):
        children = rng.poisson(ALPHA, len(born))
        born = np.repeat(born, children) + rng.exponential(1 / BETA, children.sum())
        born = born[born < stop]
        all_times.append(born)
    return np.sort(np.concatenate(all_times))


def coverage(record: Record, studies: int, sequences: int = 20, stop: float = 100.0) -> None:
    truth = dict(baseline=MU, branching=ALPHA, decay=BETA)
    everything = sample(Hawkes(**truth), 0.0, stop, studies * sequences, seed=7)
    print(
        f"\n{studies:,} data sets of {sequences} sequences on [0, {stop:g}), "
        f"{everything.events / studies:,.0f} events each"
    )
    scores = []
    began = time.perf_counter()
    for study in range(studies):
        model = Hawkes()
        model.maximum_likelihood(everything[study * sequences : (study + 1) * sequences])
        scores.append(
            [((model.estimates[name] - truth[name]) / model.errors[name]).item() for name in truth]
        )
    print(f"{(time.perf_counter() - began) / studies * 1000:.1f} ms for each fit")
    z = np.array(scores)
    print(f"{'':12}{'within 1.96 errors':>20}{'mean of z':>12}{'spread of z':>12}")
    for name, column in zip(truth, z.T, strict=True):
        inside = float(np.mean(np.abs(column) <= 1.96))
        record.row(
            f"intervals of {studies:,} data sets",
            name,
            **{"share within 1.96 errors": inside, "spread of z": float(column.std())},
        )
        print(f"{name:12}{inside:>20.1%}{column.mean():>12.3f}{column.std():>12.3f}")


if __name__ == "__main__":
    main()
