"""A verdict on the fit: time rescaling of every event by the model's own compensator, per mark and
in total.

:func:`compensators` integrates each mark's intensity over every gap, in closed form where the model
has one; :func:`goodness_of_fit` lays the windows end to end and asks `ops.rescaling` whether what
remains is a Poisson process of rate 1. Intensities are multiplied by the exposure where there is
one, and history periods count for nothing. A small p-value says that the model is wrong somewhere;
with many events every model of real data is, and the QQ plot and the ratio of observed to expected
events say by how much. Where the gaps are a few multiples of the timestamp resolution, whole
minutes say, several events at one time would speak against every model. Times are then dequantised
first: by the model's own law given the ticks (`dequantising`), or uniformly where the rate does not
change within a tick. Where the first is needed and costs too much the test does not apply, and all
p-values are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import (
    Batch,
    BatchSteps,
    Dataset,
    Sequence,
    UserError,
    all_sequences,
    check_marks,
)
from fourpoint.events.dequantise import dequantised
from fourpoint.events.windows import beginning
from fourpoint.inference.dequantising import (
    change_within_ticks,
    dequantise,
    first_events,
    most_events,
    reason_against,
)
from fourpoint.inference.evaluation import device_of
from fourpoint.inference.likelihood import blocks_of, closed_form_error
from fourpoint.inference.sampling import eval_mode
from fourpoint.models.base import History, PointProcess, exposed_pieces, pieces, seen_from
from fourpoint.ops import rescaling
from fourpoint.ops.periodogram import coarse_resolution
from fourpoint.ops.quadrature import integrate_each
from fourpoint.ops.rescaling import Verdict
from fourpoint.report.printing import Printed, bar, text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

BATCH = 64
MOST_HISTORY = 256  # events of a history period that are dequantised too
SHOWN = 12  # marks in the printed table
# events by which the compensator may change within a tick for a uniform place to be the model's law
UNCHANGED = 2e-3


@dataclass(frozen=True, repr=False)
class Goodness(Printed):
    """Verdicts on all events and on each mark, and the residuals of each sequence alone. Prints as
    a table.
    """

    total: Verdict
    marks: dict[str, Verdict]
    residuals: dict[
        str, NDArray[np.float64]
    ]  # by sequence id: compensators between its events, the first from the start
    # the timestamp resolution by which times were dequantised, in the user's unit; 0 for none
    tick: float = 0.0
    dequantised: str = (
        ""  # "model" (drawn from it given the timestamps), "uniform", or "" where times are exact
    )
    inapplicable: str = ""  # why the p-values do not apply, and are NaN

    def to_dict(self) -> dict[str, Any]:
        """Statistics and p-values, under "total" and by mark; the timestamp resolution, and how
        times were dequantised.
        """
        marks = {name: v.to_dict() for name, v in self.marks.items()}
        how = {
            "tick": self.tick,
            "dequantised": self.dequantised or None,
            "inapplicable": self.inapplicable or None,
        }
        return {"total": self.total.to_dict(), "marks": marks, **how}

    def plot(self, mark: str | None = None, ax: Axes | None = None) -> Axes:
        """The QQ plot of all residuals, or of one mark's."""
        from fourpoint.plots.forecast import qq_plot

        v = self.total if mark is None else self.marks[mark]
        return qq_plot(v.qq.theory, v.qq.observed, v.qq.low, v.qq.high, title=mark or "", ax=ax)

    def __rich__(self) -> Table:
        title = "Goodness of fit (small p-values are evidence against the model)"
        if self.tick:
            how = "from the model's distribution" if self.dequantised == "model" else "uniformly"
            title += f"\nTimes are multiples of {self.tick:.4g}: they were dequantised {how}"
        if self.inapplicable:
            title += f"\nThe test does not apply: {self.inapplicable}"
        table = text_table(title, title_justify="left", box=None, pad_edge=False)
        table.add_column("events of", style="bold")
        for name in ("observed", "expected", "KS", "p", "uniform p", "Ljung-Box p"):
            table.add_column(name, justify="right")
        ranked = sorted(self.marks.items(), key=lambda item: -item[1].count)
        for name, v in [("all marks" if self.marks else "the model", self.total), *ranked[:SHOWN]]:
            numbers = map(_as_p, (v.ks_p, v.uniform_p, v.ljung_box_p))
            table.add_row(name, f"{v.count:,}", f"{v.expected:,.1f}", f"{v.ks:.4f}", *numbers)
        if len(ranked) > SHOWN:
            table.add_row(f"... {len(ranked) - SHOWN} more")
        return table


def _as_p(p: float) -> str:
    if np.isnan(p):
        return "-"
    return f"{p:.3f}" if p >= 1e-3 else f"{p:.1e}"


def goodness_of_fit(
    model: PointProcess,
    data: Dataset | Sequence,
    *,
    tolerance: float = 1e-4,
    seed: int = 0,
    progress: bool = False,
) -> Goodness:
    """Test whether ``model`` fits ``data``: its rescaled events are compared with a Poisson process
    of rate 1, per mark and in total.

    ``tolerance`` is that of the integrals, per event; ``seed`` that of the times inside ticks,
    where times are rounded: then the first 20,000 events are looked at, or 2,000 if the model's
    integrals have no closed form. ``progress`` shows a bar on stderr. Raises :class:`UserError`
    where the mark spaces differ and `Unconverged` where an integral does not settle.

    >>> from fourpoint.data.synthetic import simulate
    >>> from fourpoint.models.hawkes import Hawkes
    >>> verdict = goodness_of_fit(
    ...     Hawkes(baseline=10.0, branching=1.0), simulate("hawkes", 100)
    ... ).total
    >>> verdict.ks_p > 0.01
    True
    """
    data = all_sequences(data)
    check_marks(model.marks, data.marks)
    data, tick, how, inapplicable = _dequantised(model, data, seed)
    M = data.marks.count
    places = np.zeros((data.events, M))
    totals = np.zeros((len(data), M))
    with eval_mode(model), bar("goodness of fit", len(data), show=progress) as step:
        done = 0
        for rows in data.batches(BATCH):
            batch = data.batch(rows).to(device_of(model))
            running = compensators(model, batch, tolerance).cumsum(1).cpu().numpy()
            for k, s in enumerate(rows):
                n = int(data.lengths[s])
                places[data.offsets[s] : data.offsets[s + 1]], totals[s] = (
                    running[k, :n],
                    running[k, -1],
                )
            done += len(rows)
            step(done)
    scored = data.scored
    places = places[scored]
    marks = data.mark_ids[scored]
    owner = np.repeat(np.arange(len(data)), data.lengths)[scored]
    together = places.sum(1)
    ends = np.cumsum(data.scored_lengths)
    gaps = np.split(rescaling.per_sequence(together, owner), ends[:-1])
    by_mark = {}
    for m, name in enumerate(data.marks.names):
        mine = marks == m
        by_mark[name] = rescaling.judge(places[mine, m], owner[mine], totals[:, m])
    total = rescaling.judge(together, owner, totals.sum(1))
    if inapplicable:
        total = rescaling.without_p_values(total)
        by_mark = {name: rescaling.without_p_values(v) for name, v in by_mark.items()}
    return Goodness(total, by_mark, dict(zip(data.ids, gaps, strict=True)), tick, how, inapplicable)


def with_exact_times(model: PointProcess, data: Dataset, seed: int) -> tuple[Dataset, str]:
    """All sequences with dequantised times where timestamps are coarse, and how that was done.

    Raises :class:`UserError` where the rate changes within the resolution of the timestamps and
    times inside it cannot be drawn for all events.
    """
    tick = coarse_resolution(data.gaps[data.gaps > 0])
    if not tick:
        return data, ""
    uniform = dequantised(data, tick, seed)
    if change_within_ticks(model, uniform, tick) < UNCHANGED:
        return uniform, f"times were dequantised uniformly within {tick:g}"
    against = reason_against(model)
    if against is None and data.events <= most_events(model):
        return dequantise(model, data, tick, seed), f"times were dequantised within {tick:g}"
    raise UserError(
        "timestamps that resolve the changes of the rate",
        f"a resolution of {tick:g} within which the rate of the model changes",
        "Test fewer events, or a model without such fast excitation.",
    )


def _dequantised(model: PointProcess, data: Dataset, seed: int) -> tuple[Dataset, float, str, str]:
    """The data to test, the timestamp resolution (0: times are exact), how they were dequantised,
    and why that is not enough.
    """
    tick = coarse_resolution(data.gaps[data.gaps > 0])
    if not tick:
        return data, 0.0, "", ""
    uniform = dequantised(data, tick, seed)
    if change_within_ticks(model, uniform, tick) < UNCHANGED:
        return uniform, tick, "uniform", ""
    against = reason_against(model)
    if data.context is not None and data.context.exposure is not None:
        against = "the model does not draw times within the resolution if there is an exposure"
    if against is not None:
        return uniform, tick, "uniform", f"the rate changes within the resolution, and {against}"
    most = most_events(model)
    some = first_events(beginning(data, most, history=MOST_HISTORY), most + MOST_HISTORY)
    return dequantise(model, some, tick, seed), tick, "model", ""


@torch.no_grad()
def compensators(
    model: PointProcess, batch: Batch, tolerance: float = 1e-4
) -> Float[Tensor, "B G M"]:
    """The integral of each mark's intensity over every gap, from start to t_1, ..., from t_N to
    stop; G = N + 1.

    Padded gaps are 0. The errors sum to at most ``tolerance`` per event of the batch.
    """
    return _by_gap(model, batch, tolerance, each=True)[0]


@torch.no_grad()
def gap_integrals(
    model: PointProcess, batch: Batch, tolerance: float = 1e-4
) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G"]]:
    """The integral of the total rate over every gap, as in :func:`compensators`, and an upper
    estimate of the error of each.
    """
    value, error = _by_gap(model, batch, tolerance, each=False)
    return value[..., 0], error


def _by_gap(
    model: PointProcess, batch: Batch, tolerance: float, *, each: bool
) -> tuple[Float[Tensor, "B G M"], Float[Tensor, "B G"]]:
    """Integrals of ``each`` mark's intensity or of all together, a block of positions at a time,
    and their errors.
    """
    parts = []
    carried = None
    for block, _ in blocks_of(model, batch):
        history = model.encode(block, carried)
        parts.append(_of_block(model, block, history, tolerance, each))
        carried = history.latest()
    values, errors = (
        torch.cat([p[:, :-1] for p in some[:-1]] + [some[-1]], 1)
        for some in zip(*parts, strict=True)
    )
    return values, errors


def _of_block(
    model: PointProcess, block: Batch, history: History, tolerance: float, each: bool
) -> tuple[Float[Tensor, "B G M"], Float[Tensor, "B G"]]:
    edges = block.edges
    gaps = edges.shape[1] - 1
    exposure = block.scored_exposure
    if model.has_closed_integral:
        seen = torch.arange(gaps, device=edges.device).expand(len(edges), -1)
        left = edges[:, :-1]
        right = edges[:, 1:]
        if exposure is not None:
            left, right, seen = exposed_pieces(block, exposure)
        exact = model.closed_integral(history, left, right, seen).to(torch.float64)
        error = closed_form_error(model, exact.abs().sum(-1), right - left)
        value = exact if each else exact.sum(-1, keepdim=True)
        if exposure is None:
            return value, error
        return _in_gaps(gaps, seen, left, value, error, exposure)
    left, right, nodes = pieces(model, history, edges, exposure)
    seen = seen_from(block, left)
    largest = 1.0 if exposure is None else max(1e-300, float(exposure.values.max()))

    def rates(times: Float[Tensor, "B H Q"], which: Int[Tensor, "B H"]) -> Float[Tensor, "B H Q M"]:
        at = seen.gather(1, which)
        if each:
            return model.log_intensity(history, times, at).exp()
        return model.total_intensity(history, times, at)[..., None]

    value, error = integrate_each(
        rates,
        left,
        right,
        tolerance=tolerance / largest * max(1, int(block.lengths.sum())),
        **nodes,
    )
    return _in_gaps(gaps, seen, left, value, error, exposure)


def _in_gaps(
    gaps: int,
    seen: Int[Tensor, "B H"],
    left: Float[Tensor, "B H"],
    value: Float[Tensor, "B H M"],
    error: Float[Tensor, "B H"],
    exposure: BatchSteps | None,
) -> tuple[Float[Tensor, "B G M"], Float[Tensor, "B G"]]:
    """Integrals over pieces, times their exposure, summed by gap."""
    if exposure is not None:
        weight = exposure.at(left)
        value = weight * value
        error = weight[..., 0] * error
    total = value.new_zeros(len(value), gaps, value.shape[-1])
    doubt = value.new_zeros(len(value), gaps)
    return total.scatter_add(1, seen[..., None].expand_as(value), value), doubt.scatter_add(
        1, seen, error
    )
