r"""The likelihood of SAHP and THP and its gradient, one sequence at a time in one sweep, for
machine code (numba, the extra ``fast``).

Layers over a whole batch go through memory once per operation, there and back, and pad every
sequence to the longest. Here a sequence goes up through all layers to its likelihood and down again
while all of it is in the processor's cache, and its padding ends at the next multiple of 16, where
products of matrices are quickest. Everything lies feature by feature, (D, n), so that a head's
queries, keys and values are blocks of rows, and all loops run along the sequence.

The functions are plain Python, slow but correct as they stand, and in float32. They say the same as
`models.transformer`, and as the ``log_intensity`` of `models.sahp` and `models.thp`;
`models.attentive_sweep` calls them. What they work on is in `models.attentive_room`, and the
read-outs are in `models.readout_loops`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import no_type_check

import numpy as np

from fourpoint.kernels import numba_series as series_loops
from fourpoint.kernels.compiling import machine_code
from fourpoint.kernels.numba_series import log_one_plus
from fourpoint.models import attentive_room, readout_loops
from fourpoint.models.readout_loops import (
    add,
    back_to_states,
    curved,
    exponentials,
    product,
    scored,
    straight,
)

f32 = np.float32
EPS = f32(1e-5)  # of the layer norm, as in torch
UNSEEN = f32(-1e30)
LEAST = f32(
    -50.0
    # weights up to exp of it are 0: that is far below rounding, and arithmetic is slow with
    # products of such numbers
)
TINY = f32(1.001 * math.exp(-50.0))


@cache
def compiled_sweep() -> Callable[..., None] | None:
    """:func:`sweep` as machine code, kept on disk between runs where that can be; None without
    numba.
    """
    helpers = (
        product,
        add,
        hold,
        hold_turned,
        add_product,
        exponentials,
        soft_max,
        soft_max_back,
        norm,
        norm_back,
    )
    merged = (
        layer,
        layer_back,
        scored,
        back_to_states,
        straight,
        curved,
        settle,
        load,
        unload,
        log_one_plus,
    )
    modules = (series_loops, attentive_room, readout_loops, sys.modules[__name__])
    code = machine_code(modules, (sweep,), helpers, merged)
    return None if code is None else code["sweep"]


# numba has its own types, and so none are given from here on.


@no_type_check
def sweep(
    which,
    waves,
    edges,
    draws,
    marks,
    lengths,
    inner_gaps,
    share,
    parts,
    turned,
    scale,
    log_unit,
    heads,
    room,
    values,
    to_waves,
    slopes,
):
    """(B,) values: sum of log rates at events less the integral; slopes of share @ values are added
    to what ``slopes`` holds.

    Of the B sequences those at ``which``, for whose length there is ``room``. (B, N, D) waves and
    to_waves: what events' times say, and the slope of that (of no size: not wanted). (B, N + 2)
    edges of gaps and (B, N + 1, Q) draws from U[0, 1], one for the node in each of Q equal parts of
    a gap. (B, N) marks; (B,) lengths, and share. With ``inner_gaps`` the first event and what lies
    before it or after the last do not count, and the position after the last event is left out.
    ``scale``: the mean gap. (M,) log_unit: rates are exp(log_unit) g(z).
    """
    layers, n, held = len(parts.qkv), len(room.cost), 0
    for b in which:
        last = lengths[b] + 1 - inner_gaps
        if held + n > room.left.shape[2]:
            settle(held, turned, room, slopes)
            held = 0
        load(
            waves[b], edges[b], draws[b], marks[b], lengths[b], last, inner_gaps, parts, scale, room
        )
        for index in range(layers):
            layer(index, parts, heads, room)
        if len(parts.readout) > len(log_unit):
            values[b] = curved(share[b], parts, turned, log_unit, room, slopes)
        else:
            values[b] = straight(share[b], parts, turned, log_unit, room, slopes)
        for index in range(layers - 1, -1, -1):
            layer_back(index, held, turned, heads, room, slopes)
        held += n
        unload(
            room.to_state, marks[b], last, slopes, to_waves[b] if len(to_waves) else waves[b, :0]
        )
    settle(held, turned, room, slopes)


@no_type_check
def load(waves, edges, draws, marks, events, last, inner_gaps, parts, scale, room):
    """One sequence into its room: the tokens of ``last`` positions, and of each gap after one the
    lags of nodes and end, what a unit of rate costs, and the mark that ends it (-1: none that
    counts).
    """
    D, nodes, n, x = waves.shape[1], draws.shape[1], len(room.cost), room.states[0]
    for c in range(D):
        for i in range(n):
            x[c, i] = 0
        for i in range(last):
            x[c, i] = waves[i - 1, c] + parts.marks[marks[i - 1], c] if i > 0 else parts.first[c]
    for i in range(n):
        width = edges[i + 1] - edges[i] if i < last else 0.0
        room.cost[i] = width / nodes if i > 0 or not inner_gaps else 0.0
        room.kinds[i] = marks[i] if i < events and (i > 0 or not inner_gaps) else -1
        for q in range(nodes):
            room.lags[q, i] = width / scale * (q + draws[i, q]) / nodes if i < last else 0.0
        room.lags[nodes, i] = width / scale


@no_type_check
def unload(g, marks, last, slopes, to_waves):
    """The slope of a sequence's tokens to where it belongs."""
    D = len(g)
    for c in range(D):
        slopes.first[c] += g[c, 0] if last > 0 else f32(0)
    for i in range(1, last):
        kind = marks[i - 1]
        for c in range(D):
            slopes.marks[kind, c] += g[c, i]
    for i in range(len(to_waves)):
        for c in range(D):
            to_waves[i, c] = g[c, i + 1] if i + 1 < last else f32(0)


@no_type_check
def layer(index, parts, heads, room):
    """One layer up: from the states of this layer to those of the next."""
    D, inner, n = parts.qkv.shape[2], parts.up.shape[1], len(room.cost)
    d, x, y, joined = D // heads, room.states[index], room.states[index + 1], room.joined[index]
    found, u, total = room.found[index], room.normed[index], room.to_found
    product(parts.qkv[index], x, joined)
    for h in range(heads):
        weights, query = room.weights[index, h], h * d
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
    fed = room.inner[index]
    product(parts.up[index], u, fed)
    for c in range(inner):
        shift = parts.up_shift[index, c]
        for i in range(n):
            value = fed[c, i] + shift
            fed[c, i] = value if value > 0 else f32(0)
    product(parts.down[index], fed, y)
    add(y, u)


@no_type_check
def layer_back(index, held, turned, heads, room, slopes):
    """One layer down: ``room.to_state`` holds the slope of the next layer's states and then that of
    this layer's.

    The factors of the weights' slopes go into the room's columns from ``held``.
    """
    D, inner, n = turned.qkv.shape[1], turned.up.shape[2], len(room.cost)
    d, x, joined, found, u = (
        D // heads,
        room.states[index],
        room.joined[index],
        room.found[index],
        room.normed[index],
    )
    g, to_total, to_found, to_joined, left = (
        room.to_state,
        room.to_total,
        room.to_found,
        room.to_joined,
        room.left[index],
    )
    if inner > 0:
        fed, to_fed = room.inner[index], room.to_inner
        product(turned.down[index], g, to_fed)
        for c in range(inner):
            total = f32(0)
            for i in range(n):
                value = to_fed[c, i] if fed[c, i] > 0 else f32(0)
                to_fed[c, i] = value
                total += value
            slopes.up_shift[index, c] += total
        hold(g, left, 4 * D, held)
        hold(to_fed, left, 5 * D, held)
        hold_turned(fed, room.of_inner[index], held)
        hold_turned(u, room.of_normed[index], held)
        product(turned.up[index], to_fed, to_found)
        add(g, to_found)
    norm_back(g, u, room.spread[index], to_total, room.one, room.other)
    product(turned.out[index], to_total, to_found)
    to_weights = room.to_weights
    for h in range(heads):
        query, key, value = h * d, D + h * d, 2 * D + h * d
        weights, outside = room.weights[index, h], to_found[query : query + d]
        product(outside, weights.T, to_joined[value : value + d])
        np.dot(joined[value : value + d].T, outside, to_weights)
        soft_max_back(weights, to_weights, room.one)
        product(joined[key : key + d], to_weights, to_joined[query : query + d])
        product(joined[query : query + d], to_weights.T, to_joined[key : key + d])
    hold(to_joined, left, 0, held)
    hold(to_total, left, 3 * D, held)
    hold_turned(x, room.of_states[index], held)
    hold_turned(found, room.of_found[index], held)
    product(turned.qkv[index], to_joined, g)
    add(g, to_total)


@no_type_check
def hold(part, left, row, held):
    """Put a matrix into ``left`` from this row and column on. Where an index may be below 0 numba
    does not use vectors.
    """
    row, held = np.uintp(row), np.uintp(held)
    for c in range(np.uintp(part.shape[0])):
        for i in range(np.uintp(part.shape[1])):
            left[row + c, held + i] = part[c, i]


@no_type_check
def hold_turned(part, right, held):
    """Put the transpose of a matrix into ``right`` from this row on."""
    held = np.uintp(held)
    for i in range(np.uintp(part.shape[1])):
        for c in range(np.uintp(part.shape[0])):
            right[held + i, c] = part[c, i]


@no_type_check
def settle(held, turned, room, slopes):
    """Add the products of the positions held to the slopes of the layers' weights. Columns that are
    not in use are 0.
    """
    layers, D, inner, K = (
        len(turned.qkv),
        turned.qkv.shape[1],
        turned.up.shape[2],
        room.left.shape[2],
    )
    for index in range(layers):
        left = room.left[index]
        for c in range(len(left)):
            for i in range(held, K):
                left[c, i] = 0
        for i in range(held, K):
            for c in range(D):
                room.of_states[index, i, c] = 0
                room.of_found[index, i, c] = 0
                room.of_normed[index, i, c] = 0
            for c in range(inner):
                room.of_inner[index, i, c] = 0
        add_product(left[: 3 * D], room.of_states[index], room.qkv, slopes.qkv[index])
        add_product(left[3 * D : 4 * D], room.of_found[index], room.out, slopes.out[index])
        if inner > 0:
            add_product(left[4 * D : 5 * D], room.of_inner[index], room.down, slopes.down[index])
            add_product(left[5 * D :], room.of_normed[index], room.up, slopes.up[index])


@no_type_check
def add_product(a, b, part, total):
    """total += a b, by way of ``part``."""
    product(a, b, part)
    add(total, part)


@no_type_check
def soft_max(scores, bits, power, top, total):
    """Weights from scores, key by query, in place: each query's over the keys up to its own. exp as
    in `readout_loops.exponentials`.
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
