"""The paper's figure of pairwise scores: Fourier kernel, dot product and the true triggering on one
sequence of the hawkes set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.events import Sequence
from fourpoint.models.dapp_history import have
from fourpoint.ops.scores import scores
from fourpoint.reproduce.cells import Record, write_table
from fourpoint.reproduce.drawing import Drawn, kept_plain, middle_sequence
from fourpoint.reproduce.pictures import canvas, score_matrix_plot
from fourpoint.reproduce.plan import Setting
from fourpoint.reproduce.sets import parts_of


def draw(output: Path, setting: Setting, records: list[Record], real: Path | None) -> Drawn:
    """Six panels: both heads of the Fourier and of the dot-product score, our default's effect, and
    the truth.
    """
    sequence = middle_sequence(parts_of("hawkes", setting, 0, None).test)
    true = np.exp(-np.maximum(sequence.times[:, None] - sequence.times, 0))
    shown: list[tuple[str, NDArray[np.float64]]] = []
    for model, name in (("dapp-paper", "Fourier kernel"), ("dapp-paper-dot", "dot product")):
        fitted = kept_plain(output, model, "hawkes")
        found = (
            np.zeros((2, len(sequence), len(sequence)))
            if fitted is None
            else pair_scores(fitted, sequence)
        )
        note = "" if fitted is not None else " (not fitted)"
        shown += [(f"{name}, head {k + 1}{note}", found[k]) for k in range(2)]
    ours = kept_plain(output, "dapp", "hawkes")
    effect = np.zeros((len(sequence), len(sequence))) if ours is None else effects(ours, sequence)
    shown.insert(
        2,
        (
            "our DAPP: effect inside the link" + ("" if ours is not None else " (not fitted)"),
            effect,
        ),
    )
    shown.append(("truth: exp(\u2212(t \u2212 t'))", true))
    figure, panels = canvas(2, 3, 12, 7.4)
    rows: list[list[Any]] = []
    agreement = []
    for (title, matrix), ax in zip(shown, panels.flat, strict=True):
        score_matrix_plot(ax, title, matrix)
        below = np.tril_indices(len(sequence), -1)
        rows += [[title, int(n), int(i), float(matrix[n, i])] for n, i in zip(*below, strict=True)]
        if title.startswith("truth"):
            continue
        agreement.append(
            f"{title}: {rank_correlation(matrix[below], true[below]):+.2f}".replace("-", "\u2212")
        )
    write_table(
        output / "figures" / "score-visualization.csv",
        ["score", "event", "past_event", "value"],
        rows,
    )
    caption = (
        "Scores of each event (row) on each past event (column), one sequence of hawkes. "
        "Rank correlation with the true triggering, which "
        f"fades with the lag: {'; '.join(agreement)}."
    )
    return Drawn("score-visualization", "Pairwise scores", caption, figure)


@torch.no_grad()
def pair_scores(model: Any, sequence: Sequence) -> NDArray[np.float64]:
    """nu_k(x_n, x_i) of every pair of events, (K, N, N)."""
    history = model.encode(sequence.batch())
    past = have(history.past)
    events = model._elapsed(past.times, history.start)[..., 0]
    found = scores(history.parts.score, events, events, past.marks[..., 0])[0, :, :, 0]
    return np.asarray(found.double().numpy())


@torch.no_grad()
def effects(model: Any, sequence: Sequence) -> NDArray[np.float64]:
    """What each past event adds inside the link at each event, (N, N)."""
    history = model.encode(sequence.batch())
    found = model.contributions(history, torch.tensor(sequence.times)[None])[0, :, :, 0]
    return np.asarray(found.double().numpy())


def rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Spearman's, without ties in mind; 0 where one of them is constant.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 25.0]))
    1.0
    """
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    first, second = (np.argsort(np.argsort(x)).astype(np.float64) for x in (a, b))
    return float(np.corrcoef(first, second)[0, 1])
