"""The sum over past events as one loop, written from the formulas and from nothing else.

For a query x = (t, m), past events x_i and heads k, with d = t - t_i,

    kappa_k(x, x_i) = sum_j w_j exp(-gamma_j d) c_j

    paired phases    c_j = cos(theta_j d + psi_j(m) - psi_j(m_i))
    random phases    c_j = 2 cos(theta_j t + psi_j(m) + b_j) cos(theta_j t_i + psi_j(m_i) + b_j)

    none             A_k(x) = sum_i kappa_k(x, x_i) v_ki
    ratio            A_k(x) = sum_i s_i v_ki / sum_i s_i,         s_i = (1 + kappa_k(x, x_i)) / 2
    softmax          A_k(x) = sum_i exp(kappa_i) v_ki / sum_i exp(kappa_i)

and A_k = 0 where nothing was seen. One pair of query and event at a time. Lags are differences of
float64 times; all else is in the dtype of ``theta``, so that float64 gives the truth and float32
what a plain program would give. Gradients flow to every argument.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention_loop(
    query: Tensor,  # (B, G, Q) times
    seen: Tensor,  # (B, G) how many events group g may look at
    events: Tensor,  # (B, N) times
    marks: Tensor,  # (B, N) types
    values: Tensor,  # (B, N, K)
    theta: Tensor,  # (K, D)
    gamma: Tensor | None,  # (K, D)
    psi: Tensor,  # (K, D, M)
    weight: Tensor,  # (K, D)
    phase: Tensor | None,  # (K, D)
    normalise: str,
) -> Tensor:
    """A_k for every query and mark, (B, G, Q, K, M)."""
    B, G, Q = query.shape
    rows = []
    for b in range(B):
        for g in range(G):
            for q in range(Q):
                scores = [
                    score(
                        query[b, g, q],
                        events[b, i],
                        int(marks[b, i]),
                        theta,
                        gamma,
                        psi,
                        weight,
                        phase,
                    )
                    for i in range(int(seen[b, g]))
                ]
                rows.append(combine(scores, list(values[b]), normalise, psi))
    return torch.stack(rows).reshape(B, G, Q, *rows[0].shape)


def score(
    now: Tensor,
    then: Tensor,
    past_mark: int,
    theta: Tensor,
    gamma: Tensor | None,
    psi: Tensor,
    weight: Tensor,
    phase: Tensor | None,
) -> Tensor:
    """kappa between (now, every mark) and (then, past_mark), (K, M)."""
    d = (now - then).to(theta.dtype)
    past = psi[:, :, past_mark, None]
    if phase is None:
        wave = torch.cos(theta[..., None] * d + (psi - past))
    else:
        left = torch.cos(theta[..., None] * now.to(theta.dtype) + psi + phase[..., None])
        right = torch.cos(theta[..., None] * then.to(theta.dtype) + past + phase[..., None])
        wave = 2 * left * right
    fade = 1.0 if gamma is None else torch.exp(-gamma * d)[..., None]
    return (weight[..., None] * fade * wave).sum(1)


def combine(scores: list[Tensor], values: list[Tensor], normalise: str, psi: Tensor) -> Tensor:
    """The weighted sum of the values of the events that were seen, (K, M)."""
    if not scores:
        return psi.new_zeros(psi.shape[0], psi.shape[2])
    raw = {
        "none": lambda s: s,
        "ratio": lambda s: (1 + s) / 2,
        "softmax": torch.exp,
    }[normalise]
    top, bottom = (
        psi.new_zeros(psi.shape[0], psi.shape[2]),
        psi.new_zeros(psi.shape[0], psi.shape[2]),
    )
    for s, v in zip(scores, values, strict=False):
        top = top + raw(s) * v[:, None]
        bottom = bottom + raw(s)
    return top if normalise == "none" else top / bottom
