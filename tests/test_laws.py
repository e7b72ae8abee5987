"""Laws that every model keeps, in float64, on one list of models. A new model is one line more in
``BUILD``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from variants import without_closed_form

from fourpoint.events import Batch, Box, Context, Dataset, MarkSpace, Sequence, Steps
from fourpoint.inference.likelihood import log_likelihood, sampled_log_likelihood
from fourpoint.models import (
    DAPP,
    NHP,
    RMTPP,
    SAHP,
    THP,
    DeepDAPP,
    Frailty,
    Hawkes,
    MarkovModulated,
    ModulatedHawkes,
    Poisson,
    SelfCorrecting,
    SplinePoisson,
)
from fourpoint.models.effects import effects_of
from fourpoint.models.etas import ETAS
from fourpoint.models.power_law_hawkes import PowerLawHawkes
from fourpoint.models.spatial.dapp import SpatialDAPP
from fourpoint.models.spatial.hawkes import SpatialHawkes
from fourpoint.models.spatial.seismic_dapp import SeismicDAPP
from fourpoint.storage.checkpoints import restore, save

ORIGIN = 1736125200.0  # an hour before midnight on a Sunday
BOX = Box(("east", "north"), (-2.0, 10.0), (3.0, 14.0))
SMALL: dict[str, Any] = dict(
    heads=2, features=6, eval_features=16, generator=(8,), knots=4, base="constant", drift="none"
)


def dapp(**settings: Any) -> Callable[[int], DAPP]:
    return lambda marks: DAPP(marks, **{**SMALL, **settings})


BUILD: dict[str, Callable[[int], Any]] = {
    "sum": dapp(),
    "sum-still": dapp(decay=False),
    "sum-scan": dapp(form="scan"),
    "sum-dense": dapp(form="dense"),
    "sum-dense-still": dapp(form="dense", decay=False),
    "sum-random-phase": dapp(phase="random"),
    "sum-random-phase-still": dapp(phase="random", decay=False),
    "sum-softplus": dapp(link="softplus"),
    "sum-identity": dapp(link="identity"),
    "sum-identity-still": dapp(link="identity", decay=False),
    "sum-affine": dapp(values="affine", link="softplus"),
    "sum-linear": dapp(values="linear", width=3, link="softplus"),
    "spline-base": dapp(base="spline"),
    "spline-drift": dapp(drift="spline"),
    "spline-both-dense": dapp(base="spline", drift="spline", link="softplus", form="dense"),
    "many-noises": dapp(noise=2, embedding=3, draw="independent", activation="softplus"),
    "ratio": dapp(normalise="ratio"),
    "ratio-still-dense": dapp(normalise="ratio", decay=False, form="dense"),
    "ratio-affine": dapp(normalise="ratio", values="affine", drift="spline"),
    "softmax": dapp(normalise="softmax"),
    "softmax-still-random-phase": dapp(
        normalise="softmax", phase="random", decay=False, link="softplus"
    ),
    "paper": lambda marks: DAPP.paper(marks, features=6, eval_features=16, generator=(8, 8)),
    "paper-ratio": lambda marks: DAPP.paper(
        marks, normalise="ratio", features=6, eval_features=16, generator=(8,)
    ),
    "dot": dapp(score="dot"),
    "dot-softmax": dapp(score="dot", normalise="softmax", values="linear"),
    "neural": dapp(score="neural"),
    "neural-softmax": dapp(score="neural", normalise="softmax", link="softplus"),
    "keep": dapp(keep=3),
    "keep-all": dapp(keep=100, decay=False),
    "keep-dense": dapp(keep=3, form="dense"),
    "keep-one": dapp(keep=1, values="affine"),
    "keep-ratio": dapp(keep=3, normalise="ratio", heads=3),
    "keep-softmax": dapp(keep=2, normalise="softmax", phase="random"),
    "keep-identity": dapp(keep=2, link="identity"),
    "keep-dot": dapp(keep=3, score="dot", normalise="softmax"),
    "keep-neural": dapp(keep=3, score="neural", normalise="softmax"),
    "keep-share": dapp(keep=0.5, drift="spline"),
    "hawkes": Hawkes,
    "modulated": ModulatedHawkes,
    "hawkes-two": lambda marks: Hawkes(marks, exponentials=2),
    "rmtpp": lambda marks: RMTPP(marks, hidden=5),
    "nhp": lambda marks: NHP(marks, hidden=5, embedding=3),
    "sahp": lambda marks: SAHP(marks, hidden=8, layers=2, heads=2),
    "thp": lambda marks: THP(marks, hidden=8, layers=2, heads=2),
    "deep": lambda marks: DeepDAPP(marks, layers=2, width=8, modes=4),
    "deep-plain": lambda marks: DeepDAPP(marks, layers=1, width=6, modes=3, gated=False),
    "deep-dense": lambda marks: DeepDAPP(marks, layers=1, width=6, modes=3, form="dense"),
    "poisson": Poisson,
    "spline-poisson": lambda marks: SplinePoisson(marks, knots=4),
    "self-correcting": SelfCorrecting,
    "frailty": Frailty,
    "markov": lambda marks: MarkovModulated(marks, states=3),
    "poisson-calendar": Poisson,
    "hawkes-calendar": lambda marks: Hawkes(marks, exponentials=2),
    "modulated-calendar": lambda marks: ModulatedHawkes(marks, exponentials=2),
    "frailty-calendar": Frailty,
    "markov-calendar": lambda marks: MarkovModulated(marks, states=3, block=3600.0, phases=24),
    "sum-calendar": dapp(link="softplus"),
    "spline-exp-calendar": dapp(base="spline", drift="spline", link="exp"),
    "sum-dense-calendar": dapp(form="dense"),
    "keep-calendar": dapp(keep=3),
    "deep-calendar": lambda marks: DeepDAPP(marks, layers=1, width=6, modes=3),
    "spline-poisson-calendar": lambda marks: SplinePoisson(marks, knots=4),
    "poisson-clock": Poisson,
    "spline-poisson-clock": lambda marks: SplinePoisson(marks, knots=4),
    "hawkes-clock": Hawkes,
    "modulated-clock": ModulatedHawkes,
    "frailty-clock": Frailty,
    "markov-clock": lambda marks: MarkovModulated(marks, states=3, block=3600.0, phases=24),
    "sum-clock": dapp(link="softplus"),
    "keep-clock": dapp(keep=3),
    "deep-clock": lambda marks: DeepDAPP(marks, layers=1, width=6, modes=3),
    "poisson-box": lambda marks: Poisson(boxed(marks), cells=3),
    "spline-poisson-box": lambda marks: SplinePoisson(boxed(marks), knots=4),
    "power-law": PowerLawHawkes,
    "etas": lambda marks: ETAS(marks, taper=None),
    "etas-taper": lambda marks: ETAS(marks, p=0.9, taper=3.0),
    "etas-box": lambda marks: ETAS(boxed(marks), distance=0.5),
    "seismic-box": lambda marks: SeismicDAPP(boxed(marks), distance=0.5),
    "hawkes-box": lambda marks: SpatialHawkes(boxed(marks), cells=2),
    "hawkes-box-calendar": lambda marks: SpatialHawkes(boxed(marks), cells=2),
    "hawkes-box-clock": lambda marks: SpatialHawkes(boxed(marks), cells=2),
    "dapp-box": lambda marks: SpatialDAPP(
        boxed(marks), heads=2, frequencies=2, generator=(8,), order=8, base="constant", drift="none"
    ),
    "dapp-box-splines": lambda marks: SpatialDAPP(
        boxed(marks),
        heads=2,
        frequencies=2,
        generator=(8,),
        order=8,
        knots=4,
        base="spline",
        drift="spline",
    ),
    "dapp-box-calendar": lambda marks: SpatialDAPP(
        boxed(marks), heads=2, frequencies=2, generator=(8,), order=8, base="constant", drift="none"
    ),
    "poisson-box-calendar": lambda marks: Poisson(boxed(marks), cells=3),
    "spline-poisson-box-calendar": lambda marks: SplinePoisson(boxed(marks), knots=4),
    "dapp-box-exp": lambda marks: SpatialDAPP(
        boxed(marks),
        heads=1,
        frequencies=1,
        link="exp",
        background="constant",
        order=8,
        base="constant",
        drift="none",
    ),
}
CASES = [
    (name, marks)
    for name in BUILD
    if "-box" not in name
    for marks in (1, 3)
    if marks == 1 or name not in ("self-correcting", "etas", "etas-taper")
]
BOXED = [
    (name, marks)
    for name in BUILD
    if "-box" in name
    for marks in (1, 3)
    if marks == 1 or name not in ("etas-box", "seismic-box")
]  # models of events with places
every_model = pytest.mark.parametrize(
    ("name", "marks"), CASES + BOXED, ids=[f"{name}-{marks}" for name, marks in CASES + BOXED]
)


def boxed(marks: int) -> MarkSpace:
    """Types and places, or places alone."""
    return MarkSpace(MarkSpace.categorical(marks).names if marks > 1 else (), BOX)


def data(marks: int, scale: float = 1.0, name: str = "") -> Dataset:
    """Ragged sequences with ties, an empty one, and windows that start anywhere; with places for
    models called "-box", dates and a covariate for "-calendar", and one time 0 for "-clock".
    """
    rng = np.random.default_rng(7)
    sequences = []
    for i, n in enumerate((5, 0, 8, 1)):
        t = np.sort(rng.uniform(2 + i, 9 + i, n))
        t[3:5] = t[2] if n > 4 else t[3:5]
        kinds, (start, stop) = (
            rng.integers(0, marks, n),
            (scale * (1.5 + i), scale * (10.0 + 2 * i)),
        )
        places = rng.uniform(BOX.low, BOX.high, (n, 2)) if "-box" in name else None
        space = marks if places is None else boxed(marks)
        context = None
        if "-calendar" in name:
            context = known(i, scale)
        if "-clock" in name:
            context = Context(origin=np.array([ORIGIN]))
        sequences.append(
            Sequence(
                scale * t,
                kinds,
                start=start,
                stop=stop,
                space=space,
                places=places,
                context=context,
            )
        )
    return Dataset.from_sequences(sequences)


def known(i: int, scale: float) -> Context:
    """The hour before midnight on a Sunday at time 0, and a covariate that changes twice."""
    times = scale * np.array([0.0, 3.5 + i, 6.0 + i])
    values = np.array([[0.3], [1.0 + i], [-0.5]])
    steps = Steps(("temperature",), times, values, np.array([0, 3]))
    return Context(origin=np.array([ORIGIN + 60.0 * i]), covariates=steps)


def build(name: str, marks: int, scale: float = 1.0) -> Any:
    """The model, its choices taken from the data, with every parameter moved off its starting
    value.
    """
    model = BUILD[name](marks)
    if "-calendar" in name or "-clock" in name:
        terms = ("hour", "weekday", "month", "monthday", "trend")
        model.add_effects(effects_of(data(marks, scale, name), terms, seconds=3600 / scale))
    model.initialise(data(marks, scale, name))
    model.double()
    random = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(
                    parameter.shape, generator=random, dtype=torch.float64
                )
    return model.eval()


def in_gaps(batch: Batch) -> Tensor:
    """Two times in every gap, seen from its left end: (B, N + 1, 2)."""
    left, right = batch.edges[:, :-1, None], batch.edges[:, 1:, None]
    return left + (right - left) * torch.tensor([0.4, 1.0], dtype=torch.float64)


def real_gaps(batch: Batch) -> Tensor:
    return torch.arange(batch.times.shape[1] + 1) <= batch.lengths[:, None]


def extend(
    model: Any,
    history: Any,
    time: Tensor,
    mark: Tensor,
    active: Tensor | None,
    batch: Batch,
    event: int = 0,
) -> Any:
    """One event more, at the place of the batch's event number ``event`` where there are places."""
    return model.extend(
        history, time, mark, active, *(() if batch.places is None else (batch.places[:, event],))
    )


@every_model
def test_the_future_does_not_change_the_past(name: str, marks: int) -> None:
    model, batch = build(name, marks), data(marks, name=name).batch()
    cut, times = 3, in_gaps(batch)
    past = model.log_intensity(model.encode(batch), times)[:, : cut + 1]

    later = torch.arange(batch.times.shape[1]) >= cut
    moved = torch.where(later, batch.times + 0.7 * (batch.stop[:, None] - batch.times), batch.times)
    elsewhere = (
        None
        if batch.places is None
        else torch.where(later[:, None], batch.places + 0.1, batch.places)
    )
    other = Batch(
        moved,
        torch.where(later, (batch.marks + 1) % marks, batch.marks),
        batch.valid,
        batch.start,
        batch.stop,
        elsewhere,
        context=batch.context,
    )
    again = model.log_intensity(model.encode(other), times)[:, : cut + 1]
    assert torch.allclose(again, past, rtol=0, atol=1e-13)

    leaf = batch.times.clone().requires_grad_()
    history = model.encode(
        Batch(
            leaf,
            batch.marks,
            batch.valid,
            batch.start,
            batch.stop,
            batch.places,
            context=batch.context,
        )
    )
    logs = model.log_intensity(history, times)[:, : cut + 1]
    if logs.requires_grad:
        (gradient,) = torch.autograd.grad(logs.sum(), leaf, allow_unused=True)
        assert gradient is None or (gradient[:, cut:] == 0).all()


@every_model
def test_encode_equals_repeated_extend(name: str, marks: int) -> None:
    model, batch = build(name, marks), data(marks, name=name).batch()
    whole = model.encode(batch)
    step = model.encode(batch.columns(0, 0))
    for i in range(batch.times.shape[1] + 1):
        seen = torch.minimum(torch.tensor(i), batch.lengths)
        last = batch.edges.gather(1, seen[:, None])
        times = (last + torch.tensor([0.0, 0.3, 4.0], dtype=torch.float64))[:, None]
        got = model.log_intensity(step, times, step.lengths[:, None])
        assert torch.allclose(
            got, model.log_intensity(whole, times, seen[:, None]), rtol=1e-11, atol=1e-11
        )
        assert torch.allclose(
            model.intensity(step, times[:, 0, 1:]), got[:, 0, 1:].exp(), rtol=1e-12
        )
        if i < batch.times.shape[1]:
            active = batch.valid[:, i]
            step = extend(
                model,
                step,
                torch.where(active, batch.times[:, i], torch.nan),
                batch.marks[:, i],
                active,
                batch,
                i,
            )


@every_model
def test_extend_without_a_mask_extends_all(name: str, marks: int) -> None:
    model, batch = build(name, marks), data(marks, name=name).batch()
    history = model.encode(batch)
    all_ = torch.ones(len(batch.start), dtype=torch.bool)
    plain, masked = (
        extend(model, history, batch.stop + 1, batch.marks[:, 0], active, batch)
        for active in (None, all_)
    )
    times = (batch.stop + 2)[:, None, None]
    assert torch.equal(
        *(model.log_intensity(h, times, h.lengths[:, None]) for h in (plain, masked))
    )
    assert torch.equal(plain.times.gather(1, plain.lengths[:, None])[:, 0], batch.stop + 1)


@every_model
def test_a_second_half_goes_on_from_the_first(name: str, marks: int) -> None:
    model, batch = build(name, marks), data(marks, name=name).batch()
    if not getattr(model, "linear", False):
        with pytest.raises(ValueError, match="expected a linear form to go on from a history"):
            model.encode(batch.columns(3, 8), model.encode(batch.columns(0, 3)))
        return
    times = in_gaps(batch)
    expected = model.log_intensity(model.encode(batch), times)
    first = model.encode(batch.columns(0, 3))
    second = model.encode(batch.columns(3, 8), first)
    real = real_gaps(batch)
    for history, columns in ((first, slice(0, 4)), (second, slice(3, 9))):
        got = model.log_intensity(history, times[:, columns])
        assert torch.allclose(
            got[real[:, columns]], expected[:, columns][real[:, columns]], rtol=1e-11, atol=1e-11
        )


@every_model
def test_batched_equals_alone_with_nan_in_the_padding(name: str, marks: int) -> None:
    model, good = build(name, marks), data(marks, name=name).batch()
    places = (
        None if good.places is None else torch.where(good.valid[..., None], good.places, torch.nan)
    )
    poisoned = Batch(
        torch.where(good.valid, good.times, torch.nan),
        good.marks,
        good.valid,
        good.start,
        good.stop,
        places,
        context=good.context,
    )
    times = in_gaps(poisoned)
    together = model.log_intensity(model.encode(poisoned), times)
    scores = log_likelihood(model, poisoned)
    for i, sequence in enumerate(data(marks, name=name)):
        alone = sequence.batch()
        groups = len(sequence) + 1
        own = model.log_intensity(model.encode(alone), times[i : i + 1, :groups])[0]
        assert torch.allclose(own, together[i, :groups], rtol=1e-11, atol=1e-11)
        assert log_likelihood(model, alone).value.item() == pytest.approx(
            scores.value[i].item(), abs=1e-3
        )


@every_model
def test_intensity_is_finite_and_not_negative(name: str, marks: int) -> None:
    model, batch = build(name, marks), data(marks, name=name).batch()
    times = batch.start[:, None] + torch.linspace(0, 20, 81, dtype=torch.float64)
    rate = model.intensity(model.encode(batch), times)
    assert rate.shape == (4, 81, marks) and rate.isfinite().all() and (rate >= 0).all()


@every_model
def test_every_parameter_gets_a_finite_gradient(name: str, marks: int) -> None:
    model, batch = build(name, marks).train(), data(marks, name=name).batch()
    random = torch.Generator().manual_seed(1)
    model.redraw(random)
    sampled_log_likelihood(model, batch, 3, random).sum().backward()
    for label, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert (
                parameter.grad is not None
                and parameter.grad.isfinite().all()
                and (parameter.grad != 0).any()
            ), label


@every_model
def test_quadrature_converges_to_the_closed_form(name: str, marks: int) -> None:
    model, batch = build(name, marks), data(marks, name=name).batch()
    rough, fine = (
        log_likelihood(without_closed_form(model), batch, tolerance=tolerance)
        for tolerance in (1e-3, 1e-9)
    )
    assert ((rough.integral - fine.integral).abs() <= rough.error + fine.error).all()
    assert float(fine.error.sum()) <= 1e-9 * int(batch.lengths.sum())
    if model.has_closed_integral:
        exact = log_likelihood(model, batch)
        assert ((exact.integral - fine.integral).abs() <= exact.error + fine.error).all()


@every_model
def test_save_and_load_change_nothing(name: str, marks: int, tmp_path: Path) -> None:
    model, batch = build(name, marks), data(marks, name=name).batch()
    other = restore(save(model, tmp_path))
    assert (
        not other.training and other.settings() == model.settings() and other.marks == model.marks
    )
    assert torch.equal(*(m.log_intensity(m.encode(batch), in_gaps(batch)) for m in (model, other)))


@every_model
def test_inputs_are_not_mutated(name: str, marks: int) -> None:
    model, batch = build(name, marks), data(marks, name=name).batch()
    history, times = model.encode(batch), in_gaps(batch)
    remembered = [v for v in vars(history).values() if isinstance(v, Tensor)]
    parts = [batch.times, batch.marks, batch.valid, batch.start, batch.stop, times, *remembered]
    kept = [p.detach().clone() for p in [*parts, *model.state_dict().values()]]
    first = model.log_intensity(history, times)
    extend(model, history, batch.stop, batch.marks[:, 0], batch.valid[:, 0], batch)
    log_likelihood(model, batch)
    sampled_log_likelihood(model, batch, 2, torch.Generator().manual_seed(0))
    assert torch.equal(model.log_intensity(history, times), first)
    assert all(
        torch.equal(a, b) for a, b in zip([*parts, *model.state_dict().values()], kept, strict=True)
    )


@every_model
def test_event_i_is_scored_from_the_events_before_it_also_when_tied(name: str, marks: int) -> None:
    model = build(name, marks)
    places = np.random.default_rng(3).uniform(BOX.low, BOX.high, (6, 2)) if "-box" in name else None
    space = marks if places is None else boxed(marks)
    context = data(marks, name=name)[0].context
    sequence = Sequence(
        [1.0, 2.0, 2.0, 2.0, 5.0, 5.0],
        np.arange(6) % marks,
        start=0.0,
        stop=6.0,
        space=space,
        places=places,
        context=context,
    )
    total = 0.0
    for i, (t, m) in enumerate(zip(sequence.times, sequence.marks, strict=True)):
        where = None if places is None else places[:i]
        before = Sequence(
            sequence.times[:i],
            sequence.marks[:i],
            start=0.0,
            stop=6.0,
            space=space,
            places=where,
            context=context,
        ).batch()
        at, seen = torch.tensor([[[t]]], dtype=torch.float64), torch.tensor([[i]])
        history = model.encode(before)
        if places is None:
            total += model.log_intensity(history, at, seen)[0, 0, 0, m].item()
        else:
            total += model.log_intensity_at(
                history, at, torch.from_numpy(places[i])[None, None, None], seen
            )[0, 0, 0, m].item()
    found = log_likelihood(model, sequence.batch())
    assert float(found.value + found.integral) == pytest.approx(total, abs=1e-10)


@every_model
def test_the_rate_in_a_box_is_the_integral_of_the_rate_at_places(name: str, marks: int) -> None:
    if "-box" not in name:
        return
    model, batch = build(name, marks), data(marks, name=name).batch()
    history, times = model.encode(batch), in_gaps(batch)[..., :1]
    n = 120 if name.endswith("box") and not name.startswith("dapp") else 60
    u = (
        torch.stack(
            torch.meshgrid(*[torch.arange(n, dtype=torch.float64)] * 2, indexing="ij"), -1
        ).reshape(-1, 2)
        + 0.5
    ) / n
    low, high = torch.tensor(BOX.low), torch.tensor(BOX.high)
    grid = (low + (high - low) * u).expand(*times.shape[:2], -1, -1)
    brute = BOX.volume * model.log_intensity_at(
        history, times.expand(-1, -1, len(u)), grid
    ).exp().mean(2)
    assert torch.allclose(brute, model.log_intensity(history, times)[:, :, 0].exp(), rtol=2e-3)


@every_model
def test_the_unit_of_time_only_shifts_the_likelihood(name: str, marks: int) -> None:
    scores = []
    for scale in (1.0, 1000.0):
        model = build(name, marks, scale)
        if name == "self-correcting":  # its drift is per unit of time
            model.maximum_likelihood(data(marks, scale, name))
        batch = data(marks, scale, name).batch()
        scores.append(log_likelihood(model, batch, tolerance=1e-8).per_event)
    assert scores[1] - scores[0] == pytest.approx(-math.log(1000), abs=1e-6)
