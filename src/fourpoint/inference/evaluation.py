r"""Scoring a fitted model on data it has not seen.

:func:`evaluate` reports the log-likelihood per event and per sequence in both conventions, with the
error its integrals may still carry. Where the truth is known it adds the oracle's likelihood, the
regret, which is the oracle's minus the model's per event and cannot be gamed, and the mean squared
error of the intensity

    MSE = mean over sequences and 200 midpoints of the window of (lambda(t) - lambda*(t))^2,

beside the variance of lambda* over the same points, which is what a constant rate would score.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fourpoint.data.event_files import EventFiles
from fourpoint.events import (
    Batch,
    Dataset,
    Sequence,
    UserError,
    all_sequences,
    check_marks,
    only_sequence,
)
from fourpoint.inference.likelihood import (
    CONVENTIONS,
    Carried,
    Convention,
    LogLikelihood,
    log_likelihoods,
    log_totals_at_events,
)
from fourpoint.inference.sampling import eval_mode
from fourpoint.kernels.compiling import threads_for_loops
from fourpoint.models.base import PointProcess
from fourpoint.report.printing import Printed, bar, text_table
from fourpoint.storage.trained_on import Overlap, overlap

if TYPE_CHECKING:
    from rich.table import Table

MIDPOINTS = 200
COMPARED = 100_000  # events of files at which intensities are compared with the truth
BATCH, LARGE = 64, 128  # sequences scored at once, on a CPU and on other devices


@dataclass(frozen=True)
class Score:
    """Sums over a data set under one convention; ``error`` bounds what the integrals may be off, in
    nats.
    """

    events: int
    sequences: int
    log_likelihood: float
    error: float
    spatial: float | None = None  # of places (and types) given times, where events have places

    @property
    def per_event(self) -> float:
        """Nats per scored event."""
        return self.log_likelihood / max(1, self.events)


@dataclass(frozen=True, repr=False)
class Report(Printed):
    """What :func:`evaluate` found. Prints as a table; :meth:`to_dict` is for machines, in
    ``convention`` unless told otherwise.
    """

    scores: dict[str, Score]
    oracle: dict[str, Score] | None = None
    intensity_mse: float | None = None
    intensity_variance: float | None = None
    trained_on: Overlap | None = None  # how much of the data was in the model's training data
    convention: Convention = "window"

    def to_dict(self, convention: Convention | None = None) -> dict[str, Any]:
        """One convention's numbers under the names of the command line's JSON; likelihoods in
        nats.
        """
        convention = self.convention if convention is None else checked_convention(convention)
        score = self.scores[convention]
        out: dict[str, Any] = {
            "events": score.events,
            "sequences": score.sequences,
            "convention": convention,
            "log_likelihood_per_event": score.per_event,
            "log_likelihood_per_sequence": score.log_likelihood / max(1, score.sequences),
            "integral_error": score.error / max(1, score.events),
        }
        if score.spatial is not None:
            spatial = score.spatial / max(1, score.events)
            out["temporal_log_likelihood_per_event"] = score.per_event - spatial
            out["spatial_log_likelihood_per_event"] = spatial
        if self.oracle is not None:
            best = self.oracle[convention].per_event
            out |= {
                "oracle_log_likelihood_per_event": best,
                "regret_per_event": best - score.per_event,
            }
            out |= {
                "intensity_mse": self.intensity_mse,
                "intensity_variance": self.intensity_variance,
            }
        if self.trained_on is not None:
            seen = {"sequences": self.trained_on.sequences, "events": self.trained_on.events}
            out["trained_on"] = seen
        return out

    def __rich__(self) -> Table:
        note = "" if self.trained_on is None else f"note: {self.trained_on}"
        table = text_table(show_edge=False, pad_edge=False, caption=note, caption_justify="left")
        table.add_column("", style="bold")
        for name in self.scores:
            table.add_column(
                {"window": "window (everything)", "gaps": "gaps (events 2..N)"}[name],
                justify="right",
            )
        columns = [self.to_dict(name) for name in CONVENTIONS]
        for key in columns[0]:
            if key not in ("convention", "trained_on"):
                shown = (_show(column[key]) if key in column else "" for column in columns)
                table.add_row(key.replace("_", " "), *shown)
        return table


def evaluate(
    model: PointProcess,
    data: Dataset | Sequence | EventFiles,
    *,
    truth: Any = None,
    tolerance: float = 1e-4,
    convention: Convention = "window",
    progress: bool = False,
) -> Report:
    """Score ``model`` on ``data`` in both conventions, and against ``truth`` where it is given.

    Args:
        data: a data set, one sequence, or files opened by `fourpoint.scan`, which are scored chunk
            by chunk.
        truth: the process that made the data: a name of `data.synthetic.PROCESSES`, or a model with
            its parameters.
        tolerance: of the integrals, in nats per event.
        convention: "window" (everything observed) or "gaps" (events 2 to N, as published tables);
            that of ``report.to_dict()``.
        progress: whether to show a bar on stderr.

    A model on another device is scored there, and so is a truth given as a model. Where data were
    in the model's training data, the report has a note that says how many. Raises
    :class:`UserError` where the mark spaces differ, `Unconverged` where an integral does not
    settle.

    >>> from fourpoint.data.synthetic import simulate
    >>> from fourpoint.models.hawkes import Hawkes
    >>> report = evaluate(
    ...     Hawkes(baseline=10.0, branching=1.0), simulate("hawkes", 20), truth="hawkes"
    ... )
    >>> round(report.to_dict()["regret_per_event"], 9) == 0
    True
    """
    checked_convention(convention)
    oracle = _truth(truth)
    if isinstance(data, EventFiles):
        seen = data.overlap(model)
    else:
        data = all_sequences(data)
        seen = overlap(model, data)
        if model.event_features is not None:
            model.event_features.check_names(data)
    check_marks(model.marks, data.marks)
    with eval_mode(model):
        scores = score(model, data, tolerance=tolerance, progress=progress)
        if oracle is None:
            return Report(scores, trained_on=seen, convention=convention)
        best = score(oracle, data, tolerance=tolerance, progress=progress)
        some = data.sample(COMPARED, 0) if isinstance(data, EventFiles) else data
        error, variance = _intensity_error(model, oracle, some)
        return Report(scores, best, error, variance, seen, convention)


def intensity(
    model: PointProcess, sequence: Sequence | Dataset, times: ArrayLike
) -> NDArray[np.float64]:
    """lambda_m(t) at ``times``, each given the events of ``sequence`` strictly before it: events
    per unit of time, (Q, M).

    >>> from fourpoint.models.hawkes import Hawkes
    >>> model = Hawkes(baseline=1.0, branching=0.5, decay=2.0)
    >>> intensity(model, Sequence([1.0], start=0.0, stop=3.0), [0.5, 1.0, 1.5]).round(4).tolist()
    [[1.0], [1.0], [1.3679]]
    """
    place = device_of(model)
    known = only_sequence(sequence)
    check_marks(model.marks, known.space)
    batch = known.batch().to(place)
    asked = torch.as_tensor(np.asarray(times, dtype=np.float64).reshape(1, -1)).to(place)
    with eval_mode(model):
        return np.asarray(model.intensity(model.encode(batch), asked)[0].double().cpu().numpy())


def score(
    model: PointProcess,
    data: Dataset | EventFiles,
    *,
    tolerance: float = 1e-4,
    progress: bool = False,
) -> dict[str, Score]:
    """The summed log-likelihood of ``data`` under each convention, computed on the model's
    device.
    """
    place = device_of(model)
    totals = {str(name): Score(0, 0, 0.0, 0.0) for name in CONVENTIONS}
    spatial = 0.0
    by_loops = place.type == "cpu" and model.scored_by_kernels
    with threads_for_loops(by_loops), bar("scoring", len(data), show=progress) as step:
        for batch, carried in _batches(data, place):
            found = log_likelihoods(model, batch, tolerance=tolerance, carried=carried)
            whole = carried is None or carried.closes
            totals = {name: _plus(totals[name], found[name], count=whole) for name in CONVENTIONS}
            if model.marks.box is not None and carried is None:
                spatial += _spatial(model, batch)
            step(totals["window"].sequences)
    if model.marks.box is not None:
        totals["window"] = replace(totals["window"], spatial=spatial)
    return totals


def _batches(
    data: Dataset | EventFiles, place: torch.device
) -> Iterator[tuple[Batch, Carried | None]]:
    """A few sequences at a time; of one that does not fit into memory its parts in order, with
    what is carried from one to the next.
    """
    for part in data.chunks() if isinstance(data, EventFiles) else (data,):
        for rows in part.batches(sequences_at_once(place)):
            yield part.batch(rows).to(place), None
    if isinstance(data, EventFiles):
        for pieces in data.long_sequences():
            carried = Carried()
            for piece in pieces:
                carried.closes = piece.closes
                yield data.part_of(piece).batch().to(place), carried


def checked_convention(convention: Convention) -> Convention:
    """``convention`` where it is one; else :class:`UserError`."""
    if convention not in CONVENTIONS:
        raise UserError(
            "convention 'window' or 'gaps'", f"{convention!r}", "Choose one of the two."
        )
    return convention


def device_of(model: PointProcess) -> torch.device:
    """Where ``model`` computes: the device of its weights, and the CPU for one without any.

    >>> from fourpoint.models.hawkes import Hawkes
    >>> device_of(Hawkes())
    device(type='cpu')
    """
    return next(
        (x.device for part in (model.parameters(), model.buffers()) for x in part),
        torch.device("cpu"),
    )


def sequences_at_once(place: torch.device) -> int:
    """Sequences in a batch: more where small kernels leave a device idle."""
    return BATCH if place.type == "cpu" else LARGE


def _spatial(model: PointProcess, batch: Batch) -> float:
    """The log density of the places and types of scored events given their times, summed."""
    with torch.no_grad():
        local = model.log_rates_at_events(model.encode(batch), batch)
    at_events = torch.where(batch.scored, local, 0.0).sum()
    return float(at_events - log_totals_at_events(model, batch).sum())


def _plus(total: Score, found: LogLikelihood, *, count: bool) -> Score:
    """The sums with those of more sequences, or of a part of one that does not ``count`` yet."""
    return Score(
        total.events + int(found.events.sum()),
        total.sequences + (len(found.value) if count else 0),
        total.log_likelihood + float(found.value.sum()),
        total.error + float(found.error.sum()),
    )


@torch.no_grad()
def _intensity_error(
    model: PointProcess, oracle: PointProcess, data: Dataset
) -> tuple[float, float]:
    """MSE of the total intensity and variance of the true one, over midpoints of the windows."""
    errors, truths = [], []
    for rows in data.batches(sequences_at_once(device_of(model))):
        found, true = (_at_midpoints(one, data.batch(rows)) for one in (model, oracle))
        errors.append((found - true) ** 2)
        truths.append(true)
    return float(torch.cat(errors).mean()), float(torch.cat(truths).var(correction=0))


def _at_midpoints(model: PointProcess, batch: Batch) -> Float[Tensor, "B Q"]:
    """The total rate at the midpoints of each window, in float64, computed on the model's
    device.
    """
    batch = batch.to(device_of(model))
    share = (
        torch.arange(MIDPOINTS, dtype=torch.float64, device=batch.times.device) + 0.5
    ) / MIDPOINTS
    times = batch.start[:, None] + share * (batch.stop - batch.start)[:, None]
    return model.intensity(model.encode(batch), times).sum(-1).double().cpu()


def _truth(truth: Any) -> Any:
    if not isinstance(truth, str):
        return truth
    from fourpoint.data.synthetic import process

    return process(truth).truth()


def _show(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) < 1e-3:
        return f"{value:.4g}"
    return f"{value:.4f}"
