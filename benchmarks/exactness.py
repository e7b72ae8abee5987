"""Is the sampler exact? Every model's own samples, rescaled by its own integral; four rates with a
known mean; coverage.

    python benchmarks/exactness.py [--gaps 20000] [--forecasts 5000]

Each row samples enough paths for ``--gaps`` events, lays the windows end to end and tests the
rescaled gaps against the unit exponential. With about 20 rows and three p-values each, one below
.001 is expected once in 17 runs of a true sampler. Mean count against mean integral is in standard
errors. Last, the 90% interval of the next event's time is checked on ``--forecasts`` simulated
Hawkes histories with the true model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from records import Record, options

import fourpoint.models
from fourpoint.data.synthetic import simulate
from fourpoint.inference.forecasting import forecast
from fourpoint.inference.goodness import goodness_of_fit
from fourpoint.inference.sampling import sample, sample_paths
from fourpoint.models import DAPP, Hawkes, Poisson, SelfCorrecting, SplinePoisson
from fourpoint.ops.thinning import next_by_inversion, next_by_thinning

DRAWS = 4000
FIRST = 500  # paths that tell how many events a model has


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gaps", type=int, default=20_000)
    parser.add_argument("--forecasts", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    record = Record("exactness", "Is the sampler exact?", given.quick)
    known_means(record, given.seed)
    if given.gaps:
        rescaled(record, given.gaps, given.seed)
    if given.forecasts:
        coverage(record, given.forecasts, given.seed)
    print(f"wrote {record.write(given.results)}")


def known_means(record: Record, seed: int) -> None:
    """Four rates of the time s since the last event, with the mean of the next."""

    def bump(s: torch.Tensor) -> torch.Tensor:
        return 0.1 + 5 * torch.exp(-((s - 2) ** 2) / 0.1)

    rates: dict[str, tuple[Any, Any, float]] = {
        "0.05": (lambda s: 0 * s + 0.05, lambda a, b: 0 * a + 0.05, 20.0),
        "0.1 + s": (lambda s: 0.1 + s, lambda a, b: 0.1 + b, 1.159),
        "0.1 + 5 exp(-(s-2)^2/.1)": (
            bump,
            lambda a, b: bump(torch.minimum(torch.maximum(a, 0 * a + 2), b)),
            2.184,
        ),
        "0.1 + 3 exp(-3 s)": (
            lambda s: 0.1 + 3 * torch.exp(-3 * s),
            lambda a, b: 0.1 + 3 * torch.exp(-3 * a),
            3.836,
        ),
    }
    print(
        f"{'rate':28}{'truth':>8}{'thinning':>18}{'inversion':>18}   (mean of {DRAWS:,} "
        "draws, standard errors off)"
    )
    zero = torch.zeros(DRAWS, dtype=torch.float64)
    for name, (rate, bound, mean) in rates.items():
        random = torch.Generator().manual_seed(seed + 1)
        thinned = next_by_thinning(
            lambda t, f=rate: f(t)[..., None], bound, zero, zero + 1e4, zero + 1, random
        )
        inverted = next_by_inversion(
            lambda t, f=rate: f(t)[..., None], zero, zero + 1e4, zero + 0.25, random
        )
        cells = [
            f"{x.mean():10.3f} ({(x.mean() - mean) / x.std() * DRAWS**0.5:+.1f})"
            for x in (thinned, inverted)
        ]
        told = dict(truth=mean, thinning=cells[0].strip(), inversion=cells[1].strip())
        record.row(f"means of {DRAWS:,} draws at known rates (standard errors off)", name, **told)
        print(f"{name:28}{mean:8.3f}" + "".join(f"{cell:>18}" for cell in cells))


def dapp(**settings: Any) -> Callable[[], DAPP]:
    """A small DAPP of three marks, with attention strong enough to matter."""

    def build() -> DAPP:
        model = DAPP(3, heads=2, eval_features=32, generator=(16,), knots=6, **settings)
        model.initialise(sample(Hawkes(3, baseline=3.3, branching=1.0), 0.0, 1.0, 200))
        random = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter += 0.15 * torch.randn(parameter.shape, generator=random)
            if settings.get("normalise", "none") == "none":  # a sum that is too strong explodes
                model.value_weight.clamp_(
                    *((-5.0, -3.0) if settings.get("link") == "identity" else (-0.2, 0.08))
                )
        return model.eval()

    return build


def network(name: str) -> Callable[[], Any]:
    """A small neural baseline of three marks, moved off its first weights."""

    def build() -> Any:
        model = fourpoint.models.MODELS[name](3, hidden=8)
        model.initialise(sample(Hawkes(3, baseline=3.3, branching=1.0), 0.0, 1.0, 200))
        random = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter += 0.15 * torch.randn(
                        parameter.shape, generator=random, dtype=parameter.dtype
                    )
        return model.eval()

    return build


def spline_poisson() -> SplinePoisson:
    model = SplinePoisson(knots=6)
    model.initialise(simulate("hawkes", 200))
    with torch.no_grad():
        model.coefficients.add_(
            torch.randn(model.coefficients.shape, generator=torch.Generator().manual_seed(1))
        )
    return model


MODELS: dict[str, Callable[[], Any]] = {
    **{f"DAPP none, {link}": dapp(link=link) for link in ("exp", "softplus", "identity")},
    **{
        f"DAPP {n}, {link}": dapp(normalise=n, link=link)
        for n in ("ratio", "softmax")
        for link in ("exp", "softplus")
    },
    "DAPP none, affine": dapp(values="affine", link="softplus"),
    "DAPP ratio, affine": dapp(normalise="ratio", values="affine"),
    "DAPP none, random phase": dapp(phase="random"),
    "DAPP none, dense": dapp(form="dense"),
    "ODAPP none": dapp(keep=5),
    "ODAPP softmax": dapp(keep=5, normalise="softmax"),
    "DAPP dot, softmax": dapp(score="dot", normalise="softmax"),
    "DAPP neural, softmax": dapp(score="neural", normalise="softmax"),
    **{name: network(name) for name in ("rmtpp", "nhp", "sahp", "thp")},
    "Hawkes": lambda: Hawkes(baseline=10.0, branching=1.0),
    "self-correcting": lambda: SelfCorrecting(drift=10.0, correction=1.0),
    "Poisson": lambda: poisson(15.0),
    "spline Poisson": spline_poisson,
}


def poisson(rate: float) -> Poisson:
    model = Poisson()
    with torch.no_grad():
        model.log_rate.fill_(np.log(rate))
    return model


def rescaled(record: Record, gaps: int, seed: int) -> None:
    columns = {
        "method": 11,
        "events": 9,
        "accepted": 10,
        "KS": 9,
        "p": 8,
        "uniform p": 11,
        "Ljung-Box p": 13,
        "count - integral": 18,
    }
    print(f"\n{'model':28}" + "".join(f"{name:>{width}}" for name, width in columns.items()))
    for row, (name, build) in enumerate(MODELS.items()):
        model = build()
        few = sample(model, 0.0, 1.0, FIRST, seed=seed).events / FIRST
        methods = (
            ("thinning", "inversion") if name in ("DAPP none, exp", "Hawkes") else ("thinning",)
        )
        for method in methods:
            paths = sample_paths(
                model,
                0.0,
                1.0,
                int(np.ceil(1.02 * gaps / few)),
                seed=1000 * seed + row,
                method=method,
            )
            v = goodness_of_fit(model, paths.data).total
            off = (v.count - v.expected) / np.sqrt(v.expected)
            accepted = f"{paths.acceptance:.0%}" if method == "thinning" else "-"
            cells = (
                f"{method:>11}{v.count:>9,}{accepted:>10}{v.ks:>9.4f}{v.ks_p:>8.3f}"
                f"{v.uniform_p:>11.3f}{v.ljung_box_p:>13.3f}"
            )
            told = {
                "events": v.count,
                "accepted": accepted,
                "KS": v.ks,
                "KS p": v.ks_p,
                "uniform p": v.uniform_p,
            }
            more = {
                "Ljung-Box p": v.ljung_box_p,
                "count less integral, standard errors": float(off),
            }
            record.row(
                "samples rescaled by their own integral", f"{name}, {method}", **told, **more
            )
            print(f"{name:28}{cells}{off:>+13.2f} s.e.", flush=True)


def coverage(record: Record, count: int, seed: int) -> None:
    model = Hawkes(baseline=1.0, branching=0.6, decay=2.0)
    cases = sample(model, 0.0, 40.0, count, seed=seed + 2)
    began, inside = time.perf_counter(), 0
    for s in cases:
        low, high = forecast(model, s, horizon=1.0, paths=1, at=5.0).next_event.interval
        future = s.times[s.times >= 5.0]
        inside += low <= (future[0] if len(future) else np.inf) <= high
    each = 1e3 * (time.perf_counter() - began) / count
    told = {"covered": float(inside / count), "ms each": each}
    record.row("90% intervals of the next event's time", f"{count:,} Hawkes forecasts", **told)
    print(
        f"\nthe next event's 90% interval covers {inside / count:.2%} of {count:,} Hawkes "
        f"forecasts ({each:.1f} ms each)"
    )


if __name__ == "__main__":
    main()
