"""The paper's figure of spectra: the learned features of each head, the score they make, and the
rate of one sequence.

The paper's form with q = r = 2 and 10,000 features, fitted to 911 calls (`calls911_208` stands in
for the paper's); without that file, to the times of `nyc_delays`, which the title then says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.events import Sequence
from fourpoint.models import protocol
from fourpoint.plots.charts import COLOURS
from fourpoint.reproduce.cells import Record, write_table
from fourpoint.reproduce.drawing import Drawn, kept_plain, middle_sequence
from fourpoint.reproduce.pictures import canvas, cloud_plot, lines_plot
from fourpoint.reproduce.plan import TRANSFORMED, Setting
from fourpoint.reproduce.sets import NoData, parts_of


def draw(output: Path, setting: Setting, records: list[Record], real: Path | None) -> Drawn:
    """Six panels: for each head its spectrum and its score; the rate, and what it would be with one
    head alone.
    """
    data, model = TRANSFORMED, kept_plain(output, "dapp-paper", TRANSFORMED)
    if model is None:
        data, model = "nyc_times", kept_plain(output, "dapp-paper", "nyc_times")
    if model is None:
        raise NoData(
            f"the paper's form fitted to {TRANSFORMED} or nyc_times",
            "neither",
            "Run `fourpoint reproduce figure score-transformation`.",
        )
    test = parts_of(data, setting, 0, real).test
    sequence = middle_sequence(test)
    clouds = features(model)
    lags = np.linspace(0, float(test.durations.max()), 401)
    with torch.no_grad():
        kernel = model.kernel(torch.from_numpy(lags)).double().numpy()
    times = np.linspace(sequence.start, sequence.stop, 401)[1:]
    total, alone = head_rates(model, sequence, times)
    figure, panels = canvas(2, 3, 12, 7)
    unit = {"hours": "h"}.get(test.unit, test.unit)
    for k in range(len(clouds)):
        cloud_plot(
            panels[k, 0], f"head {k + 1}: spectrum", clouds[k, :, 0], clouds[k, :, 1], COLOURS[k]
        )
        lines_plot(
            panels[k, 1],
            f"head {k + 1}: score",
            lags,
            {f"head {k + 1}": kernel[k]},
            (f"lag ({unit})" if unit else "lag", "score"),
        )
    names = ("time" + (f" ({unit})" if unit else ""), "rate")
    lines_plot(
        panels[0, 2], "rate of one sequence", times, {"both heads": total}, names, sequence.times
    )
    lines_plot(
        panels[1, 2],
        "one head alone",
        times,
        {f"head {k + 1}": y for k, y in enumerate(alone)},
        names,
        sequence.times,
    )
    _write(output, clouds, lags, kernel, times, total, alone)
    which = (
        "911 calls (`calls911_208`, the stand-in for the paper's)"
        if data == TRANSFORMED
        else "**no 911 data given**: the times of `nyc_delays` instead"
    )
    caption = (
        f"The paper's form on {which}. Left: {clouds.shape[1]:,} features drawn from each "
        "head's learned spectrum. Middle: the score "
        "they make, against the lag. Right: the rate over the test sequence of median "
        "length, and what it would be with one head."
    )
    return Drawn("score-transformation", "Spectrum, score and intensity", caption, figure)


@torch.no_grad()
def features(model: Any) -> NDArray[np.float64]:
    """The generated features omega, (K, D, 2)."""
    modes = model.modes
    found = modes.generator(modes.noise.to(modes.time_key))[..., : modes.time_key.shape[1]]
    return np.asarray(found.double().numpy())


@torch.no_grad()
def head_rates(
    model: Any, sequence: Sequence, times: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The total rate (Q,) at ``times``, and with one head at a time (K, Q)."""
    history = model.encode(sequence.batch())
    asked = torch.from_numpy(times)[None]
    seen = protocol.position_before(history, asked)
    heads = (
        model.attend(history, asked[..., None], seen)[:, :, 0] * model._readout()
    )  # (1, Q, K, M)
    since = asked - history.start[:, None]

    def rate(z: torch.Tensor) -> NDArray[np.float64]:
        logs = model.rate.log_rate(z, since, history.parts.curves) - model.time_scale.log().to(z)
        return np.asarray(logs.exp().sum(-1)[0].double().numpy())

    return rate(heads.sum(2)), np.stack([rate(heads[:, :, k]) for k in range(heads.shape[2])])


def _write(
    output: Path, clouds: Any, lags: Any, kernel: Any, times: Any, total: Any, alone: Any
) -> None:
    rows: list[list[Any]] = []
    for k in range(len(clouds)):
        rows += [["spectrum", k + 1, float(a), float(b)] for a, b in clouds[k]]
        rows += [["score", k + 1, float(a), float(b)] for a, b in zip(lags, kernel[k], strict=True)]
        rows += [
            ["rate with this head", k + 1, float(a), float(b)]
            for a, b in zip(times, alone[k], strict=True)
        ]
    rows += [["rate", "all", float(a), float(b)] for a, b in zip(times, total, strict=True)]
    write_table(output / "figures" / "score-transformation.csv", ["part", "head", "x", "y"], rows)
