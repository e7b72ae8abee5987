r"""From attention to a rate: the baseline and the link.

    lambda_m(t) = mu_m(t) + g_m(b_m + drift_m(t) + z_m),                           equation (5)

where z_m is the output of attention, mu_m and b_m + drift_m are the baseline (`models.baseline`),
and t counts from the window's start. The link is one of

    exp        g(z) = e^z
    softplus   g(z) = s log(1 + e^z / s)       s = 1 is the paper's softplus
    identity   g(z) = z                        z >= 0, no b and no drift: a Hawkes process

A learned s interpolates: far below s softplus is the exponential, so that events multiply the rate,
and far above s it is linear, so that they add to it. Rates are per unit of the model's own time.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fourpoint.models.baseline import Baseline, BaselineValues, Curves, added

LINEAR, SMALL_BASE = 4.0, 0.1  # where softplus is linear to 2%, and mu's share of the rate there
FIRST_SCALE = 0.3  # of the mean rate: where the link begins between adding and multiplying


class Rate(nn.Module):
    """Baseline and link of M marks; ``base`` and ``drift`` may be "auto" until
    `Baseline.build` is called.
    """

    def __init__(
        self, marks: int, *, link: str, learn_scale: bool, base: str, drift: str, knots: int
    ) -> None:
        super().__init__()
        self.marks = marks
        self.link = link
        self.learn_scale = learn_scale
        self.baseline = Baseline(
            marks, base=base, drift=drift, knots=knots, trained=link != "identity"
        )
        learned = link == "softplus" and learn_scale
        self.log_scale = nn.Parameter(torch.zeros(marks), requires_grad=learned)

    @property
    def bias(self) -> nn.Parameter:
        """The constant inside the link."""
        bias = self.baseline.bias
        assert bias is not None  # every rate has one; it is not learned if the link is the identity
        return bias

    @torch.no_grad()
    def start_at(self, rate: Float[Tensor, " M"]) -> None:
        """Begin at the mean rate: half in mu and half in g(b), or all of it in mu if the link is
        the identity.
        """
        log_base = self.baseline.log_base
        in_base = rate if self.link == "identity" else rate / 2
        log_base.copy_(in_base.log()[:, None].expand_as(log_base))
        if self.link == "exp":
            self.bias.copy_((rate / 2).log())
        elif self.link == "softplus":
            if self.learn_scale:
                self.log_scale.copy_((FIRST_SCALE * rate).log())
            self.bias.copy_(self.log_scale + torch.expm1(rate / 2 / self.log_scale.exp()).log())

    @torch.no_grad()
    def start_linear(
        self, rate: Float[Tensor, " M"], in_base: float = SMALL_BASE
    ) -> Float[Tensor, " M"]:
        """Begin at ``rate`` with a softplus so far up that it is linear: the share ``in_base`` of
        it in mu, the rest in g(b).

        Returns s: what one unit of attention adds to the rate of each mark.
        """
        log_base = self.baseline.log_base
        log_base.copy_((in_base * rate).log()[:, None].expand_as(log_base))
        scale = (1 - in_base) * rate / nn.functional.softplus(torch.tensor(LINEAR))
        self.log_scale.copy_(scale.log())
        self.bias.copy_(self.log_scale + LINEAR)
        return scale

    def log_rate(
        self,
        z: Float[Tensor, "*S M"],
        since: Float[Tensor, "*T"],
        curves: Curves | None,
        tilt: Tensor | None = None,
        effects: BaselineValues | None = None,
    ) -> Float[Tensor, "*S M"]:
        """log lambda for attention ``z`` at times ``since`` the window's start (user's unit),
        computed without overflow.

        ``since`` may have axes of size 1 where z has more; ``tilt`` is added to log mu, and
        ``effects`` to both parts of the baseline.
        """
        return self.combined(z, added(self.baseline.values(since, curves, z.dtype), effects), tilt)

    @torch.no_grad()
    def log_bound(
        self,
        z: Float[Tensor, "B M"],
        low: Float[Tensor, " B"],
        high: Float[Tensor, " B"],
        curves: Curves | None,
        tilt: Tensor | None = None,
        effects: BaselineValues | None = None,
    ) -> Float[Tensor, "B M"]:
        """An upper bound of log lambda on [low, high] since the window's start, ``z`` being one of
        the attention and ``effects`` bounds of the effects; the rate is monotone in all of its
        parts.
        """
        bound = self.baseline.upper_bound(low, high, curves, z.dtype)
        return self.combined(z, added(bound, effects), tilt)

    def combined(
        self, z: Float[Tensor, "*S M"], baseline: BaselineValues, tilt: Tensor | None = None
    ) -> Float[Tensor, "*S M"]:
        """log(mu + g(inside + z)), with ``tilt`` added to log mu."""
        log_base = baseline.log_base if tilt is None else baseline.log_base + tilt
        if self.link == "identity":
            return torch.log(log_base.exp() + z)
        if baseline.inside is not None:
            z = z + baseline.inside
        if self.link == "softplus":
            z = self.log_scale + log_softplus(z - self.log_scale)
        return torch.logaddexp(log_base, z)


def log_softplus(x: Tensor) -> Tensor:
    """log(log(1 + e^x)), which is x - e^x/2 + ... far below 0: the next term is below rounding
    there in double precision.

    >>> log_softplus(torch.tensor([-100.0, 0.0]))
    tensor([-100.0000,   -0.3665])
    """
    low = x < -18
    below = x - torch.where(low, x, -18.0).exp() / 2
    return torch.where(low, below, nn.functional.softplus(torch.where(low, 0.0, x)).log())
