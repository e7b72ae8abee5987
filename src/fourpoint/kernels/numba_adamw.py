r"""AdamW as one compiled loop (numba, the extra ``fast``), for models so small that torch takes
longer to begin than to calculate.

    m <- b1 m + (1 - b1) g,    v <- b2 v + (1 - b2) g^2,    w <- (1 - rate decay) w - rate m / (1 - b1^s) / (sqrt(v / (1 - b2^s)) + eps)

It works on the very weights and moments of a `torch.optim.AdamW`, whose own first step makes them,
so that a run's state is written and read as ever, and a run that was killed goes on as it would
have. The loops are plain Python, slow but correct as they stand. Used by `training_steps`; torch's
step is what they are tested against.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, no_type_check

import numpy as np
import torch
from torch import nn

from fourpoint.kernels.compiling import machine_code

LARGEST = 2**18  # numbers in all weights: beyond, torch is as fast


class Group(NamedTuple):
    """Weights that move alike: the optimiser's settings for them, and arrays of weights, moments
    and counts of steps, all held by torch.
    """

    settings: dict[str, Any]
    parameters: list[nn.Parameter]
    arrays: tuple[tuple[np.ndarray, ...], ...]


class Moves:
    """Steps of an AdamW, by the loop where that can be: with numba, for few weights, on the
    processor, in float32, and as long as the same weights have a slope in every step.
    """

    def __init__(self, optimiser: torch.optim.Optimizer) -> None:
        self.optimiser, self.groups = optimiser, list[Group]()
        weights = [p for group in optimiser.param_groups for p in group["params"]]
        plain = all(
            p.device.type == "cpu" and p.dtype == torch.float32 and p.is_contiguous()
            for p in weights
        )
        self.able = (
            plain and sum(p.numel() for p in weights) <= LARGEST and compiled_adamw() is not None
        )

    def take(self) -> None:
        """One step with the slopes that the weights have."""
        if self.able and not self.groups and self.optimiser.state:
            held = [self._held(settings) for settings in self.optimiser.param_groups]
            self.groups = [group for group in held if group.settings["params"]]
            self.able = all(
                len({float(count[0]) for count in group.arrays[3]}) == 1 for group in self.groups
            )  # of one age
        now = [[p for p in group.settings["params"] if p.grad is not None] for group in self.groups]
        self.able &= all(
            [*map(id, some)] == [*map(id, group.parameters)]
            for some, group in zip(now, self.groups, strict=True)
        )
        if not self.able or not self.groups:
            self.optimiser.step()
            return
        loop: Any = compiled_adamw()
        for settings, parameters, (weights, first, second, counts) in self.groups:
            slopes = tuple(p.grad.numpy().reshape(-1) for p in parameters if p.grad is not None)
            (b1, b2), rate, s = settings["betas"], float(settings["lr"]), float(counts[0][0]) + 1
            size, root = rate / (1 - b1**s), math.sqrt(1 - b2**s)
            numbers = (
                1 - rate * settings["weight_decay"],
                b1,
                b2,
                size * root,
                settings["eps"] * root,
            )
            loop(weights, slopes, first, second, counts, *(np.float32(x) for x in numbers))

    def _held(self, settings: dict[str, Any]) -> Group:
        """Those of the group that have moments."""
        parameters = [p for p in settings["params"] if p in self.optimiser.state]
        states = [self.optimiser.state[p] for p in parameters]
        columns = [
            [p.detach() for p in parameters],
            *([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step")),
        ]
        return Group(
            settings,
            parameters,
            tuple(tuple(x.numpy().reshape(-1) for x in column) for column in columns),
        )


@cache
def compiled_adamw() -> Callable[..., None] | None:
    """:func:`adamw` as machine code, kept on disk between runs where that can be; None without
    numba.
    """
    code = machine_code((sys.modules[__name__],), (adamw,), (move,))
    return None if code is None else code["adamw"]


# numba has its own types, and so none are given from here on.


@no_type_check
def adamw(weights, slopes, first, second, counts, keep, b1, b2, size, floor):
    """Move all weights once. ``size`` is the rate and ``floor`` eps, both with what corrects the
    moments for their beginning at 0.
    """
    for i in range(len(weights)):
        move(weights[i], slopes[i], first[i], second[i], keep, b1, b2, size, floor)
        counts[i][0] += 1


@no_type_check
def move(w, g, m, v, keep, b1, b2, size, floor):
    for j in range(len(w)):
        m[j] = b1 * m[j] + (np.float32(1) - b1) * g[j]
    for j in range(len(w)):
        v[j] = b2 * v[j] + (np.float32(1) - b2) * g[j] * g[j]
    for j in range(len(w)):
        w[j] = keep * w[j] - size * m[j] / (np.sqrt(v[j]) + floor)
