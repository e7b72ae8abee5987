"""Results of saved models with fixed seeds: likelihoods, gradients of the training objective,
samples, forecasts and streams.

``PYTHONPATH=tests python -m reference.regression`` builds the models, saves them under
``tests/reference/models`` and writes what they give to ``tests/reference/regression.json``. It was
run once, before the code was restructured; ``tests/test_regression.py`` restores the saved models
and compares. Run it again only for a result that is meant to change, and name that result and the
reason in CHANGELOG.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fourpoint as fp

HERE = Path(__file__).parent
MODELS, FIGURES = HERE / "models", HERE / "regression.json"
BOX = fp.Box(("east", "north"), (-2.0, 10.0), (3.0, 14.0))
PAPER: dict[str, Any] = dict(features=6, eval_features=16, generator=(8,), width=2)
DAPP: dict[str, Any] = dict(heads=2, features=6, eval_features=16, generator=(8,), knots=4)
# name: (constructor in `fp.MODELS`, settings)
BUILD: dict[str, tuple[str, dict[str, Any]]] = {
    "dapp": ("dapp", dict(base="constant", drift="none", **DAPP)),
    "dapp-splines": ("dapp", dict(base="spline", drift="spline", **DAPP)),
    "dapp-ratio": ("dapp", dict(normalise="ratio", values="affine", **DAPP)),
    "dapp-identity": ("dapp", dict(link="identity", **DAPP)),
    "dapp-paper": ("dapp-paper", PAPER),
    "dapp-paper-dot": ("dapp-paper-dot", PAPER),
    "dapp-paper-nn": ("dapp-paper-nn", PAPER),
    "odapp": ("odapp", {**DAPP, "keep": 3}),
    "odapp-paper": ("odapp-paper", {**PAPER, "keep": 3}),
    "deep-dapp": ("deep-dapp", dict(layers=2, width=8, modes=4, rhythms=2, sinusoids=2)),
    "hawkes": ("hawkes", dict(exponentials=2)),
    "nhp": ("nhp", dict(hidden=5, embedding=3)),
    "poisson": ("poisson", {}),
    "spline-poisson": ("spline-poisson", dict(knots=4)),
    "rmtpp": ("rmtpp", dict(hidden=5)),
    "sahp": ("sahp", dict(hidden=8, layers=2, heads=2)),
    "thp": ("thp", dict(hidden=8, layers=2, heads=2)),
    "self-correcting": ("self-correcting", {}),
    "dapp-places": (
        "spatial-dapp",
        dict(heads=2, frequencies=2, generator=(8,), order=8, knots=4, cells=2),
    ),
    "hawkes-places": ("spatial-hawkes", dict(cells=2)),
    "poisson-places": ("poisson", dict(cells=3)),
    "spline-poisson-places": ("spline-poisson", dict(knots=4)),
}


def space(name: str) -> fp.MarkSpace:
    """One type for the self-correcting process, three for all others; places where the name says
    so.
    """
    names = () if name == "self-correcting" else ("a", "b", "c")
    return fp.MarkSpace(names, BOX) if name.endswith("-places") else fp.MarkSpace(names)


def data(name: str) -> fp.Dataset:
    """Six sequences of 0 to 40 events with ties, in windows that begin anywhere."""
    marks = space(name)
    rng = np.random.default_rng(3)
    sequences = []
    for i, n in enumerate((24, 0, 40, 1, 12, 30)):
        times = np.sort(rng.uniform(2.0 + i, 12.0 + i, n))
        if n > 4:
            times[3:5] = times[2]
        types = rng.integers(0, marks.count, n)
        places = rng.uniform(BOX.low, BOX.high, (n, 2))
        kept = places if marks.box else None
        start, stop = 1.5 + i, 12.5 + i
        sequences.append(
            fp.Sequence(times, types, start=start, stop=stop, space=marks, places=kept)
        )
    return fp.Dataset.from_sequences(sequences)


def build(name: str) -> Any:
    """The model with its choices taken from the data, every weight moved off its starting value."""
    kind, settings = BUILD[name]
    given = {} if name == "self-correcting" else {"marks": space(name)}
    model = fp.MODELS[kind](**given, **settings)
    model.initialise(data(name))
    random = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(
                    parameter.shape, generator=random, dtype=parameter.dtype
                )
    return model.eval()


def numbers(value: Any) -> list[float]:
    """``value``, however nested, as a flat list of float64."""
    if isinstance(value, torch.Tensor):
        return value.detach().double().flatten().tolist()
    if isinstance(value, dict):
        return [x for key in sorted(value) for x in numbers(value[key])]
    if isinstance(value, (list, tuple)):
        return [x for part in value for x in numbers(part)]
    if value is None or isinstance(value, str):
        return []
    return np.asarray(value, dtype=np.float64).flatten().tolist()


def likelihoods(model: Any, name: str, precise: bool) -> dict[str, list[float]]:
    """Both conventions, with integrals refined to far below the digits that are compared."""
    batch = data(name).batch()
    tolerance = 1e-10 if precise else 1e-4
    found = {
        f"log-likelihood, {convention}": numbers(
            fp.log_likelihood(model, batch, convention=convention, tolerance=tolerance).value
        )
        for convention in ("window", "gaps")
    }
    first = data(name)[0]
    found["intensity"] = numbers(
        fp.intensity(model, first, np.linspace(first.start, first.stop, 7))
    )
    return found


def objective(model: Any, name: str) -> dict[str, list[float]]:
    """The training objective with fixed nodes, and the norm of its gradient."""
    from fourpoint.inference.likelihood import sampled_log_likelihood

    random = torch.Generator().manual_seed(5)
    total = sampled_log_likelihood(model, data(name).batch(), 4, random=random)
    weights = [w for w in model.parameters() if w.requires_grad]
    gradients = torch.autograd.grad(total.sum(), weights, allow_unused=True)
    norm = sum(float((g.double() ** 2).sum()) for g in gradients if g is not None) ** 0.5
    return {"training objective": numbers(total), "gradient norm": [norm]}


def sampled(model: Any, name: str) -> dict[str, list[float]]:
    """Paths from an empty start and after a history, and a forecast."""
    history = data(name)[4]
    fresh = fp.sample(model, 0.0, 6.0, 4, seed=1)
    after = fp.sample(model, history.stop, history.stop + 3.0, 3, seed=2, history=history)
    forecast = fp.forecast(model, history, horizon=3.0, paths=40, seed=3).to_dict()
    # Parts that forecasts did not have when this was recorded.
    del forecast["whole"], forecast["next_event"]["regions"]
    found = {
        "samples": [numbers(s.times) + numbers(s.marks) for s in (*fresh, *after)],
        "forecast": forecast,
    }
    found["forecast"] = numbers(found["forecast"])[
        ::9
    ]  # quantiles of counts and rates: neighbours are alike
    return {key: numbers(value) for key, value in found.items()}


def streamed(model: Any, name: str) -> dict[str, list[float]]:
    """Rates of a stream that is fed one event at a time, and at the end of its window."""
    history = data(name)[0]
    stream = fp.Stream(model, start=history.start, alarms=None)
    pairs = zip(history.times.tolist(), history.marks.tolist(), strict=True)
    rates = [stream.observe(time, mark).rate for time, mark in pairs]
    stream.advance(history.stop)
    return {"stream": [*rates, *numbers(stream.intensity(history.stop))]}


def record(model: Any, name: str, precise: bool) -> dict[str, list[float]]:
    """All results of a model; samples in float64 only, since a rounded rate may change which
    candidates are accepted.
    """
    found = {**likelihoods(model, name, precise), **objective(model, name)}
    if precise:
        found |= sampled(model, name)
        if not name.endswith("-places"):
            found |= streamed(model, name)
    return found


def fitted() -> dict[str, list[float]]:
    """Closed-form fits and a few training steps on a simulated Hawkes process."""
    events = fp.simulate("hawkes", 30, seed=4)
    train, dev = events[:20], events[20:]
    found = {}
    for name in ("poisson", "spline-poisson", "hawkes"):
        model = fp.MODELS[name](marks=events.marks)
        fp.fit(model, train, dev, progress=False)
        found[f"fit of {name}"] = numbers(fp.log_likelihood(model, dev.batch()).value)
    for name in ("dapp", "deep-dapp", "nhp", "rmtpp", "sahp", "thp"):
        kind, settings = BUILD[name]
        model = fp.MODELS[kind](marks=events.marks, **settings)
        fp.fit(model, train, dev, steps=3, baselines=False, progress=False, seed=2)
        found[f"three steps of {name}"] = numbers(fp.log_likelihood(model, dev.batch()).value)
    return found


def main() -> None:
    """Save the models and write their results."""
    figures: dict[str, Any] = {"float64": {}, "float32": {}, "fits": fitted()}
    for name in BUILD:
        model = build(name)
        fp.save(model, MODELS / name)
        for kind in ("float32", "float64"):
            restored = fp.restore(MODELS / name)
            restored = restored.double() if kind == "float64" else restored
            figures[kind][name] = record(restored, name, precise=kind == "float64")
    FIGURES.write_text(json.dumps(figures, indent=0) + "\n")


if __name__ == "__main__":
    main()
