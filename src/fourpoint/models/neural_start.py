r"""Where recurrent and attention models begin, and the link they end in.

Inside these models time is counted in mean gaps of the training data, and a network's output z_m
becomes a rate by

    g_m(z) = s_m log(1 + exp(z / s_m)),    s_m > 0 learned,

which is z where z is far above s_m and s_m exp(z / s_m) where it is far below 0. Its inverse puts a
model that has learned nothing yet at the data's mean rates.
Source: Mei and Eisner, "The Neural Hawkes Process" (2017), section 3.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from fourpoint.events import Dataset
from fourpoint.kernels.autograd import Context
from fourpoint.models.rate import log_softplus

# where log(log(1 + e^y)) is y to the last place, in either precision, and e^y does not vanish yet
FAR_BELOW = -80.0


def time_scale_of(data: Dataset) -> float:
    """The mean gap between neighbouring events, in the data's unit; time per event where there is
    no gap above 0.

    >>> from fourpoint.events import Sequence
    >>> time_scale_of(Dataset.from_sequences([Sequence([1.0, 2.0, 5.0], stop=6.0)]))
    2.0
    >>> time_scale_of(Dataset.from_sequences([Sequence([1.0], stop=6.0), Sequence([], stop=6.0)]))
    12.0
    """
    gap = float(data.gaps.mean()) if len(data.gaps) else 0.0
    return gap if gap > 0 else float(data.exposed_times.sum()) / max(data.scored_events, 1)


class ScaledSoftplus(nn.Module):
    """The link g above for M marks, as a logarithm; s_m = 1 mean rate of all marks together at
    first.

    ``forward(z)`` is log g(z), formed without overflow; ``inverse(rate)`` is the z at which g is
    ``rate`` > 0; :meth:`in_gaps` is what a likelihood needs of z, with the gradient written out.

    >>> link = ScaledSoftplus(2)
    >>> link(torch.tensor([0.0, -200.0]))
    tensor([  -0.3665, -200.0000], grad_fn=<AddBackward0>)
    >>> bool(
    ...     torch.allclose(
    ...         link(link.inverse(torch.tensor([1e-6, 50.0]))).exp(), torch.tensor([1e-6, 50.0])
    ...     )
    ... )
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
        rate = rate.to(self.log_scale)
        scale = self.log_scale.exp()
        return rate + scale * torch.log(-torch.expm1(-rate / scale))

    def in_gaps(
        self,
        z: Float[Tensor, "B G Q1 M"],
        log_unit: Float[Tensor, " M"],
        weights: Float[Tensor, " Q"] | None,
    ) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G M"]]:
        """The mean rate of all marks in each gap, and log rates at its end, of marks with rates
        e^log_unit g(z).

        ``z`` is at Q nodes of each gap and last at its end; ``weights`` of the nodes add up to 1
        (None: all alike).

        >>> mean, logs = ScaledSoftplus(1).in_gaps(
        ...     torch.tensor([[[[0.0], [0.0], [200.0]]]]), torch.zeros(1), None
        ... )
        >>> mean, logs.exp()
        (tensor([[0.6931]], grad_fn=...), tensor([[[200.0000]]], grad_fn=...))
        """
        return _Gaps.apply(z, self.log_scale, log_unit, weights)


class _Gaps(torch.autograd.Function):
    """:meth:`ScaledSoftplus.in_gaps`. Rates at nodes never become logarithms, and the gradient of z
    serves that of the scale s too, since rates depend on s as s f(z / s).
    """

    @staticmethod
    def forward(
        ctx: Context,
        z: Float[Tensor, "B G Q1 M"],
        log_scale: Float[Tensor, " M"],
        log_unit: Float[Tensor, " M"],
        weights: Float[Tensor, " Q"] | None,
    ) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G M"]]:
        y = z * (-log_scale).exp()
        bent = softplus(y)
        end = y[:, :, -1]
        nodes = bent[:, :, :-1]
        at_end = bent[:, :, -1]
        unit = (log_scale + log_unit).exp()
        level = (
            nodes.mean(2) if weights is None else torch.einsum("bgqm,q->bgm", nodes, weights.to(z))
        )
        ctx.save_for_backward(z, y, at_end, level, log_scale, unit, weights)
        return level @ unit, torch.where(end < FAR_BELOW, end, at_end.log()) + (
            log_scale + log_unit
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *outside: Tensor) -> tuple[Tensor, Tensor, None, None]:
        z, y, at_end, level, log_scale, unit, weights = ctx.saved_tensors
        to_mean, to_logs = outside
        nodes = z.shape[2] - 1
        to_z = y.sigmoid()
        slow = (-log_scale).exp()
        share = to_mean[:, :, None, None] * (unit * slow)
        steep = torch.where(y[:, :, -1] < FAR_BELOW, 1.0, to_z[:, :, -1] / at_end)
        to_z[:, :, :-1] *= share / nodes if weights is None else share * weights.to(z)[:, None]
        torch.mul(to_logs * slow, steep, out=to_z[:, :, -1])
        to_scale = (
            torch.einsum("bg,bgm->m", to_mean, level) * unit
            + to_logs.sum((0, 1))
            - (to_z * z).sum((0, 1, 2))
        )
        return to_z, to_scale, None, None
