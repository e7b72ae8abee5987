r"""Intervals from the shape of a profile log-likelihood at its estimate.

The profile log-likelihood of one parameter x, the others at their best given x, has at the
estimate x^ a gradient g (0 inside, negative where x^ = 0 is the edge of what is possible), a
negative curvature c and a third derivative k. With s = (x - x^) sqrt(c), the standardised gradient
gamma = g / sqrt(c) and the skewness rho = k / c^(3/2) it is taken as

    l(x) - l(x^) = (4 / rho^2) (log(1 + rho s / 2) - rho s / 2) + gamma s,

which has these derivatives, is -s^2 / 2 + gamma s as rho goes to 0, and is exact for a Poisson
rate, whose likelihood is skewed (rho = 2 / sqrt(events)). The interval of level p holds the x >= 0
for which 2 (l(x^) - l(x)) is at most the p quantile of chi-squared with one degree of freedom. It
has its lower end at 0 where the data allow for 0, and is not symmetric where counts are small; the
Wald interval x^ +- 1.96 / sqrt(c) is neither. Source: Barndorff-Nielsen and Cox, "Inference and
asymptotics" (1994), chapter 3; Self and Liang (1987) for estimates on the boundary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy import ndarray

HALVINGS = 80
FARTHEST = 64.0  # standard errors


@dataclass(frozen=True)
class Profile:
    """Estimates of parameters that are 0 or more, in any shape, with gradient, curvature (c above,
    NaN where the data do not determine a parameter) and third derivative of each one's profile
    log-likelihood: in x, or in log x if ``logarithmic``.
    """

    estimate: Float[ndarray, "*any"]
    gradient: Float[ndarray, "*any"]
    curvature: Float[ndarray, "*any"]
    third: Float[ndarray, "*any"]
    logarithmic: bool = field(default=False, kw_only=True)

    def reshape(self, shape: tuple[int, ...]) -> Profile:
        """The same in another shape."""
        return Profile(
            estimate=self.estimate.reshape(shape),
            gradient=self.gradient.reshape(shape),
            curvature=self.curvature.reshape(shape),
            third=self.third.reshape(shape),
            logarithmic=self.logarithmic,
        )

    def interval(self, level: float = 0.95) -> Float[ndarray, "*any 2"]:
        """Lower and upper limits; NaN where the data do not determine a parameter.

        >>> events = 10.0
        >>> poisson = Profile(*(np.array(x) for x in (1.0, 0.0, events, 2 * events)))
        >>> poisson.interval().round(3).tolist()
        [0.501, 1.754]
        """
        from scipy.special import ndtri

        allowed = float(ndtri((1 + level) / 2)) ** 2
        root, rho, gamma = self._standardised()
        low = _limit(rho, gamma, allowed, -1.0)
        high = _limit(rho, gamma, allowed, 1.0)
        ends = np.stack([low, high], -1) / root[..., None]
        estimate = self.estimate[..., None]
        if self.logarithmic:
            return estimate * np.exp(ends)
        return np.maximum(estimate + ends, 0.0)

    def deviance(self, value: float = 0.0) -> Float[ndarray, "*any"]:
        """2 (l(x^) - l(value)): the likelihood-ratio statistic of x = ``value``; infinite where
        that has no likelihood.
        """
        root, rho, gamma = self._standardised()
        if self.logarithmic:
            with np.errstate(divide="ignore"):
                distance = np.log(value / self.estimate)
        else:
            distance = value - self.estimate
        s = np.asarray(distance * root)
        return np.asarray(-2 * _log_ratio(s, rho, gamma))

    def _standardised(
        self,
    ) -> tuple[Float[ndarray, "*any"], Float[ndarray, "*any"], Float[ndarray, "*any"]]:
        with np.errstate(invalid="ignore", divide="ignore"):
            known = np.where(self.curvature > 0, self.curvature, np.nan)
            root = np.asarray(np.sqrt(known))
            rho = np.asarray(self.third / root**3)
            gamma = np.asarray(self.gradient / root)
        return root, rho, gamma


def _log_ratio(
    s: Float[ndarray, "*any"], rho: Float[ndarray, "*any"], gamma: Float[ndarray, "*any"]
) -> Float[ndarray, "*any"]:
    """l(x) - l(x^) as above, at standardised distances s."""
    x = rho * s / 2
    small = np.abs(x) < 1e-4
    impossible = x <= -1
    with np.errstate(divide="ignore", invalid="ignore"):
        safe = np.where(small | impossible, 1.0, x)
        curved = (np.log1p(safe) - safe) / safe**2
    curved = np.where(small, -0.5 + x / 3, curved)
    curved = np.where(impossible, -np.inf, curved)
    with np.errstate(invalid="ignore"):
        value = curved * s**2 + gamma * s
    return np.where(np.isnan(s), np.nan, value)


def _limit(
    rho: Float[ndarray, "*any"], gamma: Float[ndarray, "*any"], allowed: float, side: float
) -> Float[ndarray, "*any"]:
    """The s on one side of 0 at which -2 l reaches ``allowed``, by bisection."""
    near = np.zeros_like(rho)
    far = np.full_like(rho, FARTHEST)
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        fall = -2 * _log_ratio(np.asarray(side * middle), rho, gamma)
        inside = fall <= allowed
        near = np.where(inside, middle, near)
        far = np.where(inside, far, middle)
    return np.where(np.isnan(rho), np.nan, side * near)
