"""Deep DAPP's kernels against the model's own layers in float64, with the same nodes and the same
silence.

Without a CUDA device the kernels run in triton's interpreter, where TRITON_INTERPRET=1 was set
before the start; else they are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, softplus

from fourpoint.events import Batch
from fourpoint.inference.likelihood import sampled_log_likelihood
from fourpoint.models.deep_dapp import DeepDAPP
from fourpoint.models.rate import log_softplus

triton = pytest.importorskip(
    "triton", reason="triton comes with torch where there is a CUDA device"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no CUDA device, and no TRITON_INTERPRET=1 to do without", allow_module_level=True)

# What follows imports triton, and so comes after both skips.
from fourpoint.kernels.triton_deep_dapp import (  # noqa: E402
    head as deep_head_cuda,
    loss as deep_cuda,
    mix as deep_mix_cuda,
    nodes as deep_nodes_cuda,
    norm as deep_norm_cuda,
    rows as deep_rows_cuda,
)
from fourpoint.kernels.triton_deep_dapp.given import Events  # noqa: E402
from fourpoint.kernels.triton_deep_dapp.loss import Drawn  # noqa: E402
from fourpoint.kernels.triton_deep_dapp.maths import cos_sin, normal_share  # noqa: E402

tl = triton.language
pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value encountered in add"
)  # of columns between parameters, which nobody reads


def events_of(batch: Batch) -> Events:
    return Events(batch.times, batch.marks, batch.start, batch.stop, batch.lengths)


def draw(model: DeepDAPP, batch: Batch, nodes: int, random: torch.Generator) -> Drawn:
    return deep_cuda.draw(model.kernel_model(), events_of(batch), nodes, random)


def log_likelihoods(model: DeepDAPP, batch: Batch, drawn: Drawn, *, gaps: bool) -> Tensor:
    return deep_cuda.log_likelihoods(model.kernel_model(), events_of(batch), drawn, gaps=gaps)


@triton.jit
def _of_each(x, cosine, sine, share, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, BLOCK)
    a, b = cos_sin(tl.load(x + i, i < count, 0.0))
    tl.store(share + i, normal_share(tl.load(x + i, i < count, 0.0)), i < count)
    tl.store(cosine + i, a, i < count)
    tl.store(sine + i, b, i < count)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep_rows_cuda, "PRECISION", "ieee")
    monkeypatch.setattr(
        deep_rows_cuda, "PROGRAMS", 2
    )  # one of which has several tiles, or one none


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("marks", [1, 5])
@pytest.mark.parametrize("noisy", [False, True])
def test_values_and_gradients_are_the_plain_models(gaps: bool, marks: int, noisy: bool) -> None:
    model, batch = _model(marks), _batch([5, 0, 3, 1], marks)
    model.train(noisy)
    drawn = draw(model, batch, 3, torch.Generator(DEVICE).manual_seed(1))
    assert (drawn.layers is not None) == noisy
    _agree(model, batch, drawn, gaps)


@pytest.mark.parametrize("gaps", [False, True])
def test_events_move_inside_their_ticks_and_the_past_stays(gaps: bool) -> None:
    model, batch = _model(3), _batch([5, 0, 3, 1], 3)
    model.tick.fill_(
        2.0 * float(batch.edges.diff(dim=1).max())
    )  # so that some would come before the event before
    drawn = draw(model.train(), batch, 3, torch.Generator(DEVICE).manual_seed(6))
    half = float(model.tick / model.time_scale) / 2
    assert drawn.shifts is not None
    assert (
        0.5 * half < float(drawn.shifts.max()) <= half
        and -half <= float(drawn.shifts.min()) < -0.5 * half
    )
    assert draw(model.eval(), batch, 3, torch.Generator(DEVICE).manual_seed(6)).shifts is None
    _agree(model.train(), batch, drawn, gaps)


def test_sequences_of_many_chunks_and_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans carry on from chunk to chunk, programs go on to further tiles, and sums come in
    parts.
    """
    from fourpoint.kernels.triton_deep_dapp import scan as deep_walk_cuda

    monkeypatch.setattr(deep_walk_cuda, "CHUNK", 4)
    monkeypatch.setattr(deep_mix_cuda, "SUMS", 256)  # two parts of the numbers inside
    for module in (deep_mix_cuda, deep_nodes_cuda, deep_head_cuda):
        monkeypatch.setattr(module, "ROWS", 16)
        monkeypatch.setattr(module, "BACK_ROWS", 16)
    model, batch = _model(3), _batch([17, 2, 0, 9], 3)
    _agree(model, batch, draw(model, batch, 2, torch.Generator(DEVICE).manual_seed(2)), gaps=False)


@pytest.mark.filterwarnings("ignore:.*deterministic")
def test_memory_that_no_kernel_has_written_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of padding alone are skipped; here new memory is full of NaN."""
    monkeypatch.setattr(deep_mix_cuda, "BACK_ROWS", 16)
    model, batch = _model(3), _batch([33, 0], 3)
    drawn = draw(model, batch, 2, torch.Generator(DEVICE).manual_seed(10))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert bool(torch.empty(8, device=DEVICE).isnan().all())
        _agree(model, batch, drawn, gaps=False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_three_layers_and_marks_that_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 modes side by side, no power of two, and three sinusoids; and shares in pieces."""
    monkeypatch.setattr(deep_cuda, "FEW", 4)
    monkeypatch.setattr("fourpoint.models.deep_dapp.PIECE", 40)
    model, batch = _model(7, layers=3, sinusoids=3), _batch([4, 2], 7)
    _agree(model, batch, draw(model, batch, 2, torch.Generator(DEVICE).manual_seed(3)), gaps=False)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("few", [64, 2])
def test_one_gradient_for_all_sequences(
    gaps: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the sum over a batch has: gradients are made once as if it were 1, also those of marks
    that are looked up.
    """
    monkeypatch.setattr(deep_cuda, "FEW", few)
    model, batch = _model(4), _batch([4, 0, 2], 4)
    _agree(
        model,
        batch,
        draw(model, batch, 3, torch.Generator(DEVICE).manual_seed(11)),
        gaps,
        lambda found: -2.5 * found.sum(),
    )


def test_a_lone_sequence_and_parts_of_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """z at the nodes is made before their gradients."""
    monkeypatch.setattr(deep_mix_cuda, "SUMS", 256)
    assert deep_mix_cuda.part_of(16) == 16 < 32
    model, batch = _model(3), _batch([5], 3)
    drawn = draw(model, batch, 2, torch.Generator(DEVICE).manual_seed(12))
    for outer in (lambda found: 3 * found[0], lambda found: found.sum() / 7):
        _agree(model, batch, drawn, True, outer)


def test_each_sequence_has_its_own_gradient_and_may_have_it_again() -> None:
    """Also after one for all of them, which has left gradients at the nodes that are not these."""
    model, batch = _model(3), _batch([4, 2], 3)
    drawn = draw(model, batch, 2, torch.Generator(DEVICE).manual_seed(13))
    value, learned = (
        log_likelihoods(model, batch, drawn, gaps=False),
        [p for p in model.parameters() if p.requires_grad],
    )
    exact = deepcopy(model).double()
    wanted, true = (
        _plain(exact, batch, drawn, False),
        [p for p in exact.parameters() if p.requires_grad],
    )
    for weights in ([1.0, 1.0], [0.0, 2.0], [1.0, 1.0], [-1.0, 0.5]):
        each = torch.tensor(weights, device=DEVICE)
        each = each[0].expand(2) if weights[0] == weights[1] else each
        found = torch.autograd.grad(value, learned, each, retain_graph=True)
        for a, b in zip(
            found, torch.autograd.grad(wanted, true, each.double(), retain_graph=True), strict=True
        ):
            torch.testing.assert_close(
                a.double(), b, rtol=1e-3, atol=1e-4 * float(b.abs().max()) + 1e-5
            )


def test_values_without_gradients_are_the_same() -> None:
    model, batch = _model(3), _batch([5, 3], 3)
    drawn = draw(model, batch, 3, torch.Generator(DEVICE).manual_seed(14))
    value = log_likelihoods(model, batch, drawn, gaps=True)
    with torch.no_grad():
        plain = log_likelihoods(model, batch, drawn, gaps=True)
    assert value.requires_grad and not plain.requires_grad
    torch.testing.assert_close(plain, value.detach(), rtol=2e-6, atol=2e-6)
    frozen = deepcopy(model).requires_grad_(False)
    assert torch.equal(log_likelihoods(frozen, batch, drawn, gaps=True), plain)


def test_modes_that_have_faded_away_have_no_gradient_but_finite_ones() -> None:
    model, batch = _model(2, sinusoids=0), _batch([4, 3], 2)
    with torch.no_grad():
        next(model._stack()).log_decay[:4] = 6.0
    _agree(
        model,
        batch,
        draw(model.eval(), batch, 2, torch.Generator(DEVICE).manual_seed(4)),
        gaps=False,
    )


def test_rows_that_count_are_listed() -> None:
    """Also of more sequences and longer ones than a program reads at a time."""
    for lengths, P in (([3, 0, 2], 5), ([0], 1), ([1, 0] * 70, 3), ([300, 7], 301)):
        rows = deep_rows_cuda.rows_of(torch.tensor(lengths, device=DEVICE), P)
        wanted = [b * P + p for b, n in enumerate(lengths) for p in range(n + 1)]
        assert rows.place[: int(rows.real)].tolist() == wanted


def test_shares_of_gradients_are_summed() -> None:
    sums = deep_rows_cuda.Sums({"a": 32, "b": 5, "c": 100}, torch.zeros(1, device=DEVICE))
    random = torch.Generator().manual_seed(1)
    table, more = (
        torch.randn(sums.table.shape, generator=random).to(DEVICE),
        torch.randn(200, 32, generator=random).to(DEVICE),
    )
    sums.table.copy_(table)
    found, ends = sums.total(more), {"a": (0, 32), "b": (32, 37), "c": (48, 148)}
    for name, (first, last) in ends.items():
        wanted = table[:, first:last].double().sum(0) + (more.double().sum(0) if name == "a" else 0)
        torch.testing.assert_close(found[name].double(), wanted, rtol=1e-5, atol=1e-5)
        assert sums[name].shape == (2, last - first)


def test_nothing_in_the_padding_matters() -> None:
    model, batch = _model(3), _batch([4, 1], 3)
    drawn = draw(model, batch, 2, torch.Generator(DEVICE).manual_seed(5))
    value, found = _with_gradients(model, lambda: log_likelihoods(model, batch, drawn, gaps=False))
    times, marks = batch.times.clone(), batch.marks.clone()
    times[1, 1:], marks[1, 1:] = torch.nan, 2
    object.__setattr__(batch, "times", times)
    object.__setattr__(batch, "marks", marks)
    again, same = _with_gradients(model, lambda: log_likelihoods(model, batch, drawn, gaps=False))
    assert torch.equal(value, again)
    assert all(torch.equal(found[name], same[name]) for name in found)


def test_silence_has_the_models_shares() -> None:
    model, batch = _model(3, dropout=0.3, event_dropout=0.2, mark_dropout=0.4), _batch([60, 60], 3)
    drawn = draw(model.train(), batch, 2, torch.Generator(DEVICE).manual_seed(6))
    assert (
        drawn.hidden is not None
        and drawn.kept_events is not None
        and drawn.layers is not None
        and drawn.queries is not None
    )
    for what, share in (
        (drawn.hidden, 0.4),
        (drawn.kept_events, 0.8),
        (drawn.layers, 0.7),
        (drawn.queries, 0.7),
    ):
        assert abs(what.double().mean() - share) < 5 * (share * (1 - share) / what.numel()) ** 0.5
    assert draw(model.eval(), batch, 2, torch.Generator(DEVICE)).layers is None


def test_a_norm_and_the_matrix_after_it() -> None:
    """More tiles than one, and a last tile that is not full."""
    random = torch.Generator().manual_seed(8)
    given = [
        torch.randn(*shape, generator=random).to(DEVICE)
        for shape in ((77, 16), (16,), (16,), (12, 16), (12,))
    ]
    gradient = torch.randn(77, 12, generator=random).to(DEVICE)
    exact = [part.detach().double().requires_grad_() for part in given]
    rows = deep_rows_cuda.rows_of(torch.tensor([76], device=DEVICE), 77)
    out = deep_norm_cuda.norm_linear(*given, rows)
    wanted = linear(layer_norm(exact[0], (16,), exact[1], exact[2]), exact[3], exact[4])
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=2e-5)
    sums = deep_rows_cuda.Sums({str(i): part.numel() for i, part in enumerate(given) if i > 0}, out)
    of_x = deep_norm_cuda.norm_linear_back(
        *given[:-1], gradient, None, rows, *(sums[str(i)] for i in range(1, 5))
    )
    found, truth = (
        sums.total(out.new_zeros(1, 16)),
        torch.autograd.grad(wanted, exact, gradient.double()),
    )
    for i, true in enumerate(truth):
        part = found[str(i)].view_as(true) if i else of_x
        torch.testing.assert_close(part.double(), true, rtol=1e-4, atol=1e-4)


def test_cosines_and_sines() -> None:
    x = torch.cat(
        [
            torch.linspace(-2000, 2000, 40_001),
            torch.linspace(-4, 4, 4001),
            torch.linspace(9900, 10_000, 4001),
        ]
    )
    x = torch.cat([x, torch.tensor([1e6, -1e8, 1e12, -1e18])]).to(DEVICE)
    cosine, sine = torch.empty_like(x), torch.empty_like(x)
    _of_each[(1,)](
        x, cosine, sine, torch.empty_like(x), len(x), BLOCK=triton.next_power_of_2(len(x))
    )
    for found, wanted in ((cosine, x.double().cos()), (sine, x.double().sin())):
        assert float((found[:-4].double() - wanted[:-4]).abs().max()) < 2e-6
        assert bool((found[-4:].abs() <= 1).all())  # too far to be right, but nothing worse


def test_shares_of_a_normal() -> None:
    x = torch.cat([torch.linspace(-12, 12, 20_001), torch.tensor([-1e18, 1e18])]).to(DEVICE)
    share = torch.empty_like(x)
    _of_each[(1,)](
        x,
        torch.empty_like(x),
        torch.empty_like(x),
        share,
        len(x),
        BLOCK=triton.next_power_of_2(len(x)),
    )
    wanted = torch.special.ndtr(x.double())
    assert float((share.double() - wanted).abs().max()) < 6e-7
    assert (
        float(((share.double() - wanted) * x.double())[:-2].abs().max()) < 1.2e-6
    )  # what gelu is wrong by


@pytest.mark.skipif(DEVICE == "cpu", reason="the fast path is for CUDA devices")
def test_training_uses_it_on_a_device() -> None:
    model, batch = _model(3).eval(), _batch([5, 3], 3)
    assert (
        model.training_log_likelihood(batch, 400, torch.Generator().manual_seed(0), "window")
        is not None
    )
    assert (
        deepcopy(model)
        .double()
        .training_log_likelihood(batch, 4, torch.Generator().manual_seed(0), "window")
        is None
    )
    fast = sampled_log_likelihood(model, batch, 400, torch.Generator().manual_seed(0))
    plain = sampled_log_likelihood(
        deepcopy(model).double(), batch, 400, torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(fast.double(), plain, rtol=1e-3, atol=1e-3)


def test_without_a_device_there_is_no_fast_path() -> None:
    model = _model(3).cpu()
    assert (
        model.training_log_likelihood(
            _batch([5, 3], 3).to("cpu"), 4, torch.Generator().manual_seed(0), "window"
        )
        is None
    )


def _model(
    marks: int,
    layers: int = 2,
    dropout: float = 0.3,
    event_dropout: float = 0.2,
    mark_dropout: float = 0.2,
    sinusoids: int = 4,
) -> DeepDAPP:
    silence = dict(dropout=dropout, event_dropout=event_dropout, mark_dropout=mark_dropout)
    model = DeepDAPP(
        marks, layers=layers, width=16, modes=16, sinusoids=sinusoids, seed=3, **silence
    )
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():  # away from the zeros and the equal gates of the start
            p += 0.2 * torch.randn(p.shape, generator=random)
        for layer in model._stack():
            layer.steady[3] = True
            layer.first_decay += 0.3
        model.time_scale.fill_(1.7)
    return model.to(DEVICE)


def _batch(lengths: list[int], marks: int) -> Batch:
    random, B, N = torch.Generator().manual_seed(7), len(lengths), max(lengths)
    times = 2 + torch.rand(B, N, generator=random, dtype=torch.float64).cumsum(1)
    valid = torch.arange(N) < torch.tensor(lengths)[:, None]
    start = torch.full((B,), 1.5, dtype=torch.float64)
    return Batch(
        times, torch.randint(marks, (B, N), generator=random), valid, start, times.amax(1) + 0.7
    ).to(DEVICE)


def _apart(found: Tensor) -> Tensor:
    """What is made of the log-likelihoods, unless told: something else of each."""
    return (found * torch.linspace(0.5, 1.5, len(found), device=found.device).to(found)).sum()


def _agree(
    model: DeepDAPP,
    batch: Batch,
    drawn: Drawn,
    gaps: bool,
    outer: Callable[[Tensor], Tensor] = _apart,
) -> None:
    value, found = _with_gradients(
        model, lambda: log_likelihoods(model, batch, drawn, gaps=gaps), outer
    )
    exact = deepcopy(model).double()
    wanted, gradients = _with_gradients(exact, lambda: _plain(exact, batch, drawn, gaps), outer)
    torch.testing.assert_close(value.double(), wanted, rtol=2e-5, atol=2e-5)
    assert found.keys() == gradients.keys()
    size = max(float(g.abs().max()) for g in gradients.values())
    for name, g in gradients.items():
        assert float((found[name].double() - g).norm()) <= 1e-4 * float(g.norm()) + 1e-6 * size, (
            name
        )


def _with_gradients(
    model: DeepDAPP, value: Callable[[], Tensor], outer: Callable[[Tensor], Tensor] = _apart
) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    found = value()
    outer(found).backward()
    return found.detach(), {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


def _plain(model: DeepDAPP, batch: Batch, drawn: Drawn, gaps: bool) -> Tensor:
    """The formulas, one position and one layer after another, with the model's own matrices."""
    (B, N), H, M = batch.times.shape, model.settings()["width"], model.marks.count
    loud, louder = (
        1 / (1 - model.settings()["event_dropout"]),
        1 / (1 - model.settings()["dropout"]),
    )
    lengths, P = batch.lengths, N + 1
    edges = batch.edges / model.time_scale
    width = edges.diff(dim=1)
    gap = torch.cat([torch.zeros_like(width[:, :1]), width[:, :-1]], 1)
    if drawn.shifts is not None:
        width = torch.where(
            torch.arange(P, device=width.device) < lengths[:, None],
            (width + drawn.shifts.view(B, P)).abs(),
            width,
        )
    marks = (
        batch.marks if drawn.hidden is None else torch.where(drawn.hidden == 1, M + 1, batch.marks)
    )
    marks = torch.cat([torch.full_like(lengths[:, None], M), marks], 1)
    x = model.tokens[marks] + model.gap(model._features(gap))

    def kept(y: Tensor, mask: Tensor | None) -> Tensor:
        return y if mask is None else y * mask.view(B, P, -1) * louder

    moments = []
    for i, layer in enumerate(model._stack()):
        masks: Any = (None,) * 3
        if drawn.layers is not None:
            masks = drawn.layers[i].flatten().split([B * P * H, 2 * B * P * H, B * P * H])
        u = layer.norm(x)
        assert layer.gates is not None
        keep, pace = layer.gates(u).chunk(2, -1)
        pace = torch.where(layer.steady, 1.0, softplus(pace))
        driven = torch.complex(*layer.drive(u).chunk(2, -1))
        if drawn.kept_events is not None:
            driven = driven * drawn.kept_events[i].view(B, P, 1) * loud
        states = [driven[:, 0]]
        for p in range(1, P):
            own = pace[:, p - 1] * gap[:, p, None]
            fade = (-layer.decay * own - softplus(-keep[:, p])).clamp(min=-60)
            states.append(
                torch.exp(fade) * torch.exp(1j * layer.frequency * own) * states[-1] + driven[:, p]
            )
        state = torch.stack(states, 1)
        skip, gate = layer.skip(u).chunk(2, -1)
        x = x + kept(
            layer.out(
                gelu(layer.read(torch.view_as_real(state).flatten(2)) + skip) * gate.sigmoid()
            ),
            masks[0],
        )
        x = x + kept(layer.down(kept(gelu(layer.up(layer.inner_norm(x))), masks[1])), masks[2])
        moments.append((state, pace, layer.decay, layer.frequency))
    node, where = torch.arange(drawn.nodes, device=x.device), drawn.where.view(B, P, 1).double()
    root = (
        (1 + 8 * (node + torch.where(node % 2 == 0, where, 1 - where)) / drawn.nodes).sqrt() - 1
    ) / 2
    nodes, weights = root**2, 4 * root / (2 * root + 1)
    lag = width[..., None] * torch.cat([nodes, torch.ones_like(width)[..., None]], 2)
    moved = []
    for state, pace, decay, frequency in moments:
        own = pace[:, :, None] * lag[..., None]
        turned = (
            torch.exp((-decay * own).clamp(min=-60))
            * torch.exp(1j * frequency * own)
            * state[:, :, None]
        )
        moved.append(torch.view_as_real(turned).flatten(3))
    before = (
        model.read(torch.cat(moved, -1))
        + model.context(model.norm(x))[:, :, None]
        + model.since(model._features(lag))
    )
    q = gelu(before)
    inner = gelu(model.up(model.query_norm(q)))
    if drawn.queries is not None:
        inner = inner * drawn.queries.view(B, P, 1, -1) * louder
    q = q + model.down(inner)
    log_rate = log_softplus(model.rate(q)[..., 0]) + model.log_scale - model.time_scale.log()
    position = torch.arange(P, device=x.device)
    counted = (position <= lengths[:, None]) & (
        (position > 0) & (position < lengths[:, None]) if gaps else True
    )
    integral = (log_rate[:, :, :-1].exp() * weights).mean(2) * width * model.time_scale
    own_share = torch.log_softmax(model.share(q[:, :-1, -1]), -1).gather(2, batch.marks[..., None])[
        ..., 0
    ]
    scored = counted[:, :-1] & (position[:-1] < lengths[:, None])
    return torch.where(scored, log_rate[:, :-1, -1] + own_share, 0.0).sum(1) - torch.where(
        counted, integral, 0.0
    ).sum(1)
