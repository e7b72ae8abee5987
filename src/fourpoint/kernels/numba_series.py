"""A series that compiled loops share. Plain Python, slow but correct as it stands; made part of the
loops that call it.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

f32 = np.float32


@no_type_check
def log_one_plus(t):
    """log(1 + t) for t from 0 to 1, in float32: 2 (u + u^3 / 3 + u^5 / 5 + ...) with u = t / (2 +
    t), which is at most 1 / 3.

    >>> round(float(log_one_plus(np.float32(1.0))), 6)
    0.693147
    """
    u = t / (f32(2) + t)
    v = u * u
    p = v * f32(1 / 15) + f32(1 / 13)
    p = p * v + f32(1 / 11)
    p = p * v + f32(1 / 9)
    p = p * v + f32(1 / 7)
    p = p * v + f32(1 / 5)
    p = p * v + f32(1 / 3)
    return f32(2) * u * (f32(1) + p * v)
