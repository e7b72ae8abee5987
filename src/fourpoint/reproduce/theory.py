r"""Propositions 1 and 2, checked with the code that the models use.

Proposition 1: the estimate of the score is unbiased, with paired phases and with the random phases
of (7). For spectra whose kernel is
known exactly, the mean over many draws of D = 20 features is compared with it, in units of its own
standard error.

    gaussian    theta = omega' W_u, omega ~ N(0, I_2):  kappa(d) = exp(-|W_u|^2 d^2 / 2)          cauchy     kappa(d) = exp(-b d)

Proposition 2: the largest error over a grid, against D, with the bound of `ops.feature_error`
beside it. It is stated for paired
phases and a finite sigma_p^2 = E|W_u' omega|^2, hence for the Gaussian spectrum; the random phases
are measured too, over pairs (t, t').
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourpoint.ops.feature_error import error_bound, features_needed
from fourpoint.ops.fourier import Spectrum, fourier_scores, kernel
from fourpoint.reproduce.cells import Record
from fourpoint.reproduce.plan import Cell, Setting
from fourpoint.storage.checkpoints import restore

D_TRAINED = 20
WINDOW = 1.0
KEY = (6.0, 8.0)  # W_u: frequencies of standard deviation 10 per window
DECAY = 5.0
ERRORS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
REPEATS = 100  # of the largest error, at most


def proposition1(setting: Setting) -> Record:
    """Mean over draws less the exact kernel, in standard errors, per spectrum and phase."""
    lags = torch.linspace(0, WINDOW, 21, dtype=torch.float64)
    now, past = torch.ones(1, 1, dtype=torch.float64), (WINDOW - lags)[None]
    arrays: dict[str, Any] = {"lag": lags.tolist()}
    metrics: dict[str, Any] = {"draws": setting.draws * 10, "features": D_TRAINED}
    for spectrum, exact in (
        ("gaussian", torch.exp(-0.5 * (KEY[0] ** 2 + KEY[1] ** 2) * lags**2)),
        ("cauchy", torch.exp(-DECAY * lags)),
    ):
        arrays[f"{spectrum}_exact"] = exact.tolist()
        for phase in ("paired", "random"):
            modes = draw(spectrum, setting.draws * 10, D_TRAINED, phase, seed=1)
            found = fourier_scores(modes, now, past, torch.zeros_like(past, dtype=torch.int64))[
                0, :, 0, 0
            ]
            mean, error = found.mean(0), found.std(0) / math.sqrt(len(found))
            # At lag 0 the paired estimate is 1 in every draw, so that there is no error to divide
            # by.
            z = torch.where(error > 1e-9, (mean - exact) / error.clamp(min=1e-12), 0.0)
            name = f"{spectrum}_{phase}"
            arrays[f"{name}_mean"], arrays[f"{name}_standard_error"] = mean.tolist(), error.tolist()
            metrics[f"{name}_largest_z"] = float(z.abs().max())
            metrics[f"{name}_largest_bias"] = float((mean - exact).abs().max())
            metrics[f"{name}_standard_deviation"] = float(found.std(0).square().mean().sqrt())
    return dict(metrics=metrics, settings=dict(key=KEY, decay=DECAY, window=WINDOW), arrays=arrays)


def proposition2(setting: Setting, output: Path) -> Record:
    """The largest error against D: its mean, its 95% quantile and the bound; and the features
    needed for an error.
    """
    repeats = min(REPEATS, setting.draws)
    sigma = math.hypot(*KEY)
    radius = WINDOW / 2
    lags, grid = (
        torch.linspace(0, WINDOW, 201, dtype=torch.float64),
        torch.linspace(0, WINDOW, 21, dtype=torch.float64)[None],
    )
    exact = torch.exp(-0.5 * sigma**2 * lags**2)
    pairs = torch.exp(-0.5 * sigma**2 * (grid[0][:, None] - grid[0]) ** 2)
    rows = []
    for D in setting.features:
        paired = torch.cat(
            [(kernel(modes, lags) - exact).abs().amax(1) for modes in _draws(D, repeats, "paired")]
        )
        none = torch.zeros_like(grid, dtype=torch.int64)
        random = torch.cat(
            [
                (fourier_scores(m, grid, grid, none)[0, :, :, 0] - pairs).abs().amax((1, 2))
                for m in _draws(D, repeats, "random")
            ]
        )
        bound = error_bound(D, radius=radius, sigma=sigma)
        rows.append(
            dict(
                features=D,
                **_quantiles("paired", paired),
                **_quantiles("random", random),
                bound=None if math.isinf(bound) else bound,
            )
        )
    needed = [
        dict(
            error=e,
            bound=features_needed(e, radius=radius, sigma=sigma),
            measured=_measured(e, rows),
        )
        for e in ERRORS
    ]
    metrics = dict(
        sigma=sigma,
        radius=radius,
        repeats=repeats,
        rows=rows,
        needed=needed,
        violations=_violations(rows),
    )
    return dict(
        metrics=metrics,
        settings=dict(key=KEY, window=WINDOW, probability=0.05),
        arrays=dict(learned=_learned(output)),
    )


def draw(spectrum: str, heads: int, features: int, phase: str, seed: int) -> Spectrum:
    """``heads`` independent draws of ``features`` modes: each head of a spectrum is one draw."""
    random = torch.Generator().manual_seed(seed)
    if spectrum == "gaussian":
        theta = torch.randn(
            heads, features, 2, generator=random, dtype=torch.float64
        ) @ torch.tensor(KEY, dtype=torch.float64)
    else:
        theta = DECAY * torch.tan(
            math.pi * (torch.rand(heads, features, generator=random, dtype=torch.float64) - 0.5)
        )
    b = (
        2 * math.pi * torch.rand(heads, features, generator=random, dtype=torch.float64)
        if phase == "random"
        else None
    )
    return Spectrum(
        theta,
        None,
        torch.zeros(heads, features, 1, dtype=torch.float64),
        torch.full_like(theta, 1 / features),
        b,
    )


def _draws(features: int, repeats: int, phase: str) -> list[Spectrum]:
    """Repeats in pieces that fit into memory."""
    size = max(1, 50_000 // features)
    return [
        draw("gaussian", min(size, repeats - i), features, phase, seed=1000 + i)
        for i in range(0, repeats, size)
    ]


def _quantiles(name: str, found: Tensor) -> dict[str, float]:
    return {f"{name}_mean": float(found.mean()), f"{name}_95": float(found.quantile(0.95))}


def _violations(rows: list[dict[str, Any]]) -> int:
    """How often the measured 95% quantile is above the bound, which must not be."""
    return sum(row["bound"] is not None and row["paired_95"] > row["bound"] for row in rows)


def _measured(error: float, rows: list[dict[str, Any]]) -> float:
    """The D at which the 95% quantile of the largest error falls below ``error``: it falls as
    1/sqrt(D).
    """
    scale = float(np.mean([row["paired_95"] * math.sqrt(row["features"]) for row in rows]))
    return math.ceil((scale / error) ** 2)


def _learned(output: Path) -> list[dict[str, Any]]:
    """sigma_p of each head of the trained paper form, and what the bound asks of it."""
    folder = output / "models" / Cell("fit", "dapp-paper", "hawkes", 0).id
    if not (folder / "model.json").is_file():
        return []
    model: Any = restore(folder)
    with torch.no_grad():
        sigmas = model.spectrum(fixed=True).frequency.square().mean(1).sqrt() / model.time_scale
    radius = float(model.rate.length) / 2
    return [
        dict(head=k + 1, sigma=float(s), needed=features_needed(0.1, radius=radius, sigma=float(s)))
        for k, s in enumerate(sigmas)
    ]
