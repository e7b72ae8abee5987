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

# Sequence, start, stop, and how many events were expected.
Outage = tuple[int, float, float, float]
FEWEST = 300  # events of a log in which outages are looked for
FEW_SEQUENCES = 3  # beyond them silences differ between sequences for other reasons
MARGIN = 12.0
LEAST = 15.0  # expected events of an outage
QUANTILE = 0.99
KEPT = 0.02  # of a silence at both of its ends that still counts as observed
ROUNDS = 3
MOST_SHARE = 0.3  # of the time that outages may be


def find_outages(data: Dataset, spec: EffectsSpec) -> list[Outage]:
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
    found: list[Outage] = []
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
        theta = np.append(fitted.level, fitted.weight[:, 0])
        more = _unlikely(masked, spec, theta, found)
        if not more:
            break
        found += more
    lost = sum(stop - start for _, start, stop, _ in found)
    if lost > MOST_SHARE * float(data.durations.sum()):
        return []
    return sorted(found)


def without(data: Dataset, outages: list[Outage]) -> Dataset:
    """The data with an exposure of 0 during the outages, as far as they lie in its windows."""
    if not outages:
        return data
    parts = []
    for s in range(len(data)):
        begin = data.starts[s]
        times = [begin]
        values = [1.0]
        for row, start, stop, _ in sorted(outages):
            if row == s and stop > begin and start < data.stops[s]:
                times += [start, stop]
                values += [0.0, 1.0]
        exposure = Steps(
            names=("exposure",),
            times=np.array(times),
            values=np.array(values)[:, None],
            offsets=np.array([0, len(times)]),
        )
        parts.append(exposure)
    context = data.context or Context()
    context = replace(context, exposure=Steps.join(parts))
    return replace(data, context=context)


def say(data: Dataset, outages: list[Outage]) -> list[str]:
    """What is printed about outages."""
    found = []
    for s, start, stop, expected in outages[:10]:
        dates = data.dates(s)
        found.append(
            f"no events from {shown(dates, start)} to {shown(dates, stop)}, where about "
            f"{expected:,.0f} were expected: treated as not recorded (outages=none counts it as "
            "observed; --gaps names intervals)"
        )
    return found


def _whole(context: Context | None) -> Context | None:
    """The context with all time scored."""
    if context is None:
        return None
    return context.without("scored_from", "exposure")


def _unlikely(
    data: Dataset,
    spec: EffectsSpec,
    theta: Float[ndarray, " P"],
    known: list[Outage],
) -> list[Outage]:
    """Silences that are too long for the rate, among those that are not known as outages."""
    rows, left, right, expected = _silences(data, spec, theta)
    size = len(expected)
    order = np.sort(expected)
    few = max(3, size // 2000)  # the longest ones may be outages: the tail is read without them
    trusted = order[:-few]
    q = float(np.quantile(trusted, QUANTILE))
    tail = trusted[trusted > q] - q
    mean = 1.0
    if len(tail):
        mean = max(mean, float(tail.mean()))
    in_tail = size * (1 - QUANTILE)
    margin = np.log(in_tail + 1) + MARGIN
    limit = max(LEAST, q + mean * margin)
    found = []
    for i in np.flatnonzero(expected > limit):
        row = int(rows[i])
        ends = KEPT * (right[i] - left[i])
        start = float(left[i] + ends)
        stop = float(right[i] - ends)
        is_known = any(one == row and start < b and stop > a for one, a, b, _ in known)
        if not is_known:
            found.append((row, start, stop, float(expected[i])))
    return found


def _silences(
    data: Dataset, spec: EffectsSpec, theta: Float[ndarray, " P"]
) -> tuple[ndarray, Float[ndarray, " G"], Float[ndarray, " G"], Float[ndarray, " G"]]:
    """Sequence, ends and expected count of every gap between neighbouring events, and from the
    window's ends to the first and the last event.
    """
    rows = []
    left = []
    right = []
    expected = []
    for s in range(len(data)):
        own = data.select([s])
        design = integral_design(own, spec)
        times, _, _ = integral_nodes(own, Effects(spec, 1))
        order = np.argsort(times)
        log_rates = np.minimum(design.nodes @ theta, 700.0)
        mass = (design.weights * np.exp(log_rates))[order]
        passed = np.cumsum(mass) - mass / 2
        edges = np.concatenate([own.starts, own.times, own.stops])
        at = np.interp(edges, times[order], passed)
        rows.append(np.full(len(edges) - 1, s))
        left.append(edges[:-1])
        right.append(edges[1:])
        expected.append(np.diff(at))
    return (
        np.concatenate(rows),
        np.concatenate(left),
        np.concatenate(right),
        np.concatenate(expected),
    )
