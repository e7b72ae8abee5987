"""Functions of one number inside Deep DAPP's Triton kernels, each with the derivative that its
backward pass needs.

Sums of small and large numbers keep their digits: log(1 + x) comes from the series of its inverse
hyperbolic tangent, since the device's fast logarithm has an absolute error. Exponentials and
quotients are made of what the device has an instruction for, powers of two and 1 / sqrt(x), both
within 2e-7 of themselves: triton's own take three times as many instructions.
of `loss`.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check  # triton has its own types
def exp(x):
    """e^x."""
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
@no_type_check
def inverse(x):
    """1 / x, for x > 0."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
@no_type_check
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return inverse(1.0 + exp(-x))


@triton.jit
@no_type_check
def normal_share(x):
    """The share of a standard normal below x, within 5e-7: gelu(x) is x times this.

    M. Abramowitz and I. Stegun, Handbook of Mathematical Functions, 26.2.17: the density is the one
    that the gradient needs as well.
    """
    t = inverse(1.0 + 0.2316419 * tl.abs(x))
    series = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    beyond = series * _density(x)
    return tl.where(x < 0.0, beyond, 1.0 - beyond)


@triton.jit
@no_type_check
def gelu_derivative(x, share):
    """The derivative of gelu, given ``normal_share(x)``."""
    return share + x * _density(x)


@triton.jit
@no_type_check
def _density(x):
    """That of a standard normal, e^(-x^2 / 2) / sqrt(2 pi)."""
    return tl.exp2(x * x * -0.7213475204444817 - 1.3257480647361593)


@triton.jit
@no_type_check
def softplus(x):
    """log(1 + e^x)."""
    small = exp(-tl.abs(x))
    y = small * inverse(2.0 + small)
    y2 = y * y
    series = 1.0 + y2 * (
        1.0 / 3
        + y2 * (1.0 / 5 + y2 * (1.0 / 7 + y2 * (1.0 / 9 + y2 * (1.0 / 11 + y2 * (1.0 / 13)))))
    )
    return tl.maximum(x, 0.0) + 2.0 * y * series


@triton.jit
@no_type_check
def log_softplus(x):
    """log(log(1 + e^x)), which is x - e^x / 2 far below 0."""
    low = x < -18.0
    return tl.where(
        low, x - 0.5 * exp(tl.minimum(x, -18.0)), tl.log(softplus(tl.maximum(x, -18.0)))
    )


@triton.jit
@no_type_check
def log_softplus_derivative(x):
    """Its derivative."""
    high = tl.maximum(x, -18.0)
    return tl.where(x < -18.0, 1.0, sigmoid(high) / softplus(high))


@triton.jit
@no_type_check
def cos_sin(x):
    """cos(x) and sin(x) from one reduction to the nearest multiple of pi / 2, within 2e-6 for |x|
    up to 10,000.

    pi / 2 is taken off in three pieces, the first two of eleven digits in base 2, whose products
    with the multiple are exact. The polynomials are those of S. Moshier's Cephes. Far beyond 10,000
    both are still numbers from -1 to 1, while the angle's own digits no longer say which.
    """
    shifted = (
        x * 0.6366197723675814 + 12582912.0
    )  # so large that its last digits are the nearest whole number
    k = shifted - 12582912.0
    r = x - k * 1.5703125
    r = r - k * 0.0004837512969970703
    r = r - k * 7.549789954891e-08
    r = tl.minimum(tl.maximum(r, -0.8), 0.8)
    z = r * r
    sine = r + r * z * (-1.6666654611e-1 + z * (8.3321608736e-3 + z * -1.9515295891e-4))
    cosine = (
        1.0
        - 0.5 * z
        + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5))
    )
    quarter = shifted.to(tl.int32, bitcast=True)
    odd = (quarter & 1) != 0
    a = tl.where(odd, sine, cosine)
    b = tl.where(odd, cosine, sine)
    return tl.where(((quarter + 1) & 2) != 0, -a, a), tl.where((quarter & 2) != 0, -b, b)


@triton.jit
@no_type_check
def feature(log, k, TIMES: tl.constexpr, K: tl.constexpr):
    """Feature ``k`` of an elapsed time from log(1 + d / s_k), s_1 for sinusoids
    (`deep_layer.features`); a 1 for the bias follows the last.
    """
    bias = tl.where(k == K, 1.0, 0.0)
    if K == TIMES:
        return tl.where(k < K, log - 1.0, bias)
    WAVES: tl.constexpr = (K - TIMES) // 2
    octave = tl.maximum(k - TIMES, 0) % WAVES
    cosine, sine = cos_sin(log * (3.141592653589793 * ((octave * 0 + 1) << octave).to(tl.float32)))
    return tl.where(
        k < TIMES, log - 1.0, tl.where(k < TIMES + WAVES, cosine, tl.where(k < K, sine, bias))
    )


@triton.jit
@no_type_check
def in_turn(a_re, a_im, s_re, s_im, b_re, b_im, t_re, t_im):
    """First S -> a S + s, then S -> b S + t."""
    return (
        b_re * a_re - b_im * a_im,
        b_re * a_im + b_im * a_re,
        b_re * s_re - b_im * s_im + t_re,
        b_re * s_im + b_im * s_re + t_im,
    )


@triton.jit
@no_type_check
def node_of(drawn, q, Q: tl.constexpr):
    """At which share of its gap node ``q`` of Q lies, and its weight (`quadrature.early`): in its
    stratum at ``drawn`` and, every other, at 1 - ``drawn``.
    """
    square = 1.0 + (q + tl.where(q % 2 == 0, drawn, 1.0 - drawn)) * (8.0 / Q)
    root = 0.5 * tl.sqrt(square) - 0.5
    return root * root, 2.0 - 2.0 * tl.rsqrt(square)  # the weight is 4 root / (2 root + 1)


@triton.jit
@no_type_check
def product(a, b, more, PRECISION: tl.constexpr):
    """``a`` times ``b``, and ``more`` (or None). For "tf32" both are rounded to the nearest first:
    the device would cut them off, and what sums of many numbers lose by that does not cancel.
    """
    if PRECISION == "tf32":
        a = (a.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
        b = (b.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
    return tl.dot(a, b, more, input_precision=PRECISION)
