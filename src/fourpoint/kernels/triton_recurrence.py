"""The recursion S_i = F_i S_{i-1} + U_i on a CUDA device, as one Triton kernel: a program per
sequence and block of modes.

A program walks along the events and keeps its states in registers, so that every number is read
once and written once: 24 bytes per event and mode, which is what bounds its speed.
`recurrence._running` is the plain version that it is tested against. Imported where a tensor lies
on such a device, and needs the package triton, which torch brings there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32  # modes per program: one warp


@triton.jit
@no_type_check  # triton has its own types
def _walk(factor, driven, state, n, modes, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    mode = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = mode < modes
    at = row * n * modes + mode
    re = tl.zeros([BLOCK], tl.float32)
    im = tl.zeros([BLOCK], tl.float32)
    for _ in range(n):
        f_re = tl.load(factor + 2 * at, real, 0.0)
        f_im = tl.load(factor + 2 * at + 1, real, 0.0)
        u_re = tl.load(driven + 2 * at, real, 0.0)
        u_im = tl.load(driven + 2 * at + 1, real, 0.0)
        turned = f_re * re - f_im * im + u_re
        im = f_re * im + f_im * re + u_im
        re = turned
        tl.store(state + 2 * at, re, real)
        tl.store(state + 2 * at + 1, im, real)
        at += modes


def load() -> Callable[..., Tensor]:
    """:func:`states`, which Triton compiles at its first call."""
    return states


def states(factor: Tensor, driven: Tensor) -> Tensor:
    """All S_i along dimension 1 of complex64 tensors of one shape."""
    shape = driven.shape
    if 0 in shape:
        return driven.clone()
    factor, driven = (
        torch.view_as_real(x.resolve_conj().reshape(*shape[:2], -1).contiguous())
        for x in (factor, driven)
    )
    out = torch.empty_like(driven)
    modes = driven.shape[2]
    _walk[(shape[0], triton.cdiv(modes, BLOCK))](
        factor, driven, out, shape[1], modes, BLOCK=BLOCK, num_warps=1
    )
    return torch.view_as_complex(out).view(shape)
