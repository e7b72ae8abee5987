r"""A spectrum and its gradient by few calls: the networks of `models.modes` in numpy, behind one node of the gradient's graph.

    a_i = act(a_{i-1} W_{i-1} + b_{i-1}),     omega, log gamma = a_L W_L + b_L,     theta = omega' w_t,   psi = omega' W_m

The networks are small, and forty operations of torch there and back take longer than what they calculate. Used by DAPP's compiled
training step (`models.dapp_sweep`), in float32 on the processor; `Modes.forward` is the plain version that it is tested against.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourpoint.maths import fourier
from fourpoint.models.modes import Modes

Floats = NDArray[np.float32]
ACTIVATIONS: dict[Any, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {  # value; slope, given the value
    fourier.ACTIVATIONS["tanh"]: (np.tanh, lambda a: 1 - a * a),
    fourier.ACTIVATIONS["relu"]: (lambda x: np.maximum(x, np.float32(0)), lambda a: (a > 0).astype(np.float32)),
    fourier.ACTIVATIONS["softplus"]: (lambda x: np.logaddexp(np.float32(0), x), lambda a: -np.expm1(-a)),
}


def generated(modes: Modes) -> fourier.Spectrum:
    """The modes in use while training, as ``modes()`` gives them, where phases are paired."""
    net = modes.generator
    noise = modes.noise_in_use()
    keys = (modes.time_key, modes.mark_key, modes.log_frequency, modes.log_decay)
    frequency, decay, shift = _Generated.apply(noise, modes.decays, ACTIVATIONS[net.activation], *keys, *net.weights, *net.biases)
    weight = torch.full_like(frequency, 1 / frequency.shape[1])
    return fourier.Spectrum(frequency, decay if modes.decays else None, shift, weight, None)


class _Generated(torch.autograd.Function):
    """theta, gamma (0 where modes do not decay) and psi as a function of keys and networks."""

    @staticmethod
    def forward(ctx: Any, noise: Tensor, decays: bool, activation: Any, *learned: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        time_key, mark_key, log_frequency, log_decay, *layers = (x.detach().numpy() for x in learned)
        weights, biases = layers[: len(layers) // 2], layers[len(layers) // 2 :]
        inputs, out = [noise.numpy()], np.matmul(noise.numpy(), weights[0]) + biases[0]
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            inputs.append(activation[0](out))
            out = np.matmul(inputs[-1], weight) + bias
        omega = out[..., : time_key.shape[1]]
        pace = np.exp(log_frequency)[:, None]
        frequency = np.matmul(omega, time_key[..., None])[..., 0] * pace
        decay = np.exp(out[..., -1] + log_decay[:, None]) if decays else np.zeros_like(frequency)
        shift = np.matmul(omega, mark_key)
        ctx.save_for_backward(*learned)
        ctx.kept = (inputs, omega, pace, frequency, decay, decays, activation[1])
        return torch.from_numpy(frequency), torch.from_numpy(decay), torch.from_numpy(shift)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outside: Tensor) -> tuple[Tensor | None, ...]:
        time_key, mark_key, _, _, *layers = (x.detach().numpy() for x in ctx.saved_tensors)
        inputs, omega, pace, frequency, decay, decays, slope = ctx.kept
        to_frequency, to_decay, to_shift = (x.numpy() for x in outside)
        weights, raw, to_log_decay = layers[: len(layers) // 2], to_frequency * pace, to_decay * decay
        to_omega = raw[..., None] * time_key[:, None] + np.matmul(to_shift, mark_key.swapaxes(1, 2))
        across = omega.swapaxes(1, 2)
        keys = [np.matmul(across, raw[..., None])[..., 0], np.matmul(across, to_shift)]
        scales = [(to_frequency * frequency).sum(1), to_log_decay.sum(1)]
        g = np.concatenate([to_omega, to_log_decay[..., None]], 2) if decays else to_omega
        to_weights: list[Floats] = []
        to_biases: list[Floats] = []
        for i in range(len(weights) - 1, -1, -1):
            to_weights.insert(0, np.matmul(inputs[i].swapaxes(1, 2), g))
            to_biases.insert(0, g.sum(1, keepdims=True))
            if i:
                g = np.matmul(g, weights[i].swapaxes(1, 2)) * slope(inputs[i])
        found = zip([*keys, *scales, *to_weights, *to_biases], ctx.needs_input_grad[3:], strict=True)
        return None, None, None, *(torch.from_numpy(part) if need else None for part, need in found)
