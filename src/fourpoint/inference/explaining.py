r"""Why the rate is what it is: what each past event adds to it, by leaving that event out.

    effect[i, m] = lambda_m(at | past) - lambda_m(at | past without event i)

It asks the model for nothing but its rate, so it means the same for all of them; where events have
places it is the rate in the whole box. For a linear Hawkes process the effects are the excitations
and sum to the rate less its baseline; elsewhere events interact and the sum has no such meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Batch, Dataset, Sequence, check_marks, only_sequence
from fourpoint.events.dates import Dates, Moment, shown
from fourpoint.inference.sampling import eval_mode, last_rates, remember
from fourpoint.models.base import PointProcess
from fourpoint.report.printing import Printed, bar, text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

Floats = NDArray[np.float64]
PIECE = 16_384  # events that are encoded at once
ROUNDING = 16  # roundings of a rate that a difference of two rates may hold
VISIBLE = 1e-3  # share of the largest effect that a plot can show
SHOWN = 15  # events in the printed table
NEGLIGIBLE = 1e-6  # share of the rate below which an effect is not listed
SHOWN_MODES = 5  # modes below it


@dataclass(frozen=True, repr=False)
class Explanation(Printed):
    """What :func:`explain` found. Prints as a table; :meth:`to_dict` is for machines, :meth:`plot`
    for eyes.

    Of the N events up to and including ``at``: ``times`` (N,) in the user's unit, ``marks`` (N,),
    and ``effects`` (N, M) on the rate of each mark in events per unit of time. ``rate`` (M,) is the
    rate at ``at``; ``names`` (M,) are those of the marks. ``modes`` are those of
    Deep DAPP, the strongest first: layer, half-life and period in the user's unit, and what the
    rate would lose without them. ``dates`` converts times to dates, where the events have them.
    """

    at: float
    times: Floats
    marks: NDArray[np.int64]
    names: tuple[str, ...]
    effects: Floats
    rate: Floats
    modes: tuple[dict[str, Any], ...] = ()
    dates: Dates | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it: the rate by mark, and every past event in the order of
        time.
        """
        marks = self.marks.tolist()
        effects = self.effects.tolist()
        events: list[dict[str, Any]] = []
        for i, time in enumerate(self.times.tolist()):
            event = {
                "time": time,
                "mark": self.names[marks[i]],
                "total": sum(effects[i]),
                "effects": dict(zip(self.names, effects[i], strict=True)),
            }
            events.append(event)
        rate = {
            "total": float(self.rate.sum()),
            "marks": dict(zip(self.names, self.rate.tolist(), strict=True)),
        }
        found: dict[str, Any] = {"at": self.at, "rate": rate, "events": events}
        if self.dates is not None:
            found["date"] = self.dates.text(self.at)
            for event, date in zip(events, self.dates.texts(self.times), strict=True):
                event["date"] = date
        if self.modes:
            found["modes"] = list(self.modes)
        return found

    def plot(self, ax: Axes | None = None, unit: str = "") -> Axes:
        """Each past event's effect on the total rate, as stems, from the first event on whose
        effect can be seen.
        """
        from fourpoint.plots.charts import attention_plot, singular

        total = self.effects.sum(1)
        size = np.abs(total)
        visible = np.flatnonzero(size >= VISIBLE * size.max(initial=0.0))
        first = int(visible[0]) if len(visible) else 0
        if not unit and self.dates is not None:
            unit = self.dates.unit
        label = "effect on the rate"
        if unit:
            label += f" (events per {singular(unit)})"
        return attention_plot(
            self.times[first:],
            total[first:],
            at=self.at,
            event_marks=self.marks[first:],
            names=self.names if len(self.names) > 1 else (),
            label=label,
            unit=unit,
            dates=self.dates,
            ax=ax,
        )

    def __rich__(self) -> Table:
        total = self.effects.sum(1)
        size = np.abs(self.effects).sum(1)
        rate = self.rate.sum()
        listed = int((size > NEGLIGIBLE * rate).sum())
        strongest = np.argsort(-size, kind="stable")[: min(SHOWN, listed)]
        per = ""
        if self.dates is not None:
            per = f" events per {self.dates.unit.removesuffix('s')}"
        title = (
            f"The rate at {shown(self.dates, self.at)} is {rate:.4g}{per}; effects of "
            f"{len(total):,} past events (the rate minus the rate without the event)"
        )
        table = text_table(title, title_justify="left", box=None, pad_edge=False)
        table.add_column("event at", justify="right", style="bold", no_wrap=True)
        many = len(self.names) > 1
        if many:
            table.add_column("mark", no_wrap=True)
        table.add_column("effect", justify="right", no_wrap=True)
        if many:
            table.add_column("mainly on", no_wrap=True)
        if self.dates is None:
            when = [f"{time:.6g}" for time in self.times[strongest].tolist()]
        else:
            when = self.dates.texts(self.times[strongest])
        for date, n in zip(when, strongest, strict=True):
            effect = f"{total[n]:+.4g}"
            if not many:
                table.add_row(date, effect)
                continue
            most = int(np.abs(self.effects[n]).argmax())
            mark = self.names[self.marks[n]]
            mainly_on = f"{self.names[most]} ({self.effects[n, most]:+.3g})"
            table.add_row(date, mark, effect, mainly_on)
        notes = []
        weaker = listed - len(strongest)
        if weaker > 0:
            notes.append(f"and {weaker:,} weaker")
        without_effect = len(total) - listed
        if without_effect > 0:
            notes.append(f"{without_effect:,} past events have no effect on it")
        for mode in self.modes[:SHOWN_MODES]:
            notes.append(_in_words(mode))
        table.caption = "\n".join(notes) or None
        return table


def explain(
    model: PointProcess,
    sequence: Sequence | Dataset,
    at: Moment | None = None,
    *,
    progress: bool = False,
) -> Explanation:
    """The effect of each event of ``sequence`` up to and including ``at`` on the rate of ``model``
    just after that time.

    ``at`` is in the user's unit of time, or a date where the sequence has dates; the end of the
    sequence's window by default. A model that sums over the past (unnormalised DAPP) answers in
    O(N); for others the rate is computed N + 1 times, which grows with the square of N, and
    ``progress`` shows a bar on stderr. An effect below the rounding of the rate is 0. A data set
    stands for its sequence where it has exactly one.

    Raises :class:`UserError` where ``at`` lies outside the sequence's window or the marks are not
    the model's.

    >>> from fourpoint.models.hawkes import Hawkes
    >>> found = explain(
    ...     Hawkes(baseline=1.0, branching=0.5, decay=2.0),
    ...     Sequence([0.5, 1.5], start=0.0, stop=3.0),
    ...     at=2.0,
    ... )
    >>> (
    ...     found.effects.round(4).tolist(),
    ...     found.rate.round(4).tolist(),
    ... )  # .5 * 2 * exp(-2 d), and 1 plus their sum
    ([[0.0498], [0.3679]], [1.4177])
    """
    sequence = only_sequence(sequence)
    check_marks(model.marks, sequence.space)
    past = sequence.until(at)
    now = past.stop
    with eval_mode(model):
        rate = _whole_rate(model, past, now)[0]
        modes = model.mode_effects(model.encode(past.batch()), now)
    modes.sort(key=lambda mode: -abs(mode["effect"]))
    names = model.marks.names or sequence.space.names or ("event",)
    return Explanation(
        at=now,
        times=past.times,
        marks=past.marks,
        names=tuple(names),
        effects=removal_effects(model, sequence, now, progress=progress),
        rate=rate.double().numpy(),
        modes=tuple(modes),
        dates=past.dates,
    )


def _in_words(mode: dict[str, Any]) -> str:
    """One mode in a line."""
    half_life = f"half-life {mode['half_life']:.3g}"
    period = f"period {mode['period']:.3g}"
    return f"mode of layer {mode['layer']}, {half_life}, {period}: {mode['effect']:+.3g}"


def removal_effects(
    model: PointProcess,
    sequence: Sequence,
    at: float,
    chunk: int | None = None,
    *,
    progress: bool = False,
) -> Floats:
    """What the rate just after ``at`` would lose without each event until then, per mark, in events
    per unit of time, (N, M).

    ``chunk`` rates are computed at once; by default as many as keep 16,384 events in memory.
    ``progress`` shows a bar on stderr.
    """
    past = sequence.until(at)
    events = len(past)
    found = [np.zeros((0, model.marks.count))]
    rows = chunk or max(1, PIECE // max(1, events))
    with eval_mode(model), bar("explaining", events, show=progress) as step:
        found_at_once = _without(model, past, at)
        if found_at_once is not None:
            return found_at_once
        whole = _whole_rate(model, past, at)
        for first in range(0, events, rows):
            last = min(first + rows, events)
            left_out = torch.arange(first, last)[:, None]
            without = _rates_without(model, past, at, left_out)
            found.append(_lost(whole, without))
            step(last)
    return np.concatenate(found)


def _without(model: PointProcess, past: Sequence, at: float) -> Floats | None:
    """The same from a model that can leave out each event by itself, in O(N); None where it
    cannot.
    """
    now = torch.tensor([[at]], dtype=torch.float64)
    history = model.encode(past.batch())
    without = model.without(history, now, history.lengths[:, None])
    if without is None:
        return None
    rate = last_rates(model, history, now)
    return _lost(rate[0], without[0, 0])


def _lost(rate: Float[Tensor, "#R M"], without: Float[Tensor, "R M"]) -> Floats:
    """The rate less the rate without an event; 0 where rounding alone could make the difference."""
    lost = rate.double() - without.double()
    larger = torch.maximum(rate, without).double()
    noise = ROUNDING * torch.finfo(rate.dtype).eps * larger
    found = torch.where(lost.abs() <= noise, 0.0, lost)
    return np.asarray(found.numpy())


def _whole_rate(model: PointProcess, past: Sequence, at: float) -> Float[Tensor, "1 M"]:
    """The rate at ``at`` given all of the past."""
    return _rates_without(model, past, at, torch.zeros(1, 0, dtype=torch.int64))


def _rates_without(
    model: PointProcess, past: Sequence, at: float, left_out: Int[Tensor, "R K"]
) -> Float[Tensor, "R M"]:
    """The rates at ``at`` given the past without event ``left_out`` (K = 1), or given all of it (K
    = 0): (R, M).
    """
    rows, fewer = left_out.shape
    kept = torch.arange(len(past) - fewer).repeat(rows, 1)
    if fewer:
        kept = kept + (kept >= left_out)

    def rows_of(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(values))[kept]

    places = None
    if past.places is not None:
        places = rows_of(past.places)
    features = None
    if past.features is not None:
        features = rows_of(past.features)
    context = None
    if past.context is not None:
        context = past.context.batch(np.zeros(rows, dtype=np.int64))
    now = torch.full((rows,), at, dtype=torch.float64)
    marks = rows_of(past.marks)
    batch = Batch(
        times=rows_of(past.times),
        marks=marks,
        valid=torch.ones_like(marks, dtype=torch.bool),
        start=torch.full((rows,), past.start, dtype=torch.float64),
        stop=now,
        places=places,
        features=features,
        context=context,
    )
    history = remember(model, batch)
    return last_rates(model, history, now[:, None])[:, 0]
