"""Whether a fitted rate has peaks so narrow that a rule for integrals might miss them.

Where times are whole seconds, say, a flexible model learns to aim at them. No rule finds a peak
between its nodes, and its error estimate knows nothing of it either. A model that can have such
peaks (`models.narrow`) is looked at once, when it is fitted: a few gaps are integrated by one rule
as it stands, and then with cuts at ticks and as many nodes as it takes. Where the two differ, the
model asks for those cuts from then on, in likelihoods, checks, samples and forecasts. Used by
`training_run`.
"""

from __future__ import annotations

import torch

from fourpoint.events import Dataset
from fourpoint.inference.likelihood import log_likelihoods
from fourpoint.models.narrow import NarrowPeaks
from fourpoint.ops.quadrature import Unconverged

SEQUENCES, EVENTS = 8, 16  # at most so many sequences, and of each so many of its first events
# of the integral per event: fast swings that a rule sees in part make less of a difference
ALIKE = 1e-2
ANY = 1e6  # nats per event: a tolerance that every rule keeps


@torch.no_grad()
def look_for_narrow_peaks(model: NarrowPeaks, data: Dataset) -> list[str]:
    """Set ``model.narrow`` from some sequences of ``data``, and say so where it is true."""
    whole = data.batch(list(range(0, len(data), max(1, -(-len(data) // SEQUENCES)))))
    some = (whole.columns(0, EVENTS) if whole.times.shape[1] else whole).to(model.narrow.device)
    training = model.training
    model.eval()
    model.narrow.fill_(False)
    try:
        plain = log_likelihoods(model, some, tolerance=ANY)["window"].integral
        model.narrow.fill_(True)
        fine = log_likelihoods(model, some, tolerance=ALIKE / 10)["window"].integral
        model.narrow.fill_(
            bool((fine - plain).abs().sum() > ALIKE * max(1, int(some.lengths.sum())))
        )
    except Unconverged:
        model.narrow.fill_(True)
    model.train(training)
    if not model.narrow:
        return []
    return [
        (
            "the rate has narrow peaks, as where times are whole seconds: its integrals are cut "
            "where peaks can be, and take longer"
        )
    ]
