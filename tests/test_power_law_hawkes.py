"""Power-law excitation: a fit recovers the process that was simulated."""

from __future__ import annotations

import fourpoint as fp
from fourpoint.models.power_law_hawkes import PowerLawHawkes


def test_a_fit_finds_the_branching_ratio_and_the_decay() -> None:
    truth = PowerLawHawkes(2, baseline=1.0, branching=0.5, c=0.1, p=1.8)
    data = fp.sample_paths(truth, 0.0, 20.0, 8, 0).data
    model = PowerLawHawkes(2)
    found = fp.fit(model, data, progress=False)
    total = model.alpha().sum(0)
    assert bool(((total > 0.15) & (total < 0.85)).all()), total
    assert any("the mixture of exponentials" in note for note in found.notes)
    scores = [
        fp.evaluate(one, data).to_dict()["log_likelihood_per_event"] for one in (model, truth)
    ]
    assert scores[0] > scores[1]
