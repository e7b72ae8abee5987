"""Strict JSON: numbers that are not finite become null, numpy's numbers and arrays become plain.

JSON has no NaN and no infinity, and readers other than Python's refuse them. Everything that
Fourpoint prints or writes as JSON for others goes through here.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import numpy as np


def plain(value: object) -> Any:
    """``value`` as strict JSON can hold it: dicts, lists, text, numbers, booleans and None.

    >>> plain({"mean": np.float64(0.5), "bounds": (float("-inf"), 2), "counts": np.arange(2)})
    {'mean': 0.5, 'bounds': [None, 2], 'counts': [0, 1]}
    """
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not isfinite(value):
        return None
    return value


def dumps(value: object, *, indent: int | None = None) -> str:
    """``value`` as the text of strict JSON, in ASCII.

    >>> dumps({"rate": float("nan"), "count": np.int64(3)})
    '{"rate": null, "count": 3}'
    """
    return json.dumps(plain(value), indent=indent, allow_nan=False)
