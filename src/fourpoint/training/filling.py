"""Recording gaps of training data filled by conditional sampling: stochastic EM.

Events in a recording gap are unknown, and a fit that takes the observed events for all of the past
finds too little excitation. With ``fill="sample"`` `training.fit` fits a Hawkes process (with the
calendar and covariates of the model, if it has some) to the data as they are, draws the events of
the gaps from it (`inference.imputation`), fits it to the filled data, and so on for ROUNDS rounds.
The model is then fitted to the data of the last draw. A Hawkes process imputes for itself.
"""

from __future__ import annotations

from fourpoint.events import Dataset
from fourpoint.inference.imputation import impute, recording_gaps
from fourpoint.models.base import PointProcess
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.spatial.hawkes import SpatialHawkes

ROUNDS = 5


def fill_gaps(model: PointProcess, train: Dataset, seed: int) -> tuple[Dataset, list[str]]:
    """The training data with the events of their recording gaps drawn from a Hawkes process that is
    fitted to them in turn, and a note; the same data where there are no gaps.

    >>> from fourpoint.data.synthetic import simulate
    >>> data = simulate("hawkes", 3, seed=0)
    >>> fill_gaps(Hawkes(), data, seed=0)[0] is data
    True
    """
    gaps = [gap for sequence in train for gap in recording_gaps(sequence)]
    if not gaps:
        return train, ["no recording gaps to fill"]
    source = _imputing(model, train)
    filled = train
    for turn in range(ROUNDS):
        source.maximum_likelihood(filled)
        filled = impute(source, train, seed=seed * ROUNDS + turn)
    time = sum(gap.stop - gap.start for gap in gaps)
    unit = train.unit or "units of time"
    return filled, [
        (
            f"{filled.events - train.events:,} events were imputed into {len(gaps):,} recording "
            f"gaps of {time:.4g} {unit} by a Hawkes process in {ROUNDS} rounds; standard errors "
            "do not include the uncertainty of these events"
        )
    ]


def _imputing(model: PointProcess, train: Dataset) -> PointProcess:
    """A Hawkes process of the model's marks, with its calendar, covariates and event features."""
    if model.marks.box is not None:
        return SpatialHawkes(model.marks)
    source = Hawkes(model.marks)
    if model.effects is not None:
        source.add_effects(model.effects.spec)
    if model.event_features is not None:
        source.add_event_features(train)
    return source
