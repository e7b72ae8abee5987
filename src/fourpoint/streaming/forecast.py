"""A forecast from what a stream remembers: the parts of `forecasting`, begun at a history instead of a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint import forecasting
from fourpoint.events import Sequence, UserError
from fourpoint.maths.quadrature import Unconverged
from fourpoint.sampling import advance, select_rows, still

WINDOWS = 4


def forecast_from(
    model: Any, here: Any, past: Sequence, rates: NDArray[np.float64], now: float, horizon: float, paths: int, seed: int
) -> forecasting.Forecast:
    """What ``model`` expects from ``now`` to ``now + horizon``, given its history ``here`` of one row.

    ``past`` are the events that a picture shows, with the total ``rates`` that they met; a model that cannot go on from a history
    needs all of its events there. Raises :class:`UserError` as `forecasting.forecast` does.
    """
    if not (np.isfinite(horizon) and horizon > 0) or paths < 1:
        raise UserError("a positive horizon and at least one path", f"horizon={horizon}, paths={paths}", "Raise them.")
    end = now + horizon
    with still(model):
        notes = forecasting._notes(model, here, end)
        try:
            law, following = forecasting._next_event(model, here, now, horizon)
        except Unconverged as error:
            raise UserError("a rate that can be integrated", str(error).rstrip("."), "Fit the model again.") from error
        if law.never[0] > 1e-6:
            notes.append(f"with probability {float(law.never[0]):.3g} no further event comes")
        many = select_rows(here, torch.zeros(paths, dtype=torch.int64))
        start, stop = (torch.full((paths,), x, dtype=torch.float64) for x in (now, end))
        drawn = advance(model, many, start, stop, torch.Generator().manual_seed(seed), most=forecasting.MOST)
        if len(drawn.capped):
            received = f"{len(drawn.capped):,} of {paths:,} paths with {forecasting.MOST:,} events before {end:g}"
            raise UserError("a process that does not explode before the horizon", received, "Shorten the horizon, or fit the model again.")
        band = forecasting._band(model, many, past, drawn.data, now, end)
    counts = forecasting._counts(drawn.data, now, end, WINDOWS)
    head = (now, float(horizon), model.marks, following, counts, band)
    return forecasting.Forecast(*head, drawn.data, drawn.acceptance, tuple(notes), past, past.times, rates)
