r"""DAPP's sampled log-likelihood and its gradients by a kernel: arrays of what is learned in, one
gradient for each parameter out.

The same numbers as by ``encode`` and ``log_intensity`` and torch's gradient of them, to rounding,
many times faster (`kernels.DAPP_LOSS`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, BatchSteps
from fourpoint.kernels.dapp_loss import Parts, log_likelihoods
from fourpoint.kernels.dapp_spectrum import Drawn, Floats, Networks, back, drawn
from fourpoint.kernels.numba_dapp_loss import LINKS, Data, Shape
from fourpoint.models.base import log_exposure
from fourpoint.models.baseline import Baseline
from fourpoint.models.effects import Effects
from fourpoint.models.modes import Modes
from fourpoint.models.rate import Rate
from fourpoint.ops import fourier

ACTIVATION_NAMES = {function: name for name, function in fourier.ACTIVATIONS.items()}


class Values(NamedTuple):
    """What events of a mark are worth to each head: ``gain`` (K,) times the sum over p of
    ``readout`` (K, p) and ``weight`` (K, p, M).
    """

    weight: nn.Parameter
    readout: nn.Parameter
    gain: Tensor


def sampled_gradients(
    sweep: Callable[..., None],
    modes: Modes,
    values: Values,
    readout: nn.Parameter,
    rate: Rate,
    batch: Batch,
    draws: Float[Tensor, "B G Q"],
    scale: Tensor,
    inner_gaps: bool,
    share: float,
    unit: int,
    effects: Effects | None = None,
) -> tuple[NDArray[np.float64], list[tuple[nn.Parameter, NDArray[np.float64]]]]:
    """An estimate of each sequence's log-likelihood, (B,), and the gradients of ``share`` times
    their sum in all that is learned.

    ``sweep`` is the kernel, ``readout`` (K, M) how much each mark attends to each head, ``scale``
    the mean gap. ``draws`` from U[0, 1] place a node in each of Q equal parts of every gap. With
    ``inner_gaps`` the first event and what lies before it or after the last do not count. Where
    time has an exposure, the parts are equal in exposed time. Gradients are sums in float32 over
    ``unit`` sequences, and in float64 over these. If the
    link is the identity, values, read-out and modes are made non-negative, as in `DAPP` and
    `fourier.non_negative`.
    """
    positive = rate.link == "identity"
    baseline = rate.baseline
    keys = [modes.time_key, modes.mark_key, modes.log_frequency, modes.log_decay]
    layers = [*modes.generator.weights, *modes.generator.biases]
    time_key, mark_key, log_frequency, log_decay = (_array(x) for x in keys)
    arrays = [_array(x) for x in layers]
    networks = Networks(time_key, mark_key, log_frequency, log_decay, arrays)
    settings = (modes.decays, ACTIVATION_NAMES[modes.generator.activation])
    found = drawn(modes.noise_in_use().numpy(), *settings, networks)
    weight, inner, gain, heads = (_array(x) for x in (*values, readout))
    raw = np.matmul(inner[:, None], weight)[:, 0]  # head, mark
    worth = np.logaddexp(np.float32(0), raw) if positive else raw
    frequency, decay, shift = _with_constants(found) if positive else found[:3]
    parts = Parts(
        frequency,
        decay,
        shift,
        (gain[:, None] * worth).T,
        np.abs(heads) if positive else heads,
        _array(rate.bias),
        _array(rate.log_scale),
        _array(baseline.log_base),
        _drift(baseline, rate.marks),
    )
    by_readout = rate.marks > 1 or readout.requires_grad or modes.mark_key.requires_grad
    shape = Shape(float(scale), float(baseline.length), baseline.intervals, LINKS.index(rate.link))
    data, added = _data(batch, draws, share, inner_gaps, effects, rate.marks)
    totals, found_parts = log_likelihoods(sweep, data, shape, parts, unit, by_readout=by_readout)
    if batch.context is not None:
        totals += log_exposure(batch)[:, int(inner_gaps) :].sum(1).numpy()
    D = found.frequency.shape[1]
    to_decay = found_parts.decay
    to_values = gain[:, None] * found_parts.values.T
    to_readout = found_parts.readout
    if positive:
        to_decay = to_decay[:, :D] + to_decay[:, D:]
        to_values = to_values * (1 / (1 + np.exp(-raw)))
        to_readout = to_readout * np.sign(heads)
    to_networks = back(
        found,
        *settings,
        networks,
        found_parts.frequency[:, :D],
        to_decay,
        found_parts.shift[:, :D],
    )
    to_raw = to_values[:, None]
    each = [
        (values.weight, inner[:, :, None] * to_raw),
        (values.readout, (weight * to_raw).sum(2)),
        (readout, to_readout),
        (rate.bias, found_parts.bias),
        (rate.log_scale, found_parts.log_scale),
        (baseline.log_base, found_parts.base),
        *zip([*keys, *layers], [*to_networks[:4], *to_networks.layers], strict=True),
    ]
    if baseline.splined_drift:
        each.append((baseline.drift, found_parts.drift.sum(0, keepdims=True)))
        each.append((baseline.mark_drift, found_parts.drift))
    if effects is not None and added is not None:
        to_added = torch.from_numpy(data.to_effects).permute(0, 3, 1, 2).reshape(added.shape)
        (to_weight,) = torch.autograd.grad(added, effects.weight, to_added)
        each.append((effects.weight, to_weight.numpy()))
    learned = [(p, g) for p, g in each if p.requires_grad]
    return totals, [(p, np.ascontiguousarray(g, dtype=np.float64)) for p, g in learned]


def _array(x: Tensor) -> Floats:
    return x.detach().numpy()


def _with_constants(found: Drawn) -> tuple[Floats, Floats, Floats]:
    """Each mode, and one of frequency and shift 0 that decays alike, as in
    `fourier.non_negative`.
    """
    frequency = np.concatenate([found.frequency, np.zeros_like(found.frequency)], 1)
    decay = np.concatenate([found.decay, found.decay], 1)
    shift = np.concatenate([found.shift, np.zeros_like(found.shift)], 1)
    return frequency, decay, shift


def _drift(baseline: Baseline, marks: int) -> Floats:
    """Coefficients of the drift for every mark; none without one."""
    if not baseline.splined_drift:
        return np.empty((marks, 0), dtype=np.float32)
    return _array(baseline.drift) + _array(baseline.mark_drift)


def _data(
    batch: Batch,
    draws: Tensor,
    share: float,
    inner_gaps: bool,
    effects: Effects | None,
    mark_count: int,
) -> tuple[Data, Float[Tensor, "B G R C"] | None]:
    """The sequences as arrays, and the effects at the nodes and ends of gaps, which have
    gradients; None without effects.
    """
    edges, marks, lengths = (
        x.contiguous().numpy() for x in (batch.edges, batch.marks, batch.lengths)
    )
    history = np.zeros_like(lengths)
    exposure = np.ones(draws.shape[:2], dtype=np.float32)
    context = batch.context
    weight = batch.scored_exposure
    if context is not None and context.scored_from is not None:
        history = lengths - batch.scored.sum(1).numpy()
        if context.exposure is None:
            draws, weight = draws.clone(), None
            _score_later(edges, history, context.scored_from.numpy(), draws.numpy(), exposure)
    if weight is not None:
        draws, mean = _in_exposed_time(batch, weight, draws)
        exposure = mean.to(torch.float32).numpy()
    added = None
    in_effects = np.zeros((len(edges), 2, 0, 0), dtype=np.float32)
    if effects is not None:
        times = _asked_times(batch.edges, draws)
        with torch.enable_grad():
            added = effects.values(times, context, torch.float32)
        in_effects = _by_mark(added.detach(), mark_count)
    data = Data(
        edges=edges,
        draws=draws.numpy(),
        marks=marks,
        lengths=lengths,
        share=np.float32(share),
        inner=int(inner_gaps),
        history=history,
        exposure=exposure,
        effects=in_effects,
        to_effects=np.zeros_like(in_effects),
    )
    return data, added


def _asked_times(
    edges: Float[Tensor, "B G1"], draws: Float[Tensor, "B G Q"]
) -> Float[Tensor, "B G R"]:
    """The nodes and the end of every gap."""
    nodes = draws.shape[2]
    left = edges[:, :-1, None]
    width = edges.diff(dim=1)[..., None]
    inner = left + width * (torch.arange(nodes) + draws) / nodes
    return torch.cat([inner, left + width], 2)


def _by_mark(added: Float[Tensor, "B G R C"], marks: int) -> Floats:
    """Effects on both parts of the baseline of every mark, as `numba_dapp_loss.Data` holds them."""
    rows, _, _, curves = added.shape
    flat = added.reshape(rows, -1, curves // marks, marks).permute(0, 2, 3, 1)
    return flat.contiguous().numpy()


def _score_later(
    edges: NDArray[np.float64],
    history: NDArray[np.int64],
    scored_from: NDArray[np.float64],
    draws: NDArray[np.float64],
    exposure: Floats,
) -> None:
    """Change draws and the mean weight of time in place for history periods, which end within the
    gap after their last event.
    """
    nodes = draws.shape[2]
    part = np.arange(nodes)
    for row, gap in enumerate(history.tolist()):
        exposure[row, :gap] = 0.0
        left, right = edges[row, gap : gap + 2]
        missed = min(max(scored_from[row], left), right) - left
        width = right - left
        if missed > 0:
            share = 1 - missed / width
            exposure[row, gap] = share
            lags = missed / width + share * (part + draws[row, gap]) / nodes
            draws[row, gap] = lags * nodes - part


def _in_exposed_time(
    batch: Batch, weight: BatchSteps, draws: Float[Tensor, "B G Q"]
) -> tuple[Float[Tensor, "B G Q"], Float[Tensor, "B G"]]:
    """What draws in exposed time would be in time, and the mean weight of time in every gap."""
    edges = batch.edges
    left = edges[:, :-1, None]
    width = edges.diff(dim=1)[..., None]
    exposed = weight.exposed_time(batch.start, batch.stop)
    passed = exposed.until(edges)
    more = passed.diff(dim=1)[..., None]
    nodes = draws.shape[2]
    part = torch.arange(nodes)
    times = exposed.inverse(passed[:, :-1, None] + more * (part + draws) / nodes)
    some = torch.where(width > 0, width, 1.0)
    lags = (times - left).clamp(min=torch.zeros_like(width), max=width)
    return (lags / some * nodes - part).contiguous(), (more / some)[..., 0].contiguous()
