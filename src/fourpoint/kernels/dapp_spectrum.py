r"""A spectrum and its gradients in numpy: the networks of `models.modes`, for DAPP's compiled
training step.

    a_i = act(a_{i-1} W_{i-1} + b_{i-1}),  omega, log gamma = a_L W_L + b_L,  theta = omega' w_t,
        psi = omega' W_m

The networks are small: the forty operations of torch forward and backward take longer to start than
to calculate. float32; `models.modes.Modes.forward` is the plain counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Activation(NamedTuple):
    """An activation function, and its derivative as a function of its value."""

    value: Callable[[Floats], Floats]
    derivative: Callable[[Floats], Floats]


def _relu(x: Floats) -> Floats:
    return np.maximum(x, np.float32(0))


def _relu_derivative(value: Floats) -> Floats:
    return (value > 0).astype(np.float32)


def _softplus(x: Floats) -> Floats:
    return np.logaddexp(np.float32(0), x)


def _softplus_derivative(value: Floats) -> Floats:
    return -np.expm1(-value)


def _tanh_derivative(value: Floats) -> Floats:
    return 1 - value * value


ACTIVATIONS = {
    "tanh": Activation(np.tanh, _tanh_derivative),
    "relu": Activation(_relu, _relu_derivative),
    "softplus": Activation(_softplus, _softplus_derivative),
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
    """theta and gamma (K, D), gamma 0 if modes do not decay, psi (K, D, M), and what the backward
    pass needs.
    """

    frequency: Floats
    decay: Floats
    shift: Floats
    omega: Floats
    inputs: list[Floats]


def drawn(noise: Floats, decays: bool, activation: str, given: Networks) -> Drawn:
    """The modes that ``noise`` (K, D, q) is turned into, as `Modes.forward` has them."""
    half = len(given.layers) // 2
    activate = ACTIVATIONS[activation].value
    inputs = [noise]
    out = np.matmul(noise, given.layers[0]) + given.layers[half]
    for weight, bias in zip(given.layers[1:half], given.layers[half + 1 :], strict=True):
        inputs.append(activate(out))
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
    activation: str,
    given: Networks,
    to_frequency: Floats,
    to_decay: Floats,
    to_shift: Floats,
) -> Networks:
    """The gradients in all that is given, from those in theta, gamma and psi."""
    half = len(given.layers) // 2
    derivative = ACTIVATIONS[activation].derivative
    raw = to_frequency * np.exp(given.log_frequency)[:, None]
    to_log_decay = to_decay * found.decay
    by_time = raw[..., None] * given.time_key[:, None]
    # Cast once: a product of two kinds of numbers is slower than one of float64.
    omega = found.omega.astype(to_frequency.dtype).swapaxes(1, 2)
    mark_key = given.mark_key.astype(to_shift.dtype).swapaxes(1, 2)
    to_omega = by_time + np.matmul(to_shift, mark_key)
    to_time_key = np.matmul(omega, raw[..., None])[..., 0]
    to_mark_key = np.matmul(omega, to_shift)
    to_log_frequency = (to_frequency * found.frequency).sum(1)
    g = np.concatenate([to_omega, to_log_decay[..., None]], 2) if decays else to_omega
    layers: list[Floats] = [g] * len(given.layers)
    for i in range(half - 1, -1, -1):
        layers[i] = np.matmul(found.inputs[i].astype(g.dtype).swapaxes(1, 2), g)
        layers[half + i] = g.sum(1, keepdims=True)
        if i:
            weight = given.layers[i].astype(g.dtype).swapaxes(1, 2)
            g = np.matmul(g, weight) * derivative(found.inputs[i])
    return Networks(to_time_key, to_mark_key, to_log_frequency, to_log_decay.sum(1), layers)
