"""Deep DAPP's sampled log-likelihood on a CUDA device, in float32: what a training step is made of.

The same numbers as `likelihood.sampled_log_likelihood` makes from the model's verbs, with a few
large kernels in place of many passes
over all nodes: tokens, for each layer the matrices before and after a scan (`norm`,
`scan`, `gate`) and a
network (`mix`), the states at all nodes (`head`), the head there
(`nodes`), and both ends (`score`). :class:`Likelihood` calls them one after
another, and their gradients from the last to the first, but for those at the nodes, which are there
already; those of all parameters are summed at once (`rows`).

All that is drawn at random is drawn first (`draw`), so that :func:`log_likelihoods` is a plain
function that tests compare with the model in float64. Nothing here waits for the device, and shapes
depend on the batch's shape alone: a whole step can be captured as a CUDA graph. Needs the package
triton, which torch brings there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from fourpoint.kernels.autograd import Context
from fourpoint.kernels.triton_deep_dapp import head as deep_head_cuda, score as deep_score_cuda
from fourpoint.kernels.triton_deep_dapp.given import Events, Model
from fourpoint.kernels.triton_deep_dapp.layers import (
    SIDE_BY_SIDE,
    KeptParts,
    Modes,
    Moments,
    Pass,
    network_of,
)
from fourpoint.kernels.triton_deep_dapp.mix import KeptActivations, Network, head, head_back
from fourpoint.kernels.triton_deep_dapp.nodes import Integral, nodes, nodes_and_gradients
from fourpoint.kernels.triton_deep_dapp.norm import norm_linear, norm_linear_back
from fourpoint.kernels.triton_deep_dapp.rows import Rows, Sums, rows_of

# marks at most whose gradients are matrix products inside the kernels; those of more are looked up,
# and shares made in pieces
FEW = 64


class Drawn(NamedTuple):
    """All that is random in a step; None where nothing is dropped. R = B P positions, bytes that
    are 0 or 1.
    """

    nodes: int  # Q, in every gap
    where: Float[
        Tensor, " R"
        # where in their strata of the gap after a position its nodes lie, from 0 to 1
        # (`maths.node_of`)
    ]
    hidden: Integer[Tensor, "B N"] | None = None  # events whose mark is not seen
    kept_events: Integer[Tensor, "L R"] | None = None  # events that leave a trace
    layers: Integer[Tensor, "L R H4"] | None = (
        # activations kept: H at the gate, 2H inside the network, H at its end, one after another
        None
    )
    queries: Integer[Tensor, "R H2"] | None = None  # and inside the head's network
    shifts: Float[Tensor, " R"] | None = (
        # of the events after positions, inside their ticks, in units of the model's time scale
        None
    )


class Loss(NamedTuple):
    """What a step needs: :func:`draw`, then :func:`log_likelihoods`."""

    draw: Callable[..., Drawn]
    log_likelihoods: Callable[..., Tensor]


def load() -> Loss:
    """The two functions, whose kernels Triton compiles at their first call."""
    return Loss(draw, log_likelihoods)


def draw(model: Model, batch: Events, nodes: int, random: torch.Generator) -> Drawn:
    """What a step needs, from a generator on the batch's device; dropout only while training."""
    device = batch.times.device
    (B, N), L, H = batch.times.shape, model.layers, model.width
    R = B * (N + 1)
    where = torch.rand(R, device=device, generator=random)
    if not model.training:
        return Drawn(nodes, where)

    def kept(share: float, *shape: int) -> Tensor | None:
        if share:
            return torch.empty(shape, dtype=torch.uint8, device=device).bernoulli_(
                1 - share, generator=random
            )
        return None

    hidden = kept(1 - model.mark_dropout, B, N) if model.mark_dropout else None
    kept_events = kept(model.event_dropout, L, R)
    active = kept(model.dropout, (4 * L + 2) * R * H)
    layers, queries = (None, None) if active is None else active.split([4 * L * R * H, 2 * R * H])
    shifts = None
    if model.resolution:
        width = (model.resolution / model["time_scale"]).to(where)
        shifts = (torch.rand(R, device=device, generator=random) - 0.5) * width
    return Drawn(
        nodes,
        where,
        hidden,
        kept_events,
        None if layers is None else layers.view(L, R, 4 * H),
        None if queries is None else queries.view(R, 2 * H),
        shifts,
    )


def log_likelihoods(
    model: Model, batch: Events, drawn: Drawn, *, gaps: bool
) -> Float[Tensor, " B"]:
    """The log-likelihood of each sequence, with gradient; under the convention "gaps" or
    "window".
    """
    learned = [model[name] for name in _names(model)]
    gradients = torch.is_grad_enabled() and any(p.requires_grad for p in learned)
    return Likelihood.apply(model, batch, drawn, gaps, gradients, *learned)


class Likelihood(torch.autograd.Function):
    """The log-likelihoods (B), as a function of the parameters in the order of `_names`."""

    @staticmethod
    def forward(
        ctx: Context,
        model: Model,
        batch: Events,
        drawn: Drawn,
        gaps: bool,
        gradients: bool,
        *parameters: Tensor,
    ) -> Tensor:
        rows = rows_of(batch.lengths, batch.times.shape[1] + 1)
        M = model.marks
        few = model.marks <= FEW
        parts = deep_score_cuda.Tokens(model["tokens"], model["gap.weight"], model["gap.bias"])
        x, seen = deep_score_cuda.tokens(
            batch, rows, drawn.hidden, model["time_scale"], model["scales"], M, parts, few=few
        )
        passes, moments, modes = _passes(model, drawn, seen.width, rows)
        for one in passes:
            x = one.forward(x)
        context = norm_linear(
            x,
            model["norm.weight"],
            model["norm.bias"],
            model["context.weight"],
            model["context.bias"],
            rows,
        )
        width = _spread(seen.width, rows.lengths, drawn.shifts)
        given = deep_head_cuda.Given(
            *moments,
            context,
            model["read.weight"],
            model["read.bias"],
            model["since.weight"],
            *modes,
            model["scales"],
            width,
            drawn.where,
        )
        before = deep_head_cuda.turn(given, rows, drawn.nodes)
        kept = KeptActivations(drawn.queries, None, _rescale(model))
        q = (
            torch.empty_like(x) if few else torch.zeros_like(x)
        )  # shares of many marks are made of all rows
        z = head(before, rows, drawn.nodes + 1, kept, *_head(model), q)
        integral = Integral(width, drawn.where, model["log_scale"], gaps)
        left = (
            nodes_and_gradients(before, rows, kept, *_head(model), integral, z)
            if gradients
            else None
        )  # as if all gradients were 1
        if left is None:
            nodes(before, rows, kept, *_head(model), z)
        shares = _shares(model, q, seen.after, rows)
        value, by_scale = deep_score_cuda.score(
            z,
            shares.logs,
            model["log_scale"],
            model["time_scale"],
            width,
            drawn.where,
            rows.lengths,
            gaps,
        )
        ctx.model, ctx.gaps, ctx.sizes = (
            model,
            gaps,
            {n: p.numel() for n, p in zip(_names(model), parameters, strict=True)},
        )
        ctx.kept = (
            rows,
            seen,
            passes,
            x,
            given,
            before,
            kept,
            q,
            z,
            shares,
            by_scale,
            integral,
            left,
        )
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        (
            model,
            (rows, seen, passes, x, given, before, kept, q, z, shares, by_scale, integral, left),
        ) = ctx.model, ctx.kept
        M = model.marks
        sums = Sums(ctx.sizes, z)
        alike = (
            len(grad) == 1 or grad.stride(0) == 0
        )  # one number for all sequences, by which all is multiplied at the end
        each = None if alike else grad.contiguous()
        if each is not None:
            weighted = Integral(
                integral.width, integral.where, integral.log_scale, integral.gaps, grad=each
            )
            left = nodes_and_gradients(before, rows, kept, *_head(model), weighted, z)
        of_before, of_nodes = left
        of_share = z.new_empty(len(z)) if M <= FEW else z.new_zeros(len(z))
        of_z = deep_score_cuda.score_back(
            z, rows, ctx.gaps, each, by_scale, of_share, sums["log_scale"]
        )
        of_q, apart = _shares_back(model, q, seen.after, rows, shares, of_share, sums)
        rate = (sums["rate.weight"], sums["rate.bias"])
        of_network = network_of(sums, "query_norm", "")
        head_back(
            before,
            rows,
            z.shape[1],
            kept,
            *_head(model),
            of_q,
            of_z,
            of_before,
            of_network,
            rate,
            of_nodes,
        )
        gradients = [
            sums[name]
            for name in (
                "read.weight",
                "read.bias",
                "since.weight",
                "layers.0.log_decay",
                "layers.0.turns",
            )
        ]
        of_state, of_pace, of_context = deep_head_cuda.turn_back(
            given, rows, z.shape[1] - 1, of_before, deep_head_cuda.Gradients(*gradients)
        )
        of_x = norm_linear_back(
            x,
            model["norm.weight"],
            model["norm.bias"],
            model["context.weight"],
            of_context,
            None,
            rows,
            *(
                sums[name]
                for name in ("norm.weight", "norm.bias", "context.weight", "context.bias")
            ),
        )
        by_modes = z.new_empty(
            len(grad), 2 * len(given.turns)
        )  # what each sequence's scans add to the gradients of the modes
        of_moments = list(
            zip(*(table.chunk(len(passes), 1) for table in (of_state, of_pace)), strict=True)
        )
        of_modes = list(
            zip(*(table.chunk(len(passes), 1) for table in by_modes.chunk(2, 1)), strict=True)
        )
        for i, one in reversed(list(enumerate(passes))):
            of_x = one.backward(of_x, Moments(*of_moments[i]), Modes(*of_modes[i]), sums)
        if M > FEW:  # marks of rows that do not count are beyond the last
            apart["tokens"] = torch.ops.aten.embedding_dense_backward(
                of_x, seen.own, M + 3, M + 2, False
            )[:-1]
        of_tokens = deep_score_cuda.Tokens(
            None if M > FEW else sums["tokens"], sums["gap.weight"], sums["gap.bias"]
        )
        deep_score_cuda.tokens_back(seen, rows, model["scales"], M, of_x, of_tokens)
        found = {**sums.total(by_modes), **apart}
        if alike:
            torch._foreach_mul_(list(found.values()), grad[0])
        return *[None] * 5, *[found[name].view_as(model[name]) for name in ctx.sizes]


def _spread(
    width: Float[Tensor, "B P"], lengths: Integer[Tensor, " B"], shifts: Float[Tensor, " R"] | None
) -> Float[Tensor, "B P"]:
    """The gaps after positions, their ends moved by ``shifts`` where an event is there
    (`likelihood.sampled_log_likelihood`).
    """
    if shifts is None:
        return width
    is_event = torch.arange(width.shape[1], device=width.device) < lengths[:, None]
    return torch.where(is_event, (width + shifts.view_as(width)).abs(), width)


def _names(model: Model) -> list[str]:
    """All parameters that are learned: first the modes, as the gradients of scans have them;
    matrices that are one lie side by side.
    """
    layers = [f"layers.{i}." for i in range(model.layers)]
    first = [name + mode for mode in ("log_decay", "turns") for name in layers]
    first += [
        f"{name}{part}.{kind}"
        for name in layers
        for kind in ("weight", "bias")
        for part in SIDE_BY_SIDE
    ]
    return first + [
        name for name, p in model.parameters.items() if p.requires_grad and name not in first
    ]


def _passes(
    model: Model, drawn: Drawn, width: Tensor, rows: Rows
) -> tuple[list[Pass], Moments, tuple[Tensor, Tensor, Tensor]]:
    """The ways through all layers; states and paces of all of them, (R, 2 L J) and (R, L J); log
    decays, turns and first decays (L J).
    """
    names = [f"layers.{i}." for i in range(model.layers)]
    R = len(rows.place)
    L = model.layers
    J = len(model["layers.0.turns"])
    H = model.width
    wanted = [
        model[name + mode] for mode in ("log_decay", "turns", "first_decay") for name in names
    ]
    for name in names:
        wanted += [model[f"{name}{part}.weight"].flatten() for part in SIDE_BY_SIDE]
        wanted += [model[f"{name}{part}.bias"] for part in SIDE_BY_SIDE]
    log_decays, turns, first, rest = torch.cat(wanted).split(
        [L * J] * 3 + [L * (4 * J + 2 * H) * (H + 1)]
    )  # one copy for all
    moments = Moments(width.new_empty(R, 2 * L * J), width.new_empty(R, L * J))
    tables = [
        *(table.chunk(L, 1) for table in moments),
        *(part.chunk(L) for part in (log_decays, turns, rest)),
    ]
    passes = list[Pass]()
    C = 4 * J + 2 * H
    for i, (state, pace, log_decay, turn, joined) in enumerate(zip(*tables, strict=True)):
        weight = joined[: C * H].view(C, H)
        bias = joined[C * H :]
        modes = Modes(log_decay, turn)
        kept = _kept_parts(model, drawn, i, R)
        passes.append(
            Pass(
                model,
                names[i],
                weight,
                bias,
                modes,
                Moments(state, pace),
                kept,
                width,
                rows,
            )
        )
    return passes, moments, (log_decays, turns, first)


def _kept_parts(model: Model, drawn: Drawn, i: int, R: int) -> KeptParts:
    """What dropout keeps in layer ``i``."""
    gate = inner = end = None
    if drawn.layers is not None:
        H = drawn.layers.shape[2] // 4
        gate, inner, end = (
            part.view(R, -1) for part in drawn.layers[i].flatten().tensor_split((R * H, 3 * R * H))
        )
    return KeptParts(
        None if drawn.kept_events is None else drawn.kept_events[i],
        1 / (1 - model.event_dropout),
        gate,
        KeptActivations(inner, end, _rescale(model)),
    )


def _rescale(model: Model) -> float:
    return 1 / (1 - model.dropout)


def _head(model: Model) -> tuple[Network, tuple[Tensor, Tensor]]:
    """The head's network, and what makes z of it."""
    names = [
        f"{part}.{kind}" for part in ("query_norm", "up", "down") for kind in ("weight", "bias")
    ]
    network = Network(*(model[name] for name in names))
    return network, (model["rate.weight"], model["rate.bias"])


class Shares(NamedTuple):
    """The logs of the shares (R), None where there is one mark; and where marks are many the
    variable of which torch made them.
    """

    logs: Tensor | None
    q: Tensor | None = None


def _shares(model: Model, q: Tensor, after: Tensor, rows: Rows) -> Shares:
    if model.marks == 1:
        return Shares(None)
    if model.marks <= FEW:
        return Shares(
            deep_score_cuda.shares(q, after, model["share.weight"], model["share.bias"], rows)
        )
    with torch.enable_grad():
        own = q.detach().requires_grad_()
        return Shares(model.log_shares(own, after), own)


def _shares_back(
    model: Model,
    q: Tensor,
    after: Tensor,
    rows: Rows,
    shares: Shares,
    of_share: Tensor,
    sums: Sums,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The gradient of q, and where marks are many those of the matrix and its bias; those of few go
    into ``sums``.
    """
    matrix = model["share.weight"]
    bias = model["share.bias"]
    if shares.logs is None:
        return torch.zeros_like(q), {}
    if shares.q is not None:
        of_q, of_matrix, of_bias = torch.autograd.grad(
            shares.logs, (shares.q, matrix, bias), of_share
        )
        return of_q, {"share.weight": of_matrix, "share.bias": of_bias}
    of_q = torch.empty_like(q)
    deep_score_cuda.shares_back(
        q, after, matrix, bias, rows, of_share, of_q, sums["share.weight"], sums["share.bias"]
    )
    return of_q, {}
