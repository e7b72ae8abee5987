r"""How far an estimated Fourier kernel may be from the true one, and how many features keep it
near.

Let kappa be the mean of cos(omega' (x - x')) and its estimate the average over D features drawn
independently, with cosine and sine paired. On a ball of radius R in R^d (Proposition 2 of the
paper, after Rahimi and Recht),

    P( sup_{x, x'} | estimate - kappa |  >=  e )  <=
        (48 R sigma / e)^2 exp( - D e^2 / (4 (d + 2)) ),

sigma^2 being the mean of |W_u' omega|^2: the key embedding W_u belongs to the frequencies, which
the paper absorbs silently. The proof is for paired phases; with the random phases of the paper's
(7) the estimate is not even a function of x - x', and the bound says nothing of it. It needs a
finite sigma: a Cauchy spectrum, whose kernel is exp(-|d|), has none. Plain numbers in, plain
numbers out.
"""

from __future__ import annotations

import math

from fourpoint.events import UserError


def features_needed(
    error: float, *, radius: float, sigma: float, dimension: int = 1, probability: float = 0.05
) -> int:
    """The number D of features for which the largest error of the kernel is below ``error``,
    except with ``probability``, by the bound of Proposition 2.

        D = 4 (d + 2) / e^2 log( (48 R sigma / e)^2 / p )

    Args:
        error: e, the largest error allowed; the kernel itself lies between -1 and 1.
        radius: R, of the ball that holds all events; for times on a window of length T it is T / 2.
        sigma: root of the mean of |W_u' omega|^2, in radians per unit of ``radius``.
        dimension: d, of an event: 1 for times alone.
        probability: p, that the error is larger nevertheless.

    Returns a number of features, at least 1. Raises :class:`UserError` where a number is not
    positive and finite, or p not below 1.

    >>> features_needed(0.1, radius=0.5, sigma=10.0)
    22275
    >>> features_needed(0.05, radius=0.5, sigma=10.0) / features_needed(
    ...     0.1, radius=0.5, sigma=10.0
    ... ) > 4
    True
    """
    _check(error, radius, sigma, dimension, probability)
    odds = 2 * math.log(48 * radius * sigma / error) - math.log(probability)
    return max(1, math.ceil(4 * (dimension + 2) / error**2 * odds))


def chance_of_error(
    error: float, features: int, *, radius: float, sigma: float, dimension: int = 1
) -> float:
    """The bound itself: at most so likely is an error of ``error`` or more anywhere; 1 where the
    bound says nothing.

    >>> chance_of_error(0.1, 20, radius=0.5, sigma=10.0)
    1.0
    >>> chance_of_error(0.1, 22275, radius=0.5, sigma=10.0) <= 0.05
    True
    """
    _check(error, radius, sigma, dimension, 0.5)
    log = 2 * math.log(48 * radius * sigma / error) - features * error**2 / (4 * (dimension + 2))
    return math.exp(min(0.0, log))


def error_bound(
    features: int, *, radius: float, sigma: float, dimension: int = 1, probability: float = 0.05
) -> float:
    """The error that ``features`` are certified to stay below but for ``probability``; infinite
    above 2, which says nothing.

    The bound falls as e grows, so that the root is found by halving.

    >>> 0.099 < error_bound(22275, radius=0.5, sigma=10.0) < 0.1
    True
    >>> error_bound(20, radius=0.5, sigma=10.0)
    inf
    """
    _check(1.0, radius, sigma, dimension, probability)
    low, high = 0.0, 2.0
    if features < features_needed(
        high, radius=radius, sigma=sigma, dimension=dimension, probability=probability
    ):
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        enough = features >= features_needed(
            middle, radius=radius, sigma=sigma, dimension=dimension, probability=probability
        )
        low, high = (low, middle) if enough else (middle, high)
    return high


def _check(error: float, radius: float, sigma: float, dimension: int, probability: float) -> None:
    for name, value in (
        ("error", error),
        ("radius", radius),
        ("sigma", sigma),
        ("dimension", dimension),
    ):
        if not 0 < value < math.inf:
            raise UserError(
                f"{name} above 0 and finite",
                f"{value}",
                "A spectrum without a second moment has no such bound.",
            )
    if not 0 < probability < 1:
        raise UserError("a probability between 0 and 1", f"{probability}", "Choose .05, say.")
