r"""Event features: numbers known of every event (a magnitude, an amount) that scale what the event
triggers.

    factor_i = exp(sum_f weight_f (x_if - mean_f) / scale_f)

An event whose features are the means of the training data has the factor 1. The features of future
events are not known: simulated events get those of training events of the same mark, drawn from a
table, so that the rate, samples and forecasts have one law.

Axes: B sequences, F features, R rows of the table, M marks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from fourpoint.events import Dataset, UserError
from fourpoint.models.effects import RateRatio

MOST_ROWS = 1000  # of a mark in the table of training features
NORMAL = 1.959964  # the 97.5% quantile
LARGEST_LOG = 600.0  # of a factor: beyond it rates overflow


@dataclass(frozen=True)
class EventFeaturesSpec:
    """Names of features, their means and scales in training, and the rows of the table that belong
    to each mark.

    >>> EventFeaturesSpec.from_dict(
    ...     EventFeaturesSpec(("size",), (0.0,), (1.0,), (3,)).to_dict()
    ... ).rows
    (3,)
    """

    names: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    rows: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {name: list(values) for name, values in asdict(self).items()}

    @staticmethod
    def from_dict(values: dict[str, list[Any]]) -> EventFeaturesSpec:
        """What :meth:`to_dict` gave."""
        tuples = {name: tuple(value) for name, value in values.items()}
        return EventFeaturesSpec(**tuples)


class EventFeatures(nn.Module):
    """The features of ``spec``; weights are 0 at first, so that all factors are 1.

    >>> features = EventFeatures(EventFeaturesSpec(("size",), (2.0,), (0.5,), (1,)))
    >>> with torch.no_grad():
    ...     features.weight.fill_(1.0)
    Parameter containing:
    tensor([1.], dtype=torch.float64, requires_grad=True)
    >>> features.factor(torch.tensor([[2.0], [2.5]], dtype=torch.float64)).log().tolist()
    [0.0, 1.0]
    """

    table: Float[Tensor, "R F"]

    def __init__(self, spec: EventFeaturesSpec, table: Float[ndarray, "R F"] | None = None) -> None:
        super().__init__()
        self.spec = spec
        size = len(spec.names)
        self.weight = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        rows = torch.zeros(sum(spec.rows), size, dtype=torch.float64)
        if table is not None:
            rows = torch.from_numpy(np.ascontiguousarray(table, dtype=np.float64))
        self.register_buffer("table", rows)

    def standardised(self, features: Float[Tensor, "*T F"]) -> Float[Tensor, "*T F"]:
        """(x - mean) / scale."""
        self.check_width(features.shape[-1])
        mean = features.new_tensor(self.spec.mean)
        scale = features.new_tensor(self.spec.scale)
        return (features - mean) / scale

    def factor(self, features: Float[Tensor, "*T F"]) -> Float[Tensor, "*T"]:
        """What each event's offspring are multiplied by."""
        logs = self.standardised(features) @ self.weight.to(features)
        values = logs.detach()
        if bool((values > LARGEST_LOG).any()):
            rows = features.reshape(-1, features.shape[-1])
            worst = rows[int(values.argmax())].tolist()
            shown = ", ".join(f"{n} = {x:g}" for n, x in zip(self.spec.names, worst, strict=True))
            raise UserError(
                "event features near those of the training data",
                f"{shown}, at which the rate overflows",
                "Correct the value, or give the features in the unit of the training data.",
            )
        return logs.exp()

    def bounds(self) -> tuple[Int[Tensor, " M"], Int[Tensor, " M"]]:
        """Where the rows of every mark begin and end; a mark without any shares all of them."""
        rows = torch.tensor(self.spec.rows, device=self.table.device)
        last = rows.cumsum(0)
        first = last - rows
        known = rows > 0
        whole = len(self.table)
        return torch.where(known, first, 0), torch.where(known, last, whole)

    def draw(self, marks: Int[Tensor, " B"], random: torch.Generator) -> Float[Tensor, "B F"]:
        """Features of simulated events of known marks: those of training events."""
        first, last = self.bounds()
        begin = first[marks]
        rows = last[marks] - begin
        share = torch.rand(len(marks), dtype=torch.float64, generator=random)
        return self.table[begin + (share * rows).long()]

    def mean_factor(self) -> Float[Tensor, " M"]:
        """The mean factor of training events of each mark."""
        every = self.factor(self.table)
        first, last = self.bounds()
        passed = nn.functional.pad(every.cumsum(0), (1, 0))
        total = passed[last] - passed[first]
        return total / (last - first)

    def factors_of(
        self,
        marks: Int[Tensor, " B"],
        features: Float[Tensor, "B F"] | None,
    ) -> Float[Tensor, " B"]:
        """The factors of single events; the mean of their marks for unknown features."""
        if features is None:
            return self.mean_factor()[marks]
        return self.factor(features)

    def check_width(self, width: int) -> None:
        """Refuse another number of features than in training."""
        if width != len(self.spec.names):
            raise self.missing(f"{width} event features")

    def check_names(self, data: Dataset) -> None:
        """Refuse data without these features, or with others."""
        if data.features is None:
            if data.events:
                raise self.missing("data without them")
            return
        self.check_width(data.features.shape[1])
        if feature_names(data) != self.spec.names:
            raise self.missing(f"the event features {', '.join(feature_names(data))}")

    def missing(self, received: str) -> UserError:
        """The error for events without these features."""
        return UserError(
            f"the event features {', '.join(self.spec.names)}, as the model was fitted to",
            received,
            "Pass the same columns as for the fit (--event-features, event_features=).",
        )

    def per_unit(self) -> dict[str, float]:
        """By what factor one unit more of each feature multiplies what an event triggers."""
        scale = self.weight.new_tensor(self.spec.scale)
        values = (self.weight.detach() / scale).exp().tolist()
        return dict(zip(self.spec.names, values, strict=True))

    def ratios(self, errors: Float[ndarray, " F"]) -> list[RateRatio]:
        """By what factor one unit more of each feature multiplies what an event triggers, with 95%
        intervals from standard errors of the weights; none where those are not known.
        """
        spec = self.spec
        weights = self.weight.detach().numpy()
        found = []
        for name, weight, scale, error in zip(spec.names, weights, spec.scale, errors, strict=True):
            middle = weight / scale
            spread = NORMAL * error / scale
            if not (error > 0 and abs(middle) + spread < LARGEST_LOG):
                continue
            ends = np.exp([middle - spread, middle + spread])
            low, high = ends.tolist()
            found.append(RateRatio(name, "", float(np.exp(middle)), low, high))
        return found


def feature_names(data: Dataset) -> tuple[str, ...]:
    """The names of a data set's features, x1, x2, ... if they have none."""
    if data.features is None:
        return ()
    return data.feature_names or tuple(f"x{i + 1}" for i in range(data.features.shape[1]))


def features_of(data: Dataset) -> EventFeatures:
    """The features of training data, with weights of 0.

    Raises :class:`UserError` for a feature that is constant in training.
    """
    assert data.features is not None  # the caller asks
    names = feature_names(data)
    if not data.events:
        raise UserError(
            f"events with the features {', '.join(names)}",
            "training data without events",
            "Read or select some.",
        )
    mean = data.features.mean(0)
    scale = data.features.std(0)
    for name, centre, spread, values in zip(names, mean, scale, data.features.T, strict=True):
        if not spread > 1e-12 * np.abs(values).max():
            raise UserError(
                "event features that vary in the training data",
                f"{name} = {centre:g} in all events",
                "Leave it out of the event features.",
            )
    rows, parts = [], []
    for mark in range(data.marks.count):
        own = _spread_rows(data.features[data.mark_ids == mark])
        rows.append(len(own))
        parts.append(own)
    spec = EventFeaturesSpec(
        names=names,
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        rows=tuple(rows),
    )
    return EventFeatures(spec, np.concatenate(parts))


def _spread_rows(features: Float[ndarray, "N F"]) -> Float[ndarray, "R F"]:
    """At most MOST_ROWS of the rows: one drawn from each of as many equal parts, in the order of
    the first feature, so that its law is kept far into both tails.
    """
    if len(features) <= MOST_ROWS:
        return features
    order = np.argsort(features[:, 0], kind="stable")
    edges = np.linspace(0, len(features), MOST_ROWS + 1)
    share = np.random.default_rng(0).random(MOST_ROWS)
    picked = edges[:-1] + share * np.diff(edges)
    return features[order[picked.astype(np.int64)]]
