r"""RMTPP's recurrence as loops over events, for machine code (numba, the extra ``fast``): all
sequences of a batch side by side.

    h_n = tanh(x_n + U h_{n-1}),        and on the way back     g_n <- (1 - h_n^2) g_n,    g_{n-1} <- g_{n-1} + U' g_n

Plain Python, slow but correct as it stands, and in float32. `models.rmtpp` calls them in training;
without numba, and for little work, it takes two operations of torch per event instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, no_type_check

import numpy as np

from fourpoint.kernels.compiling import machine_code
from fourpoint.models import readout_loops
from fourpoint.models.readout_loops import product

f32 = np.float32
WORTH_COMPILING = (
    2**15
)  # numbers in the states of a batch from which the loops are used: compiling takes seconds, once


@cache
def compiled_recurrence() -> tuple[Callable[..., None], Callable[..., None]] | None:
    """:func:`onwards` and :func:`backwards` as machine code; None without numba."""
    code: Any = machine_code(
        (readout_loops, sys.modules[__name__]), (onwards, backwards), (product, bend)
    )
    return None if code is None else (code["onwards"], code["backwards"])


@no_type_check
def onwards(states, weight, room):
    """(P, B, H) states: h_0, and x_n in the place of h_n; h_n comes out. (B, H) room."""
    for n in range(1, len(states)):
        product(states[n - 1], weight, room)
        bend(states[n].ravel(), room.ravel())


@no_type_check
def backwards(slopes, states, back, room):
    """(P, B, H) slopes: what the states are worth as they stand; with what they are worth to later
    ones, before the tanh, they come out.
    """
    for n in range(len(states) - 1, 0, -1):
        slope, state, before, part = (
            slopes[n].ravel(),
            states[n].ravel(),
            slopes[n - 1].ravel(),
            room.ravel(),
        )
        for i in range(len(slope)):
            slope[i] *= f32(1) - state[i] * state[i]
        product(slopes[n], back, room)
        for i in range(len(slope)):
            before[i] += part[i]


@no_type_check
def bend(x, more):
    """tanh(x + more) in place: the ratio of two polynomials, those of Eigen, which is 1 in float32
    from 8 on.
    """
    for i in range(len(x)):
        v = x[i] + more[i]
        v = v if v < f32(7.90531110763549805) else f32(7.90531110763549805)
        v = v if v > f32(-7.90531110763549805) else f32(-7.90531110763549805)
        s = v * v
        p = s * f32(-2.76076847742355e-16) + f32(2.00018790482477e-13)
        p = p * s + f32(-8.60467152213735e-11)
        p = p * s + f32(5.12229709037114e-08)
        p = p * s + f32(1.48572235717979e-05)
        p = p * s + f32(6.37261928875436e-04)
        p = p * s + f32(4.89352455891786e-03)
        q = s * f32(1.19825839466702e-06) + f32(1.18534705686654e-04)
        q = q * s + f32(2.26843463243900e-03)
        q = q * s + f32(4.89352518554385e-03)
        x[i] = v * p / q
