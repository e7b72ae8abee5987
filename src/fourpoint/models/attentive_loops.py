r"""The likelihood of SAHP and THP and its gradient, one sequence at a time in one sweep, for machine code (numba, the extra ``fast``).

Layers over a whole batch go through memory once per operation, there and back, and pad every sequence to the longest. Here a
sequence goes up through all layers to its likelihood and down again while all of it is in the processor's cache, and its padding
ends at the next multiple of 16, where products of matrices are quickest. Everything lies feature by feature, (D, n), so that a
head's queries, keys and values are blocks of rows, and all loops run along the sequence.

The functions are plain Python, slow but correct as they stand, and in float32. They say the same as `models.encoder`, and as the
``log_intensity`` of `models.sahp` and `models.thp`; `models.attentive_sweep` calls them. What they work on is in
`models.attentive_room`, and the read-outs are in `models.readout_loops`.
"""

from __future__ import annotations

import inspect
import math
import sys
import zlib
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, no_type_check

import numpy as np

from fourpoint.models import attentive_room, readout_loops
from fourpoint.models.attentive_room import LANES
from fourpoint.models.readout_loops import add, back_to_states, block, curved, product, straight

f32 = np.float32
EPS = f32(1e-5)  # of the layer norm, as in torch
UNSEEN = f32(-1e30)
LEAST = f32(-50.0)  # weights up to exp of it are 0: that is far below rounding, and arithmetic is slow with products of such numbers
TINY = f32(1.001 * math.exp(-50.0))


@cache
def compiled_sweep() -> Callable[..., None] | None:
    """:func:`sweep` as machine code, kept on disk between runs where that can be; None without numba."""
    try:
        from numba import njit
    except ImportError:
        return None
    options: dict[str, Any] = dict(nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy")
    try:
        return _built(njit(cache=True, **options))
    except RuntimeError:  # no folder to keep machine code in
        return _built(njit(**options))


def _built(build: Callable[[FunctionType], Any]) -> Any:
    """Each function is made anew in a namespace that holds the machine code of those it calls.

    numba keeps it under the function's name and asks whether the function's own file has changed; here the name says it of all files.
    """
    sources = "".join(inspect.getsource(module) for module in (sys.modules[__name__], readout_loops, attentive_room))
    space, edition = vars(readout_loops) | globals(), zlib.crc32(sources.encode())
    functions = (product, block, add, soft_max, soft_max_back, norm, norm_back, layer, layer_back, back_to_states, straight, curved)
    for f in (*functions, load, sweep):
        space[f.__name__] = build(FunctionType(inspect.unwrap(f).__code__, space, f"{f.__name__}_{edition}"))
    return space["sweep"]


# numba has its own types, and so none are given from here on.


@no_type_check
def sweep(waves, edges, draws, marks, lengths, inner_gaps, share, parts, turned, scale, log_unit, heads, room, values, to_waves, slopes):
    """(B,) values: sum of log rates at events less the integral; slopes of share @ values are added to what ``slopes`` holds.

    (B, N, D) waves and to_waves: what events' times say, and the slope of that (of no size: not wanted). (B, N + 2) edges of gaps
    and (B, N + 1, Q) draws from U[0, 1], one for the node in each of Q equal parts of a gap. (B, N) marks; (B,) lengths, and share.
    With ``inner_gaps`` the first event and what lies before it or after the last do not count. ``scale``: the mean gap. (M,)
    log_unit: rates are exp(log_unit) g(z).
    """
    layers, D = len(parts.qkv), waves.shape[2]
    for b in range(len(waves)):
        events = lengths[b]
        n = (events + LANES) // LANES * LANES
        load(waves[b], edges[b], draws[b], marks[b], events, n, inner_gaps, parts, scale, room)
        for index in range(layers):
            layer(index, n, parts, heads, room)
        if len(parts.readout) > len(log_unit):
            values[b] = curved(events + 1, n, share[b], parts, turned, log_unit, room, slopes)
        else:
            values[b] = straight(events + 1, n, share[b], parts, turned, log_unit, room, slopes)
        for index in range(layers - 1, -1, -1):
            layer_back(index, n, turned, heads, room, slopes)
        g = block(room.to_state, D, n)
        for c in range(D):
            slopes.first[c] += g[c, 0]
        for i in range(events):
            kind = marks[b, i]
            for c in range(D):
                slopes.marks[kind, c] += g[c, i + 1]
        if len(to_waves):
            for i in range(waves.shape[1]):
                for c in range(D):
                    to_waves[b, i, c] = g[c, i + 1] if i < events else f32(0)


@no_type_check
def load(waves, edges, draws, marks, events, n, inner_gaps, parts, scale, room):
    """One sequence into its room: tokens, and of every gap the lags of nodes and end, what a unit of rate costs, and the mark
    that ends it (-1: none that counts)."""
    D, nodes, x = waves.shape[1], draws.shape[1], block(room.states[0], waves.shape[1], n)
    for c in range(D):
        x[c, 0] = parts.first[c]
        for i in range(events):
            x[c, i + 1] = waves[i, c] + parts.marks[marks[i], c]
        for i in range(events + 1, n):
            x[c, i] = 0
    for i in range(events + 1):
        width = edges[i + 1] - edges[i]
        room.cost[i] = width / nodes if not inner_gaps or 0 < i < events else 0.0
        room.kinds[i] = marks[i] if i < events and (i > 0 or not inner_gaps) else -1
        for q in range(nodes):
            room.lags[i, q] = width / scale * (q + draws[i, q]) / nodes
        room.lags[i, nodes] = width / scale


@no_type_check
def layer(index, n, parts, heads, room):
    """One layer up: from the states of this layer to those of the next."""
    D, inner = parts.qkv.shape[2], parts.up.shape[1]
    d = D // heads
    x, y, joined = block(room.states[index], D, n), block(room.states[index + 1], D, n), block(room.joined[index], 3 * D, n)
    found, u, total = block(room.found[index], D, n), block(room.normed[index], D, n), block(room.to_found, D, n)
    product(parts.qkv[index], x, joined)
    for h in range(heads):
        weights, query = block(room.weights[index, h], n, n), h * d
        np.dot(joined[D + query : D + query + d].T, joined[query : query + d], weights)
        soft_max(weights, room.bits, room.power, room.one, room.other)
        product(joined[2 * D + query : 2 * D + query + d], weights, found[query : query + d])
    product(parts.out[index], found, total)
    norm(total, x, u, room.spread[index], room.one)
    if inner == 0:
        for c in range(D):
            for i in range(n):
                y[c, i] = u[c, i]
        return
    fed = block(room.inner[index], inner, n)
    product(parts.up[index], u, fed)
    for c in range(inner):
        shift = parts.up_shift[index, c]
        for i in range(n):
            value = fed[c, i] + shift
            fed[c, i] = value if value > 0 else f32(0)
    product(parts.down[index], fed, y)
    add(y, u)


@no_type_check
def layer_back(index, n, turned, heads, room, slopes):
    """One layer down: ``room.to_state`` holds the slope of the next layer's states and then that of this layer's."""
    D, inner = turned.qkv.shape[1], turned.up.shape[2]
    d, x, joined = D // heads, block(room.states[index], D, n), block(room.joined[index], 3 * D, n)
    found, u, g = block(room.found[index], D, n), block(room.normed[index], D, n), block(room.to_state, D, n)
    to_total, to_found, to_joined = block(room.to_total, D, n), block(room.to_found, D, n), block(room.to_joined, 3 * D, n)
    if inner > 0:
        fed, to_fed = block(room.inner[index], inner, n), block(room.to_inner, inner, n)
        product(turned.down[index], g, to_fed)
        for c in range(inner):
            total = f32(0)
            for i in range(n):
                value = to_fed[c, i] if fed[c, i] > 0 else f32(0)
                to_fed[c, i] = value
                total += value
            slopes.up_shift[index, c] += total
        matrix = block(room.matrix, D, inner)
        product(g, fed.T, matrix)
        add(slopes.down[index], matrix)
        matrix = block(room.matrix, inner, D)
        product(to_fed, u.T, matrix)
        add(slopes.up[index], matrix)
        product(turned.up[index], to_fed, to_found)
        add(g, to_found)
    norm_back(g, u, room.spread[index], to_total, room.one, room.other)
    matrix = block(room.matrix, D, D)
    product(to_total, found.T, matrix)
    add(slopes.out[index], matrix)
    product(turned.out[index], to_total, to_found)
    to_weights = block(room.to_weights, n, n)
    for h in range(heads):
        query, key, value = h * d, D + h * d, 2 * D + h * d
        weights, outside = block(room.weights[index, h], n, n), to_found[query : query + d]
        product(outside, weights.T, to_joined[value : value + d])
        np.dot(joined[value : value + d].T, outside, to_weights)
        soft_max_back(weights, to_weights, room.one)
        product(joined[key : key + d], to_weights, to_joined[query : query + d])
        product(joined[query : query + d], to_weights.T, to_joined[key : key + d])
    matrix = block(room.matrix, 3 * D, D)
    product(to_joined, x.T, matrix)
    add(slopes.qkv[index], matrix)
    product(turned.qkv[index], to_joined, g)
    add(g, to_total)


@no_type_check
def soft_max(scores, bits, power, top, total):
    """Weights from scores, key by query, in place: each query's over the keys up to its own.

    exp(x) is 2^k exp(r) with r below log(2) / 2 in size: a polynomial (that of Cephes), and k put into the bits of a number.
    """
    n = len(scores)
    for i in range(n):
        top[i] = UNSEEN
        total[i] = 0
    for j in range(n):
        for i in range(n):
            score = scores[j, i] if i >= j else UNSEEN
            top[i] = score if score > top[i] else top[i]
    for j in range(n):
        for i in range(n):
            x = scores[j, i] - top[i]
            x = x if i >= j and x > LEAST else LEAST
            k = np.floor(x * f32(1.44269504) + f32(0.5))
            bits[i] = (np.int32(k) + np.int32(127)) << np.int32(23)
            r = x - k * f32(0.693359375) - k * f32(-2.12194440e-4)
            p = f32(1.9875691500e-4) * r + f32(1.3981999507e-3)
            p = p * r + f32(8.3334519073e-3)
            p = p * r + f32(4.1665795894e-2)
            p = p * r + f32(1.6666665459e-1)
            p = p * r + f32(5.0000001201e-1)
            scores[j, i] = p * r * r + r + f32(1)
        for i in range(n):
            weight = scores[j, i] * power[i]
            weight = weight if weight > TINY else f32(0)
            scores[j, i] = weight
            total[i] += weight
    for i in range(n):
        total[i] = f32(1) / total[i]
    for j in range(n):
        for i in range(n):
            scores[j, i] *= total[i]


@no_type_check
def soft_max_back(weights, slopes, mean):
    """The slopes of scores from those of weights, in place."""
    n = len(weights)
    for i in range(n):
        mean[i] = 0
    for j in range(n):
        for i in range(n):
            mean[i] += weights[j, i] * slopes[j, i]
    for j in range(n):
        for i in range(n):
            slopes[j, i] = weights[j, i] * (slopes[j, i] - mean[i])


@no_type_check
def norm(total, x, u, spread, mean):
    """u = (s - mean of s) / deviation of s, s = total + x, and 1 / deviation in ``spread``."""
    D, n = total.shape
    one = f32(1) / f32(D)
    for i in range(n):
        mean[i] = 0
        spread[i] = 0
    for c in range(D):
        for i in range(n):
            value = total[c, i] + x[c, i]
            total[c, i] = value
            mean[i] += value
    for c in range(D):
        for i in range(n):
            value = total[c, i] - mean[i] * one
            total[c, i] = value
            spread[i] += value * value
    for i in range(n):
        spread[i] = f32(1) / math.sqrt(spread[i] * one + EPS)
    for c in range(D):
        for i in range(n):
            u[c, i] = total[c, i] * spread[i]


@no_type_check
def norm_back(outside, u, spread, inward, mean, along):
    """The slope of s from that of u."""
    D, n = u.shape
    one = f32(1) / f32(D)
    for i in range(n):
        mean[i] = 0
        along[i] = 0
    for c in range(D):
        for i in range(n):
            mean[i] += outside[c, i]
            along[i] += outside[c, i] * u[c, i]
    for c in range(D):
        for i in range(n):
            inward[c, i] = spread[i] * (outside[c, i] - one * mean[i] - one * along[i] * u[c, i])
