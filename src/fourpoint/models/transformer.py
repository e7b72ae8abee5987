r"""A causal transformer over events, and the history it leaves: what SAHP and THP share.

Token 0 stands for the window's start and is learned; token p is event p's, made by the model from
its mark and its time. Each of L layers lets every token look at itself and at those before it, by K
heads of d = D/K numbers,

    u_p  = n(x_p + O concat_k sum_{j <= p} a_pj V_k x_j),
        a_p = softmax over j of (Q_k x_p)'(K_k x_j)
    x_p <- u_p + W_2 relu(W_1 u_p + b_1)                      (only where ``inner`` > 0)

with n the layer norm. Its own scale and shift are absorbed by the maps after it, as is the usual
1/sqrt(d) by Q and K. So the state after event p has seen events 1..p and nothing later, and that of
token 0 nothing at all: it covers [start, t_1]. A batch's padding lies behind its events, where no
event looks. Q and K begin as one matrix: likeness, hence nearness in time, is what attention begins
with, where two independent ones would begin with noise.

For one event more only its own row is computed, against the keys and values kept from before
(:meth:`Encoder.append`). Memory is O(L n D), and n events cost O(n^2).
Source: Vaswani et al., "Attention is all you need" (NeurIPS 2017).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention

from fourpoint.events import Batch, UserError
from fourpoint.kernels.autograd import Context
from fourpoint.models.base import History, PointProcess
from fourpoint.models.neural_start import ScaledSoftplus

# positions up to which plain products beat the fused kernel, measured on one thread at d = 16
SHORT = 56
Feed = tuple[Tensor, Tensor, Tensor]  # W_1, b_1, W_2


@dataclass(frozen=True, eq=False)
class Encoded(History):
    """States of B sequences at P positions, and every layer's keys and values, side by side (E = 2
    D).

    Nothing is extended while training, and keys and values are not kept then.
    """

    states: Float[Tensor, "B P D"]
    kept: Float[Tensor, "B L P E"] | None

    def at(
        self,
        seen: Int[Tensor, "B G"] | None,
    ) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G D"]]:
        """When the positions ``seen`` begin, and their states; all positions where None."""
        if seen is None:
            return self.times, self.states
        row = torch.arange(len(seen), device=seen.device)[:, None]
        return self.times[row, seen], self.states[row, seen]

    def last(self) -> Float[Tensor, " B"]:
        """When the last real position begins."""
        return self.times.gather(1, self.lengths[:, None])[:, 0]


class Encoder(nn.Module):
    """The layers above on states of ``hidden`` = D numbers.

    Arguments: ``inner``, the numbers between W_1 and W_2 (0: none of that); ``dropout``, the share
    of the heads' output and of
    the inner numbers that is silent while training, drawn from the generator given to
    :meth:`draw_from` (without one, none); ``random``, for the first weights. Fails with
    :class:`UserError` where sizes do not fit together.

    >>> from fourpoint.events import Sequence
    >>> encoder = Encoder(
    ...     8, layers=2, heads=2, inner=16, dropout=0.0, random=torch.Generator().manual_seed(0)
    ... ).eval()
    >>> batch = Sequence([1.0, 2.0], start=0.0, stop=3.0).batch()
    >>> history = encoder.encode(batch, torch.zeros(1, 2, 8))
    >>> tuple(history.states.shape), tuple(history.kept.shape)
    ((1, 3, 8), (1, 2, 3, 16))
    """

    def __init__(
        self,
        hidden: int,
        *,
        layers: int,
        heads: int,
        inner: int,
        dropout: float,
        random: torch.Generator,
    ) -> None:
        super().__init__()
        _check(hidden, layers, heads, inner, dropout)
        self.heads = heads
        self.dropout = dropout
        self._random: torch.Generator | None = None
        alike = _weights(layers, hidden, hidden, random) * (hidden // heads) ** -0.25
        self.first = nn.Parameter(torch.randn(hidden, generator=random))
        values = _weights(layers, hidden, hidden, random)
        self.qkv = nn.Parameter(torch.cat([alike, alike, values], 1))
        self.out = nn.Parameter(_weights(layers, hidden, hidden, random))
        self.up: nn.Parameter | None = None
        self.up_shift: nn.Parameter | None = None
        self.down: nn.Parameter | None = None
        if inner:
            self.up = nn.Parameter(_weights(layers, inner, hidden, random))
            self.up_shift = nn.Parameter(torch.zeros(layers, inner))
            self.down = nn.Parameter(_weights(layers, hidden, inner, random))

    def draw_from(self, random: torch.Generator) -> None:
        """Take the dropout of the next passes in training mode from ``random``."""
        self._random = random

    def encode(self, batch: Batch, tokens: Float[Tensor, "B N D"]) -> Encoded:
        """The history of a batch whose events have these tokens."""
        first = self.first.expand(len(tokens), 1, -1)
        x = torch.cat([first, tokens], 1)
        D = x.shape[-1]
        kept = []
        for qkv, out, feed in self._layers():
            joined = linear(x, qkv)
            found = self._dropped(_attend(joined, self.heads))
            x = _fed(_joined(x, found, out), feed, self._dropped)
            kept.append(joined[..., D:])
        return Encoded(
            times=torch.cat([batch.start[:, None], batch.times], 1),
            start=batch.start,
            lengths=batch.lengths,
            states=x,
            kept=None if self.training else torch.stack(kept, 1),
        )

    def append(
        self,
        history: Encoded,
        token: Float[Tensor, "B D"],
        time: Float[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
    ) -> Encoded:
        """One event more, with its ``token``, in the rows that are ``active`` (all where None)."""
        if active is None:
            active = torch.ones_like(history.lengths, dtype=torch.bool)
        slot = history.lengths + active
        h, old = _with_room(history, int(slot.max()))
        place = torch.arange(h.times.shape[1], device=time.device)
        here = (place == slot[:, None]) & active[:, None]
        visible = place <= slot[:, None]
        x = token
        D = token.shape[-1]
        kept = []
        for (qkv, out, feed), pairs in zip(self._layers(), old.unbind(1), strict=True):
            query, pair = linear(x, qkv).split((D, 2 * D), -1)
            with_new = torch.where(here[..., None], pair[:, None], pairs)
            found = _attend_last(query, with_new, visible, self.heads)
            x = _fed(_joined(x, found, out), feed, lambda u: u)
            kept.append(with_new)
        # Padding repeats the last event, so that times stay in order.
        ahead = (place >= slot[:, None]) & active[:, None]
        return Encoded(
            times=torch.where(ahead, time[:, None], h.times),
            start=h.start,
            lengths=slot,
            states=torch.where(here[..., None], x[:, None], h.states),
            kept=torch.stack(kept, 1),
        )

    def _layers(self) -> Iterator[tuple[Tensor, Tensor, Feed | None]]:
        attention = zip(self.qkv.unbind(0), self.out.unbind(0), strict=True)
        if self.up is None or self.up_shift is None or self.down is None:
            for qkv, out in attention:
                yield qkv, out, None
            return
        feeds = zip(self.up.unbind(0), self.up_shift.unbind(0), self.down.unbind(0), strict=True)
        for (qkv, out), feed in zip(attention, feeds, strict=True):
            yield qkv, out, feed

    def _dropped(self, x: Tensor) -> Tensor:
        if not self.training or self.dropout == 0 or self._random is None:
            return x
        share = 1 - self.dropout
        kept = torch.empty(x.shape, dtype=x.dtype, device=self._random.device)
        kept.bernoulli_(share, generator=self._random)
        return x * kept.div_(share).to(x.device)


class FromEncoder(PointProcess[Encoded]):
    """A point process whose rate is a link applied to curves that begin anew after every event,
    read off the states of an :class:`Encoder`: lambda = rate link(z) with the mean rate of every
    mark. ``_inside`` is z.
    """

    linear = False
    has_upper_bound = True
    one_thread = True  # trained so on a CPU
    recipe: ClassVar[dict[str, Any]] = dict(
        step_events=4096,
        learning_rate=5e-3,
        warmup=20,
        nodes=2,
    )
    encoder: Encoder
    link: ScaledSoftplus
    time_scale: Tensor
    log_rate: Tensor
    _settings: dict[str, Any]

    @abstractmethod
    def _inside(
        self,
        history: Encoded,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None,
    ) -> Float[Tensor, "B G Q M"]:
        """What the link is applied to."""

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return dict(self._settings)

    def redraw(self, random: torch.Generator) -> None:
        """Take the dropout of the next minibatch from ``random``."""
        self.encoder.draw_from(random)

    def log_intensity(
        self,
        history: Encoded,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda per mark, formed without overflow."""
        z = self._inside(history, times, seen)
        return self.link(z) + self.log_rate.to(z)

    def rates_in_gaps(
        self,
        history: Encoded,
        nodes: Float[Tensor, "B G Q"],
        ends: Float[Tensor, "B G"],
        weights: Float[Tensor, " Q"] | None = None,
    ) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G M"]]:
        """The mean total rate at each gap's ``nodes``, by ``weights`` (None: all alike), and log
        lambda per mark at its end.
        """
        times = torch.cat([nodes, ends[..., None]], 2)
        z = self._inside(history, times, None)
        return self.link.in_gaps(z, self.log_rate.to(z), weights)


def sinusoids(turns: Float[Tensor, "*S F"], kind: torch.dtype) -> Float[Tensor, "*S D"]:
    """Sines and then cosines of angles given in turns. Whole turns are taken off before rounding to
    ``kind``: far from the start an angle keeps its digits.

    >>> sinusoids(torch.tensor([1e9 + 0.25], dtype=torch.float64), torch.float32).round(
    ...     decimals=3
    ... ).tolist()
    [1.0, -0.0]
    """
    return _Sinusoids.apply(turns, kind)


class _Sinusoids(torch.autograd.Function):
    """:func:`sinusoids`, each of whose halves is the derivative of the other, up to sign."""

    @staticmethod
    def forward(
        ctx: Context,
        turns: Float[Tensor, "*S F"],
        kind: torch.dtype,
    ) -> Float[Tensor, "*S D"]:
        left = turns.frac().to(kind).mul_(2 * math.pi)
        out = torch.cat([left.sin(), left.cos()], -1)
        ctx.save_for_backward(out)
        ctx.kind = turns.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *outside: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        to_sin, to_cos = outside[0].chunk(2, -1)
        sin, cos = out.chunk(2, -1)
        to_angle = to_sin * cos
        to_angle.addcmul_(to_cos, sin, value=-1)
        to_angle.mul_(2 * math.pi)
        return to_angle.to(ctx.kind), None


def frequencies(count: int, slowest: float) -> Float[Tensor, " F"]:
    """From 1 down to ``slowest`` in equal ratios.

    >>> frequencies(3, 0.01).tolist()
    [1.0, 0.1, 0.01]
    """
    return torch.logspace(0, math.log10(slowest), count, dtype=torch.float64)


def refuse_to_go_on() -> None:
    """Attention needs every earlier event; a last state alone does not carry them."""
    raise UserError(
        "a linear form to go on from a history",
        "a model that attends to every event",
        "Encode the whole sequence.",
    )


def _check(hidden: int, layers: int, heads: int, inner: int, dropout: float) -> None:
    if min(hidden, layers, heads) < 1 or inner < 0 or hidden % heads or hidden % 4:
        received = f"hidden={hidden}, layers={layers}, heads={heads}, inner={inner}"
        raise UserError(
            "hidden a multiple of 4 and of heads, and at least one layer and head",
            received,
            "Use hidden=64, heads=4, say.",
        )
    if not 0 <= dropout < 1:
        raise UserError("dropout from 0 to below 1", f"{dropout}", "Pass dropout=0.1, say.")


def _weights(
    layers: int,
    rows: int,
    columns: int,
    random: torch.Generator,
) -> Float[Tensor, "L R C"]:
    """Uniform with variance 1 / (3 columns), as a `torch.nn.Linear` begins."""
    uniform = 2 * torch.rand(layers, rows, columns, generator=random) - 1
    return uniform / math.sqrt(columns)


def _attend(joined: Float[Tensor, "B P J"], heads: int) -> Float[Tensor, "B P D"]:
    """The heads side by side, from queries, keys and values side by side.

    Short sequences go head by head through views of ``joined``: gathering the heads into one tensor
    would cost more.
    """
    P = joined.shape[1]
    width = joined.shape[-1] // (3 * heads)
    if P > SHORT:
        by_head = [part.unflatten(-1, (heads, width)) for part in joined.chunk(3, -1)]
        q, k, v = (part.transpose(1, 2) for part in by_head)
        found = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return found.transpose(1, 2).flatten(2)
    later = torch.full((P, P), -math.inf, dtype=joined.dtype, device=joined.device).triu(1)
    parts = joined.split(width, -1)
    queries = parts[:heads]
    keys = parts[heads : 2 * heads]
    values = parts[2 * heads :]
    each = []
    for q, k, v in zip(queries, keys, values, strict=True):
        scores = torch.bmm(q, k.transpose(1, 2))
        weights = scores.add_(later).softmax(-1)
        each.append(torch.bmm(weights, v))
    return torch.cat(each, -1)


def _attend_last(
    query: Float[Tensor, "B D"],
    pairs: Float[Tensor, "B P E"],
    visible: Bool[Tensor, "B P"],
    heads: int,
) -> Float[Tensor, "B D"]:
    """The same for one new position. Slots that it does not see may hold anything."""
    B, D = query.shape
    width = D // heads
    seen = torch.where(visible[..., None], pairs, 0.0)
    keys, values = seen.view(B, -1, 2, heads, width).unbind(2)
    scores = torch.einsum("bkd,bpkd->bkp", query.view(B, heads, width), keys)
    scores = torch.where(visible[:, None], scores, -math.inf)
    found = torch.einsum("bkp,bpkd->bkd", scores.softmax(-1), values)
    return found.reshape(B, D)


def _joined(
    x: Float[Tensor, "*S D"],
    found: Float[Tensor, "*S D"],
    out: Float[Tensor, "D D"],
) -> Float[Tensor, "*S D"]:
    """n(x + O found), summed in place: a sum formed inside the product would copy x first."""
    D = x.shape[-1]
    summed = torch.mm(found.reshape(-1, D), out.T)
    summed.add_(x.reshape(-1, D))
    return layer_norm(summed.view(x.shape), (D,))


def _fed(
    x: Float[Tensor, "*S D"],
    feed: Feed | None,
    drop: Callable[[Tensor], Tensor],
) -> Float[Tensor, "*S D"]:
    """x + W_2 relu(W_1 x + b_1), likewise."""
    if feed is None:
        return x
    up, shift, down = feed
    flat = x.view(-1, x.shape[-1])
    inner = torch.mm(flat, up.T).add_(shift).relu_()
    summed = torch.mm(drop(inner), down.T)
    summed.add_(flat)
    return summed.view(x.shape)


def _with_room(h: Encoded, slot: int) -> tuple[Encoded, Float[Tensor, "B L P E"]]:
    """The history with position ``slot`` in it, and its keys and values. It grows by a quarter:
    growing by one would copy the whole past for every event.
    """
    if h.kept is None:
        raise UserError(
            "a history encoded in evaluation mode",
            "one encoded in training mode",
            "Call model.eval() before encoding.",
        )
    B, P = h.times.shape
    if slot < P:
        return h, h.kept
    more = 4 + P // 4
    _, L, _, E = h.kept.shape
    times = torch.cat([h.times, h.times[:, -1:].expand(-1, more)], 1)
    states = torch.cat([h.states, h.states.new_zeros(B, more, h.states.shape[2])], 1)
    kept = torch.cat([h.kept, h.kept.new_zeros(B, L, more, E)], 2)
    return replace(h, times=times, states=states, kept=kept), kept
