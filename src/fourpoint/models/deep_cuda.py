"""Deep DAPP's sampled log-likelihood on a CUDA device, in float32: what a training step is made of.

The same numbers as `likelihood.sampled_log_likelihood` makes from the model's verbs, with a few large kernels in place of many passes
over all nodes: tokens by one matrix product, a scan per layer (`deep_walk_cuda`, `deep_gate_cuda`), the networks (`deep_mix_cuda`), the
states at all nodes (`deep_head_cuda`), and both ends (`deep_score_cuda`). All that is drawn at random is drawn first (`draw`), so that
:func:`log_likelihoods` is a plain function that tests compare with the model in float64. Nothing here waits for the device, and shapes
depend on the batch's shape alone: a whole step can be captured as a CUDA graph. Needs the package triton, which torch brings there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn.functional import embedding, linear

from fourpoint.events import Batch
from fourpoint.models.deep_gate_cuda import Heard
from fourpoint.models.deep_head_cuda import Modes, Turn
from fourpoint.models.deep_layer import DeepLayer
from fourpoint.models.deep_mix_cuda import Head, Mix, Silence
from fourpoint.models.deep_norm_cuda import NormLinear
from fourpoint.models.deep_score_cuda import Score, tokens

if TYPE_CHECKING:
    from fourpoint.models.deep_dapp import DeepDAPP

SPREAD = 512  # marks at most whose tokens are a matrix product rather than looked up


class Drawn(NamedTuple):
    """All that is random in a step; None where nothing is silenced. R = B P positions, bytes that are 0 or 1."""

    nodes: Float[Tensor, "R Q"]  # where in its stratum of the gap after a position each node lies, from 0 to 1
    hidden: Integer[Tensor, "B N"] | None = None  # events whose mark is not seen
    heard: Integer[Tensor, "L R"] | None = None  # events that leave a trace
    layers: Integer[Tensor, "L R H4"] | None = (
        None  # activations kept: H at the gate, 2H inside the network, H at its end, one after another
    )
    queries: Integer[Tensor, "R H2"] | None = None  # and inside the head's network


def draw(model: DeepDAPP, batch: Batch, nodes: int, random: torch.Generator) -> Drawn:
    """What a step needs, from a generator on the batch's device; silence only while training."""
    settings, device = model.settings(), batch.times.device
    (B, N), L, H = batch.times.shape, settings["layers"], settings["width"]
    R = B * (N + 1)
    where = torch.rand(R, nodes, device=device, generator=random)
    if not model.training:
        return Drawn(where)

    def kept(share: float, *shape: int) -> Tensor | None:
        return torch.empty(shape, dtype=torch.uint8, device=device).bernoulli_(1 - share, generator=random) if share else None

    hidden = kept(1 - settings["unmarked"], B, N) if settings["unmarked"] else None
    heard, active = kept(settings["unheard"], L, R), kept(settings["dropout"], (4 * L + 2) * R * H)
    layers, queries = (None, None) if active is None else active.split([4 * L * R * H, 2 * R * H])
    return Drawn(
        where,
        hidden,
        heard,
        None if layers is None else layers.view(L, R, 4 * H),
        None if queries is None else queries.view(R, 2 * H),
    )


def log_likelihoods(model: DeepDAPP, batch: Batch, drawn: Drawn, *, gaps: bool) -> Float[Tensor, " B"]:
    """The log-likelihood of each sequence, with gradient; under the convention "gaps" or "window"."""
    P, lengths = batch.times.shape[1] + 1, batch.lengths
    louder, stack = 1 / (1 - model.settings()["dropout"]), list(model._stack())
    x, after, width = _tokens(model, batch, lengths, drawn)
    first = torch.cat([layer.first_decay for layer in stack])
    log_decays, turns, *own = Modes.apply(*[layer.log_decay for layer in stack], *[layer.turns for layer in stack])
    together = (x.new_empty(len(x), 2 * len(first)), x.new_empty(len(x), len(first)))  # states and paces of all layers, side by side
    moments = list[Tensor]()
    for i, layer in enumerate(stack):
        x, *moment = _layer(layer, x, width, lengths, drawn, i, model, louder, own[2 * i : 2 * i + 2], together)
        moments += moment
    context = NormLinear.apply(x, model.norm.weight, model.norm.bias, model.context.weight, model.context.bias)
    before = Turn.apply(
        together, context, model.read.weight, model.read.bias, model.since.weight, log_decays, turns, first, model.scales,
        width, drawn.nodes, lengths, *moments,
    )  # fmt: skip
    z, q = Head.apply(
        before, lengths, P, drawn.nodes.shape[1] + 1, Silence(drawn.queries, None, louder), model.rate.weight, model.rate.bias,
        model.query_norm.weight, model.query_norm.bias, model.up.weight, model.up.bias, model.down.weight, model.down.bias,
    )  # fmt: skip
    return Score.apply(
        z, model._log_shares(q, after) if model.marks.count > 1 else None, model.log_scale, model.time_scale, width, lengths, gaps
    )


def _tokens(model: DeepDAPP, batch: Batch, lengths: Tensor, drawn: Drawn) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (R, H), the mark of the event after each position (R), and the gap after it (B, P)."""
    M = model.marks.count
    spread = M + 2 <= SPREAD
    features, own, after, width = tokens(batch, lengths, drawn.hidden, model.time_scale, model.scales, M, spread=spread)
    if spread:
        return linear(features, torch.cat([model.tokens.T, model.gap.weight], 1), model.gap.bias), after, width
    return embedding(own, model.tokens) + linear(features, model.gap.weight, model.gap.bias), after, width


def _layer(
    layer: DeepLayer, x: Tensor, width: Tensor, lengths: Tensor, drawn: Drawn, i: int, model: DeepDAPP, louder: float,
    modes: list[Tensor], together: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One layer: its tokens, states and paces, the latter two in their columns of what is kept ``together``."""
    (R, H), J = x.shape, len(modes[0])
    outer = inner = end = None
    if drawn.layers is not None:
        outer, inner, end = (part.view(R, -1) for part in drawn.layers[i].flatten().split([R * H, 2 * R * H, R * H]))
    matrices = [part for part in (layer.drive, layer.gates, layer.skip) if part is not None]
    x, state, pace = Heard.apply(
        x, layer.norm.weight, layer.norm.bias, torch.cat([part.weight for part in matrices]), torch.cat([part.bias for part in matrices]),
        layer.read.weight, layer.read.bias, layer.out.weight, layer.out.bias, *modes, layer.first_decay, layer.steady, width, lengths,
        None if drawn.heard is None else drawn.heard[i], 1 / (1 - model.settings()["unheard"]), outer, louder,
        (together[0][:, 2 * J * i : 2 * J * (i + 1)], together[1][:, J * i : J * (i + 1)]),
    )  # fmt: skip
    x = Mix.apply(
        x, lengths, width.shape[1], Silence(inner, end, louder), layer.inner_norm.weight, layer.inner_norm.bias,
        layer.up.weight, layer.up.bias, layer.down.weight, layer.down.bias,
    )  # fmt: skip
    return x, state, pace
