"""Dense, scan and step are one sum: each is held against the slow float64 loop, values and
gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from reference.attention_loop import attention_loop
from torch import Tensor

from fourpoint.events import UserError
from fourpoint.models.dapp import DAPP
from fourpoint.ops import attention, recurrence
from fourpoint.ops.fourier import Spectrum, with_constant

LINEAR = ("none", "ratio")
TIGHT = 1e-10


@dataclass
class Case:
    """Leaves that everything is differentiated by, and what is asked."""

    theta: Tensor
    gamma: Tensor | None
    psi: Tensor
    values: Tensor
    gaps: Tensor
    marks: Tensor
    valid: Tensor
    weight: Tensor
    phase: Tensor | None
    positions: Tensor

    @property
    def leaves(self) -> list[Tensor]:
        return [
            x for x in (self.theta, self.gamma, self.psi, self.values, self.gaps) if x is not None
        ]

    @property
    def edges(self) -> Tensor:
        """start, events and stop, as a function of the gaps."""
        return torch.cat([torch.zeros_like(self.gaps[:, :1]), self.gaps.cumsum(1)], 1)

    @property
    def events(self) -> Tensor:
        return self.edges[:, 1:-1]

    @property
    def query(self) -> Tensor:
        """A third into the gap after each asked position, and at its right end."""
        left, right = self.edges.gather(1, self.positions), self.edges.gather(1, self.positions + 1)
        return left[..., None] + (right - left)[..., None] * torch.tensor(
            [1 / 3, 1.0], dtype=torch.float64
        )

    def spectrum(self, normalise: str) -> Spectrum:
        plain = Spectrum(self.theta, self.gamma, self.psi, self.weight, self.phase)
        return with_constant(plain) if normalise == "ratio" else plain


def case(
    n: int,
    marks: int,
    decay: bool,
    phase: str = "paired",
    *,
    positions: list[int] | None = None,
    seed: int = 0,
    ties: bool = False,
) -> Case:
    """Two sequences, the second of two thirds of the events and padded at its window's end. Two
    heads, five modes.
    """
    random = torch.Generator().manual_seed(seed + n)
    B, K, D = 2, 2, 5

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    lengths = torch.tensor([n, (2 * n) // 3])
    gaps = draw(B, n + 1).abs() + 0.05
    if ties:
        gaps[:, 1:n:3] = 0.0
    gaps = torch.where(torch.arange(n + 1) <= lengths[:, None], gaps, 0.0)
    weight = torch.softmax(draw(K, D), 1)
    at = torch.arange(n + 1) if positions is None else torch.tensor(positions)
    made = Case(
        theta=2 * draw(K, D),
        gamma=0.3 * draw(K, D).abs() if decay else None,
        psi=draw(K, D, marks),
        values=draw(B, n, K),
        gaps=gaps,
        marks=torch.randint(0, marks, (B, n), generator=random),
        valid=torch.arange(n) < lengths[:, None],
        weight=weight,
        phase=6.28 * torch.rand(K, D, generator=random, dtype=torch.float64)
        if phase == "random"
        else None,
        positions=torch.minimum(at, lengths[:, None]),
    )
    for leaf in made.leaves:
        leaf.requires_grad_()
    return made


def by_loop(c: Case, normalise: str) -> Tensor:
    return attention_loop(
        c.query,
        c.positions,
        c.events,
        c.marks,
        c.values,
        c.theta,
        c.gamma,
        c.psi,
        c.weight,
        c.phase,
        normalise,
    )


def seen_by_position(c: Case) -> Tensor:
    """True for the events that come before each group's position."""
    return torch.arange(c.events.shape[1]) < c.positions[..., None]


def by_dense(c: Case, normalise: str) -> Tensor:
    return attention.dense(
        c.spectrum(normalise), c.query, seen_by_position(c), c.events, c.marks, c.values, normalise
    )


def by_scan(c: Case, normalise: str) -> Tensor:
    s = c.spectrum(normalise)
    driven = attention.drive(s, c.marks, channels(c, normalise), c.valid)
    states = attention.scan(s.rate, c.edges.diff(dim=1)[:, :-1], driven)
    return read(c, s, torch.cat([torch.zeros_like(states[:, :1]), states], 1), normalise)


def by_step(c: Case, normalise: str) -> Tensor:
    s = c.spectrum(normalise)
    driven = attention.drive(s, c.marks, channels(c, normalise), c.valid)
    states = [torch.zeros_like(driven[:, 0])]
    for i in range(driven.shape[1]):
        states.append(
            attention.step(s.rate, states[-1], c.edges[:, i + 1] - c.edges[:, i], driven[:, i])
        )
    return read(c, s, torch.stack(states, 1), normalise)


def channels(c: Case, normalise: str) -> Tensor:
    return (
        c.values[..., None]
        if normalise == "none"
        else torch.stack([c.values, torch.ones_like(c.values)], -1)
    )


def read(c: Case, s: Spectrum, states: Tensor, normalise: str) -> Tensor:
    row = torch.arange(len(states))[:, None]
    lag = c.query - c.edges.gather(1, c.positions)[..., None]
    sums = attention.read(s, states[row, c.positions], lag)
    return sums[..., 0] if normalise == "none" else attention.divide(sums[..., 0], sums[..., 1])


def assert_same(slow: Tensor, leaves: list[Tensor], *fast: Tensor) -> None:
    """Equal values, and equal gradients of a random combination of them."""
    mix = (
        torch.randn(slow.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        / slow[0].numel() ** 0.5
    )
    wanted = torch.autograd.grad((slow * mix).sum(), leaves, retain_graph=True)
    for form in fast:
        assert form.shape == slow.shape
        assert torch.allclose(form, slow, rtol=TIGHT, atol=TIGHT)
        for got, truth in zip(
            torch.autograd.grad((form * mix).sum(), leaves, retain_graph=True), wanted, strict=True
        ):
            assert torch.allclose(
                got, truth, rtol=TIGHT, atol=TIGHT * max(1.0, float(truth.abs().max()))
            )


@pytest.mark.parametrize("decay", [False, True], ids=["still", "decay"])
@pytest.mark.parametrize("marks", [1, 3])
@pytest.mark.parametrize("normalise", LINEAR)
def test_every_form_is_the_loop(normalise: str, marks: int, decay: bool) -> None:
    c = case(12, marks, decay)
    assert_same(
        by_loop(c, normalise),
        c.leaves,
        *(form(c, normalise) for form in (by_dense, by_scan, by_step)),
    )


@pytest.mark.parametrize("decay", [False, True], ids=["still", "decay"])
@pytest.mark.parametrize("marks", [1, 3])
@pytest.mark.parametrize(
    ("normalise", "phase"), [("softmax", "paired"), ("softmax", "random"), ("none", "random")]
)
def test_dense_alone_knows_softmax_and_random_phases(
    normalise: str, phase: str, marks: int, decay: bool
) -> None:
    c = case(9, marks, decay, phase)
    assert_same(by_loop(c, normalise), c.leaves, by_dense(c, normalise))


@pytest.mark.parametrize("normalise", LINEAR)
@pytest.mark.parametrize("n", [1, 31, 32, 33, 100, 1100])
def test_chunks_join_without_a_seam(n: int, normalise: str) -> None:
    positions = [p for p in (0, 1, 31, 32, 33, 65) if p < n] + [n] if n <= 100 else [33, n]
    c = case(n, 2, True, positions=positions)
    assert_same(
        by_loop(c, normalise),
        c.leaves,
        *(form(c, normalise) for form in (by_dense, by_scan, by_step)),
    )


def test_a_scan_in_two_parts_carries_its_state() -> None:
    c = case(50, 2, True)
    s = c.spectrum("none")
    driven, gaps = (
        attention.drive(s, c.marks, c.values[..., None], c.valid),
        c.edges.diff(dim=1)[:, :-1],
    )
    whole = attention.scan(s.rate, gaps, driven)
    first = attention.scan(s.rate, gaps[:, :17], driven[:, :17])
    second = attention.scan(s.rate, gaps[:, 17:], driven[:, 17:], first[:, -1])
    assert_same(
        torch.view_as_real(whole), c.leaves, torch.view_as_real(torch.cat([first, second], 1))
    )
    none = attention.scan(s.rate, gaps[:, :0], driven[:, :0], first[:, -1])
    assert none.shape == (2, 0, *whole.shape[2:])


@pytest.mark.parametrize("normalise", LINEAR)
def test_ties_are_gaps_of_zero(normalise: str) -> None:
    c = case(10, 2, True, ties=True)
    assert (c.gaps == 0).sum() > 4
    assert_same(
        by_loop(c, normalise),
        c.leaves,
        *(form(c, normalise) for form in (by_dense, by_scan, by_step)),
    )


@pytest.mark.parametrize("normalise", ["none", "ratio", "softmax"])
def test_nothing_seen_gives_nothing(normalise: str) -> None:
    c = case(4, 2, True)
    c.positions = torch.zeros_like(c.positions)
    dense = by_dense(c, normalise)
    assert (dense == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(dense.sum(), c.leaves))
    if normalise != "softmax":
        assert (by_scan(c, normalise) == 0).all()


@pytest.mark.parametrize("normalise", ["none", "ratio", "softmax"])
def test_empty_sequences(normalise: str) -> None:
    c = case(0, 2, True)
    assert by_dense(c, normalise).shape == (2, 1, 2, 2, 2)
    assert (by_dense(c, normalise) == 0).all()
    s = c.spectrum(normalise)
    assert (
        attention.scan(
            s.rate, c.gaps[:, :0], attention.drive(s, c.marks, c.values[..., None], c.valid)
        ).shape[1]
        == 0
    )


@pytest.mark.parametrize("normalise", LINEAR)
def test_reading_in_pieces_equals_reading_whole(
    normalise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case(40, 3, True)
    whole = by_scan(c, normalise)
    monkeypatch.setattr(attention, "PIECE", 64)
    with torch.no_grad():
        pieces = by_scan(c, normalise)
    assert torch.allclose(pieces, whole, rtol=1e-13, atol=1e-13)


def test_scores_in_pieces_equal_scores_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for decay, phase in ((False, "paired"), (True, "paired"), (False, "random")):
        c = case(8, 3, decay, phase)
        whole = by_dense(c, "softmax")
        monkeypatch.setattr("fourpoint.ops.fourier.LARGEST", 1)
        with torch.no_grad():
            pieces = by_dense(c, "softmax")
        monkeypatch.undo()
        assert torch.allclose(pieces, whole, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("normalise", LINEAR)
def test_many_marks_take_another_way_to_the_same_numbers(
    normalise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case(6, 3, True)
    few = by_scan(c, normalise)
    monkeypatch.setattr(attention, "WIDE", 2)
    assert_same(few, c.leaves, by_scan(c, normalise))
    monkeypatch.undo()
    many = case(4, attention.WIDE + 3, True)
    assert_same(by_loop(many, normalise), many.leaves, by_scan(many, normalise))


def test_gradients_of_the_scan_to_second_order() -> None:
    random = torch.Generator().manual_seed(3)

    def draw() -> Tensor:
        return torch.randn(2, 5, 1, 2, 1, generator=random, dtype=torch.complex128).requires_grad_()

    factor, driven = draw(), draw()
    assert torch.autograd.gradcheck(recurrence.recur, (factor, driven))
    assert torch.autograd.gradgradcheck(recurrence.recur, (factor, driven))


def test_gradients_of_the_scan_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "CHUNK", 3)
    random = torch.Generator().manual_seed(4)
    inputs = [
        torch.randn(1, 11, 1, 1, 1, generator=random, dtype=torch.complex128).requires_grad_()
        for _ in range(2)
    ]
    assert torch.autograd.gradcheck(recurrence.recur, inputs)
    assert torch.autograd.gradgradcheck(recurrence.recur, inputs)


def test_gradients_of_the_public_scan() -> None:
    random = torch.Generator().manual_seed(5)
    rate = torch.complex(
        -torch.rand(1, 2, generator=random, dtype=torch.float64),
        torch.randn(1, 2, generator=random, dtype=torch.float64),
    )
    gaps = torch.rand(1, 4, generator=random, dtype=torch.float64)
    driven, before = (
        torch.randn(1, *n, 1, 2, 1, generator=random, dtype=torch.complex128) for n in ((4,), ())
    )
    inputs = [x.requires_grad_() for x in (rate, gaps, driven, before)]
    assert torch.autograd.gradcheck(attention.scan, inputs)
    assert torch.autograd.gradgradcheck(attention.scan, inputs)


def test_gradients_of_the_read() -> None:
    random = torch.Generator().manual_seed(6)
    shapes = ((2, 3), (2, 3), (1, 2, 2, 6, 2), (1, 2, 4))
    inputs = [torch.randn(*s, generator=random, dtype=torch.float64) for s in shapes]
    inputs[1], inputs[3] = inputs[1].abs(), inputs[3].abs()
    assert torch.autograd.gradcheck(attention._Read.apply, [x.requires_grad_() for x in inputs])


def test_softmax_refuses_a_scan() -> None:
    expected = (
        r"expected a normalisation that a scan can carry; received normalise='softmax' with "
        r"form='scan'\. Use form='dense'"
    )
    with pytest.raises(UserError, match=expected):
        DAPP(normalise="softmax", form="scan")


@pytest.mark.parametrize("decay", [False, True], ids=["still", "decay"])
@pytest.mark.parametrize("normalise", LINEAR)
def test_float32_is_at_most_twice_as_wrong_as_a_plain_program(normalise: str, decay: bool) -> None:
    """Both against the float64 loop on the same rounded parameters, as root mean squares."""
    c = case(150, 2, decay, positions=list(range(0, 151, 15)), seed=8)
    exact = [
        None if x is None else x.detach().float().double()
        for x in (c.values, c.theta, c.gamma, c.psi, c.weight)
    ]
    rounded = [None if x is None else x.float() for x in exact]
    truth, plain = (
        attention_loop(
            c.query.detach(),
            c.positions,
            c.events.detach(),
            c.marks,
            v,
            t,
            g,
            p,
            w,
            None,
            normalise,
        )
        for v, t, g, p, w in (exact, rounded)
    )
    for form in ("dense", "scan", "step"):
        fast = in_float32(c, form, normalise, *rounded)
        wrong, allowed = ((x.double() - truth).square().mean().sqrt().item() for x in (fast, plain))
        assert fast.dtype == torch.float32
        assert wrong <= 2 * allowed, form


def in_float32(
    c: Case,
    form: str,
    normalise: str,
    values: Tensor,
    theta: Tensor,
    gamma: Tensor | None,
    psi: Tensor,
    weight: Tensor,
) -> Tensor:
    """The same three forms as the models run them: times in float64 until they are differenced, the
    rest in float32.
    """
    s = Spectrum(theta, gamma, psi, weight, None)
    s = with_constant(s) if normalise == "ratio" else s
    edges, query = c.edges.detach(), c.query.detach()
    if form == "dense":
        return attention.dense(
            s, query, seen_by_position(c), edges[:, 1:-1], c.marks, values, normalise
        )
    carried = (
        values[..., None]
        if normalise == "none"
        else torch.stack([values, torch.ones_like(values)], -1)
    )
    driven, gaps = attention.drive(s, c.marks, carried, c.valid), edges.diff(dim=1)[:, :-1].float()
    if form == "scan":
        states = attention.scan(s.rate, gaps, driven)
    else:
        held = [torch.zeros_like(driven[:, 0])]
        for i in range(gaps.shape[1]):
            held.append(attention.step(s.rate, held[-1], gaps[:, i], driven[:, i]))
        states = torch.stack(held[1:], 1)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)[
        torch.arange(2)[:, None], c.positions
    ]
    sums = attention.read(s, states, (query - edges.gather(1, c.positions)[..., None]).float())
    return sums[..., 0] if normalise == "none" else attention.divide(sums[..., 0], sums[..., 1])
