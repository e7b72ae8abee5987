"""What is known of sequences besides their events survives selection, cutting and batching."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fourpoint.events import Context, Dataset, EventDataError, Sequence, Steps
from fourpoint.events.windows import cut_long
from fourpoint.training.run import fingerprint


def sequence(i: int, times: list[float]) -> Sequence:
    steps = Steps(
        ("temperature",),
        np.array([0.0, 2.0 + i]),
        np.array([[float(i)], [10.0 + i]]),
        np.array([0, 2]),
    )
    context = Context(
        origin=np.array([1e9 + i]), scored_from=np.array([1.0]), covariates=steps, exposure=None
    )
    features = [[t + i] for t in times]
    return Sequence(times, start=0, stop=6, id=f"s{i}", features=features, context=context)


def data() -> Dataset:
    return Dataset.from_sequences([sequence(0, [0.5, 2.5]), sequence(1, [3.0, 3.5, 5.0])])


def test_context_survives_selection_and_batching() -> None:
    chosen = data().select([1, 0])
    batch = chosen.batch()
    assert batch.context is not None and batch.context.covariates is not None
    assert batch.context.origin is not None and batch.context.origin.tolist() == [1e9 + 1, 1e9]
    times = torch.tensor([[1.0, 3.0], [1.0, 2.0]], dtype=torch.float64)
    assert batch.context.covariates.at(times)[..., 0].tolist() == [[1.0, 11.0], [0.0, 10.0]]
    assert batch.features is not None
    assert batch.features[..., 0].tolist() == [[4.0, 4.5, 6.0], [0.5, 2.5, 0.0]]
    assert batch.scored.tolist() == [[True, True, True], [False, True, False]]
    assert chosen.scored_events == 4
    assert chosen[0].context is not None and chosen[0].features is not None


def test_context_of_pieces_of_a_sequence() -> None:
    pieces = cut_long(data(), 1)
    assert len(pieces) == 5 and pieces.context is not None and pieces.features is not None
    assert pieces.context.origin is not None
    assert pieces.context.origin.tolist() == [1e9, 1e9, 1e9 + 1, 1e9 + 1, 1e9 + 1]
    assert pieces.features[:, 0].tolist() == [0.5, 2.5, 4.0, 4.5, 6.0]


def test_context_changes_the_fingerprint() -> None:
    first = data()
    assert first.context is not None
    moved = Context(origin=np.array([0.0, 0.0]), scored_from=first.context.scored_from)
    other = Dataset.from_sequences(
        [
            Sequence([0.5, 2.5], start=0, stop=6, context=moved.select(np.array([0]))),
            Sequence([3.0], start=0, stop=6, context=moved.select(np.array([1]))),
        ]
    )
    assert fingerprint(first) == fingerprint(data()) != fingerprint(other)


def test_an_event_in_a_recording_gap_is_refused() -> None:
    exposure = Steps(
        ("exposure",), np.array([0.0, 1.0, 2.0]), np.array([[1.0], [0.0], [1.0]]), np.array([0, 3])
    )
    Sequence([0.5, 2.5], start=0, stop=4, context=Context(exposure=exposure))
    with pytest.raises(EventDataError, match="expected events at times that were observed; .*1.5"):
        Sequence([0.5, 1.5], start=0, stop=4, context=Context(exposure=exposure))


def test_contexts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(EventDataError, match="of 1 sequences"):
        Sequence([0.5], start=0, stop=4, context=Context(origin=np.zeros(2)))
    with pytest.raises(EventDataError, match="finite values"):
        broken = Steps.constant(("age",), [[np.nan]])
        Sequence([0.5], start=0, stop=4, context=Context(covariates=broken))
    with pytest.raises(EventDataError, match="rising times"):
        Steps(("a",), np.array([1.0, 1.0]), np.zeros((2, 1)), np.array([0, 2]))
    with pytest.raises(EventDataError, match="or of none"):
        Dataset.from_sequences([sequence(0, [1.0]), Sequence([2.0], start=0, stop=6)])


def test_context_of_single_moments_does_not_grow_with_the_steps() -> None:
    both = data()
    assert both.context is not None and both.context.covariates is not None
    rows, times = np.array([1, 0, 1]), np.array([3.5, 0.0, 1.0])
    found = both.context.at_each(rows, times)
    assert found.covariates is not None and found.origin is not None
    assert found.covariates.times.shape == (3, 1)
    expected = both.context.batch(rows)
    assert expected.covariates is not None
    moments = torch.from_numpy(times)[:, None]
    assert torch.equal(found.covariates.at(moments), expected.covariates.at(moments))
    assert found.origin.tolist() == [1e9 + 1, 1e9, 1e9 + 1]


def test_fits_of_effects_never_batch_a_context_per_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy of a year of hourly covariates for every event does not fit into memory."""
    from fourpoint.models.effects import effects_of
    from fourpoint.models.effects_fit import fit_effects

    rng = np.random.default_rng(0)
    hours = np.arange(500.0)
    steps = Steps(("x",), hours, rng.normal(size=(500, 1)), np.array([0, 500]))
    times = np.sort(rng.uniform(0, 500, 800))
    log = Dataset.from_sequences(
        [Sequence(times, start=0, stop=500, context=Context(covariates=steps))], unit="hours"
    )
    whole = Context.batch
    asked: list[int] = []

    def batch(self: Context, rows: np.ndarray) -> object:
        asked.append(len(rows))
        return whole(self, rows)

    monkeypatch.setattr(Context, "batch", batch)
    fit_effects(log, effects_of(log))
    assert max(asked, default=0) <= 1
