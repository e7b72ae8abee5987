r"""How much a query attends to a past event: three scores of a pair, one question.

    Fourier     kappa_k(x, x')               `ops.fourier`: a learned spectrum, the paper's proposal
    dot         (W_u x)' (W_u x')                          the usual attention, linear in the events
    neural      net_k(W_u x, W_u x')                           a network on the two projected events

with x = (t, m) and W_u x = w_t t + W_m m, where t counts from the window's start. The last two are
the paper's ablations: they have no linear form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fourpoint.ops.fourier import LARGEST, Spectrum, fourier_scores


class Projection(NamedTuple):
    """W_u of K heads, for times in the model's own unit: dot-product scores."""

    time: Float[Tensor, "K r"]
    mark: Float[Tensor, "K r M"]


class Network(NamedTuple):
    """Neural scores: the projection, and per layer one weight and one bias for each head."""

    projection: Projection
    weights: tuple[Float[Tensor, "K i o"], ...]
    biases: tuple[Float[Tensor, "K 1 o"], ...]
    activation: Callable[[Tensor], Tensor]


Score = Spectrum | Projection | Network


def scores(
    score: Score,
    query: Float[Tensor, "B Q"],
    events: Float[Tensor, "B N *H"],
    marks: Int[Tensor, "B N *H"],
    kinds: Int[Tensor, "B Q"] | None = None,
) -> Float[Tensor, "B K Q L N"]:
    """nu_k((t, m), x_i) for every query, mark and event, whatever the score; future events are to
    be masked.

    ``events`` and ``marks`` are shared by all heads (B, N), or each head has its own (B, N, K).
    With ``kinds`` each query has one mark (L = 1), without it all of them (L = M).

    >>> plane = Projection(torch.tensor([[2.0]]), torch.zeros(1, 1, 1))
    >>> scores(
    ...     plane,
    ...     torch.tensor([[3.0]]),
    ...     torch.tensor([[1.0, 2.0]]),
    ...     torch.zeros(1, 2, dtype=torch.long),
    ... ).flatten().tolist()
    [12.0, 24.0]
    """
    return SCORES[type(score)](score, query, events, marks, kinds)


def _dot(
    p: Projection, query: Tensor, events: Tensor, marks: Tensor, kinds: Tensor | None
) -> Float[Tensor, "B K Q L N"]:
    return torch.einsum("bqkmr,bnkr->bkqmn", _queries(p, query, kinds), _keys(p, events, marks))


def _neural(
    n: Network, query: Tensor, events: Tensor, marks: Tensor, kinds: Tensor | None
) -> Float[Tensor, "B K Q L N"]:
    """The first layer is a sum of a query's and an event's part, formed once for each; in pieces of
    queries without gradient.
    """
    asked = _queries(n.projection, query, kinds)
    kept = _keys(n.projection, events, marks)
    r = kept.shape[-1]
    left = torch.einsum("bqkmr,krh->bkqmh", asked, n.weights[0][:, :r])
    right = torch.einsum("bnkr,krh->bknh", kept, n.weights[0][:, r:]) + n.biases[0]
    widest = max(w.shape[-1] for w in n.weights)
    per_query = max(1, left[:, :, :1, :, 0].numel() * right.shape[2] * widest)
    piece = left.shape[2] if torch.is_grad_enabled() else max(1, LARGEST // per_query)
    return torch.cat([_rest(n, some, right) for some in left.split(max(1, piece), 2)], 2)


def _rest(
    n: Network, left: Float[Tensor, "B K Q L h"], right: Float[Tensor, "B K N h"]
) -> Float[Tensor, "B K Q L N"]:
    z = left[..., None, :] + right[:, :, None, None]
    for weight, bias in zip(n.weights[1:], n.biases[1:], strict=True):
        z = (
            torch.einsum("bkqmnh,kho->bkqmno", n.activation(z), weight)
            + bias[:, 0][:, None, None, None]
        )
    return z[..., 0]


def _queries(
    p: Projection, query: Float[Tensor, "B Q"], kinds: Tensor | None
) -> Float[Tensor, "B Q K L r"]:
    time = query.to(p.time.dtype)[..., None, None] * p.time
    shift = p.mark.permute(2, 0, 1)
    return time[..., None, :] + (
        shift.permute(1, 0, 2) if kinds is None else shift[kinds][..., None, :]
    )


def _keys(
    p: Projection, events: Float[Tensor, "B N *H"], marks: Int[Tensor, "B N *H"]
) -> Float[Tensor, "B N K r"]:
    if events.ndim == 2:
        events = events[..., None]
        marks = marks[..., None]
    heads = torch.arange(len(p.time), device=marks.device)
    of_time = events.to(p.time.dtype)[..., None] * p.time
    of_mark = p.mark.transpose(1, 2)[heads, marks]
    return of_time + of_mark


SCORES: dict[type, Callable[..., Any]] = {
    Spectrum: fourier_scores,
    Projection: _dot,
    Network: _neural,
}
