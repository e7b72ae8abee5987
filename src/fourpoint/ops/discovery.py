r"""Which of many hypotheses to reject, with a stated false discovery rate.

Benjamini and Hochberg (1995) reject the k smallest of n p-values, k being the largest number with
p_(k) <= q k / n; the share of false ones among the rejected is then at most q on average if the
tests are independent or positively dependent. Benjamini and Yekutieli (2001) divide q by
1 + 1/2 + ... + 1/n, which holds under any dependence.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

Correction = Literal["by", "bh"]


def discoveries(
    p_values: Float[ndarray, "*any"], rate: float, correction: Correction = "by"
) -> Bool[ndarray, "*any"]:
    """Whether each hypothesis is rejected at the false discovery ``rate``; NaN is not counted.

    >>> discoveries(np.array([0.001, 0.02, 0.03, 0.8]), 0.1, "bh").tolist()
    [True, True, True, False]
    >>> discoveries(np.array([0.001, 0.02, 0.06, 0.8]), 0.1, "by").tolist()
    [True, True, False, False]
    """
    flat = p_values.ravel()
    counted = np.flatnonzero(~np.isnan(flat))
    chosen = np.zeros(flat.shape, dtype=bool)
    n = len(counted)
    if n:
        ranks = np.arange(1, n + 1)
        share = float((1 / ranks).sum()) if correction == "by" else 1.0
        order = counted[np.argsort(flat[counted], kind="stable")]
        below = np.flatnonzero(flat[order] <= rate * ranks / (n * share))
        if len(below):
            chosen[order[: below[-1] + 1]] = True
    return chosen.reshape(p_values.shape)


def adjusted(p_values: Float[ndarray, " n"]) -> Float[ndarray, " n"]:
    """The smallest false discovery rate at which Benjamini and Hochberg reject each hypothesis.

    >>> adjusted(np.array([0.01, 0.5, 0.02])).round(3).tolist()
    [0.03, 0.5, 0.03]
    """
    order = np.argsort(-p_values)
    ranks = len(p_values) - np.arange(len(p_values))
    rates = np.minimum(1.0, p_values[order] * len(p_values) / ranks)
    found = np.empty(len(p_values))
    found[order] = np.minimum.accumulate(rates)
    return found
