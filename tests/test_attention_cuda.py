"""The kernel of scan and read-out against the plain scan and read-out in float64.

Without a CUDA device it runs in triton's interpreter, where TRITON_INTERPRET=1 was set before the
start; else it is skipped.
"""

from __future__ import annotations

import os

import pytest
import torch

from fourpoint.ops.attention import drive, read, scan
from fourpoint.ops.fourier import Spectrum

pytest.importorskip("triton", reason="triton comes with torch where there is a CUDA device")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no CUDA device, and no TRITON_INTERPRET=1 to do without", allow_module_level=True)

from fourpoint.kernels.triton_attention import attended  # noqa: E402


@pytest.mark.parametrize(
    ("marks", "modes", "events"), [(1, 5, 7), (3, 4, 6), (2, 16, 0), (1, 20, 1)]
)
def test_values_and_gradients_are_those_of_scan_and_read(
    marks: int, modes: int, events: int
) -> None:
    torch.manual_seed(marks + modes)
    B, K, Q = 3, 2, 4
    given = [
        torch.randn(K, modes),
        torch.rand(K, modes),
        torch.randn(K, modes, marks),
        torch.rand(K, modes),
        torch.randn(B, events, K),
    ]
    gaps, lags = torch.rand(B, events), 3 * torch.rand(B, events + 1, Q)
    gaps[0, :1], lags[1, -1] = 200.0, 300.0  # faded to nothing
    kinds, grad = torch.randint(marks, (B, events)), torch.randn(B, events + 1, Q, K, marks)
    found = []
    for kind, device in ((torch.float64, "cpu"), (torch.float32, DEVICE)):
        inputs = [x.to(device, kind).requires_grad_() for x in given]
        theta, gamma, shift, weight, values = inputs
        at, between = lags.to(device, kind), gaps.to(device, kind)
        if device == "cpu" and kind == torch.float64:
            spectrum = Spectrum(theta, gamma, shift, weight, None)
            driven = drive(
                spectrum, kinds, values[..., None], torch.ones_like(kinds, dtype=torch.bool)
            )
            state = torch.cat(
                [
                    torch.zeros_like(driven[:, :1])
                    if events
                    else driven.new_zeros(B, 1, K, modes, 1),
                    scan(spectrum.rate, between, driven),
                ],
                1,
            )
            out = read(spectrum, state, at)[..., 0]
        else:
            out = attended(theta, gamma, shift, weight, at, between, values, kinds.to(device))
        gradients = torch.autograd.grad(
            (out * grad.to(device, kind)).sum(), inputs, allow_unused=True
        )
        found.append(
            [
                x.detach().cpu().double() if x is not None else torch.zeros(()).double()
                for x in (out, *gradients)
            ]
        )
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(
            ours.reshape(plain.shape) if plain.ndim == 0 else ours, plain, rtol=2e-4, atol=2e-4
        )
