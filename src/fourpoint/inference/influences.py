r"""Which type of event leads to which: the expected events of type b that one event of type a leads
to directly, with intervals and a choice of edges at a stated false discovery rate.

For a Hawkes process this is the branching ratio, alpha_ba, with the intervals of its fit
(`ops.profiles`) and likelihood-ratio tests against 0 (`models.hawkes_tests`). For every other model
each of many events i of type a is left out in turn, and the rates that follow are compared,

    effect_b(i) = int_0^H lambda_b(t_i + s | past) - lambda_b(t_i + s | past without event i) ds,

where the past holds all other events that were observed, also those after t_i, up to t_i + s. The
mean over events of type a has a t interval over sequences, or over blocks of time where sequences
are few; draws of the parameters (`inference.uncertainties`) add their own variance. For a Hawkes
process both are the same as H grows. Edges are chosen by Benjamini and Yekutieli's procedure
(`ops.discovery`).

It is predictive influence: what the past of a tells about b beyond the rest of the past, in the
model. A common cause that is not in the data looks the same.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray

from fourpoint.atomic import write_atomic
from fourpoint.events import Batch, Dataset, UserError, check_marks
from fourpoint.inference.sampling import eval_mode
from fourpoint.models import Hawkes
from fourpoint.models.base import PointProcess
from fourpoint.models.hawkes_tests import EdgeTests, edge_tests
from fourpoint.ops.discovery import Correction, discoveries
from fourpoint.report.printing import Printed, bar, text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Group

    from fourpoint.inference.uncertainties import Uncertainty

SHOWN = 25  # edges in the printed table
EVENTS = 2000  # events that are left out, of all types together
FEWEST = 10  # of one type, if there are as many
NODES = 48  # of the integral over the time after an event
LONGEST = 50.0  # mean gaps after an event
BEFORE, AFTER = 256, 256  # events around the one that is left out
PIECE = 16_384  # events that are encoded at once
FEW_SEQUENCES, BLOCKS = 30, 50
MEMBERS = 20  # draws of parameters
MANY_TYPES = 8  # from which on a level that all types share is told apart from pairs
WIDTHS = (4.0, 20.0)  # of shared levels, in units of the slowest decay
PIECES = 4  # of time, in one width
MOST_PIECES = 2e7  # of all types together
UNFITTED = 1e-4  # p-value of a Hawkes process on data that it was not fitted to


@dataclass(frozen=True, repr=False)
class Influence(Printed):
    """What :func:`influence` found. Prints as a table; :meth:`to_dict` is for machines,
    :meth:`plot` and :meth:`plot_graph` for eyes, :meth:`write` for spreadsheets.

    Of shape (M, M), the exciting type last, as branching ratios are: ``matrix`` of expected events,
    ``low`` and ``high`` of the intervals with ``level``, ``p_values`` of the hypothesis that there
    is no influence, and ``edges`` at the false discovery rate ``fdr``. ``total`` counts all
    descendants and not only direct ones, for a Hawkes process that does not explode. ``horizon`` is
    the time after an event that is looked at, in the user's unit; infinite in closed form. NaN
    stands for types that never happen.
    """

    names: tuple[str, ...]
    matrix: Float[ndarray, "M M"]
    low: Float[ndarray, "M M"]
    high: Float[ndarray, "M M"]
    p_values: Float[ndarray, "M M"]
    edges: Bool[ndarray, "M M"]
    level: float
    fdr: float
    correction: str
    method: str
    horizon: float
    total: Float[ndarray, "M M"] | None = None
    notes: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """One row for every pair of types, by p-value."""
        found = []
        strongest_first = -np.nan_to_num(self.matrix).ravel()
        order = np.lexsort((strongest_first, self.p_values.ravel()))
        for place in order:
            b, a = divmod(int(place), len(self.names))
            row = {
                "from": self.names[a],
                "to": self.names[b],
                "expected": float(self.matrix[b, a]),
                "low": float(self.low[b, a]),
                "high": float(self.high[b, a]),
                "p_value": float(self.p_values[b, a]),
                "edge": bool(self.edges[b, a]),
            }
            found.append(row)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it but for NaN; rows of matrices are the excited types."""
        return {
            "types": list(self.names),
            "method": self.method,
            "level": self.level,
            "fdr": self.fdr,
            "correction": self.correction,
            "horizon": self.horizon,
            "matrix": self.matrix.tolist(),
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "p_values": self.p_values.tolist(),
            "edges": self.edges.tolist(),
            "total": None if self.total is None else self.total.tolist(),
            "pairs": self.rows(),
            "notes": list(self.notes),
        }

    def write(self, file: str | Path) -> None:
        """Write :meth:`rows` as CSV."""
        text = io.StringIO()
        rows = self.rows()
        table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        table.writeheader()
        for row in rows:
            known = {name: value for name, value in row.items() if value == value}
            table.writerow(known)
        write_atomic(Path(file), text.getvalue())

    def plot(self, ax: Axes | None = None) -> Axes:
        """A heat map of the matrix; frames mark the edges."""
        from fourpoint.plots.influence import influence_map

        return influence_map(self.matrix, self.names, edges=self.edges, ax=ax)

    def plot_graph(self, ax: Axes | None = None) -> Axes:
        """The edges as arrows between types on a circle; wide arrows are strong edges."""
        from fourpoint.plots.influence import influence_graph

        return influence_graph(self.matrix, self.names, edges=self.edges, ax=ax)

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        chosen = [row for row in self.rows() if row["edge"]]
        edges = len(chosen)
        pairs = int(np.isfinite(self.p_values).sum())
        title = (
            f"{edges:,} of {pairs:,} pairs of types are edges (false discovery rate "
            f"{self.fdr:.0%}); expected events that one event leads to directly"
        )
        named = ["from"]
        if len(self.names) > 1:
            named.append("to")
        table = text_table(box=None, pad_edge=False)
        for name in named:
            table.add_column(name, style="bold", no_wrap=True)
        for name in ("expected", f"{self.level:.0%} interval", "p-value"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in chosen[:SHOWN]:
            names = [row[name] for name in named]
            expected = f"{row['expected']:.3g}"
            interval = f"{row['low']:.3g} to {row['high']:.3g}"
            p_value = f"{row['p_value']:.2g}"
            table.add_row(*names, expected, interval, p_value)
        said = []
        if edges > SHOWN:
            said.append(f"and {edges - SHOWN:,} more")
        below = "\n".join([*said, *self.notes, PREDICTIVE])
        if not chosen:
            return Group(Text(title), Text(below))
        return Group(Text(title), table, Text(below))


PREDICTIVE = "This is predictive influence, not cause and effect."


def influence(
    model: PointProcess,
    data: Dataset,
    *,
    level: float = 0.95,
    fdr: float = 0.1,
    correction: Correction = "by",
    horizon: float | None = None,
    events: int = EVENTS,
    uncertainty: Uncertainty | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Influence:
    """Estimate the expected events of each type that one event of each type leads to directly.

    Args:
        data: the data that the model was fitted to. A Hawkes process is tested on them; of other
            models they hold the events that are left out.
        level: of the intervals.
        fdr: the false discovery rate of the edges: the share of false ones among them is at most
            so much on average.
        correction: "by" (Benjamini and Yekutieli), which holds for dependent tests as these are,
            or "bh" (Benjamini and Hochberg), which finds more and holds for independent ones.
        horizon: the time after an event that is looked at, in the user's unit; 50 mean gaps by
            default. A Hawkes process has no need of it.
        events: how many events are left out in turn, of all types together.
        uncertainty: draws of the model's parameters (`fp.uncertainty`), whose variance is added to
            that over events; a Hawkes process has no need of them.
        seed: chooses them.
        progress: shows a bar on stderr.

    Raises :class:`UserError` if the marks are not the model's, if a Hawkes process has no standard
    errors, and for rates and levels that are not between 0 and 1. Cost: for a Hawkes process
    O(events types^2) per type; for others the rates after ``events`` events are computed twice.

    >>> from fourpoint.inference.sampling import sample
    >>> truth = Hawkes(2, baseline=0.5, branching=[[0.4, 1e-12], [0.3, 1e-12]], decay=2.0)
    >>> data = sample(truth, 0.0, 100.0, 20, seed=1)
    >>> model = Hawkes(data.marks)
    >>> notes = model.maximum_likelihood(data)
    >>> influence(model, data).edges.tolist()
    [[True, False], [True, False]]
    """
    check_marks(model.marks, data.marks)
    for name, value in (("level", level), ("fdr", fdr)):
        if not 0 < value < 1:
            raise UserError(f"{name} between 0 and 1", f"{value}", f"Pass {name}=0.1, say.")
    if correction not in ("by", "bh"):
        raise UserError('correction as "by" or "bh"', f"{correction!r}", "Choose one of them.")
    if not data.events:
        raise UserError("data with events", "none", "Pass the data that the model was fitted to.")
    if model.past_shows:
        raise UserError(
            "a model in which events lead to other events",
            f"{type(model).__name__}, in which past events only show {model.past_shows}",
            "`fourpoint compare` says whether past events matter beyond that; a Hawkes process or "
            "a DAPP says which type leads to which (--model hawkes).",
        )
    if isinstance(model, Hawkes):
        if horizon is not None:
            raise UserError(
                "no horizon for a Hawkes process, whose influence is in closed form",
                f"{horizon}",
                "Leave horizon out.",
            )
        if uncertainty is not None:
            raise UserError(
                "no draws for a Hawkes process, whose intervals are those of its fit",
                f"{uncertainty!r}",
                "Leave uncertainty out.",
            )
        return _of_hawkes(model, data, level, fdr, correction)
    if horizon is not None and not horizon > 0:
        raise UserError("a positive horizon", f"{horizon}", "Pass it in the data's unit of time.")
    if events < 1:
        raise UserError("at least one event to leave out", f"{events}", "Pass events=2000, say.")
    after = _usual_horizon(data) if horizon is None else horizon
    left_out = _chosen_events(data, model.marks.count, events, seed)
    effects = _effects(model, data, left_out, after, progress=progress)
    spread = None
    if uncertainty is not None:
        drawn = []
        for member in uncertainty.members(model, MEMBERS):
            of_draw = _effects(member, data, left_out, after, progress=progress)
            drawn.append(_means(of_draw, left_out, model.marks.count))
        spread = np.std(drawn, axis=0, ddof=1)
    return _of_effects(model, data, left_out, effects, spread, after, level, fdr, correction)


# ---------------------------------------------------------------------- Hawkes


def _of_hawkes(
    model: Hawkes, data: Dataset, level: float, fdr: float, correction: Correction
) -> Influence:
    """From the fit and, for the tests, from ``data``."""
    M = model.marks.count
    matrix = model.mean_branching
    shared = _shared_levels(model, data)
    tests = edge_tests(model, data, shared)
    notes = []
    if model.profiles or not model.errors or tests is None:
        by_decay = model.intervals(level)["branching"]
        limits = by_decay.reshape(-1, M, M, 2).sum(0)
    else:
        limits = _from_tests(model, tests, level)
        notes.append("intervals treat the decay and the calendar as known")
    if shared is not None and tests is not None:
        notes.append("edges are tested beside levels that the rates of all types share, as surges")
    if model.event_features is not None:
        factor = model.event_features.mean_factor().detach().numpy()
        limits = limits * factor[:, None]
        notes.append("intervals treat the weights of event features as known")
    if model.log_decay.numel() > 1:
        notes.append("intervals of several exponentials are sums of limits and too wide")
    if tests is None:
        p_values = _from_profiles(model)
        notes.append("p-values are from the curvature of the training likelihood")
    else:
        p_values = tests.p_values
        from scipy.special import chdtrc

        parameters = M + matrix.size
        gain = max(tests.gain, 0.0)
        if float(chdtrc(parameters, 2 * gain)) < UNFITTED:
            notes.append(
                "the model was not fitted to these events: they decide about edges, and the "
                "matrix and its intervals are those of the training data"
            )
    bounded = np.isfinite(limits[..., 1])
    known = bounded & np.isfinite(p_values)
    p_values = np.where(known, p_values, np.nan)
    total = None
    if model.spectral_radius < 1:
        total = np.linalg.solve(np.eye(M) - matrix, matrix)
    return Influence(
        model.marks.names or ("event",),
        matrix,
        limits[..., 0],
        limits[..., 1],
        p_values,
        discoveries(p_values, fdr, correction),
        level,
        fdr,
        correction,
        "branching ratios, likelihood-ratio tests",
        np.inf,
        total,
        tuple(notes),
    )


def _from_tests(model: Hawkes, tests: EdgeTests, level: float) -> Float[ndarray, "M M 2"]:
    """Intervals from standard errors. Of a ratio that is far from 0 by its deviance the lower limit
    is not: the likelihood falls faster towards 0 than its curvature tells.
    """
    from scipy.special import ndtri

    upper = (1 + level) / 2
    quantile = float(ndtri(upper))
    ratio = model.mean_branching
    variance = (tests.errors**2).sum(0)
    above = quantile * np.sqrt(variance)
    deviance = np.nan_to_num(tests.deviance)
    root = np.maximum(np.sqrt(deviance), 1e-9)
    below = np.minimum(above, ratio * quantile / root)
    low = np.maximum(ratio - below, 0.0)
    return np.stack([low, ratio + above], -1)


def _shared_levels(
    model: Hawkes, data: Dataset
) -> tuple[list[ndarray], Float[ndarray, "M C"]] | None:
    """For each type the level of all others, smoothed over a few and over many times the decay, at
    its events and integrated over the scored time: in an incident many types have many events,
    without one of them leading to another. None for few types, whose pairs would be hidden by it,
    and for logs with too many pieces of time.
    """
    M = model.marks.count
    if M < MANY_TYPES or not data.events:
        return None
    decays = model.log_decay.detach().exp()
    slowest = 1 / float(decays.min())
    parts = []
    for times in WIDTHS:
        found = _one_shared_level(data, times * slowest)
        if found is not None:
            parts.append(found)
    if not parts:
        return None
    columns = []
    for m in range(M):
        levels = [values[m] for values, _ in parts]
        columns.append(np.stack(levels))
    costs = [cost for _, cost in parts]
    return columns, np.stack(costs, 1)


def _one_shared_level(
    data: Dataset, width: float
) -> tuple[list[ndarray], Float[ndarray, " M"]] | None:
    """The level of other types in pieces of time, smoothed over ``width`` on both sides: 1 is the
    mean rate of the type itself.
    """
    M = data.marks.count
    piece = width / PIECES
    pieces = np.ceil(data.durations / piece)
    counts = np.maximum(pieces, 1).astype(np.int64)
    if counts.sum() * M > MOST_PIECES:
        return None
    farthest = 4 * PIECES
    away = np.arange(-farthest, farthest + 1)
    kernel = np.exp(-np.abs(away) / PIECES)
    scored_marks = data.mark_ids[data.scored]
    of_type = np.bincount(scored_marks, minlength=M).astype(np.float64)
    others = of_type.sum() - of_type
    of_others = np.maximum(others, 1.0)
    time = float(data.exposed_times.sum())
    own_rate = (of_type / time)[:, None]
    rate_of_others = (of_others / time)[:, None]
    values: list[list[ndarray]] = [[] for _ in range(M)]
    costs = np.zeros(M)
    exposure = data.scored_exposure
    for row in range(len(data)):
        own = data.row(row)
        count = counts[row]
        number = np.arange(count + 1)
        edges = data.starts[row] + piece * number
        edges[-1] = data.stops[row]
        since = data.times[own] - edges[0]
        passed = (since / piece).astype(np.int64)
        place = np.clip(passed, 0, count - 1)
        marks = data.mark_ids[own]
        scored = data.scored[own]
        table = np.zeros((M, count))
        np.add.at(table, (marks, place), 1.0)
        lengths = np.diff(edges)
        exposed = lengths
        if exposure is not None:
            middles = (edges[1:] + edges[:-1]) / 2
            observed = exposure.at(row, middles)[:, 0]
            exposed = lengths * observed
        reach = _smoothed(lengths, kernel)
        spread = np.stack([_smoothed(one, kernel) for one in table])
        smooth = spread / reach
        others = smooth.sum(0) - smooth
        level = others / rate_of_others * own_rate
        costs += level @ exposed
        for m in range(M):
            mine = scored & (marks == m)
            values[m].append(level[m, place[mine]])
    return [np.concatenate(parts) for parts in values], costs


def _smoothed(counts: ndarray, kernel: ndarray) -> ndarray:
    """Counts of pieces of time, spread by a symmetric kernel within the window."""
    half = len(kernel) // 2
    spread = np.convolve(counts, kernel)
    return spread[half : half + len(counts)]


def _from_profiles(model: Hawkes) -> Float[ndarray, "M M"]:
    """One-sided p-values from the profile likelihoods of the fit; of several decays the smallest
    times their number.
    """
    from scipy.special import ndtr

    M = model.marks.count
    profile = model.profiles["branching"].reshape((-1, M, M))
    deviance = np.maximum(profile.deviance(0.0), 0.0)
    root = np.sqrt(deviance)
    score = np.where(profile.estimate > 0, root, -root)
    one_sided = ndtr(-score)
    smallest = one_sided.min(0)
    return np.minimum(len(one_sided) * smallest, 1.0)


# ---------------------------------------------------------------------- other models


@dataclass(frozen=True)
class _LeftOut:
    """Events that are left out: sequence, place in it and mark of each."""

    rows: ndarray
    places: ndarray
    marks: ndarray


def _usual_horizon(data: Dataset) -> float:
    gap = float(data.durations.sum()) / max(1, data.events)
    return LONGEST * gap


def _chosen_events(data: Dataset, types: int, events: int, seed: int) -> _LeftOut:
    """Events of every type, at random, as many of each as there are or as their share."""
    rng = np.random.default_rng(seed)
    share = max(events // types, FEWEST)
    chosen = []
    for m in range(types):
        mine = np.flatnonzero((data.mark_ids == m) & data.scored)
        count = min(len(mine), share)
        drawn = rng.choice(mine, count, replace=False)
        chosen.append(np.sort(drawn))
    flat = np.concatenate(chosen)
    rows = np.searchsorted(data.offsets, flat, side="right") - 1
    places = flat - data.offsets[rows]
    return _LeftOut(rows, places, data.mark_ids[flat])


def _effects(
    model: PointProcess, data: Dataset, left_out: _LeftOut, horizon: float, *, progress: bool
) -> Float[ndarray, "E M"]:
    """The integrated effect of every event that is left out on the rate of every mark."""
    lags, weights = _nodes(data, horizon)
    found = np.zeros((len(left_out.rows), model.marks.count))
    order = np.argsort(left_out.rows, kind="stable")
    size = max(1, PIECE // (BEFORE + AFTER))
    with eval_mode(model), bar("leaving out events", len(order), show=progress) as step:
        done = 0
        while done < len(order):
            some = order[done : done + size]
            found[some] = _some_effects(model, data, left_out, some, lags, weights)
            done += len(some)
            step(done)
    return found


def _nodes(data: Dataset, horizon: float) -> tuple[ndarray, ndarray]:
    """Gauss-Legendre nodes and weights in log(1 + lag / scale): close together soon after an
    event.
    """
    gaps = data.gaps
    positive = gaps[gaps > 0]
    scale = horizon / 100
    if len(positive):
        scale = float(np.median(positive)) / 10
    scale = min(scale, horizon / 10)
    x, w = np.polynomial.legendre.leggauss(NODES)
    top = np.log1p(horizon / scale)
    v = top * (x + 1) / 2
    lags = scale * np.expm1(v)
    jacobian = scale * np.exp(v)
    weights = jacobian * w * top / 2
    return lags, weights


def _some_effects(
    model: PointProcess,
    data: Dataset,
    left_out: _LeftOut,
    some: ndarray,
    lags: ndarray,
    weights: ndarray,
) -> Float[ndarray, "R M"]:
    """Effects of some events, each in a row of its own with the events around it."""
    rows = left_out.rows[some]
    places = left_out.places[some]
    offsets = data.offsets[rows]
    first = np.maximum(places - BEFORE, 0)
    after = places + AFTER + 1
    last = np.minimum(after, data.lengths[rows])
    widest = int((last - first).max())
    end = last[:, None]
    index = first[:, None] + np.arange(widest)
    valid = index < end
    inside = np.minimum(index, end - 1)
    flat = offsets[:, None] + inside
    times = data.times[flat]
    stops = np.maximum(data.stops[rows], times[:, -1])
    context = None
    if data.context is not None:
        context = data.context.select(rows).batch(np.arange(len(rows)))
    batch = Batch(
        torch.from_numpy(times),
        torch.from_numpy(data.mark_ids[flat]),
        torch.from_numpy(valid),
        torch.from_numpy(data.starts[rows]),
        torch.from_numpy(stops),
        None if data.places is None else torch.from_numpy(data.places[flat]),
        None if data.features is None else torch.from_numpy(data.features[flat]),
        context,
    )
    own = (places - first)[:, None]
    column = np.arange(widest - 1)[None]
    kept = column + (column >= own)
    fewer = _columns(batch, torch.from_numpy(kept))
    happened = data.times[offsets + places]
    asked = happened[:, None] + lags
    when = torch.from_numpy(asked)
    with_all = model.intensity(model.encode(batch), when).double()
    without = model.intensity(model.encode(fewer), when).double()
    added = with_all - without
    effect = torch.einsum("rqm,q->rm", added, torch.from_numpy(weights))
    return effect.numpy()


def _columns(batch: Batch, kept: torch.Tensor) -> Batch:
    """The events at these places of each row."""
    row = torch.arange(len(kept))[:, None]
    return replace(
        batch,
        times=batch.times[row, kept],
        marks=batch.marks[row, kept],
        valid=batch.valid[row, kept],
        places=None if batch.places is None else batch.places[row, kept],
        features=None if batch.features is None else batch.features[row, kept],
    )


def _of_effects(
    model: PointProcess,
    data: Dataset,
    left_out: _LeftOut,
    effects: Float[ndarray, "E M"],
    spread: Float[ndarray, "M M"] | None,
    horizon: float,
    level: float,
    fdr: float,
    correction: Correction,
) -> Influence:
    """Means over the events of a type, with t intervals and two-sided t tests over clusters;
    ``spread`` is the standard deviation of the means over draws of the parameters.
    """
    from scipy.special import stdtr, stdtrit

    M = model.marks.count
    clusters = _clusters(data, left_out)
    matrix = _means(effects, left_out, M)
    error = np.full((M, M), np.nan)
    freedom = np.ones(M)
    for a in range(M):
        mine = left_out.marks == a
        if not mine.any():
            continue
        _, group = np.unique(clusters[mine], return_inverse=True)
        count = int(group.max()) + 1
        if count < 2:
            continue
        sums = np.zeros((count, M))
        deviations = effects[mine] - matrix[:, a]
        np.add.at(sums, group, deviations)
        squares = (sums**2).sum(0)
        variance = squares * count / (count - 1)
        events = mine.sum()
        error[:, a] = np.sqrt(variance) / events
        freedom[a] = count - 1
    notes = ["parameters are treated as known: intervals and tests are over events of the data"]
    if spread is not None:
        variances = error**2 + spread**2
        error = np.sqrt(variances)
        notes = ["intervals and tests include the uncertainty of parameters"]
    upper = (1 + level) / 2
    half = stdtrit(freedom, upper) * error
    certain = np.where(matrix == 0, 0.0, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, matrix / error, certain)
    two_sided = 2 * stdtr(freedom, -np.abs(t))
    p_values = np.where(np.isnan(error), np.nan, two_sided)
    return Influence(
        model.marks.names or ("event",),
        matrix,
        matrix - half,
        matrix + half,
        p_values,
        discoveries(p_values, fdr, correction),
        level,
        fdr,
        correction,
        f"rates after {len(effects):,} events, with and without each",
        horizon,
        None,
        tuple(notes),
    )


def _means(effects: Float[ndarray, "E M"], left_out: _LeftOut, types: int) -> Float[ndarray, "M M"]:
    """The mean effect of the events of each type, which comes last; NaN without any."""
    found = np.full((types, types), np.nan)
    for a in range(types):
        mine = left_out.marks == a
        if mine.any():
            found[:, a] = effects[mine].mean(0)
    return found


def _clusters(data: Dataset, left_out: _LeftOut) -> ndarray:
    """The sequence of every event, or the block of time where sequences are few."""
    if len(data) >= FEW_SEQUENCES:
        return left_out.rows
    rows = left_out.rows
    sequences = max(1, len(data))
    per_sequence = -(-BLOCKS // sequences)
    times = data.times[data.offsets[rows] + left_out.places]
    since = times - data.starts[rows]
    share = since / data.durations[rows]
    number = (share * per_sequence).astype(np.int64)
    block = np.minimum(number, per_sequence - 1)
    return rows * per_sequence + block
