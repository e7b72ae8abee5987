"""Weights of models that earlier versions saved, under the names that they have now.

Until 0.1 the base rate and the drift were parameters of the models themselves; they belong to
`models.baseline.Baseline` now.
"""

from __future__ import annotations

import torch
from torch import Tensor

BASELINE = ("log_base", "bias", "drift", "mark_drift", "length")  # of a rate with a link
CONSTANT = {"poisson": "log_rate", "hawkes": "log_baseline", "hawkes-places": "log_baseline"}
SPLINE = {"coefficients": "baseline.log_base", "length": "baseline.length"}


def current_names(model: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a saved model called ``model``, renamed if an earlier version saved them.

    >>> found = current_names("poisson", {"log_rate": torch.zeros(2)})
    >>> {name: tuple(tensor.shape) for name, tensor in found.items()}
    {'baseline.log_base': (2, 1), 'baseline.length': ()}
    """
    old = CONSTANT.get(model)
    if old in tensors:
        others = {name: tensor for name, tensor in tensors.items() if name != old}
        length = torch.ones((), dtype=torch.float64)
        return others | {"baseline.log_base": tensors[old][..., None], "baseline.length": length}
    if model == "spline-poisson":
        return {SPLINE.get(name, name): tensor for name, tensor in tensors.items()}
    renamed = {f"rate.{name}": f"rate.baseline.{name}" for name in BASELINE}
    if "dapp" in model and model != "deep-dapp":
        return {renamed.get(name, name): tensor for name, tensor in tensors.items()}
    return tensors
