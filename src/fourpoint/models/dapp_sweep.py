r"""Training DAPP by compiled loops: `dapp_sweep_loops` behind one node of the gradient's graph.

    log L = sum_i log lambda_{m_i}(t_i) - sum over gaps of width / Q sum_q lambda(node_q)

The same numbers as by ``encode`` and ``log_intensity``, to rounding, many times faster. It is used where numba is installed and all of
this holds: a gradient is wanted, on the processor, in float32, of weights that are not normalised and values that are one number per
mark, of sequences that are not too long to be held, and there is enough work to repay loading the machine code. All others go the
plain way. Sequences are summed in groups of GROUP, so that what comes out does not depend on the number of threads.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourpoint.events import Batch
from fourpoint.maths.fourier import Spectrum
from fourpoint.models.dapp_sweep_loops import LINKS, Data, Room, Shape, Weights, compiled_sweep
from fourpoint.models.rate import Rate

WORTH_COMPILING = 2**15  # numbers in a batch's states from which the loops are used: compiling takes seconds, once
LARGEST = 2**26  # numbers held for one sequence
GROUP = 8


def worth_sweeping(batch: Batch, like: Tensor, modes: int, nodes: int) -> bool:
    """Whether the compiled loops are to be had for this batch, and pay."""
    (B, N), able = batch.times.shape, like.dtype == torch.float32 and like.device.type == "cpu" and batch.times.device.type == "cpu"
    enough = B * (N + 1) * modes >= WORTH_COMPILING and 2 * (N + 1) * (nodes + 1) * modes <= LARGEST
    wanted = torch.is_grad_enabled() and not batch.times.requires_grad  # slopes in weights, and none in the events' own times
    return able and enough and wanted and compiled_sweep() is not None


def swept_log_likelihood(
    spectrum: Spectrum,
    values: Float[Tensor, "M K"],
    readout: Float[Tensor, "K M"],
    rate: Rate,
    batch: Batch,
    draws: Float[Tensor, "B G Q"],
    scale: Tensor,
    inner_gaps: bool,
) -> Float[Tensor, " B"]:
    """An estimate of each sequence's log-likelihood, with gradient in everything but times.

    ``values`` are what an event of each mark is worth to each head, ``scale`` the mean gap. ``draws`` from U[0, 1] place a node in each
    of Q equal parts of every gap. With ``inner_gaps`` the first event and what lies before it or after the last do not count.
    """
    unit = float(scale)
    shape = Shape(unit, float(rate.length), rate.intervals, LINKS.index(rate.link))
    given = Given(compiled_sweep(), batch, draws, shape, inner_gaps)
    drift = rate.drift + rate.mark_drift if rate.splined_drift else rate.bias.new_empty(rate.marks, 0)
    decay = torch.zeros_like(spectrum.frequency) if spectrum.decay is None else spectrum.decay
    modes = (spectrum.frequency, decay, spectrum.shift, spectrum.weight)
    found = _Swept.apply(given, *modes, values, readout, rate.bias, rate.log_scale, rate.log_base, drift)
    scored = (batch.lengths - 1).clamp(min=0) if inner_gaps else batch.lengths
    return found - scored * math.log(unit)


class Given(NamedTuple):
    """What is not learned: the sweep, its data and its settings."""

    sweep: Any
    batch: Batch
    draws: Tensor
    shape: Shape
    inner_gaps: bool


class _Swept(torch.autograd.Function):
    """The sweep as a function of modes and weights. Its slopes come with its values, for sequences of one and the same weight; where
    they are wanted with others, it is done again."""

    @staticmethod
    def forward(ctx: Any, given: Given, *learned: Tensor) -> Float[Tensor, " B"]:
        ctx.reads = learned[2].shape[-1] > 1 or ctx.needs_input_grad[4] or ctx.needs_input_grad[6]
        values, ctx.slopes = _run(given, learned, np.ones(len(given.draws), dtype=np.float32), ctx.reads)
        ctx.save_for_backward(*learned)
        ctx.given = given
        return torch.from_numpy(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outside: Tensor) -> tuple[Tensor | None, ...]:
        share, slopes = outside[0], ctx.slopes
        if share.stride() == (0,) or bool((share == share[:1]).all()):  # the slope of a sum is one number, laid out for all
            one = float(share[0]) if len(share) else 0.0
            slopes = [part * np.float32(one) for part in slopes]
        else:
            _, slopes = _run(ctx.given, ctx.saved_tensors, share.float().numpy(), ctx.reads)
        wanted = zip(slopes, ctx.needs_input_grad[1:], strict=True)
        return None, *(torch.from_numpy(part) if need else None for part, need in wanted)


def _run(
    given: Given, learned: tuple[Tensor, ...], share: NDArray[np.float32], reads: bool
) -> tuple[NDArray[np.float64], list[NDArray[np.float32]]]:
    """Values, and the slopes of share @ values in all that is learned; without ``reads`` those by way of the read-out are left at 0.

    They are not wanted of one mark alone: its shifts cancel, and its read-out and the modes' weights are not learned.
    """
    frequency, decay, shift, weight, values, readout, bias, log_scale, base, drift = (x.detach().numpy() for x in learned)
    (K, D, M), kind = shift.shape, np.float32
    angle = np.ascontiguousarray(shift.transpose(2, 0, 1))  # mark, head, mode
    cosine, sine = np.cos(angle), np.sin(angle)
    strength, value = weight * readout.T[:, :, None], values[:, :, None]
    weights = Weights(
        (frequency / kind(2 * math.pi)).ravel(),
        (decay / kind(math.log(2))).ravel(),
        np.stack([strength * cosine, strength * sine], 1).reshape(M, 2, K * D),
        np.stack([value * cosine, -value * sine], 1).reshape(M, 2, K * D),
        bias,
        log_scale,
        base,
        drift,
    )
    found, slopes = _swept(given, weights, share, reads)
    (r_re, r_im), (u_re, u_im) = (x.reshape(M, 2, K, D).swapaxes(0, 1) for x in (slopes.read, slopes.drive))
    along, across = cosine * r_re + sine * r_im, cosine * r_im - sine * r_re
    u_along, u_across = cosine * u_re - sine * u_im, -sine * u_re - cosine * u_im
    to_shift = (strength * across + value * u_across).transpose(1, 2, 0) if reads else np.zeros_like(shift)
    to_weight = (along * readout.T[:, :, None]).sum(0)
    to_readout = (along * weight).sum(2).T
    modes = (slopes.cycles.reshape(K, D), slopes.halvings.reshape(K, D), to_shift, to_weight)
    return found, [*modes, u_along.sum(2), to_readout, slopes.bias, slopes.log_scale, slopes.base, slopes.drift]


def _swept(given: Given, weights: Weights, share: NDArray[np.float32], reads: bool) -> tuple[NDArray[np.float64], Weights]:
    """The sweep over all groups, shared out among threads, and the groups' slopes added up."""
    batch, draws = given.batch, given.draws.numpy()
    edges, marks, lengths = (x.contiguous().numpy() for x in (batch.edges, batch.marks, batch.lengths))
    data = Data(edges, draws, marks, lengths, share, int(given.inner_gaps))
    groups = -(-len(draws) // GROUP)
    values, slopes = np.empty(len(draws)), Weights(*(np.zeros((groups, *x.shape), dtype=np.float32) for x in weights))
    found = slopes if reads else slopes._replace(read=np.empty((groups, 0, 2, len(weights.cycles)), dtype=np.float32))
    threads = max(1, min(torch.get_num_threads(), groups))

    def some(first: int) -> None:
        room = _room(draws.shape[1], draws.shape[2], len(weights.cycles), len(weights.bias), get_ident())
        given.sweep(first, threads, GROUP, data, weights, given.shape, room, values, found)

    if threads == 1:
        some(0)
    else:
        waiting = [_pool(threads - 1, os.getpid()).submit(some, first) for first in range(1, threads)]
        some(0)
        for one in waiting:
            one.result()
    return values, Weights(*(x.sum(0) for x in slopes))


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: one that was forked does not inherit them."""
    return ThreadPoolExecutor(threads)


@lru_cache(maxsize=8)
def _room(gaps: int, nodes: int, modes: int, marks: int, thread: int) -> Room:
    """Room for sequences of so many gaps. That of the last calls is used again, each by its own thread."""
    rows = gaps * (nodes + 1)
    shapes: dict[str, tuple[int, ...]] = dict(
        states=(gaps, 2, modes), waves=(rows, 2, modes), z=(marks, rows), lags=(rows,), cost=(rows,), parts=(rows, 4), rows=(5, rows),
        sums=(4, 2, modes),
    )  # fmt: skip
    return Room(**{name: np.empty(shape, dtype=np.float32) for name, shape in shapes.items()}, cells=np.empty(rows, dtype=np.int64))
