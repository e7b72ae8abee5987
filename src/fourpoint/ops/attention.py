r"""One sum over past events, in three forms.

For a query x = (t, m), events x_i seen from some position, and one number v_i per head,

    A_k(x) = sum_i kappa_k(x, x_i) v_ki                                  normalise = "none"
    A_k(x) = sum_i kappa_k(x, x_i) v_ki / sum_i kappa_k(x, x_i)  normalise = "ratio",
        with kappa never negative
    A_k(x) = sum_i softmax_i(kappa_k(x, x_i)) v_ki                       normalise = "softmax"

and A_k = 0 where nothing has been seen. **dense** compares every query with every event, n^2.
**scan** and **step** use that a mode's contribution only turns and shrinks with time: with a_j =
-gamma_j + i theta_j,

    S_j  <-  exp(a_j (t_i - t_{i-1})) S_j + exp(-i psi_j(m_i)) v_i,
    sum_i kappa(x, x_i) v_i = sum_j w_j Re[ exp(i psi_j(m)) exp(a_j (t - t_last)) S_j ],

so that n events cost O(n) (`scan` forms all states at once, `step` one more) and a stream needs S
alone. Lags are differences, exponents are never positive, and the ratio carries a second state with
v = 1. Softmax has no such form.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from fourpoint.kernels.autograd import Context
from fourpoint.kernels.constants import FADED
from fourpoint.ops.fourier import Spectrum
from fourpoint.ops.recurrence import recur
from fourpoint.ops.scores import Score, scores

PIECE = 2**18  # numbers per tensor while reading without gradient: what a processor's cache holds
LARGE_PIECE = 2**26  # elsewhere
WIDE = 64  # more marks than this are turned at the queries rather than at the states

# Arrays by their axes: B sequences, N events, G places in them with Q queries each, K heads, D
# modes, M marks and C channels; marks and masks may have a last axis of heads.
Marks = Int[Tensor, "B N *H"]
Mask = Bool[Tensor, "B G N *J"]
Queries = Float[Tensor, "B G Q"]
Readings = Float[Tensor, "B G Q K M C"]
PerMode = Complex[Tensor, "K D"]
State = Complex[Tensor, "B K D C"]
Driven = Complex[Tensor, "B N K D C"]


def dense(
    score: Score,
    query: Queries,
    mask: Mask,
    events: Float[Tensor, "B N *H"],
    marks: Marks,
    values: Float[Tensor, "B N K"],
    normalise: str,
) -> Float[Tensor, "B G Q K M"]:
    """A_k at every query, comparing all pairs that ``mask`` lets through. Times are measured from
    the window's start.

    Events, their marks and the mask may be one for all heads, or each head's own.
    """
    each = weights(score, query, mask, events, marks, normalise)
    return torch.einsum("bkgqmn,bnk->bgqkm", each, values)


def weights(
    score: Score,
    query: Queries,
    mask: Mask,
    events: Float[Tensor, "B N *H"],
    marks: Marks,
    normalise: str,
) -> Float[Tensor, "B K G Q M N"]:
    """What each event is multiplied by, per head, query and mark; 0 for events that are not
    seen.
    """
    B, G, Q = query.shape
    flat = query.reshape(B, G * Q)
    nu = scores(score, flat, events, marks).unflatten(2, (G, Q))
    seen = per_head(mask)[:, :, :, None, None]
    return normalised(nu, seen, normalise)


def normalised(
    nu: Float[Tensor, "*S N"], mask: Bool[Tensor, "*T N"], normalise: str
) -> Float[Tensor, "*S N"]:
    """Weights from scores, over the last axis; 0 outside ``mask``."""
    if normalise == "softmax":
        none = ~mask.any(-1, keepdim=True)
        seen = torch.where(mask | none, nu, -torch.inf)
        shares = torch.softmax(seen, -1)
        return torch.where(mask, shares, 0.0)
    nu = torch.where(mask, nu, 0.0)
    if normalise == "none":
        return nu
    return divide(nu, nu.sum(-1, keepdim=True))


def per_head(mask: Mask) -> Bool[Tensor, "B H G N"]:
    """A mask of events with an axis of heads, of length 1 where it is the same for all."""
    if mask.ndim == 3:
        return mask[:, None]
    return mask.permute(0, 3, 1, 2)


def drive(
    spectrum: Spectrum,
    marks: Marks,
    channels: Float[Tensor, "B N K C"],
    valid: Bool[Tensor, "B N *J"],
) -> Driven:
    """exp(-i psi_j(m_i)) v_i: what each event adds to the states; nothing where it is padding.

    Marks and ``valid`` may be one for all heads, or each head's own.
    """
    one = torch.ones_like(spectrum.shift)
    turn = torch.polar(one, -spectrum.shift).transpose(1, 2)
    own = marks if marks.ndim == 3 else marks[..., None]
    if turn.shape[1] > 1:
        heads = torch.arange(len(turn), device=marks.device)
        turn = turn[heads, own]
    else:
        turn = turn[None, None, :, 0]
    events = valid if valid.ndim == 3 else valid[..., None]
    real = torch.where(events[..., None], channels, 0.0)
    of_modes = real[:, :, :, None]
    return turn[..., None] * of_modes


def faded(rate: PerMode, lag: Float[Tensor, "B N K"], driven: Driven) -> Driven:
    """What is left of each event in the states ``lag`` after it, a lag for each head."""
    turns = _exponential(rate, lag[..., None])
    return turns[..., None] * driven


def scan(
    rate: PerMode,
    gaps: Float[Tensor, "B N"],
    driven: Driven,
    before: State | None = None,
) -> Driven:
    """States just after each event, S_i = exp(a gap_i) S_{i-1} + u_i, in O(n) work and O(log n)
    rounds.

    >>> u = torch.ones(1, 3, 1, 1, 1, dtype=torch.complex128)
    >>> scan(torch.zeros(1, 1, dtype=torch.complex128), torch.ones(1, 3), u).real.flatten().tolist()
    [1.0, 2.0, 3.0]
    """
    factor = _turns(rate, gaps)[..., None]
    if before is not None and driven.shape[1]:
        kept = factor[:, :1] * before[:, None]
        first = driven[:, :1] + kept
        later = driven[:, 1:]
        driven = torch.cat([first, later], 1)
    return recur(factor, driven)


def step(
    rate: PerMode,
    state: State,
    gap: Float[Tensor, " B"],
    driven: State,
) -> State:
    """The state after one event more: what a stream does."""
    if _nowhere(gap):
        return state + driven
    turns = _turns(rate, gap)
    return turns[..., None] * state + driven


def read(spectrum: Spectrum, state: Complex[Tensor, "B G K D C"], lag: Queries) -> Readings:
    """sum_j w_j Re[exp(i psi_j(m)) exp(a_j lag) S_j] at Q lags after each state, for every mark.

    Without gradient it goes in pieces that stay in the processor's cache, which is what large
    evaluations live on, and at lag 0 nothing is turned, which is what a sampler lives on.
    """
    M = spectrum.shift.shape[-1]
    B, G, K, _, C = state.shape
    Q = lag.shape[2]
    turn = spectrum.turn
    if _nowhere(lag):
        if C == 1:
            readers = spectrum.readers[..., :M]
            one = state[..., 0].flatten(0, 1)
            flat = readings(one, readers)
            here = flat.unflatten(0, (B, G))[..., None]
        else:
            here = real_sums(state, turn)
        return here[:, :, None].expand(B, G, Q, K, M, C)
    decay = spectrum.decay
    if decay is None:
        decay = torch.zeros_like(spectrum.frequency)
    if M > WIDE:
        rate = torch.complex(-decay, spectrum.frequency)
        return _read_many(turn, rate, state, lag)

    def some(state: Tensor, lag: Tensor) -> Tensor:
        states = state[..., None, :]
        turned = turn[..., None] * states
        columns = turned.flatten(-2)
        stacked = torch.cat([columns.real, -columns.imag], -2)
        return _Read.apply(spectrum.frequency, decay, stacked, lag)

    piece = PIECE if lag.device.type == "cpu" else LARGE_PIECE
    sinusoids = Q * spectrum.weight.numel()
    rows = max(1, piece // max(1, sinusoids))
    if torch.is_grad_enabled() or B * G <= rows:
        sums = some(state, lag)
    else:
        states = state.flatten(0, 1).split(rows)
        lags = lag.flatten(0, 1).split(rows)
        parts = []
        for part, own in zip(states, lags, strict=True):
            found = some(part[None], own[None])
            parts.append(found[0])
        sums = torch.cat(parts).unflatten(0, (B, G))
    return sums.transpose(2, 3).unflatten(-1, (M, C))


def real_sums(
    state: Complex[Tensor, "*S K D C"], turn: Complex[Tensor, "K D N"]
) -> Float[Tensor, "*S K N C"]:
    """sum_j Re[turn_j S_j] for N turns, as one real product."""
    states = torch.view_as_real(state)
    turns = torch.view_as_real(torch.conj_physical(turn))
    return torch.einsum("...kdcr,kdnr->...knc", states, turns)


def readings(
    state: Complex[Tensor, "B K D"], readers: Float[Tensor, "K D2 R"]
) -> Float[Tensor, "B K R"]:
    """Products of (real, imaginary) states with R columns per head, without a copy of the
    states.
    """
    parts = torch.view_as_real(state).flatten(2)
    by_head = parts.transpose(0, 1)
    return torch.bmm(by_head, readers).transpose(0, 1)


def _nowhere(lag: Tensor) -> bool:
    """Whether no time passes at all; never so where a gradient is kept."""
    if torch.is_grad_enabled():
        return False
    return not bool(lag.any())


def _read_many(turn: Tensor, rate: Tensor, state: Tensor, lag: Tensor) -> Readings:
    """The same for many marks: states are moved to each query first, and the marks' turns come
    last, as one product.
    """
    turns = _turns(rate, lag)
    states = state[:, :, None]
    moved = turns[..., None] * states
    return real_sums(moved, turn)


class _Read(torch.autograd.Function):
    """sum_j exp(-gamma_j d) (P_j cos theta_j d + P'_j sin theta_j d) with P over P' stacked along
    the modes.

    Cosines and sines are formed once; values and all four gradients are then small matrix products.
    """

    @staticmethod
    def forward(
        ctx: Context, frequency: Tensor, decay: Tensor, stacked: Tensor, lag: Tensor
    ) -> Float[Tensor, "B G K Q R"]:
        d = lag[:, :, None, :, None]
        angle = d * frequency[:, None]
        exponent = d * -decay[:, None]
        fade = exponent.clamp_(min=FADED).exp_()
        cosine = angle.cos().mul_(fade)
        sine = angle.sin_().mul_(fade)
        ctx.save_for_backward(frequency, decay, stacked, lag, cosine, sine)
        up, down = stacked.chunk(2, -2)
        return (cosine @ up).add_(sine @ down)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        frequency, decay, stacked, lag, cosine, sine = ctx.saved_tensors
        times_lag = lag[:, :, None, :, None] * grad
        both = torch.cat([grad, times_lag], -1)
        up, down = stacked.chunk(2, -2)
        by_cosine = cosine.mT @ both
        by_sine = sine.mT @ both
        d_up, c = by_cosine.chunk(2, -1)
        d_down, s = by_sine.chunk(2, -1)
        turning = down * c - up * s
        d_frequency = turning.sum((0, 1, -1))
        fading = up * c + down * s
        d_decay = -fading.sum((0, 1, -1))
        d_lag = None
        if ctx.needs_input_grad[3]:
            theta = frequency[:, None]
            gamma = decay[:, None]
            of_cosine = -gamma * cosine - theta * sine
            of_sine = theta * cosine - gamma * sine
            derivative = of_cosine @ up + of_sine @ down
            d_lag = (derivative * grad).sum((2, 4))
        d_stacked = torch.cat([d_up, d_down], -2)
        return d_frequency, d_decay, d_stacked, d_lag


def divide(top: Tensor, bottom: Tensor) -> Tensor:
    """top / bottom, and 0 where bottom is 0 because nothing was seen."""
    some = bottom > 0
    quotient = top / torch.where(some, bottom, 1.0)
    return torch.where(some, quotient, 0.0)


def _turns(rate: PerMode, gaps: Float[Tensor, "*S"]) -> Complex[Tensor, "*S K D"]:
    """exp(a gap) of every mode."""
    return _exponential(rate, gaps[..., None, None])


def _exponential(rate: PerMode, lag: Tensor) -> Tensor:
    """exp(a lag); twice as fast as torch.polar, with gradient too."""
    exponent = (rate.real * lag).clamp(min=FADED)
    fade = torch.exp(exponent)
    angle = rate.imag * lag
    cosine = fade * angle.cos()
    sine = fade * angle.sin()
    return torch.complex(cosine, sine)
