"""What the loops of `models.attentive_loops` work on: a model's weights as arrays, and the room
that one sequence takes.

Letters: D numbers in a state, M marks, n positions rounded up to whole vector registers.
"""

from __future__ import annotations

from functools import lru_cache
from threading import get_ident
from typing import NamedTuple

import numpy as np

TOGETHER = 128  # positions whose products go into the slopes of weights at once
LANES = 16  # numbers in a vector register: lengths are rounded up to a multiple


class Parts(NamedTuple):
    """The weights of a model, or their slopes: (D,) first state, (M, D) vectors of marks, those of
    the encoder, then the read-out's.

    THP reads out (M, D) levels and has an (M,) slope; SAHP reads out (3 M, D), for eta, mu and
    gamma, and its slope is not used.
    """

    first: np.ndarray
    marks: np.ndarray
    qkv: np.ndarray
    out: np.ndarray
    up: np.ndarray
    up_shift: np.ndarray
    down: np.ndarray
    readout: np.ndarray
    base: np.ndarray
    slope: np.ndarray
    log_scale: np.ndarray


class Turned(NamedTuple):
    """Transposes of weights, for the way down."""

    qkv: np.ndarray
    out: np.ndarray
    up: np.ndarray
    down: np.ndarray
    readout: np.ndarray


class Room(NamedTuple):
    """Space for one sequence of n positions: what every layer keeps for the way down; what is used
    at once; and the gaps.

    The slopes of weights are sums of products over positions. Those of several sequences are formed
    together, which takes half the
    time: ``left`` and the four after it hold their factors until K positions are full.
    """

    states: np.ndarray
    joined: np.ndarray
    weights: np.ndarray
    found: np.ndarray
    normed: np.ndarray
    spread: np.ndarray
    inner: np.ndarray
    to_state: np.ndarray
    to_joined: np.ndarray
    to_found: np.ndarray
    to_total: np.ndarray
    to_weights: np.ndarray
    to_inner: np.ndarray
    read: np.ndarray
    to_read: np.ndarray
    one: np.ndarray
    other: np.ndarray
    rows: np.ndarray
    lags: np.ndarray
    cost: np.ndarray
    left: np.ndarray
    of_states: np.ndarray
    of_found: np.ndarray
    of_inner: np.ndarray
    of_normed: np.ndarray
    qkv: np.ndarray
    out: np.ndarray
    up: np.ndarray
    down: np.ndarray
    readout: np.ndarray
    bits: np.ndarray
    power: np.ndarray
    kinds: np.ndarray


def turned(parts: Parts) -> Turned:
    """Their transposes, each contiguous."""
    return Turned(
        *(
            np.ascontiguousarray(np.swapaxes(getattr(parts, name), -1, -2))
            for name in Turned._fields
        )
    )


def whole_registers(positions: np.ndarray) -> np.ndarray:
    """Numbers of positions rounded up to a multiple of LANES, and at least that."""
    return np.maximum(-(-positions // LANES), 1) * LANES


def room_for(n: int, nodes: int, parts: Parts, heads: int) -> Room:
    """Room for sequences of n positions with ``nodes`` in each gap. That of the last calls is used
    again, each by its own thread.
    """
    layers, inner, D = parts.up.shape
    return _room(n, nodes, layers, inner, D, len(parts.readout), heads, get_ident())


@lru_cache(maxsize=32)
def _room(
    n: int, nodes: int, layers: int, inner: int, D: int, rows: int, heads: int, thread: int
) -> Room:
    """``power`` is the same memory as ``bits``, as floats."""
    K = max(n, TOGETHER)
    shapes: dict[str, tuple[int, ...]] = dict(
        states=(layers + 1, D, n),
        joined=(layers, 3 * D, n),
        weights=(layers, heads, n, n),
        found=(layers, D, n),
        normed=(layers, D, n),
        spread=(layers, n),
        inner=(layers, inner, n),
        to_state=(D, n),
        to_joined=(3 * D, n),
        to_found=(D, n),
        to_total=(D, n),
        to_weights=(n, n),
        to_inner=(inner, n),
        read=(rows, n),
        to_read=(rows, n),
        one=(n,),
        other=(n,),
        rows=(7, n),
        lags=(nodes + 1, n),
        cost=(n,),
        left=(layers, 5 * D + inner, K),
        of_states=(layers, K, D),
        of_found=(layers, K, D),
        of_inner=(layers, K, inner),
        of_normed=(layers, K, D),
        qkv=(3 * D, D),
        out=(D, D),
        up=(inner, D),
        down=(D, inner),
        readout=(rows, D),
    )
    bits = np.empty(n, dtype=np.int32)
    floats = {name: np.empty(shape, dtype=np.float32) for name, shape in shapes.items()}
    return Room(**floats, bits=bits, power=bits.view(np.float32), kinds=np.empty(n, dtype=np.int64))
