r"""Upper bounds of attention sums on a window, certified: what thinning needs of a kernel.

Let S_j be the states of the modes at time a, moved to it by exp(a_j lag) with a_j = -gamma_j + i
theta_j. While nothing happens, the sum of head k for mark m at time t = a + h is

    A_km(t) = sum_j w_kj Re[exp(i psi_kjm) exp(a_kj h) S_kj],        |exp(a_kj h)| <= 1,

so that each derivative is bounded by R_n >= sum_j w_kj |a_kj|^n |S_kj|, and for all h up to the
window's length,

    A <= R_0,        A <= A(a) + h R_1,        A <= A(a) + max(0, h A'(a)) + h^2/2 R_2.

R_n^2 = (sum_j w_kj |a_kj|^n) (sum_j w_kj |a_kj|^n |S_kj|^2) by Cauchy and Schwarz, which costs one
product. The first is good on long windows, the others on short ones; each head takes its smallest,
and the last is also taken for the sum over heads at once, where derivatives of opposite sign
cancel. Normalised weights are a convex combination, and the largest value bounds it.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from fourpoint.kernels.constants import FADED
from fourpoint.ops.attention import readings
from fourpoint.ops.fourier import LARGEST, Spectrum


def sum_bound(
    spectrum: Spectrum,
    state: Complex[Tensor, "B K D"],
    width: Float[Tensor, " B"],
    readout: Float[Tensor, "K M"],
) -> tuple[Float[Tensor, "B M"], Float[Tensor, "B M"], Float[Tensor, "B M"]]:
    """A bound of sum_k r_km A_km on [a, a + width], and the moments sum_k |r_km| R_0 and R_1, which
    bound its rounding.

    >>> one = torch.ones(1, 1)
    >>> mode = Spectrum(
    ...     0 * one, one, torch.zeros(1, 1, 1), one, None
    ... )  # exp(-h), largest at the left end
    >>> sum_bound(mode, torch.ones(1, 1, 1, dtype=torch.complex64), torch.tensor([0.5]), 2 * one)[0]
    tensor([[2.0000]])
    """
    powers = spectrum.moments
    squares = torch.view_as_real(state).square().flatten(2)
    sums = torch.bmm(squares.transpose(0, 1), powers.repeat_interleave(2, 1)).transpose(0, 1)
    rounding = 64 * torch.finfo(sums.dtype).eps
    moments = (sums * powers.sum(1) * (1 + rounding)).sqrt()
    r0, r1, r2 = moments[..., None].unbind(2)
    both = readings(state, spectrum.readers)
    now, derivative = (x * readout for x in both.chunk(2, -1))
    gain = readout.abs()
    gain_r0 = gain * r0
    h = width[:, None, None]
    line = now + h * gain * r1
    rise = (h * derivative).clamp(min=0)
    curve = now + rise + 0.5 * h.square() * gain * r2
    lowest = torch.minimum(line, curve)
    each = torch.minimum(gain_r0, lowest).sum(1)
    h = width[:, None]
    rise = (h * derivative.sum(1)).clamp(min=0)
    joint = now.sum(1) + rise + 0.5 * h.square() * (gain * r2).sum(1)
    return torch.minimum(each, joint), gain_r0.sum(1), (gain * r1).sum(1)


def convex_bound(
    values: Float[Tensor, "B N K"], visible: Bool[Tensor, "B N H"], readout: Float[Tensor, "K M"]
) -> Float[Tensor, "B M"]:
    """sum_k max_i r_km v_ki over the visible events: a bound of any weighted mean of them; 0 where
    none is visible.
    """
    if not values.shape[1]:
        return values.new_zeros(len(values), readout.shape[1])
    each = values[..., None] * readout
    best = torch.where(visible[..., None], each, -torch.inf).amax(1)
    some = visible.any(1)[..., None]
    return torch.where(some, best, 0.0).sum(1)


def moved(
    spectrum: Spectrum, state: Complex[Tensor, "B K D C"], lag: Float[Tensor, " B"]
) -> Complex[Tensor, "B K D C"]:
    """States ``lag`` later, without gradient."""
    if not bool(lag.any()):
        return state
    d = lag[:, None, None]
    sine = spectrum.frequency * d
    cosine = sine.cos()
    sine = sine.sin_()
    if spectrum.decay is not None:
        fade = (spectrum.decay * -d).clamp_(min=FADED).exp_()
        cosine = cosine.mul_(fade)
        sine = sine.mul_(fade)
    return torch.complex(cosine, sine)[..., None] * state


def gathered(
    spectrum: Spectrum,
    now: Float[Tensor, " B"],
    events: Float[Tensor, "B N H"],
    marks: Int[Tensor, "B N H"],
    values: Float[Tensor, "B N K"],
    visible: Bool[Tensor, "B N H"],
) -> Complex[Tensor, "B K D"]:
    """The states at ``now`` from the events themselves, for forms that carry none; times since the
    window's start.

    With random phases, sum_i kappa v_i = sum_j w_j Re[exp(i psi_j) exp(a_j h) S_j] holds at t = now
    + h for S_j = 2 exp(i (theta_j now + b_j)) sum_i exp(-gamma_j (now - t_i)) cos(theta_j t_i +
    psi_j(m_i) + b_j) v_i.
    """
    per_row = events.shape[1] * spectrum.weight.numel()
    rows = max(1, LARGEST // max(1, per_row))
    seen = torch.where(visible, values, 0.0)
    parts = [x.split(rows) for x in (now, events, marks, seen)]
    found = [_gathered(spectrum, *some) for some in zip(*parts, strict=True)]
    return torch.cat(found)


def _gathered(
    s: Spectrum, now: Tensor, events: Tensor, marks: Tensor, values: Tensor
) -> Complex[Tensor, "B K D"]:
    kind = s.frequency.dtype
    heads = torch.arange(len(s.shift), device=marks.device)
    past = s.shift.transpose(1, 2)[heads, marks]
    lag = (now[:, None, None] - events).to(kind).clamp(min=0)[..., None]
    fade = torch.ones_like(past) if s.decay is None else torch.exp(-s.decay * lag)
    values = values[..., None]
    if s.phase is None:
        turned = torch.polar(fade, s.frequency * lag - past)
        return (turned * values).sum(1)
    then = events.to(kind)[..., None]
    sinusoids = fade * torch.cos(then * s.frequency + past + s.phase)
    angle = now.to(kind)[:, None, None] * s.frequency + s.phase
    turn = torch.polar(2 * torch.ones_like(angle), angle)
    return turn * (sinusoids * values).sum(1)
