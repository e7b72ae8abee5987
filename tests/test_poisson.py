"""Poisson processes: likelihood in closed form, clocks that start with the window, and fits that
find the truth.
"""

import numpy as np
import pytest
import torch

from fourpoint.events import Batch, Dataset, MarkSpace, Sequence, UserError
from fourpoint.models.poisson import Poisson, SplinePoisson, mean_rates
from fourpoint.ops.minimise import minimise


def ragged(marks: int = 2) -> Dataset:
    rng = np.random.default_rng(3)
    return Dataset.from_sequences(
        [
            Sequence(
                np.sort(rng.uniform(5 + i, 15 + i, n)),
                rng.integers(0, marks, n),
                start=5.0 + i,
                stop=15.0 + 2 * i,
                space=marks,
            )
            for i, n in enumerate((4, 0, 7, 1))
        ]
    )


def models() -> list[Poisson | SplinePoisson]:
    spline = SplinePoisson(2, knots=5)
    spline.initialise(ragged())
    with torch.no_grad():
        spline.coefficients.normal_(generator=torch.Generator().manual_seed(1))
    poisson = Poisson(2)
    poisson.initialise(ragged())
    return [poisson, spline]


@pytest.mark.parametrize("model", models(), ids=lambda m: type(m).__name__)
def test_encode_equals_repeated_extend_and_encode_in_two_parts(
    model: Poisson | SplinePoisson,
) -> None:
    batch = ragged().batch()
    whole = model.encode(batch)
    query = batch.stop[:, None, None] + torch.tensor([0.0, 1.0], dtype=torch.float64)
    expected = model.log_intensity(whole, query, whole.lengths[:, None])

    step = model.encode(batch.columns(0, 0))
    for i in range(batch.times.shape[1]):
        step = model.extend(step, batch.times[:, i], batch.marks[:, i], batch.valid[:, i])
    assert torch.equal(model.log_intensity(step, query), expected)
    assert torch.equal(step.earlier, batch.lengths)
    assert torch.equal(step.times[:, 0], whole.times.gather(1, whole.lengths[:, None])[:, 0])

    later = model.encode(batch.columns(3, 7), model.encode(batch.columns(0, 3)))
    assert torch.equal(later.start, batch.start)
    assert torch.equal(model.log_intensity(later, query, later.lengths[:, None]), expected)
    assert torch.equal(later.earlier + later.lengths, batch.lengths)


@pytest.mark.parametrize("model", models(), ids=lambda m: type(m).__name__)
def test_batched_equals_alone_with_nan_in_the_padding(model: Poisson | SplinePoisson) -> None:
    data = ragged()
    good = data.batch()
    poisoned = Batch(
        torch.where(good.valid, good.times, torch.nan),
        good.marks,
        good.valid,
        good.start,
        good.stop,
    )
    edges = poisoned.edges
    middle = (edges[:, 1:] + edges[:, :-1]) / 2
    together = model.log_intensity(model.encode(poisoned), middle[..., None])
    assert together.isfinite().all()
    for i, sequence in enumerate(data):
        alone = model.log_intensity(
            model.encode(sequence.batch()), middle[i : i + 1, : len(sequence) + 1, None]
        )
        assert torch.equal(alone[0], together[i, : len(sequence) + 1])


@pytest.mark.parametrize("model", models(), ids=lambda m: type(m).__name__)
def test_every_parameter_gets_a_gradient(model: Poisson | SplinePoisson) -> None:
    batch = ragged().batch()
    times = batch.start[:, None, None] + torch.linspace(0, 20, 50, dtype=torch.float64)
    model.log_intensity(model.encode(batch), times).exp().sum().backward()
    for parameter in model.parameters():
        assert (
            parameter.grad is not None
            and parameter.grad.isfinite().all()
            and (parameter.grad != 0).all()
        )


def test_poisson_maximum_likelihood_and_integral() -> None:
    data = ragged(3)
    model = Poisson(3)
    model.maximum_likelihood(data)
    expected = np.bincount(data.mark_ids, minlength=3) / data.durations.sum()
    assert np.allclose(model.log_rate.detach().exp().numpy(), expected, rtol=1e-12)
    batch = data.batch()
    integral = model.closed_integral(model.encode(batch), batch.edges[:, :-1], batch.edges[:, 1:])
    assert integral.shape == (4, 8, 3)
    assert integral.sum().item() == pytest.approx(data.events, rel=1e-12)
    assert (integral[1, 1:] == 0).all()


def test_an_absent_mark_counts_half_an_event() -> None:
    data = Dataset.from_sequences([Sequence([1.0, 2.0], [0, 0], start=0.0, stop=4.0, space=2)])
    assert mean_rates(data, MarkSpace.of(2)).tolist() == [0.5, 0.125]
    for model in (Poisson(2), SplinePoisson(2, knots=4)):
        notes = model.maximum_likelihood(data)
        assert notes
        rate = model.intensity(
            model.encode(data.batch()), torch.linspace(0, 4, 9, dtype=torch.float64)[None]
        )
        assert torch.allclose(rate[..., 1], torch.tensor(0.125, dtype=torch.float64), rtol=0.05)


def test_other_marks_are_refused() -> None:
    with pytest.raises(
        UserError,
        match=(
            "expected data with 2 types, as the model has; received no marks. Use data of the "
            "same kind, or fit a model with marks=data.marks"
        ),
    ):
        Poisson(2).initialise(Dataset.from_sequences([Sequence([1.0], start=0, stop=2)]))
    with pytest.raises(UserError, match="at least one interval"):
        SplinePoisson(knots=0)


def test_spline_poisson_finds_the_rate_and_its_integral() -> None:
    """Rate 30 (1 + sin(2 pi t / 8)) over windows that end at different times and start anywhere."""
    rng = np.random.default_rng(5)

    def sequence(i: int) -> Sequence:
        start, stop = float(rng.uniform(-50, 50)), float(rng.uniform(6, 8) if i else 8.0)
        t = np.sort(rng.uniform(0, stop, rng.poisson(60 * stop)))
        return Sequence(
            start + t[rng.random(len(t)) < (1 + np.sin(t * np.pi / 4)) / 2],
            start=start,
            stop=start + stop + 1e-9,
        )

    data = Dataset.from_sequences([sequence(i) for i in range(200)])
    model = SplinePoisson(knots=16)
    notes = model.maximum_likelihood(data)
    assert "ridge of 1 on second differences" in notes[-1]
    x = torch.linspace(0.2, 7.8, 60, dtype=torch.float64)
    history = model.encode(data[:1].batch())
    rate = model.intensity(history, history.start[:, None] + x)[0, :, 0].detach()
    truth = 30 * (1 + torch.sin(x * torch.pi / 4))
    assert ((rate - truth).abs() < 4 * truth.sqrt() / 200**0.5 * 2 + 0.5).all()

    fine = torch.linspace(0, 1, 4001, dtype=torch.float64)
    batch = data.batch()
    durations = (batch.stop - batch.start)[:, None]
    rates = model.intensity(model.encode(batch), batch.start[:, None] + durations * fine)[..., 0]
    assert torch.trapezoid(rates, durations * fine).sum().item() == pytest.approx(
        data.events, rel=1e-4
    )
    again = SplinePoisson(knots=16)
    again.maximum_likelihood(data)
    assert torch.equal(again.coefficients, model.coefficients)


def test_spline_poisson_knots_are_absolute_and_the_rate_is_constant_past_them() -> None:
    model = models()[1]
    assert isinstance(model, SplinePoisson)
    history = model.encode(ragged().batch())
    knots = model.knots(history)
    assert knots.shape == (4, 6) and torch.equal(knots[:, 0], history.start)
    assert torch.allclose(knots[:, -1] - history.start, model.length)
    end = model.log_intensity(
        history, (knots[:, -1:] + torch.tensor([0.0, 9.0], dtype=torch.float64))[:, None]
    )
    assert torch.allclose(end[:, :, 0], end[:, :, 1], atol=1e-12)


def test_minimise_reports_what_is_left() -> None:
    found = minimise(lambda x: (x - 3).pow(4).sum() + x.square().sum(), torch.ones(2, 2))
    assert found.point.shape == (2, 2) and found.gradient < 1e-6 and "steps of L-BFGS" in str(found)
    assert (
        minimise(
            lambda x: (x - 3).pow(4).sum() + x.square().sum(), torch.ones(2, 2), steps=1
        ).gradient
        > 1e-3
    )
