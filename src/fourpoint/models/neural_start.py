r"""Where recurrent and attention models begin, and the link they end in. Used by NHP, SAHP and THP; RMTPP takes its time scale.

Inside these models time is counted in mean gaps of the training data, and a network's output z_m becomes a rate by

    g_m(z) = s_m log(1 + exp(z / s_m)),    s_m > 0 learned,

which is z where z is far above s_m and s_m exp(z / s_m) where it is far below 0. Its inverse puts a model that has learned
nothing yet at the data's mean rates.
Source: Mei and Eisner, "The Neural Hawkes Process" (2017), section 3.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fourpoint.events import Dataset
from fourpoint.models.rate import log_softplus


def time_scale_of(data: Dataset) -> float:
    """The mean gap between neighbouring events, in the data's unit; time per event where there is no gap above 0.

    >>> from fourpoint.events import Sequence
    >>> time_scale_of(Dataset.from_sequences([Sequence([1.0, 2.0, 5.0], stop=6.0)]))
    2.0
    >>> time_scale_of(Dataset.from_sequences([Sequence([1.0], stop=6.0), Sequence([], stop=6.0)]))
    12.0
    """
    gap = float(data.gaps.mean()) if len(data.gaps) else 0.0
    return gap if gap > 0 else float(data.durations.sum()) / max(data.events, 1)


class ScaledSoftplus(nn.Module):
    """The link g above for M marks, as a logarithm; s_m = 1 mean rate of all marks together at first.

    ``forward(z)`` is log g(z), formed without overflow; ``inverse(rate)`` is the z at which g is ``rate`` > 0.

    >>> link = ScaledSoftplus(2)
    >>> link(torch.tensor([0.0, -200.0]))
    tensor([  -0.3665, -200.0000], grad_fn=<AddBackward0>)
    >>> bool(torch.allclose(link(link.inverse(torch.tensor([1e-6, 50.0]))).exp(), torch.tensor([1e-6, 50.0])))
    True
    """

    def __init__(self, marks: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(marks))

    def forward(self, z: Float[Tensor, "*S M"]) -> Float[Tensor, "*S M"]:
        """log(s log(1 + exp(z / s))), rates being per unit of the model's own time."""
        return self.log_scale + log_softplus(z * (-self.log_scale).exp())

    @torch.no_grad()
    def inverse(self, rate: Float[Tensor, " M"]) -> Float[Tensor, " M"]:
        """s log(exp(rate / s) - 1), which is rate + s log(1 - exp(-rate / s))."""
        rate, scale = rate.to(self.log_scale), self.log_scale.exp()
        return rate + scale * torch.log(-torch.expm1(-rate / scale))
