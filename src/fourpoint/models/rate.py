r"""From attention to a rate: base, drift and link.

    lambda_m(t) = mu_m(t) + g_m(b_m + drift_m(t) + z_m),                                               equation (5)

where z_m is what attention says and t counts from the window's start. The link is one of

    exp        g(z) = e^z
    softplus   g(z) = s log(1 + e^z / s)       s = 1 is the paper's softplus
    identity   g(z) = z                        z >= 0, and no b and no drift: the form of a Hawkes process

A learned s makes softplus the whole range in between: far below s it is the exponential, in which
events multiply the rate, and far above s it is linear, in which they add to it. So data can say
which. mu and the drift are constants per mark or cubic splines, constant beyond the window's end.
Rates are per unit of the model's own time. Used by DAPP.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fourpoint.ops.spline import cubics, evaluate, largest, peaks, spline_knots

LINEAR, SMALL_BASE = 4.0, 0.1  # where softplus is linear to 2%, and mu's share of the rate there
FIRST_SCALE = 0.3  # of the mean rate: where the link begins between adding and multiplying


class Splines(NamedTuple):
    """R curves of time: log mu of each mark where it is a spline, then the drift of each mark where
    there is one.
    """

    coefficients: Float[Tensor, "R C"]


class Curves(Splines):
    """Splines, and what every query needs of them, formed once."""

    @cached_property
    def cubics(self) -> Float[Tensor, "J R 4"]:
        """The cubic of every interval."""
        return cubics(self.coefficients)

    @cached_property
    def peaks(self) -> Float[Tensor, "J R"]:
        """An upper bound of each, with an allowance for rounding."""
        eps = torch.finfo(self.coefficients.dtype).eps
        return peaks(self.coefficients) + 16 * eps * self.coefficients.abs().amax()


class Rate(nn.Module):
    """Base, drift and link of M marks; ``base`` and ``drift`` may be "auto" until :meth:`build` is
    told which.
    """

    length: Tensor

    def __init__(
        self, marks: int, *, link: str, learn_scale: bool, base: str, drift: str, knots: int
    ) -> None:
        super().__init__()
        self.marks, self.link, self.learn_scale, self.intervals = marks, link, learn_scale, knots
        self.bias = nn.Parameter(torch.zeros(marks), requires_grad=link != "identity")
        self.log_scale = nn.Parameter(
            torch.zeros(marks), requires_grad=link == "softplus" and learn_scale
        )
        self.register_buffer("length", torch.ones((), dtype=torch.float64))
        self.build(base, drift)

    def build(self, base: str, drift: str) -> None:
        """Make the parameters that these kinds of base and drift need."""
        self.splined_base, self.splined_drift = base == "spline", drift == "spline"
        wide = self.intervals + 3
        self.log_base = nn.Parameter(
            self.bias.new_zeros(self.marks, wide if self.splined_base else 1)
        )
        if self.splined_drift:
            self.drift = nn.Parameter(self.bias.new_zeros(1, wide))
            self.mark_drift = nn.Parameter(
                self.bias.new_zeros(self.marks, wide), requires_grad=self.marks > 1
            )

    @torch.no_grad()
    def start_at(self, rate: Float[Tensor, " M"]) -> None:
        """Begin at the mean rate: half in mu and half in g(b), or all of it in mu where the link is
        the identity.
        """
        self.log_base.copy_(
            (rate if self.link == "identity" else rate / 2).log()[:, None].expand_as(self.log_base)
        )
        if self.link == "exp":
            self.bias.copy_((rate / 2).log())
        elif self.link == "softplus":
            if self.learn_scale:
                self.log_scale.copy_((FIRST_SCALE * rate).log())
            self.bias.copy_(self.log_scale + torch.expm1(rate / 2 / self.log_scale.exp()).log())

    @torch.no_grad()
    def start_linear(self, rate: Float[Tensor, " M"]) -> Float[Tensor, " M"]:
        """Begin at ``rate`` with a softplus so far up that it is linear: SMALL_BASE of it in mu,
        the rest in g(b).

        Returns s: what one unit of attention adds to the rate of each mark.
        """
        self.log_base.copy_((SMALL_BASE * rate).log()[:, None].expand_as(self.log_base))
        scale = (1 - SMALL_BASE) * rate / nn.functional.softplus(torch.tensor(LINEAR))
        self.log_scale.copy_(scale.log())
        self.bias.copy_(self.log_scale + LINEAR)
        return scale

    def curves(self) -> Curves | None:
        """The splines as they are now; None where there are none."""
        rows = [self.log_base] * self.splined_base + (
            [self.drift + self.mark_drift] if self.splined_drift else []
        )
        return Curves(torch.cat(rows)) if rows else None

    def log_rate(
        self,
        z: Float[Tensor, "*S M"],
        since: Float[Tensor, "*T"],
        curves: Curves | None,
        tilt: Tensor | None = None,
    ) -> Float[Tensor, "*S M"]:
        """log lambda for attention ``z`` at times ``since`` the window's start (user's unit),
        formed without overflow.

        ``since`` may have axes of size 1 where z has more; ``tilt`` is added to log mu.
        """
        parts = (
            ()
            if curves is None
            else evaluate(curves.cubics, since.to(z), self.length.to(z)).split(self.marks, -1)
        )
        if self.link != "identity":
            z = z + self.bias
        return self._joined(z, parts, tilt)

    def parts_at(
        self, since: Float[Tensor, "*T"], curves: Curves | None
    ) -> tuple[Float[Tensor, "*T M"], Float[Tensor, "*T M"]]:
        """log mu, and what is added to attention inside the link, at times ``since`` the window's
        start.
        """
        kind = self.bias
        parts: tuple[Tensor, ...] = ()
        if curves is not None:
            parts = evaluate(curves.cubics, since.to(kind), self.length.to(kind)).split(
                self.marks, -1
            )
        log_base = parts[0] if self.splined_base else self.log_base[:, 0].expand(*since.shape, -1)
        return log_base, self.bias + parts[-1] if self.splined_drift else self.bias.expand(
            *since.shape, -1
        )

    @torch.no_grad()
    def log_bound(
        self,
        z: Float[Tensor, "B M"],
        low: Float[Tensor, " B"],
        high: Float[Tensor, " B"],
        curves: Curves | None,
        tilt: Tensor | None = None,
    ) -> Float[Tensor, "B M"]:
        """An upper bound of log lambda on [low, high] since the window's start, ``z`` being one of
        the attention.

        Everything is monotone in z, and splines lie below their control points; rounding has an
        allowance.
        """
        parts = (
            ()
            if curves is None
            else largest(curves.peaks, low, high, self.length.to(z)).split(self.marks, -1)
        )
        if self.link != "identity":
            z = z + self.bias + 16 * torch.finfo(z.dtype).eps * self.bias.abs()
        return self._joined(z, parts, tilt)

    @torch.no_grad()
    def log_base_bound(
        self, low: Float[Tensor, " B"], high: Float[Tensor, " B"], curves: Curves | None
    ) -> Float[Tensor, "B M"]:
        """An upper bound of log mu on [low, high] since the window's start."""
        if not self.splined_base or curves is None:
            return self.log_base[:, 0].expand(len(low), -1)
        return largest(curves.peaks, low, high, self.length.to(low)).split(self.marks, -1)[0]

    def knots(self, start: Float[Tensor, " B"]) -> Float[Tensor, "B J"] | None:
        """Times at which a spline's third derivative jumps."""
        if not (self.splined_base or self.splined_drift):
            return None
        return start[:, None] + spline_knots(self.length, self.intervals).to(start)

    def _joined(self, z: Tensor, parts: tuple[Tensor, ...], tilt: Tensor | None = None) -> Tensor:
        """Base, drift and link put together; ``parts`` are the curves' values in the order of
        :class:`Splines`.
        """
        log_base = parts[0] if self.splined_base else self.log_base[:, 0]
        log_base = log_base if tilt is None else log_base + tilt
        if self.splined_drift:
            z = z + parts[-1]
        if self.link == "identity":
            return torch.log(log_base.exp() + z)
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
