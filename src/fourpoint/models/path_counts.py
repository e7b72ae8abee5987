"""Counts of events on sampled paths, drawn by kernels for whole batches of sequences without
storing a path (`kernels.numba_dapp_paths`, `kernels.numba_hawkes_paths`), and Poisson counts.

What a kernel does not support is sampled by `inference.sampling`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourpoint import kernels
from fourpoint.events import Batch, UserError
from fourpoint.kernels.numba_dapp_paths import (
    FINE,
    LINKS,
    TERMS,
    Grid,
    Kernel,
    Link,
    Loops,
    cell_powers,
    grid_of,
    kernel_of,
    levels_of,
    parts_matrix,
)
from fourpoint.kernels.numba_dapp_stream import sinusoids
from fourpoint.kernels.path_terms import (
    ABOVE_BOUND,
    EXPLOSIVE,
    Pieces,
    Wanted,
    every_row,
)
from fourpoint.models.rate import Rate
from fourpoint.models.time_pieces import Cubics, baseline_cubics, exposure_of, pieces_of
from fourpoint.ops.fourier import Spectrum

Floats = NDArray[np.float64]
Counts = NDArray[np.int32]  # (B, W, M, paths)
NODES = 8  # of the integral of a rate over a piece of time


class Modes:
    """The modes of a linear DAPP with a constant value for each mark, per unit of the user's time:
    what a kernel needs to know of its attention.

    Arguments
        spectrum: of the evaluation.
        values: v_kn, what an event of type n adds to head k, (M, K).
        readout: r_km, (K, M).
        scale: the model's unit of time in the user's.
    """

    @torch.no_grad()
    def __init__(self, spectrum: Spectrum, values: Tensor, readout: Tensor, scale: float) -> None:
        weight = _numbers(spectrum.weight)  # (K, D)
        decay = np.zeros_like(weight) if spectrum.decay is None else _numbers(spectrum.decay)
        frequency = _numbers(spectrum.frequency)
        turn = np.exp(1j * _numbers(spectrum.shift)).transpose(2, 0, 1)  # (M, K, D)
        self.scale = scale
        self.weight = weight
        self.power: NDArray[np.complex128] = (-decay + 1j * frequency) / scale
        self.sinusoids = sinusoids(frequency.ravel(), decay.ravel(), np.float64)
        self.read = turn * weight * _numbers(readout).T[:, :, None]
        self.drive = turn.conj() * _numbers(values)[:, :, None]

    def numbers(self, grid: Grid) -> int:
        """Numbers in the tables that a grid needs."""
        marks = len(self.read)
        cells = int(grid.first[-1])
        by_mode = 2 * self.power.size
        by_mark = marks * (1 + FINE * levels_of(FINE * cells) / TERMS)
        return int(cells * marks * TERMS * (by_mode + by_mark))


@torch.no_grad()
def dapp_counts(modes: Modes, rate: Rate, batch: Batch, wanted: Wanted) -> Counts | None:
    """Counts of paths of a DAPP after the events of ``batch``; None if its tables are too large."""
    horizon = float((wanted.edges[:, -1] - wanted.edges[:, 0]).max())
    grid = grid_of(modes.power, modes.weight, horizon)
    loops = kernels.DAPP_PATHS.choose(numbers=modes.numbers(grid))
    if loops is None:
        return None
    given, past = _dapp_past(loops, modes, grid, batch, wanted)
    link = _link(rate, modes.scale)
    pieces = _dapp_pieces(rate, modes.scale, batch)
    counts = np.zeros((len(past), wanted.edges.shape[1] - 1, len(link.factor), wanted.paths), "i4")
    rest = (wanted, past, grid, given, link, pieces, exposure_of(batch), parts_matrix(), counts)
    fault = every_row(len(past), lambda first, step, fault: loops.draw(first, step, *rest, fault))
    _check(fault)
    return counts


def _dapp_past(
    loops: Loops, modes: Modes, grid: Grid, batch: Batch, wanted: Wanted
) -> tuple[Kernel, Floats]:
    """phi and z0 as polynomials."""
    J = modes.power.size
    M = len(modes.read)
    powers = cell_powers(grid, modes.power.ravel())  # (C, TERMS, J)
    read = modes.read.reshape(M, J)[:, None] * powers[:, None]  # (C, M, TERMS, J)
    parts = np.ascontiguousarray(np.stack([read.real, -read.imag], 3))  # (C, M, TERMS, 2, J)
    drive = modes.drive.reshape(M, J)
    driven = np.ascontiguousarray(np.stack([drive.real, drive.imag], 1))  # (M, 2, J)
    kernel = kernel_of(np.einsum("ndj,cmtdj->ncmt", driven, parts))
    times, marks, offsets = _events(batch)
    past = np.empty((len(batch.start), len(parts), M, TERMS))
    start = np.ascontiguousarray(wanted.edges[:, 0])
    rest = (times, marks, offsets, start, modes.scale, modes.sinusoids, driven, parts, past)

    def run(first: int, step: int, fault: Floats) -> None:
        loops.history(first, step, *rest)

    every_row(len(past), run)
    return kernel, past


def _link(rate: Rate, scale: float) -> Link:
    size = np.ones(rate.marks)
    if rate.link == "softplus":
        size = np.exp(_numbers(rate.log_scale))
    return Link(LINKS.index(rate.link), size / scale)


def _dapp_pieces(rate: Rate, scale: float, batch: Batch) -> Pieces:
    """The baseline; a softplus has its scale subtracted from its argument."""
    cubics = baseline_cubics(rate.baseline)
    outside = cubics.outside.copy()
    inside = cubics.inside.copy()
    outside[..., 0] -= math.log(scale)
    if rate.link == "identity":
        inside[:] = 0.0
    elif rate.link == "softplus":
        inside[..., 0] -= _numbers(rate.log_scale)
    return _pieces(Cubics(cubics.left, outside, inside), batch)


@torch.no_grad()
def hawkes_counts(
    cubics: Cubics, branching: Tensor, decay: Tensor, batch: Batch, wanted: Wanted
) -> Counts | None:
    """Counts of paths of a Hawkes process after the events of ``batch``: (J, M, M) ``branching``
    with the exciting type last, (J,) ``decay``.
    """
    loops = kernels.HAWKES_PATHS.choose()
    if loops is None:
        return None
    fade = _numbers(decay)
    jump = np.ascontiguousarray((_numbers(branching) * fade[:, None, None]).transpose(2, 0, 1))
    times, marks, offsets = _events(batch)
    start = np.ascontiguousarray(wanted.edges[:, 0])
    past = np.empty((len(start), *jump.shape[1:]))
    loops.history(0, 1, times, marks, offsets, start, jump, fade, past)
    pieces = _pieces(cubics, batch)
    counts = np.zeros((len(past), wanted.edges.shape[1] - 1, jump.shape[2], wanted.paths), "i4")
    rest = (wanted, past, jump, fade, pieces, exposure_of(batch), counts)
    fault = every_row(len(past), lambda first, step, fault: loops.draw(first, step, *rest, fault))
    _check(fault)
    return counts


def poisson_counts(cubics: Cubics, batch: Batch, wanted: Wanted) -> Counts:
    """Counts of a Poisson process with rate exp(outside): independent Poisson numbers, whose means
    are integrals.
    """
    exposure = exposure_of(batch)
    starts = batch.start.cpu().numpy()
    rows, columns = wanted.edges.shape
    marks = cubics.outside.shape[1]
    counts = np.empty((rows, columns - 1, marks, wanted.paths), dtype=np.int32)
    for r in range(rows):
        own = slice(exposure.first[r], exposure.first[r + 1])
        steps = (exposure.left[own], exposure.value[own])
        mean = _integrals(cubics, float(starts[r]), wanted.edges[r], *steps)
        if not (mean < wanted.limit).all():
            raise explosion(f"{float(mean.max()):.3g} expected events in one interval")
        random = np.random.Generator(np.random.Philox(key=int(wanted.keys[r])))
        counts[r] = random.poisson(mean[..., None], counts.shape[1:])
    return counts


def _integrals(
    cubics: Cubics, anchor: float, edges: Floats, changes: Floats, exposure: Floats
) -> Floats:
    """The integral of exposure times exp(outside) between neighbouring edges, (W, M), by Gauss and
    Legendre's rule between all times at which something changes.
    """
    known = np.concatenate([edges, anchor + cubics.left, changes])
    cuts = np.unique(known[(known >= edges[0]) & (known <= edges[-1])])
    left = cuts[:-1]
    width = np.diff(cuts)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    times = left[:, None] + width[:, None] * (nodes + 1) / 2 - anchor  # (I, NODES)
    piece = np.maximum(np.searchsorted(cubics.left, times.mean(1), side="right") - 1, 0)
    u = (times - cubics.left[piece][:, None])[..., None]
    c0, c1, c2, c3 = (cubics.outside[piece][:, None, :, k] for k in range(4))
    rates = np.exp(c0 + u * (c1 + u * (c2 + u * c3)))  # (I, NODES, M)
    step = np.maximum(np.searchsorted(changes, left, side="right") - 1, 0)
    parts = np.einsum("i,q,iqm->im", exposure[step] * width / 2, weights, rates)
    found = np.zeros((len(edges) - 1, parts.shape[1]))
    np.add.at(found, np.searchsorted(edges, left, side="right") - 1, parts)
    return found


def _pieces(cubics: Cubics, batch: Batch) -> Pieces:
    """One set of curves for all rows, by the time since each window's start."""
    rows = len(batch.start)
    return pieces_of([cubics], np.zeros(rows, dtype=np.int64), batch.start.cpu().numpy())


def _events(batch: Batch) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Times and marks of all rows laid end to end, and where each row begins."""
    valid = batch.valid
    offsets = np.concatenate([[0], np.cumsum(batch.lengths.cpu().numpy())])
    return batch.times[valid].cpu().numpy(), batch.marks[valid].cpu().numpy(), offsets


def _check(fault: Floats | None) -> None:
    """Raise the error that a fault of a kernel stands for."""
    if fault is None:
        return
    kind, row, time, rate = fault.tolist()
    where = f"{time:g} after the start of the forecast, in sequence {int(row)} of the batch"
    if kind == ABOVE_BOUND:
        raise ArithmeticError(
            f"expected a rate below its bound; received {rate:.9g} at {where}. The bound of the "
            "kernel is wrong: please report it"
        )
    if kind == EXPLOSIVE:
        raise explosion(f"a rate of up to {rate:.3g} at {where}")
    raise explosion(f"too many events up to {where}")


def explosion(received: str) -> UserError:
    """The error for a process that explodes before the horizon."""
    return UserError(
        "a process that does not explode before the horizon",
        received,
        "Shorten the horizon, or fit the model again.",
    )


def _numbers(tensor: Tensor) -> Floats:
    return np.ascontiguousarray(tensor.detach().cpu().double().numpy())
