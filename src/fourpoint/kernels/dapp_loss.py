r"""DAPP's sampled log-likelihood and its gradients from arrays: numpy around the compiled sweep of
`kernels.numba_dapp_loss`.

    log L = sum_i log lambda_{m_i}(t_i) - sum over gaps of exposure width / Q sum_q lambda(node_q)

Gradients are summed in float32 over the ``unit`` consecutive sequences of a group, each in one
thread, and over groups in float64, so that results do not depend on the number of threads, nor,
to the rounding of float64, on how groups are shared out among processes. The threads are Python's:
numba's own (``prange``) end the process if it was forked after their first use, and not every
threading layer allows two threads to call it at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from threading import get_ident
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourpoint.kernels.compiling import threads
from fourpoint.kernels.numba_dapp_loss import Data, Shape, Weights, Workspace

Floats = NDArray[np.float32]
f32 = np.float32
LINE = 8  # complex numbers in one line of the processor's cache


class Parts(NamedTuple):
    """What the likelihood depends on, or its gradients: theta and gamma (K, D), psi (K, D, M),
    values of events (M, K), read-out of heads (K, M), and the arrays of the rate.
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


def log_likelihoods(
    sweep: Callable[..., None],
    data: Data,
    shape: Shape,
    parts: Parts,
    unit: int,
    *,
    by_readout: bool,
) -> tuple[NDArray[np.float64], Parts]:
    """The log-likelihood of each sequence, (B,), and the gradients of ``data.share`` times their
    sum, in float64.

    Without ``by_readout`` the gradients in shift and read-out are 0. A single mark does not need
    them: its shifts cancel, and its read-out is not learned.
    """
    K, D, M = parts.shift.shape
    strength = parts.readout.T[:, :, None] * f32(1 / D)  # mark, head, mode
    value = parts.values[:, :, None]
    cycles = (parts.frequency * f32(1 / (2 * math.pi))).ravel()
    halvings = (parts.decay * f32(1 / math.log(2))).ravel()
    rate = parts[5:]
    if M == 1 and not by_readout:
        real = np.zeros((1, 2, K, D), dtype=f32)
        real[0, 0] = (strength * value)[0]
        no_read = np.zeros((1, 2, 0), dtype=f32)
        weights = Weights(cycles, halvings, no_read, real.reshape(1, 2, K * D), *rate)
        totals, gradients = _run(sweep, data, shape, weights, unit, by_readout)
        to_values = (strength[0] * gradients.drive[0, 0].reshape(K, D)).sum(1)[None]
        to_shift = np.zeros_like(parts.shift)
        to_readout = np.zeros_like(parts.readout)
    else:
        angle = np.ascontiguousarray(parts.shift.transpose(2, 0, 1))  # mark, head, mode
        cosine = np.cos(angle)
        sine = np.sin(angle)
        read = np.stack([strength * cosine, strength * sine], 1).reshape(M, 2, K * D)
        drive = np.stack([value * cosine, -value * sine], 1).reshape(M, 2, K * D)
        weights = Weights(cycles, halvings, read, drive, *rate)
        totals, gradients = _run(sweep, data, shape, weights, unit, by_readout)
        r_re, r_im = gradients.read.reshape(M, 2, K, D).swapaxes(0, 1)
        u_re, u_im = gradients.drive.reshape(M, 2, K, D).swapaxes(0, 1)
        to_values = (cosine * u_re - sine * u_im).sum(2)
        to_readout = ((cosine * r_re + sine * r_im) * f32(1 / D)).sum(2).T
        by_read = strength * (cosine * r_im - sine * r_re)
        by_drive = value * (sine * u_re + cosine * u_im)
        to_shift = (by_read - by_drive).transpose(1, 2, 0)
    return totals, Parts(
        gradients.cycles.reshape(K, D),
        gradients.halvings.reshape(K, D),
        to_shift,
        to_values,
        to_readout,
        gradients.bias,
        gradients.log_scale,
        gradients.base,
        gradients.drift,
    )


def _run(
    sweep: Callable[..., None],
    data: Data,
    shape: Shape,
    weights: Weights,
    unit: int,
    by_readout: bool,
) -> tuple[NDArray[np.float64], Weights]:
    """The sweep over all groups, shared out among threads, and the sum of the groups' gradients."""
    sequences, gaps, nodes = data.draws.shape
    groups = -(-sequences // unit)
    totals = np.empty(sequences)
    modes = len(weights.cycles)
    gradients = Weights(*(np.zeros((groups, *x.shape), dtype=f32) for x in weights))
    into = gradients
    if not by_readout:
        no_read = np.empty((groups, 0, 2, modes), dtype=f32)
        cycles, halvings, _, *others = gradients
        into = Weights(cycles, halvings, no_read, *others)
    count = max(1, min(threads(), groups))
    most_gaps = 1 << (gaps - 1).bit_length()

    def some_groups(first: int) -> None:
        workspace = _workspace(most_gaps, nodes, modes, len(weights.bias), get_ident())
        sweep(first, count, unit, data, weights, shape, workspace, totals, into)

    waiting = [
        _pool(count - 1, os.getpid()).submit(some_groups, first) for first in range(1, count)
    ]
    some_groups(0)
    for one in waiting:
        one.result()
    scored = np.maximum(data.lengths - np.maximum(data.history, data.inner), 0)
    summed = Weights(*(x.sum(0, dtype=np.float64) for x in gradients))
    return totals - scored * math.log(shape.scale), summed


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: one that was forked does not inherit them."""
    return ThreadPoolExecutor(threads)


@lru_cache(maxsize=8)
def _workspace(gaps: int, nodes: int, modes: int, marks: int, thread: int) -> Workspace:
    """Space for sequences of up to so many gaps. That of the last calls is used again, each by its
    own thread.

    Rows of modes are an odd number of the processor's cache lines long: rows whose addresses end
    alike would wait for one another.
    """
    rows = gaps * (nodes + 1)
    wide = LINE * (-(-modes // LINE) | 1)
    return Workspace(
        states=_empty(gaps, 2, wide),
        sinusoids=_empty(rows, 2, wide),
        z=_empty(marks, rows),
        lags=_empty(rows),
        cost=_empty(rows),
        cells=np.empty(rows, dtype=np.int64),
        parts=_empty(rows, 4),
        rows=_empty(6, rows),
        sums=_empty(4, 2, wide),
    )


def _empty(*shape: int) -> Floats:
    return np.empty(shape, dtype=f32)
