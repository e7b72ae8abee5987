r"""A spectrum and its slopes in numpy: the networks of `models.modes`, for DAPP's compiled training
step.

    a_i = act(a_{i-1} W_{i-1} + b_{i-1}),     omega, log gamma = a_L W_L + b_L,     theta = omega' w_t,   psi = omega' W_m

The networks are small, and forty operations of torch there and back take longer than what they
calculate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourpoint.ops import fourier

Floats = NDArray[np.float32]
ACTIVATIONS: dict[
    Any, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]
] = {  # value; slope, given the value
    fourier.ACTIVATIONS["tanh"]: (np.tanh, lambda a: 1 - a * a),
    fourier.ACTIVATIONS["relu"]: (
        lambda x: np.maximum(x, np.float32(0)),
        lambda a: (a > 0).astype(np.float32),
    ),
    fourier.ACTIVATIONS["softplus"]: (
        lambda x: np.logaddexp(np.float32(0), x),
        lambda a: -np.expm1(-a),
    ),
}


class Networks(NamedTuple):
    """Keys (K, r) of time and (K, r, M) of marks, (K,) scales of frequency and decay, and the
    layers' weights, then their biases.
    """

    time_key: Floats
    mark_key: Floats
    log_frequency: Floats
    log_decay: Floats
    layers: Sequence[Floats]


class Drawn(NamedTuple):
    """theta and gamma (K, D), gamma 0 where modes do not decay, psi (K, D, M), and what the way
    back needs.
    """

    frequency: Floats
    decay: Floats
    shift: Floats
    omega: Floats
    inputs: list[Floats]


def drawn(noise: Floats, decays: bool, activation: Any, given: Networks) -> Drawn:
    """The modes that ``noise`` (K, D, q) is turned into, as `Modes.forward` has them."""
    half, act = len(given.layers) // 2, ACTIVATIONS[activation][0]
    inputs, out = [noise], np.matmul(noise, given.layers[0]) + given.layers[half]
    for weight, bias in zip(given.layers[1:half], given.layers[half + 1 :], strict=True):
        inputs.append(act(out))
        out = np.matmul(inputs[-1], weight) + bias
    omega = out[..., : given.time_key.shape[1]]
    frequency = (
        np.matmul(omega, given.time_key[..., None])[..., 0] * np.exp(given.log_frequency)[:, None]
    )
    decay = np.exp(out[..., -1] + given.log_decay[:, None]) if decays else np.zeros_like(frequency)
    return Drawn(frequency, decay, np.matmul(omega, given.mark_key), omega, inputs)


def back(
    found: Drawn,
    decays: bool,
    activation: Any,
    given: Networks,
    to_frequency: Floats,
    to_decay: Floats,
    to_shift: Floats,
) -> Networks:
    """The slopes in all that is given, from those in theta, gamma and psi."""
    half, slope = len(given.layers) // 2, ACTIVATIONS[activation][1]
    raw, to_log_decay = to_frequency * np.exp(given.log_frequency)[:, None], to_decay * found.decay
    to_omega = raw[..., None] * given.time_key[:, None] + np.matmul(
        to_shift, given.mark_key.swapaxes(1, 2)
    )
    across = found.omega.swapaxes(1, 2)
    keys = np.matmul(across, raw[..., None])[..., 0], np.matmul(across, to_shift)
    scales = (to_frequency * found.frequency).sum(1), to_log_decay.sum(1)
    g = np.concatenate([to_omega, to_log_decay[..., None]], 2) if decays else to_omega
    layers: list[Floats] = [g] * len(given.layers)
    for i in range(half - 1, -1, -1):
        layers[i], layers[half + i] = (
            np.matmul(found.inputs[i].swapaxes(1, 2), g),
            g.sum(1, keepdims=True),
        )
        if i:
            g = np.matmul(g, given.layers[i].swapaxes(1, 2)) * slope(found.inputs[i])
    return Networks(*keys, *scales, layers)
