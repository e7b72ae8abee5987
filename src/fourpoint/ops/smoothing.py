r"""A density in the plane from normal kernels of their own bandwidths.

    sum_i weight_i N(x; x_i, h_i^2 I),        kernels ending at :data:`REACH` bandwidths

where a kernel is below 2e-8 of its peak. Axes: N places, S kernels.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fourpoint import kernels

REACH = 6.0
PAIRS = 2**22  # compared at once by the plain function


def smoothed(
    places: Float[Tensor, "N 2"],
    centres: Float[Tensor, "S 2"],
    variances: Float[Tensor, " S"],
    weights: Float[Tensor, " S"],
) -> Float[Tensor, " N"]:
    """The density at ``places``, per unit of area, without gradient.

    >>> one = torch.ones(1).double()
    >>> round(smoothed(torch.zeros(1, 2).double(), torch.zeros(1, 2).double(), one, one).item(), 6)
    0.159155
    """
    loop = kernels.SMOOTHING.choose(len(places) * len(centres), places.device.type)
    given = [part.detach() for part in (places, centres, variances, weights)]
    if loop is None:
        return plain_smoothed(*given)
    return torch.from_numpy(loop(*(part.contiguous().numpy() for part in given), REACH))


def plain_smoothed(
    places: Float[Tensor, "N 2"],
    centres: Float[Tensor, "S 2"],
    variances: Float[Tensor, " S"],
    weights: Float[Tensor, " S"],
) -> Float[Tensor, " N"]:
    """As :func:`smoothed`, from all pairs."""
    found = []
    peak = weights / (2 * math.pi * variances)
    for some in places.split(max(1, PAIRS // max(1, len(centres)))):
        ratio = (some[:, None] - centres).square().sum(-1) / variances
        found.append(torch.where(ratio < REACH**2, torch.exp(-ratio / 2), 0.0) @ peak)
    return torch.cat(found) if found else places.new_zeros(0)
