"""What the paper prints: Table 1 (mean square error of the intensity) and Table 2 (average
log-likelihood of a sequence).

Transcribed from Zhu, Zhang, Ding and Xie, "Deep Fourier kernel for self-attentive point processes"
(2021). Rows are keyed by our names of models and data; the paper's windows and normalisation are
not stated (design 3.1, rows 10, 11 and 13), so that its numbers stand beside ours and are not
compared digit by digit.
"""

from __future__ import annotations

from collections.abc import Mapping

_MODELS = (
    "hawkes",
    "sahp",
    "nhp",
    "rmtpp",
    "dapp-paper-dot",
    "odapp-paper-dot",
    "dapp-paper-nn",
    "odapp-paper-nn",
    "dapp-paper",
    "odapp-paper",
)
_ERRORS: Mapping[str, tuple[float, ...]] = {
    "hawkes": (0.031, 18.3, 49.9, 35.9, 15.3, 19.3, 1.221, 1.893, 0.258, 0.166),
    "self_correcting": (74.3, 130.8, 25.8, 36.1, 117.4, 133.3, 47.2, 51.3, 21.8, 27.3),
    "nonhomogeneous1": (
        1672.3,
        7165.5,
        1431.6,
        6852.3,
        6201.5,
        7014.8,
        972.5,
        1124.1,
        605.7,
        1511.8,
    ),
    "nonhomogeneous2": (
        3210.3,
        9858.9,
        2063.1,
        3854.8,
        9812.7,
        9733.1,
        1449.5,
        1722.7,
        1351.4,
        1527.9,
    ),
}
_LIKELIHOOD_MODELS = ("hawkes", "sahp", "nhp", "rmtpp", "dapp-paper", "odapp-paper")
_LIKELIHOODS: Mapping[str, tuple[float, ...]] = {
    "hawkes": (22.0, 20.8, 20.0, 19.7, 21.2, 21.1),
    "self_correcting": (3.9, 3.5, 5.4, 6.9, 7.1, 7.1),
    "nonhomogeneous1": (437.8, 432.4, 445.6, 443.1, 442.3, 457.0),
    "nonhomogeneous2": (399.4, 364.3, 410.1, 405.1, 428.3, 420.1),
    "mimic-iii": (17.1, 11.7, 14.4, 8.7, 21.5, 21.2),
    "stock": (66.3, 43.1, 43.4, 44.0, 72.9, 72.9),
    "meme": (129.8, 84.0, 113.4, 106.0, 131.0, 128.5),
    "traffic": (313.8, 326.7, 324.4, 339.2, 458.5, 387.2),
}
TABLE1: Mapping[str, Mapping[str, float]] = {
    data: dict(zip(_MODELS, row, strict=True)) for data, row in _ERRORS.items()
}
TABLE2: Mapping[str, Mapping[str, float]] = {
    data: dict(zip(_LIKELIHOOD_MODELS, row, strict=True)) for data, row in _LIKELIHOODS.items()
}
