r"""Training SAHP and THP by compiled loops: `attentive_loops` behind one node of the gradient's
graph.

    log L = sum_i log lambda_{m_i}(t_i) - sum over gaps of width / Q sum_q lambda(node_q)

The same numbers as by ``encode`` and ``in_gaps``, to rounding, in about half the time. It is used
where numba is installed and all
of this holds: a gradient is wanted, on the processor, in float32, without dropout, of sequences
that are not long, and
there is enough work to repay loading the machine code. All others go the plain way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourpoint.events import Batch
from fourpoint.models.attentive_loops import compiled_sweep
from fourpoint.models.attentive_room import LANES, Parts, room_for, turned, whole_registers
from fourpoint.models.readout_loops import MOST_MULTIPLIED
from fourpoint.models.transformer import Encoder

WORTH_COMPILING = (
    2**15
)  # numbers in a batch's states from which the loops are used: compiling takes seconds, once
WIDEST = 64  # numbers in a state up to which they are quicker, as measured on one thread


class Given(NamedTuple):
    """What is not learned: the sweep, its data and its settings."""

    sweep: Any
    edges: Tensor
    draws: Tensor
    marks: Tensor
    lengths: Tensor
    inner_gaps: bool
    scale: float
    log_unit: Tensor
    heads: int


def worth_sweeping(encoder: Encoder, batch: Batch) -> bool:
    """Whether the compiled loops are to be had for this batch, and pay."""
    (B, N), weight = batch.times.shape, encoder.out
    able = (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and not (encoder.training and encoder.dropout)
    )
    width, longest = weight.shape[-1], N + LANES
    enough = (
        width <= WIDEST
        and B * (N + 1) * width >= WORTH_COMPILING
        and longest * longest * width // encoder.heads <= MOST_MULTIPLIED
    )
    wanted = (
        torch.is_grad_enabled() and not batch.times.requires_grad
    )  # slopes in weights, and none in the events' own times
    return able and enough and wanted and compiled_sweep() is not None


def swept_log_likelihood(
    encoder: Encoder,
    batch: Batch,
    edges: Float[Tensor, "B E"],
    waves: Float[Tensor, "B N D"],
    read: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    scale: Tensor,
    log_unit: Float[Tensor, " M"],
    draws: Float[Tensor, "B G Q"],
    inner_gaps: bool,
) -> Float[Tensor, " B"]:
    """An estimate of each sequence's log-likelihood, with gradient.

    ``edges`` are the batch's and ``waves`` what its events' times say; ``read`` the vectors of the
    marks, the read-out, its shifts, its slopes in time and the link's logarithmic scales; ``scale``
    the mean gap and ``log_unit`` the marks' logarithmic mean rates. ``draws`` from U[0, 1] place a
    node in each of Q equal parts of every gap. With ``inner_gaps`` the first event and what lies
    before it or after the last do not count.
    """
    marks, *rest = read
    about = (inner_gaps, float(scale), log_unit.float(), encoder.heads)
    given = Given(compiled_sweep(), edges, draws, batch.marks, batch.lengths, *about)
    inner = (encoder.up, encoder.up_shift, encoder.down)
    return _Swept.apply(waves, given, encoder.first, marks, encoder.qkv, encoder.out, *inner, *rest)


class _Swept(torch.autograd.Function):
    """The sweep as a function of waves and weights. Its slopes come with its values, for sequences
    of one and the same weight; where they are wanted with others, it is done again.
    """

    @staticmethod
    def forward(
        ctx: Any, waves: Float[Tensor, "B N D"], given: Given, *weights: Tensor | None
    ) -> Float[Tensor, " B"]:
        values, to_waves, slopes = _run(
            waves, given, weights, waves.new_ones(len(waves)), ctx.needs_input_grad[0]
        )
        ctx.save_for_backward(waves, to_waves, slopes, *weights)
        ctx.given = given
        return values.to(waves)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outside: Tensor) -> tuple[Tensor | None, ...]:
        waves, to_waves, slopes, *weights = ctx.saved_tensors
        share, wanted = outside[0], ctx.needs_input_grad[0]
        if share.stride() == (0,) or bool(
            (share == share[0]).all()
        ):  # the slope of a sum is one number, laid out for all
            to_waves, slopes = to_waves * share[0] if wanted else to_waves, slopes * share[0]
        else:
            _, to_waves, slopes = _run(waves, ctx.given, weights, share, wanted)
        parts = iter(slopes.split([w.numel() for w in weights if w is not None]))
        return (
            to_waves if wanted else None,
            None,
            *(None if w is None else next(parts).view(w.shape) for w in weights),
        )


def _run(
    waves: Float[Tensor, "B N D"],
    given: Given,
    weights: Sequence[Tensor | None],
    share: Float[Tensor, " B"],
    wanted: bool,
) -> tuple[Float[Tensor, " B"], Tensor, Float[Tensor, " W"]]:
    """Values, and the slopes of share @ values: in waves, where ``wanted``, and in all weights, end
    to end.
    """
    parts = _parts(weights)
    slopes, values = (
        waves.new_zeros(sum(part.size for part in parts)),
        waves.new_empty(len(waves), dtype=torch.float64),
    )
    to_waves, flat = waves.new_empty(waves.shape if wanted else (0, 0, 0)), slopes.numpy()
    ends = accumulate(part.size for part in parts)
    to_parts = Parts(
        *(
            flat[end - part.size : end].reshape(part.shape)
            for part, end in zip(parts, ends, strict=True)
        )
    )
    edges, draws, marks, lengths = (
        x.contiguous().numpy() for x in (given.edges, given.draws, given.marks, given.lengths)
    )
    data = (
        waves.detach().contiguous().numpy(),
        edges,
        draws,
        marks,
        lengths,
        given.inner_gaps,
        share.contiguous().numpy(),
    )
    settings, found = (
        (parts, turned(parts), given.scale, given.log_unit.numpy(), given.heads),
        (values.numpy(), to_waves.numpy(), to_parts),
    )
    sizes = whole_registers(lengths + 1 - given.inner_gaps)
    for n in np.unique(sizes).tolist():
        given.sweep(
            np.flatnonzero(sizes == n),
            *data,
            *settings,
            room_for(n, draws.shape[-1], parts, given.heads),
            *found,
        )
    return values, to_waves, slopes


def _parts(weights: Sequence[Tensor | None]) -> Parts:
    """Weights as arrays. A network that an encoder does not have has width 0."""
    named = dict(zip(Parts._fields, weights, strict=True))
    layers, width = (0, 0) if named["out"] is None else named["out"].shape[:2]
    empty = dict(up=(layers, 0, width), up_shift=(layers, 0), down=(layers, width, 0))
    return Parts(
        *(
            np.empty(empty[name], dtype=np.float32) if w is None else w.detach().numpy()
            for name, w in named.items()
        )
    )
