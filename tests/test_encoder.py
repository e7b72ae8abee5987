"""The causal transformer: equal to a slow loop, blind to the future, the same event by event, and
its randomness in hand.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from fourpoint.events import Batch, UserError
from fourpoint.models import transformer as module
from fourpoint.models.transformer import Encoded, Encoder, frequencies, sinusoids


def make(hidden: int = 8, **settings: Any) -> Encoder:
    """In float64, with weights large enough for attention to be far from even."""
    known: dict[str, Any] = dict(
        layers=2, heads=2, inner=12, dropout=0.0, random=torch.Generator().manual_seed(3)
    )
    encoder = Encoder(hidden, **{**known, **settings}).double().eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(1.7).add_(0.1)
    return encoder


def inputs(lengths: list[int], hidden: int = 8) -> tuple[Batch, Tensor]:
    random = torch.Generator().manual_seed(5)
    B, N = len(lengths), max(lengths)
    times = torch.rand(B, N, generator=random, dtype=torch.float64).cumsum(1)
    valid = torch.arange(N) < torch.tensor(lengths)[:, None]
    batch = Batch(
        times,
        torch.zeros_like(valid, dtype=torch.int64),
        valid,
        torch.zeros(B).double(),
        torch.full((B,), N + 1.0).double(),
    )
    return batch, torch.randn(B, N, hidden, generator=random, dtype=torch.float64)


def slow(encoder: Encoder, tokens: Tensor) -> Tensor:
    """One sequence, one position and one head at a time, straight from the formula."""
    rows = [encoder.first, *tokens]
    D, K = len(encoder.first), encoder.heads
    d = D // K
    for layer in range(len(encoder.qkv)):
        q, k, v = encoder.qkv[layer].chunk(3)
        new = []
        for p, x in enumerate(rows):
            heads = []
            for h in range(K):
                part = slice(h * d, (h + 1) * d)
                scores = torch.stack([(q[part] @ x) @ (k[part] @ rows[j]) for j in range(p + 1)])
                weights = scores.exp() / scores.exp().sum()
                heads.append(sum(weights[j] * (v[part] @ rows[j]) for j in range(p + 1)))
            u = layer_norm(x + encoder.out[layer] @ torch.cat(heads), (D,))
            if encoder.up is not None and encoder.up_shift is not None and encoder.down is not None:
                u = u + encoder.down[layer] @ torch.relu(
                    encoder.up[layer] @ u + encoder.up_shift[layer]
                )
            new.append(u)
        rows = new
    return torch.stack(rows)


@pytest.mark.parametrize(("heads", "inner", "layers"), [(1, 0, 1), (2, 12, 2), (4, 5, 3)])
def test_equal_to_a_slow_loop(heads: int, inner: int, layers: int) -> None:
    encoder = make(heads=heads, inner=inner, layers=layers)
    batch, tokens = inputs([5, 3, 0])
    states = encoder.encode(batch, tokens).states
    for i, n in enumerate([5, 3, 0]):
        assert torch.allclose(states[i, : n + 1], slow(encoder, tokens[i, :n]), rtol=0, atol=1e-12)


def test_long_and_short_sequences_go_two_ways_to_one_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, found = make(), []
    batch, tokens = inputs([70, 20])
    tokens.requires_grad_()
    for short in (0, 1000):
        monkeypatch.setattr(module, "SHORT", short)
        states = encoder.encode(batch, tokens).states
        found.append(
            (states, *torch.autograd.grad((states**2).sum(), [tokens, *encoder.parameters()]))
        )
    assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-10) for a, b in zip(*found, strict=True))


def test_no_state_sees_a_later_token() -> None:
    encoder = make()
    batch, tokens = inputs([6, 4])
    tokens.requires_grad_()
    states = encoder.encode(batch, tokens).states
    for p in range(7):
        (gradient,) = torch.autograd.grad(
            states[:, p].pow(2).sum(), tokens, retain_graph=True, allow_unused=True
        )
        assert gradient is not None and (gradient[:, p:] == 0).all()
        assert p == 0 or (gradient[:, :p] != 0).any(-1).all()


def grow(
    encoder: Encoder, batch: Batch, tokens: Tensor, history: Encoded, first: int = 0
) -> Encoded:
    for i in range(first, tokens.shape[1]):
        active = batch.valid[:, i]
        history = encoder.append(
            history, torch.where(active[:, None], tokens[:, i], 0.0), batch.times[:, i], active
        )
    return history


def test_event_by_event_is_the_same_in_rows_of_any_length() -> None:
    encoder, lengths = make(), [23, 0, 7, 12]
    batch, tokens = inputs(lengths)
    whole = encoder.encode(batch, tokens)
    step = grow(encoder, batch, tokens, encoder.encode(batch.columns(0, 0), tokens[:, :0]))
    assert step.lengths.tolist() == lengths
    for i, n in enumerate(lengths):
        assert torch.allclose(step.states[i, : n + 1], whole.states[i, : n + 1], rtol=0, atol=1e-12)
        assert torch.equal(step.times[i, : n + 1], whole.times[i, : n + 1])
    assert (step.times.diff(dim=1) >= 0).all()  # padding included, so that a search finds its place
    assert torch.equal(step.last(), torch.stack([whole.times[i, n] for i, n in enumerate(lengths)]))


def test_what_padding_holds_does_not_matter() -> None:
    encoder = make()
    batch, tokens = inputs([6, 2])
    clean = encoder.encode(batch, tokens)
    behind = torch.arange(7) > batch.lengths[:, None]
    assert clean.kept is not None
    dirty = Encoded(
        clean.times,
        clean.start,
        clean.lengths,
        torch.where(behind[..., None], torch.nan, clean.states),
        torch.where(behind[:, None, :, None], torch.nan, clean.kept),
    )
    active = torch.tensor([False, True])
    after = [encoder.append(h, tokens[:, 0], batch.stop, active) for h in (clean, dirty)]
    for h in after:
        assert (
            h.lengths.tolist() == [6, 3] and h.states[torch.arange(2), h.lengths].isfinite().all()
        )
    assert torch.equal(after[0].states[1, :4], after[1].states[1, :4])


def test_nothing_is_copied_anew_for_every_event() -> None:
    encoder = make()
    batch, tokens = inputs([40])
    history, sizes = encoder.encode(batch.columns(0, 0), tokens[:, :0]), set()
    for i in range(40):
        history = encoder.append(history, tokens[:, i], batch.times[:, i])
        sizes.add(history.times.shape[1])
    assert len(sizes) < 10 and max(sizes) <= 4 + 1.25 * 41


def test_dropout_comes_from_the_generator_it_is_given() -> None:
    encoder = make(dropout=0.5).train()
    batch, tokens = inputs([6, 4])

    def states(seed: int) -> Tensor:
        encoder.draw_from(torch.Generator().manual_seed(seed))
        return encoder.encode(batch, tokens).states

    assert torch.equal(states(1), states(1)) and not torch.allclose(states(1), states(2))
    plain = make(dropout=0.5).train().encode(batch, tokens).states  # no generator, no dropout
    assert torch.equal(plain, make(dropout=0.0).train().encode(batch, tokens).states)
    encoder.eval()
    assert torch.equal(encoder.encode(batch, tokens).states, plain)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    encoder.train()
    states(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_keeps_the_mean() -> None:
    encoder = make(dropout=0.3).train()
    encoder.draw_from(torch.Generator().manual_seed(0))
    kept = encoder._dropped(torch.ones(100_000, dtype=torch.float64))
    assert set(kept.unique().tolist()) == {0.0, 1 / 0.7}
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.01)


def test_sinusoids_keep_their_digits_far_from_the_start() -> None:
    turns = torch.tensor([0.1, 0.37], dtype=torch.float64)
    near, far = sinusoids(turns, torch.float32), sinusoids(turns + 2.0**20, torch.float32)
    assert torch.allclose(near, far, rtol=0, atol=1e-6)
    exact = [math.sin(2 * math.pi * x) for x in (0.1, 0.37)] + [
        math.cos(2 * math.pi * x) for x in (0.1, 0.37)
    ]
    assert near.tolist() == pytest.approx(exact, abs=1e-6)
    leaf = turns.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: sinusoids(x, torch.float64), leaf)


def test_frequencies_fall_in_equal_ratios() -> None:
    assert frequencies(4, 1e-3).tolist() == pytest.approx([1, 0.1, 0.01, 0.001])


def test_weights_come_from_the_seed() -> None:
    first, again, other = (
        make(random=torch.Generator().manual_seed(s)).state_dict() for s in (1, 1, 2)
    )
    assert all(torch.equal(first[k], again[k]) for k in first) and not torch.equal(
        first["qkv"], other["qkv"]
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            dict(heads=3),
            "expected hidden a multiple of 4 and of heads, .* received hidden=8, layers=2, heads=3",
        ),
        (dict(layers=0), "at least one layer and head; received hidden=8, layers=0"),
        (dict(inner=-1), "inner=-1"),
        (dict(dropout=1.0), "expected dropout from 0 to below 1; received 1.0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(**settings)


def test_a_history_of_training_cannot_be_extended() -> None:
    encoder = make().train()
    batch, tokens = inputs([3])
    history = encoder.encode(batch, tokens)
    with pytest.raises(
        UserError,
        match=(
            "expected a history encoded in evaluation mode; received one encoded in training mode"
        ),
    ):
        encoder.append(history, tokens[:, 0], batch.stop)
