r"""Training DAPP by compiled loops: `dapp_sweep_loops` with all that lies between them and what is
learned, in numpy.

    log L = sum_i log lambda_{m_i}(t_i) - sum over gaps of width / Q sum_q lambda(node_q)

The same numbers as by ``encode`` and ``log_intensity`` and torch's gradient of them, to rounding,
many times faster. It is used where numba
is installed and all of this holds: on the processor, in float32, weights that are not normalised
and values that are one number per mark,
sequences that are not too long to be held, and enough work to repay loading the machine code. All
others go the plain way. Sequences are summed in groups of GROUP, so that what comes out does not
depend on the number of threads.
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
from torch import Tensor, nn

from fourpoint.events import Batch
from fourpoint.kernels.compiling import threads
from fourpoint.kernels.numba_dapp_loss import LINKS, Data, Room, Shape, Weights, compiled_sweep
from fourpoint.models.dapp_sweep_modes import Floats, Networks, back, drawn
from fourpoint.models.modes import Modes
from fourpoint.models.rate import Rate

WORTH_COMPILING = (
    2**15
)  # numbers in a batch's states from which the loops are used: compiling takes seconds, once
LARGEST = 2**26  # numbers held for one sequence
GROUP = 8
LINE = 8  # two parts of so many numbers are a line of the processor's cache


def worth_sweeping(batch: Batch, like: Tensor, modes: int, nodes: int) -> bool:
    """Whether the compiled loops are to be had for this batch, and pay."""
    (B, N), able = (
        batch.times.shape,
        like.dtype == torch.float32
        and like.device.type == "cpu"
        and batch.times.device.type == "cpu",
    )
    enough = B * (N + 1) * modes >= WORTH_COMPILING and 2 * (N + 1) * (nodes + 1) * modes <= LARGEST
    return able and enough and compiled_sweep() is not None


class Values(NamedTuple):
    """What events of a mark are worth to each head: ``gain`` (K,) times the sum over p of
    ``readout`` (K, p) and ``weight`` (K, p, M).
    """

    weight: nn.Parameter
    readout: nn.Parameter
    gain: Tensor


def swept_slopes(
    modes: Modes,
    values: Values,
    readout: nn.Parameter,
    rate: Rate,
    batch: Batch,
    draws: Float[Tensor, "B G Q"],
    scale: Tensor,
    inner_gaps: bool,
    share: float,
) -> tuple[NDArray[np.float64], list[tuple[nn.Parameter, Floats]]]:
    """An estimate of each sequence's log-likelihood, (B,), and the slopes of ``share`` times their
    sum in all that is learned.

    ``readout`` (K, M) is how much each mark heeds each head, ``scale`` the mean gap. ``draws`` from
    U[0, 1] place a node in each of Q equal parts of every gap. With ``inner_gaps`` the first event
    and what lies before it or after the last do not count. Where the link is the identity, values,
    read-out and modes are made non-negative, as `DAPP` and `fourier.non_negative` have it.
    """
    shape = Shape(
        float(scale), float(rate.baseline.length), rate.baseline.intervals, LINKS.index(rate.link)
    )
    given, positive, kind = (
        Given(compiled_sweep(), batch, draws.numpy(), shape, inner_gaps, share),
        rate.link == "identity",
        np.float32,
    )
    keys = [modes.time_key, modes.mark_key, modes.log_frequency, modes.log_decay]
    layers = [*modes.generator.weights, *modes.generator.biases]
    time_key, mark_key, log_frequency, log_decay = (_array(x) for x in keys)
    networks = Networks(time_key, mark_key, log_frequency, log_decay, [_array(x) for x in layers])
    about = (modes.decays, modes.generator.activation)
    found = drawn(modes.noise_in_use().numpy(), *about, networks)
    weight, inner, gain, heed = (_array(x) for x in (*values, readout))
    raw = np.matmul(inner[:, None], weight)[:, 0]  # head, mark
    worth = (gain[:, None] * (np.logaddexp(kind(0), raw) if positive else raw)).T
    still = (np.zeros_like(found.frequency), found.decay, np.zeros_like(found.shift))
    frequency, decay, shift = (
        (np.concatenate(pair, 1) for pair in zip(found[:3], still, strict=True))
        if positive
        else found[:3]
    )
    drift = (
        _array(rate.baseline.drift) + _array(rate.baseline.mark_drift)
        if rate.baseline.splined_drift
        else np.empty((rate.marks, 0), dtype=kind)
    )
    rates = (_array(rate.bias), _array(rate.log_scale), _array(rate.baseline.log_base), drift)
    reads = rate.marks > 1 or readout.requires_grad or modes.mark_key.requires_grad
    totals, slopes = _of_modes(
        given,
        Parts(frequency, decay, shift, worth, np.abs(heed) if positive else heed, *rates),
        reads,
    )
    D = found.frequency.shape[1]
    to_decay = slopes.decay[:, :D] + slopes.decay[:, D:] if positive else slopes.decay
    to_networks = back(
        found, *about, networks, slopes.frequency[:, :D], to_decay, slopes.shift[:, :D]
    )
    to_raw = (gain[:, None] * slopes.values.T * (1 / (1 + np.exp(-raw)) if positive else kind(1)))[
        :, None
    ]
    each = [
        (values.weight, inner[:, :, None] * to_raw),
        (values.readout, (weight * to_raw).sum(2)),
        (readout, slopes.readout * np.sign(heed) if positive else slopes.readout),
        (rate.bias, slopes.bias),
        (rate.log_scale, slopes.log_scale),
        (rate.baseline.log_base, slopes.base),
        *zip([*keys, *layers], [*to_networks[:4], *to_networks.layers], strict=True),
    ]
    if rate.baseline.splined_drift:
        each += [
            (rate.baseline.drift, slopes.drift.sum(0, keepdims=True)),
            (rate.baseline.mark_drift, slopes.drift),
        ]
    return totals, [(p, np.ascontiguousarray(slope)) for p, slope in each if p.requires_grad]


def _array(x: Tensor) -> Floats:
    return x.detach().numpy()


class Given(NamedTuple):
    """What is not learned: the sweep, its data and its settings, and what each sequence's value
    counts for.
    """

    sweep: Any
    batch: Batch
    draws: NDArray[np.float64]
    shape: Shape
    inner_gaps: bool
    share: float


class Parts(NamedTuple):
    """What the likelihood is made of, or its slopes in it: theta and gamma (K, D), psi (K, D, M),
    what events are worth (M, K) and how they are heeded (K, M), and the rate's numbers.
    """

    frequency: Floats
    decay: Floats
    shift: Floats
    values: Floats
    readout: Floats
    bias: Floats
    log_scale: Floats
    base: Floats
    drift: Floats


def _of_modes(given: Given, parts: Parts, reads: bool) -> tuple[NDArray[np.float64], Parts]:
    """Values, and the slopes of their sum times ``share``; without ``reads`` those by way of the
    read-out are left at 0.

    They are not wanted of one mark alone: its shifts cancel, and its read-out is not learned.
    """
    (K, D, M), kind = parts.shift.shape, np.float32
    strength, value = parts.readout.T[:, :, None] * kind(1 / D), parts.values[:, :, None]
    rates = (
        (parts.frequency * kind(1 / (2 * math.pi))).ravel(),
        (parts.decay * kind(1 / math.log(2))).ravel(),
    )
    if M == 1 and not reads:
        drive, still = (
            np.zeros((1, 2, K, D), dtype=kind),
            (np.zeros_like(parts.shift), np.zeros_like(parts.readout)),
        )
        drive[0, 0] = (strength * value)[0]
        weights = Weights(
            *rates, np.zeros((1, 2, 0), dtype=kind), drive.reshape(1, 2, K * D), *parts[5:]
        )
        totals, slopes = _swept(given, weights, reads)
        to_values, to_shift, to_readout = (
            (strength[0] * slopes.drive[0, 0].reshape(K, D)).sum(1)[None],
            *still,
        )
    else:
        angle = np.ascontiguousarray(parts.shift.transpose(2, 0, 1))  # mark, head, mode
        cosine, sine = np.cos(angle), np.sin(angle)
        read = np.stack([strength * cosine, strength * sine], 1).reshape(M, 2, K * D)
        weights = Weights(
            *rates,
            read,
            np.stack([value * cosine, -value * sine], 1).reshape(M, 2, K * D),
            *parts[5:],
        )
        totals, slopes = _swept(given, weights, reads)
        (r_re, r_im), (u_re, u_im) = (
            x.reshape(M, 2, K, D).swapaxes(0, 1) for x in (slopes.read, slopes.drive)
        )
        to_values, to_readout = (
            (cosine * u_re - sine * u_im).sum(2),
            ((cosine * r_re + sine * r_im) * kind(1 / D)).sum(2).T,
        )
        to_shift = (
            strength * (cosine * r_im - sine * r_re) - value * (sine * u_re + cosine * u_im)
        ).transpose(1, 2, 0)
    modes = (slopes.cycles.reshape(K, D), slopes.halvings.reshape(K, D), to_shift)
    return totals, Parts(
        *modes, to_values, to_readout, slopes.bias, slopes.log_scale, slopes.base, slopes.drift
    )


def _swept(given: Given, weights: Weights, reads: bool) -> tuple[NDArray[np.float64], Weights]:
    """The sweep over all groups, shared out among threads, and the groups' slopes added up."""
    batch, draws = given.batch, given.draws
    edges, marks, lengths = (
        x.contiguous().numpy() for x in (batch.edges, batch.marks, batch.lengths)
    )
    data = Data(edges, draws, marks, lengths, np.float32(given.share), int(given.inner_gaps))
    groups, totals = -(-len(draws) // GROUP), np.empty(len(draws))
    slopes = Weights(*(np.zeros((groups, *x.shape), dtype=np.float32) for x in weights))
    found = (
        slopes
        if reads
        else slopes._replace(read=np.empty((groups, 0, 2, len(weights.cycles)), dtype=np.float32))
    )
    count = max(1, min(threads(), groups))

    def some(first: int) -> None:
        room = _room(
            1 << (draws.shape[1] - 1).bit_length(),
            draws.shape[2],
            len(weights.cycles),
            len(weights.bias),
            get_ident(),
        )
        given.sweep(first, count, GROUP, data, weights, given.shape, room, totals, found)

    if count == 1:
        some(0)
    else:
        waiting = [_pool(count - 1, os.getpid()).submit(some, first) for first in range(1, count)]
        some(0)
        for one in waiting:
            one.result()
    scored = np.maximum(lengths - 1, 0) if given.inner_gaps else lengths
    return totals - scored * math.log(given.shape.scale), Weights(*(x.sum(0) for x in slopes))


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: one that was forked does not inherit them."""
    return ThreadPoolExecutor(threads)


@lru_cache(maxsize=8)
def _room(gaps: int, nodes: int, modes: int, marks: int, thread: int) -> Room:
    """Room for sequences of up to so many gaps. That of the last calls is used again, each by its
    own thread.

    Rows of modes are an odd number of the processor's lines long: rows whose addresses end alike
    would wait for one another.
    """
    rows, wide = gaps * (nodes + 1), LINE * (-(-modes // LINE) | 1)
    shapes: dict[str, tuple[int, ...]] = dict(
        states=(gaps, 2, wide),
        waves=(rows, 2, wide),
        z=(marks, rows),
        lags=(rows,),
        cost=(rows,),
        parts=(rows, 4),
        rows=(6, rows),
        sums=(4, 2, wide),
    )
    return Room(
        **{name: np.empty(shape, dtype=np.float32) for name, shape in shapes.items()},
        cells=np.empty(rows, dtype=np.int64),
    )
