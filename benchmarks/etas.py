"""ETAS: recovery of known parameters, the likelihood against full sums, simulation, speed and the
growth of cost, and the EarthquakeNPP benchmark.

    python benchmarks/etas.py [--only recovery likelihood simulation kernels terms speed sanjac
        japan csep] [--data DIR] [--events 20000] [--catalogues 10]
        [--sizes 12500 25000 50000 100000]

Catalogues are simulated with known parameters in a region of 120 by 100 km. `sanjac` and `japan`
fit `DIR/sanjac_10.parquet` and `DIR/japan_25.parquet` and score the test years in nats per event
(days and km^2, events before as history), and `csep` tests daily forecasts of the former. Times are
processor seconds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from records import Record, exponent, figure, options

import fourpoint as fp
from fourpoint.data.readers import Asked, read_with_notes
from fourpoint.events import Box, Context, Dataset, MarkSpace
from fourpoint.inference.csep import daily_tests
from fourpoint.inference.sampling import sample_paths
from fourpoint.models.etas import ETAS
from fourpoint.models.etas_fit import Log, bandwidths, leave_one_out, log_likelihood
from fourpoint.ops import smoothing, triggering

PARTS = (
    "recovery",
    "likelihood",
    "simulation",
    "kernels",
    "terms",
    "speed",
    "sanjac",
    "japan",
    "csep",
)
LOOKED_AT = 1000  # events whose terms are counted and compared with full sums
REGION = MarkSpace(box=Box(("x", "y"), (0.0, 0.0), (120.0, 100.0)))
TRUTH = dict(mu=3.0, K=0.25, alpha=1.3, c=0.01, p=1.25, d=0.5, q=1.7, gamma=1.0)
DAYS_PER_EVENT = 1 / 7.4  # of the process below, if its region had no edges
FEWER = 1.19  # events of the same without edges, for each event
NEIGHBOUR = 20  # whose distance is the bandwidth of the background that is timed
OMEGA = 2  # where the taper is in theta; the simulated process has none
PUBLISHED = -4.266  # ETAS on SanJac_10, temporal 1.133 and spatial -5.398


def truth() -> ETAS:
    """The process of the simulations: m_c 2, b-value 1, uniform background."""
    return ETAS(
        REGION,
        baseline=TRUTH["mu"],
        productivity=TRUTH["K"],
        alpha=TRUTH["alpha"],
        c=TRUTH["c"],
        p=TRUTH["p"],
        taper=None,
        distance=TRUTH["d"],
        q=TRUTH["q"],
        gamma=TRUTH["gamma"],
        mc=2.0,
        b=1.0,
        background="uniform",
    )


def catalogue(events: int, seed: int) -> Dataset:
    """A catalogue of about so many events, the first tenth of its time history."""
    stop = events * DAYS_PER_EVENT
    drawn = sample_paths(truth(), 0.0, stop, 1, seed, most=10 * events).data
    return replace(drawn, context=Context(scored_from=np.array([stop / 10])), unit="days")


def fitted(data: Dataset) -> tuple[ETAS, float]:
    """A fit from default starting values, and its processor seconds."""
    model = ETAS(data.marks, background="uniform", taper=None)
    model.add_event_features(data)
    model.initialise(data)
    began = time.process_time()
    model.maximum_likelihood(data)
    return model, time.process_time() - began


def recovery(record: Record, given: argparse.Namespace) -> None:
    """Estimates within three standard errors of the truth."""
    within = 0
    total = 0
    for seed in range(given.catalogues):
        data = catalogue(given.events, seed)
        model, seconds = fitted(data)
        found = model.estimates()
        away = {k: (found[k] - TRUTH[k]) / model.errors.get(k, float("nan")) for k in TRUTH}
        within += sum(abs(x) <= 3 for x in away.values())
        total += len(away)
        shown = {k: f"{x:+.2f}" for k, x in away.items()}
        record.row("errors over standard errors", f"{data.events:,} events, seed {seed}", **shown)
        print(f"{data.events:,} events, {seconds:.1f} s: " + str(shown), flush=True)
    share = within / total
    record.bar("parameters within three standard errors", share, least=0.95)


def full_sum(model: ETAS, log: Log) -> float:
    """The log-likelihood from all pairs, in plain numpy."""
    from fourpoint.ops import omori, regions

    e = model.estimates()
    t, where = log.sources.times.numpy(), log.sources.places.numpy()
    delta = log.sources.delta.numpy()
    width = e["d"] ** 2 * np.exp(e["gamma"] * delta)
    kappa = e["K"] * np.exp(e["alpha"] * delta)
    total = 0.0
    for j in log.scored.numpy():
        g = (e["p"] - 1) / e["c"] * (1 + (t[j] - t[:j]) / e["c"]) ** -e["p"]
        r2 = ((where[j] - where[:j]) ** 2).sum(1)
        f = (e["q"] - 1) / (np.pi * width[:j]) * (1 + r2 / width[:j]) ** -e["q"]
        total += np.log(e["mu"] / model.area + (kappa[:j] * g * f).sum())
    ((begin, stop, _),) = log.pieces
    p, c, q = (torch.tensor(e[k], dtype=torch.float64) for k in ("p", "c", "q"))
    late = omori.cumulative(torch.from_numpy(np.maximum(stop - t, 0)), p, c)
    soon = omori.cumulative(torch.from_numpy(np.maximum(begin - t, 0)), p, c)
    share = regions.mass(log.sources.places, torch.from_numpy(width), model.corners, q, 64)
    inside = float((torch.from_numpy(kappa) * (late - soon) * share).sum())
    return total - e["mu"] * (stop - begin) - inside


def likelihood(record: Record, given: argparse.Namespace) -> None:
    """The likelihood beside a brute-force double sum: full sums, and groups of events."""
    data = catalogue(given.events // 4, 0)
    model = truth()
    log = Log(model, data.batch())
    with torch.no_grad():
        exact = full_sum(model, log)
        events = data.scored_events
        pairs = (float(log_likelihood(model, [log])) - float(exact)) / events
        theta = model.strengths().theta()
        log.plan = triggering.Planned(log.sources, log.queries, theta, log.floor(model))
        groups = (float(log_likelihood(model, [log])) - float(exact)) / events
    figures = {"all pairs": f"{pairs:.1e}", "groups": f"{groups:.1e}"}
    record.row("difference from a double sum, nats per event", f"{events:,} events", **figures)
    print(f"difference from a double sum, nats per event: {figures}")
    record.bar("all pairs, nats per event", abs(pairs), most=1e-6)
    record.bar("groups of events, nats per event", abs(groups), most=1e-3)


def simulation(record: Record, given: argparse.Namespace) -> None:
    """Mean counts of simulated catalogues against the integral of their own rates."""
    model = truth()
    stop = 20.0
    paths = sample_paths(model, 0.0, stop, 2000 if not given.quick else 100, 1).data
    with torch.no_grad():
        parts = []
        for rows in paths.batches(64):
            batch = paths.batch(rows)
            history = model.encode(batch)
            integral = model.closed_integral(history, batch.edges[:, :-1], batch.edges[:, 1:])
            parts.append(batch.lengths - integral.sum((1, 2)))
    excess = torch.cat(parts).numpy()
    z = float(excess.mean() / (excess.std(ddof=1) / np.sqrt(len(excess))))
    name = f"{len(paths):,} catalogues, mean count {paths.lengths.mean():.2f}"
    record.row("simulation", name, **{"count less integral, standard errors": f"{z:+.2f}"})
    print(f"{name}: count less integral {z:+.2f} standard errors")
    record.bar("simulated counts less their integral, standard errors", abs(z), most=3)


def kernels_row(record: Record, given: argparse.Namespace) -> None:
    """Each kernel beside its plain counterpart."""
    events = min(5000, given.events)
    model = truth()
    log = Log(model, catalogue(events, 0).batch())
    theta = model.strengths().theta().detach()
    floor = log.floor(model)
    plan = triggering.Planned(log.sources, log.queries, theta, floor)
    places = log.sources.places
    variances = torch.full((len(places),), 1.0, dtype=torch.float64)
    weights = variances / len(places)

    def gradient(sums: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
        def one() -> object:
            point = theta.clone().requires_grad_()
            return torch.autograd.grad((sums(point) + floor).log().sum(), point)

        return one

    def full(point: torch.Tensor) -> torch.Tensor:
        return triggering.trigger_sums(log.sources, log.queries, point)

    def plain(point: torch.Tensor) -> torch.Tensor:
        return triggering.plain_trigger_sums(log.sources, log.queries, point)

    given_places = (places, places, variances, weights)
    for row, ours, theirs in (
        ("one gradient of the likelihood", gradient(full), gradient(plain)),
        ("one gradient of the likelihood by groups", gradient(plan), gradient(plain)),
        (
            "background density at",
            lambda: smoothing.smoothed(*given_places),
            lambda: smoothing.plain_smoothed(*given_places),
        ),
    ):
        kernel, reference = (seconds(run, given.repeats) for run in (ours, theirs))
        ratio = reference / kernel
        name = f"{row}, {len(places):,} events"
        record.row("kernels", name, kernel=f"{kernel:.3g} s", plain=f"{reference:.3g} s")
        print(f"{name}: {kernel:.3g} s, plain {reference:.3g} s, factor {ratio:.1f}", flush=True)


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The median processor time, after one run that compiles."""
    run()
    found = []
    for _ in range(repeats):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return max(float(np.median(found)), 1e-9)


def terms(record: Record, given: argparse.Namespace) -> None:
    """Terms per event of the sums in groups at growing numbers of events, their error, and how far
    its scores move estimates, in standard errors.
    """
    sizes, counts = [], []
    for size in given.sizes:
        data = catalogue(round(size * FEWER), 1)
        model = truth()
        log = Log(model, data.batch())
        theta = model.strengths().theta().detach()
        log.look_at(LOOKED_AT, log.tolerance)
        floor = log.floor(model)
        plan = triggering.Planned(log.sources, log.queries, theta, floor)
        exact, by_exact = triggering.sums_with_derivatives(log.sources, log.queries, theta)
        found, by_found = triggering.sums_with_derivatives(log.sources, log.queries, theta, plan)
        change = ((found + floor) / (exact + floor)).log()
        free = [k for k in range(len(theta)) if k != OMEGA]
        scores = (by_exact / (exact + floor)[:, None])[:, free]
        off = (by_found / (found + floor)[:, None])[:, free] - scores
        inverse = torch.linalg.inv(scores.T @ scores)
        shift = (inverse @ off.sum(0)).abs() / inverse.diag().sqrt()
        sizes.append(data.events)
        counts.append(plan.entries)
        figures = {
            "terms per event": f"{plan.entries:.1f}",
            "log rates, mean error": f"{float(change.mean()):+.1e}",
            "size": f"{float(change.abs().mean()):.1e}",
            "shift of estimates, standard errors": f"{float(shift.max()):.3f}",
        }
        record.row("terms", f"{data.events:,} events", **figures)
        print(f"{data.events:,} events: {figures}", flush=True)
    if len(sizes) > 1:
        blocks = [np.log2(size / 32) for size in sizes]
        power = f"{exponent(sizes, counts):.2f}"
        in_blocks = f"{exponent(blocks, counts):.2f}"
        row = {"in events": power, "in blocks, log2(n / 32)": in_blocks}
        record.row("terms", "exponent of their number", **row)
        print(f"terms per event grow as events^{power} and as log2(events / 32)^{in_blocks}")


def speed(record: Record, given: argparse.Namespace) -> None:
    """Terms per event and processor seconds of growing catalogues: a plan of the sums in groups,
    one pass with derivatives, one update of a background of kernels, and the fit. The size is the
    number of events, to some percent.
    """
    fitted(catalogue(3000, 0))  # compiles
    costs: dict[str, list[float]] = {}
    sizes = []
    for size in given.sizes:
        data = catalogue(round(size * FEWER), 1)
        terms, said, found = parts_of_a_fit(data)
        began = time.monotonic()
        _, found["fit"] = fitted(data)
        passed = time.monotonic() - began
        sizes.append(data.events)
        for name, value in {**found, "terms": terms}.items():
            costs.setdefault(name, []).append(value)
        shown = {name: figure([seconds], "s") for name, seconds in found.items()}
        shown |= {"clock of the fit": figure([passed], "s"), "terms per event": f"{terms:.1f}"}
        record.row("speed", f"{data.events:,} events", **shown)
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in found.items())
        print(
            f"{data.events:,} events: {terms:.1f} terms per event, {said}; processor seconds: "
            f"{parts} ({passed:.1f} s by the clock, load {os.getloadavg()[0]:.1f})",
            flush=True,
        )
    if len(sizes) > 1:
        powers = {name: f"{exponent(sizes, values):.2f}" for name, values in costs.items()}
        record.row("speed", "exponent in the number of events", **powers)
        print(f"exponents in the number of events: {powers}")


def parts_of_a_fit(data: Dataset) -> tuple[float, str, dict[str, float]]:
    """Terms per event, the error of log rates in words, and processor seconds, at the truth."""
    model = truth()
    log = Log(model, data.batch())
    theta = model.strengths().theta().detach()
    floor = log.floor(model)
    places = log.sources.places

    def plan() -> triggering.Planned:
        return triggering.Planned(log.sources, log.queries, theta, floor)

    def update() -> torch.Tensor:
        width = bandwidths(model, places, NEIGHBOUR).square()
        weights = torch.full_like(width, 1 / len(width))
        kernels = torch.cat([places, width[:, None], weights[:, None]], 1)
        return leave_one_out(model, kernels, log.used)

    groups = plan()
    found = {
        "plan": once(plan),
        "sums": once(lambda: groups.run(theta, differentiated=True)),
        "background": once(update),
    }
    bias, error = triggering.tree_error(groups, theta, floor)
    said = f"log rates off by {bias:+.1e} on average and {error:.1e} in size"
    return groups.entries, said, found


def once(run: Callable[[], object]) -> float:
    """The processor seconds of one run."""
    began = time.process_time()
    run()
    return time.process_time() - began


def read_catalogue(path: Path) -> Dataset:
    """A catalogue of the benchmark with its columns x, y and magnitude."""
    asked = Asked(place=("x", "y"), event_features="magnitude")
    return read_with_notes(path, asked).data


def real(name: str) -> Callable[[Record, argparse.Namespace], None]:
    """The benchmark on a real catalogue."""

    def run(record: Record, given: argparse.Namespace) -> None:
        path = given.data / f"{name}.parquet"
        if not path.exists():
            record.missing("EarthquakeNPP", name, f"{path.name} is not in the folder --data")
            return
        data = read_catalogue(path)
        first, second = data.log.split_at
        train = data.between(None, first)
        model = ETAS(data.marks)
        began = time.process_time()
        found = fp.fit(model, train, data.between(first, second), progress=False)
        spent = time.process_time() - began
        print("\n".join(found.notes))
        report = fp.evaluate(model, data.between(second, None)).to_dict()
        figures = {
            key.split("_")[0]: f"{report[key]:.4f}"
            for key in ("temporal_log_likelihood_per_event", "spatial_log_likelihood_per_event")
        }
        total = report["log_likelihood_per_event"]
        record.row("EarthquakeNPP", name, total=f"{total:.4f}", **figures)
        print(f"{name}: total {total:.4f}, {figures}, fit {spent:.0f} processor s", flush=True)
        if name == "sanjac_10" and not given.quick:
            record.bar("SanJac_10, nats per test event", total, least=PUBLISHED)
        given.models[name] = (model, data.between(second, None))

    return run


def csep(record: Record, given: argparse.Namespace) -> None:
    """Daily forecasts of the test years of SanJac_10."""
    if "sanjac_10" not in given.models:
        real("sanjac_10")(record, given)
    if "sanjac_10" not in given.models:
        return
    model, test = given.models["sanjac_10"]
    found = daily_tests(model, test, catalogues=200, most=given.days)
    figures = {
        "number": f"{found.number:.3f}",
        "spatial": f"{found.spatial:.3f}",
        "magnitude": f"{found.magnitude:.3f}",
        "pseudo-likelihood": f"{found.pseudo_likelihood:.3f}",
    }
    record.row("CSEP tests passed, nominal 0.95", f"{found.days} daily forecasts", **figures)
    print(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--catalogues", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[12_500, 25_000, 50_000, 100_000])
    parser.add_argument("--days", type=int, default=None, help="daily forecasts, at most")
    parser.add_argument("--repeats", type=int, default=3)
    options(parser)
    given = parser.parse_args()
    given.models = {}
    record = Record("etas", "ETAS on simulated catalogues and on EarthquakeNPP.", given.quick)
    runs = {
        "recovery": recovery,
        "likelihood": likelihood,
        "simulation": simulation,
        "kernels": kernels_row,
        "terms": terms,
        "speed": speed,
        "sanjac": real("sanjac_10"),
        "japan": real("japan_25"),
        "csep": csep,
    }
    for name in given.only:
        runs[name](record, given)
    print(f"wrote {record.write(given.results)}")


if __name__ == "__main__":
    main()
