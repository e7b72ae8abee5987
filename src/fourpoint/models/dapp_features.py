"""How many Fourier features DAPP is evaluated with: as few as keep what each past event does. Used
by DAPP after training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fourpoint.models.modes import Modes
from fourpoint.ops import fourier

if TYPE_CHECKING:
    from fourpoint.models.dapp import DAPP

EFFECT_ERROR = (
    0.005  # how far the evaluation's features may move what one past event adds inside the link
)
SIZES = (128, 256, 512, 1024)  # numbers of evaluation features tried, in order, against REFERENCE
REFERENCE = 8192


@torch.no_grad()
def settle(model: DAPP, features: int | None) -> list[str]:
    """Fix the evaluation's features: ``features``, or those asked for when the model was made, or
    the fewest of SIZES that keep each event's effect, sum_k kappa_k v_k, within EFFECT_ERROR of
    what REFERENCE features give.
    """
    asked = features or model._settings["eval_features"]
    if not isinstance(model.modes, Modes):
        return []
    if asked is not None:
        model._settings["eval_features"] = asked
        model.modes.store(asked)
        return []
    lags = torch.linspace(0, 1, 257).to(model.readout) * (
        model.rate.baseline.length / model.time_scale
    ).to(model.readout)
    pairs = [
        (m, n) for m in range(min(model.marks.count, 4)) for n in range(min(model.marks.count, 4))
    ]
    value = [
        model._values(lags[None], torch.full((1, len(lags)), n))[0].T
        for n in range(min(model.marks.count, 4))
    ]
    effects = []
    for size in (REFERENCE, *SIZES):
        model.modes.store(size)
        spectrum = model.spectrum(fixed=True)
        parts = [
            fourier.kernel(spectrum, lags, m, n) * value[n] * model._readout()[:, m, None]
            for m, n in pairs
        ]
        effects.append(torch.stack(parts).sum(1))
        error = float((effects[-1] - effects[0]).abs().max())
        if size != REFERENCE and error <= EFFECT_ERROR:
            break
    model._settings["eval_features"] = size
    return [
        (
            f"evaluation features: {size} per head, within {error:.2g} of an event's effect on "
            "the log-rate"
        )
    ]
