"""Outages of the recorder: silences in a log that the rate of its events cannot explain.

A silence between two events of expected count Lambda, the integral of a Poisson rate with the
calendar over it, has probability exp(-Lambda) if events come independently, and a larger one if
they cluster. How much larger is read off the other silences: beyond their 99% quantile q the excess
is taken as exponential with the mean s of the excesses observed. A silence is an outage if its
probability under that tail, times the number of silences, is below exp(-MARGIN).

Left in, an outage looks like clustering: a rate that is 0 for a day and normal before and after it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from fourpoint.events import Context, Dataset, MarkSpace, Steps
from fourpoint.events.dates import shown
from fourpoint.models.effects import Effects, EffectsSpec
from fourpoint.models.effects_fit import fit_effects, integral_design, integral_nodes

FEWEST = 300  # events of a log in which outages are looked for
FEW_SEQUENCES = 3  # beyond them silences differ between sequences for other reasons
MARGIN = 12.0
LEAST = 15.0  # expected events of an outage
QUANTILE = 0.99
KEPT = 0.02  # of a silence at both of its ends that still counts as observed
ROUNDS = 3
MOST_SHARE = 0.3  # of the time that outages may be


def find_outages(data: Dataset, spec: EffectsSpec) -> list[tuple[int, float, float, float]]:
    """Outages in logs of few sequences without an exposure of their own: sequence, start and stop
    in the data's unit, and how many events were expected.

    >>> from fourpoint.events import Sequence
    >>> times = np.arange(0.5, 1000.0) + 0.3 * np.sin(np.arange(1000.0))
    >>> kept = times[(times < 400) | (times > 460)]
    >>> log = Dataset.from_sequences([Sequence(kept, start=0.0, stop=1000.0)])
    >>> [(a > 400, b < 461) for _, a, b, _ in find_outages(log, EffectsSpec())]
    [(True, True)]
    """
    known = data.context is not None and data.context.exposure is not None
    if known or data.events < FEWEST or len(data) > FEW_SEQUENCES:
        return []
    found: list[tuple[int, float, float, float]] = []
    pooled = replace(
        data,
        mark_ids=np.zeros_like(data.mark_ids),
        marks=MarkSpace(),
        places=None,
        context=_whole(data.context),
    )
    for _ in range(ROUNDS):
        masked = without(pooled, found)
        fitted = fit_effects(masked, spec)
        more = _unlikely(masked, spec, np.append(fitted.level, fitted.weight[:, 0]), found)
        if not more:
            break
        found += more
    lost = sum(b - a for _, a, b, _ in found)
    return [] if lost > MOST_SHARE * float(data.durations.sum()) else sorted(found)


def without(data: Dataset, outages: list[tuple[int, float, float, float]]) -> Dataset:
    """The data with an exposure of 0 during the outages, as far as they lie in its windows."""
    if not outages:
        return data
    parts = []
    for s in range(len(data)):
        times = [data.starts[s]]
        values = [1.0]
        for row, a, b, _ in sorted(outages):
            if row == s and b > data.starts[s] and a < data.stops[s]:
                times += [a, b]
                values += [0.0, 1.0]
        parts.append(
            Steps(
                ("exposure",), np.array(times), np.array(values)[:, None], np.array([0, len(times)])
            )
        )
    context = Context() if data.context is None else data.context
    return replace(data, context=replace(context, exposure=Steps.join(parts)))


def say(data: Dataset, outages: list[tuple[int, float, float, float]]) -> list[str]:
    """What is printed about outages."""
    found = []
    for s, a, b, expected in outages[:10]:
        dates = data.dates(s)
        begin = shown(dates, a)
        end = shown(dates, b)
        found.append(
            f"no events from {begin} to {end}, where about {expected:,.0f} were expected: "
            "treated as not recorded (outages=none counts it as observed; --gaps names intervals)"
        )
    return found


def _whole(context: Context | None) -> Context | None:
    """The context with all time scored."""
    return None if context is None else context.without("scored_from", "exposure")


def _unlikely(
    data: Dataset,
    spec: EffectsSpec,
    theta: Float[ndarray, " P"],
    known: list[tuple[int, float, float, float]],
) -> list[tuple[int, float, float, float]]:
    """Silences that are too long for the rate, among those that are not known as outages."""
    rows, left, right, expected = _silences(data, spec, theta)
    size = len(expected)
    order = np.sort(expected)
    few = max(3, size // 2000)  # the longest ones may be outages: the tail is read without them
    trusted = order[:-few]
    q = float(np.quantile(trusted, QUANTILE))
    tail = trusted[trusted > q] - q
    mean = float(tail.mean()) if len(tail) else 1.0
    in_tail = size * (1 - QUANTILE)
    limit = max(LEAST, q + max(mean, 1.0) * (np.log(in_tail + 1) + MARGIN))
    found = []
    for i in np.flatnonzero(expected > limit):
        ends = KEPT * (right[i] - left[i])
        a = float(left[i] + ends)
        b = float(right[i] - ends)
        if not any(row == rows[i] and a < stop and b > start for row, start, stop, _ in known):
            found.append((int(rows[i]), a, b, float(expected[i])))
    return found


def _silences(
    data: Dataset, spec: EffectsSpec, theta: Float[ndarray, " P"]
) -> tuple[ndarray, Float[ndarray, " G"], Float[ndarray, " G"], Float[ndarray, " G"]]:
    """Sequence, ends and expected count of every gap between neighbouring events, and from the
    window's ends to the first and the last event.
    """
    every: list[tuple[ndarray, ...]] = []
    for s in range(len(data)):
        own = data.select([s])
        design = integral_design(own, spec)
        times, _, _ = integral_nodes(own, Effects(spec, 1))
        order = np.argsort(times)
        rates = np.exp(np.minimum(design.nodes @ theta, 700.0))
        mass = (design.weights * rates)[order]
        passed = np.cumsum(mass) - mass / 2
        edges = np.concatenate([own.starts, own.times, own.stops])
        at = np.interp(edges, times[order], passed)
        row = np.full(len(edges) - 1, s)
        every.append((row, edges[:-1], edges[1:], np.diff(at)))
    rows, left, right, expected = (np.concatenate(x) for x in zip(*every, strict=True))
    return rows, left, right, expected
