"""Processes whose truth is known: simulate them exactly, and score any model against their own
rate.

    hawkes              10 + sum_j exp(-(t - t_j))                            15 events on [0, 1)
    self_correcting     exp(10 t - N(t))                                      7.95
    nonhomogeneous1     100 phi(t - 1/2)                                      38.3
    nonhomogeneous2     50 phi(6 (t - .35)) + 50 phi(6 (t - .75))             16.0
    space_time_hawkes   5 + sum_j .5 exp(-(t - t_j)) N(x - x_j; sd .1)        169.4 on [0, 20)

The last is on the unit square. phi is the standard normal density. With ``amplitude="random"``
every bump of the two nonhomogeneous processes is multiplied by a fresh U[0, 1] in every sequence:
a Cox process, whose rate given the past is the filtered one, E[sum_b U_b f_b(t) | past].

Simulation is exact: Poisson counts placed by the inverse of their distribution, and for the first
two processes the next event by inversion, all sequences side by side; the last by its branches,
generation after generation. Its events have places: 5 per unit of time appear anywhere in the
square, and each is followed by a Poisson number of others, .5 on average, around it. Those that
fall outside the square are not observed and are followed by nothing, so that the rate inside is
exactly the one above.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import erf, sqrt
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Box, Dataset, MarkSpace, UserError
from fourpoint.events.batching import offsets_of
from fourpoint.models.base import PointProcess
from fourpoint.models.bumps import Bump, Bumps, FilteredBumps

Amplitude = Literal["fixed", "random"]
SQUARE = MarkSpace(box=Box(("x", "y"), (0.0, 0.0), (1.0, 1.0)))


class Events(NamedTuple):
    """Times, the sequence that each belongs to, and places where the process has them."""

    times: NDArray[np.float64]
    rows: NDArray[np.int64]
    places: NDArray[np.float64] | None = None


def simulate(name: str, sequences: int, seed: int = 0, amplitude: Amplitude = "fixed") -> Dataset:
    """Draw ``sequences`` independent sequences from the process called ``name``, on its own window.

    >>> data = simulate("nonhomogeneous2", 1000, seed=1)
    >>> len(data), data.name, abs(data.events / 1000 - 16.0) < 0.5
    (1000, 'nonhomogeneous2', True)
    """
    return process(name, amplitude).simulate(sequences, seed)


def process(name: str, amplitude: Amplitude = "fixed") -> Process:
    """The process called ``name``, in any spelling; ``nonhomogeneous1-random`` is short for
    ``amplitude="random"``.

    >>> process("self-correcting").name, process("Nonhomogeneous1", "random").name
    ('self_correcting', 'nonhomogeneous1-random')
    """
    known = {_plain(key): key for key in PROCESSES}
    plain = _plain(name)
    if plain.endswith("random"):
        plain = plain.removesuffix("random")
        amplitude = "random"
    if plain not in known:
        near = get_close_matches(plain, known, n=1, cutoff=0.4)
        remedy = f"Did you mean {known[near[0]]!r}?" if near else "Choose one of them."
        raise UserError(f"a process among {', '.join(PROCESSES)}", f"{name!r}", remedy)
    if amplitude not in ("fixed", "random"):
        raise UserError("amplitude fixed or random", f"{amplitude!r}", "Use one of the two.")
    found = PROCESSES[known[plain]]
    return found if amplitude == "fixed" else _with_random_amplitude(found)


@dataclass(frozen=True)
class Process:
    """A point process on [0, stop) with its exact simulation and its exact rate.

    ``mean_count`` is the expected number of events on [0, ``stop``); ``truth()`` is a model with
    the methods of ``models.base``, so that likelihoods and plots work on it as on any other.
    """

    name: str
    description: str
    mean_count: float
    draw: Callable[[np.random.Generator, int, float], Events]
    truth: Callable[[], PointProcess]
    bumps: tuple[Bump, ...] = ()
    stop: float = 1.0
    space: MarkSpace = MarkSpace()

    def simulate(self, sequences: int, seed: int = 0, stop: float | None = None) -> Dataset:
        """Draw sequences on [0, stop), the process's own window where ``stop`` is None.

        >>> PROCESSES["hawkes"].simulate(3, seed=1)
        Dataset(3 sequences, 45 events, no marks, windows of 1)
        """
        end = self.stop if stop is None else float(stop)
        if sequences < 1 or not 0 < end < np.inf:
            raise UserError(
                "at least one sequence and a positive end",
                f"sequences={sequences}, stop={end:g}",
                "Raise them.",
            )
        times, rows, places = self.draw(np.random.default_rng(seed), sequences, end)
        order = np.lexsort((times, rows))
        offsets = offsets_of(np.bincount(rows, minlength=sequences))
        marks = np.zeros(len(times), dtype=np.int64)
        where = None if places is None else places[order]
        edges = np.zeros(sequences), np.full(sequences, end)
        return Dataset(
            times[order], marks, offsets, *edges, self.space, name=self.name, places=where
        )


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _hawkes(
    rng: np.random.Generator,
    sequences: int,
    stop: float,
    mu: float = 10.0,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Events:
    """Dassios and Zhao (2013): the next event is the earlier of one from the base and one from the
    excited part.
    """
    rows = np.arange(sequences)
    t = np.zeros(sequences)
    excited = np.zeros(sequences)
    parts = []
    while len(rows):
        with np.errstate(divide="ignore"):
            left = 1 - beta * rng.exponential(size=len(rows)) / excited
            own = np.where(left > 0, -np.log(np.maximum(left, 0)) / beta, np.inf)
        gap = np.minimum(own, rng.exponential(size=len(rows)) / mu)
        t = t + gap
        excited = excited * np.exp(-beta * gap) + alpha * beta
        inside = t < stop
        rows = rows[inside]
        t = t[inside]
        excited = excited[inside]
        parts.append(Events(t, rows))
    return _joined(parts)


def _self_correcting(
    rng: np.random.Generator,
    sequences: int,
    stop: float,
    drift: float = 10.0,
    correction: float = 1.0,
) -> Events:
    """The integral of the rate from the last event reaches an Exp(1) draw at t + log(1 + drift e /
    rate) / drift.
    """
    rows = np.arange(sequences)
    t = np.zeros(sequences)
    n = 0
    parts = []
    while len(rows):
        e = rng.exponential(size=len(rows))
        needed = np.log(drift * e) - drift * t + correction * n
        t = t + np.logaddexp(0, needed) / drift
        n += 1
        rows = rows[t < stop]
        t = t[t < stop]
        parts.append(Events(t, rows))
    return _joined(parts)


def _space_time_hawkes(
    rng: np.random.Generator,
    sequences: int,
    stop: float,
    mu: float = 5.0,
    alpha: float = 0.5,
    beta: float = 1.0,
    spread: float = 0.1,
) -> Events:
    """Generation after generation: a Poisson number of offspring of each event, exponential in
    time, normal in space.
    """
    number = rng.poisson(mu * stop, sequences)
    times = rng.random(number.sum()) * stop
    rows = np.repeat(np.arange(sequences), number)
    places = rng.random((number.sum(), 2))
    parts = [Events(times, rows, places)]
    while len(times):
        parent = np.repeat(np.arange(len(times)), rng.poisson(alpha, len(times)))
        times = times[parent] + rng.exponential(1 / beta, len(parent))
        places = places[parent] + spread * rng.standard_normal((len(parent), 2))
        kept = (times < stop) & ((places >= 0) & (places <= 1)).all(1)
        times = times[kept]
        rows = rows[parent][kept]
        places = places[kept]
        parts.append(Events(times, rows, places))
    return _joined(parts)


def _bumps(
    bumps: tuple[Bump, ...], amplitude: Amplitude
) -> Callable[[np.random.Generator, int, float], Events]:
    def draw(rng: np.random.Generator, sequences: int, stop: float) -> Events:
        """Poisson counts, then the inverse normal distribution cut to the window."""
        from scipy.special import ndtr, ndtri

        parts = []
        for height, speed, centre in bumps:
            low = ndtr(-speed * centre)
            high = ndtr(speed * (stop - centre))
            factor = rng.random(sequences) if amplitude == "random" else np.ones(sequences)
            number = rng.poisson(factor * height / speed * (high - low))
            times = centre + ndtri(rng.uniform(low, high, number.sum())) / speed
            # Only the last bit of a draw at the very edge can fall outside.
            parts.append(
                Events(
                    np.clip(times, 0.0, np.nextafter(stop, 0.0)),
                    np.repeat(np.arange(sequences), number),
                )
            )
        return _joined(parts)

    return draw


def _joined(parts: list[Events]) -> Events:
    places = [part.places for part in parts if part.places is not None]
    together = np.concatenate(places) if places else None
    return Events(
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.rows for part in parts]),
        together,
    )


def _mean(bumps: tuple[Bump, ...]) -> float:
    total = 0.0
    for height, speed, centre in bumps:
        before = erf(speed * centre / sqrt(2))
        after = erf(speed * (1 - centre) / sqrt(2))
        total += height / speed * (after + before) / 2
    return total


def _with_random_amplitude(fixed: Process) -> Process:
    if not fixed.bumps:
        can = ", ".join(name for name, p in PROCESSES.items() if p.bumps)
        raise UserError(
            f"a process with amplitudes ({can}) for amplitude='random'",
            f"{fixed.name!r}",
            "Use amplitude='fixed'.",
        )
    return replace(
        fixed,
        name=f"{fixed.name}-random",
        description=f"{fixed.description}, each bump times U[0, 1]",
        mean_count=fixed.mean_count / 2,
        draw=_bumps(fixed.bumps, "random"),
        truth=lambda: FilteredBumps(fixed.bumps),
    )


def _hawkes_truth() -> PointProcess:
    from fourpoint.models.hawkes import Hawkes

    return Hawkes(baseline=10.0, branching=1.0, decay=1.0)


def _self_correcting_truth() -> PointProcess:
    from fourpoint.models.self_correcting import SelfCorrecting

    return SelfCorrecting(drift=10.0, correction=1.0)


def _space_time_hawkes_truth() -> PointProcess:
    from fourpoint.models.spatial.hawkes import SpatialHawkes

    return SpatialHawkes(SQUARE, baseline=5.0, branching=0.5, decay=1.0, spread=0.1)


def _bump_process(name: str, description: str, bumps: tuple[Bump, ...]) -> Process:
    return Process(
        name, description, _mean(bumps), _bumps(bumps, "fixed"), lambda: Bumps(bumps), bumps
    )


PROCESSES: dict[str, Process] = {
    p.name: p
    for p in (
        Process("hawkes", "10 + sum_j exp(-(t - t_j))", 15.0, _hawkes, _hawkes_truth),
        Process(
            "self_correcting",
            "exp(10 t - N(t))",
            7.9544868,
            _self_correcting,
            _self_correcting_truth,
        ),
        _bump_process("nonhomogeneous1", "100 phi(t - 1/2)", ((100.0, 1.0, 0.5),)),
        _bump_process(
            "nonhomogeneous2",
            "50 phi(6 (t - .35)) + 50 phi(6 (t - .75))",
            ((50.0, 6.0, 0.35), (50.0, 6.0, 0.75)),
        ),
        Process(
            "space_time_hawkes",
            "5 + sum_j .5 exp(-(t - t_j)) N(x - x_j; .1), t in [0, 20), x in the unit square",
            169.3876755,
            _space_time_hawkes,
            _space_time_hawkes_truth,
            stop=20.0,
            space=SQUARE,
        ),
    )
}
"""The processes that ``fp.simulate`` draws from, by name, each with its true rate.

>>> import fourpoint as fp
>>> fp.PROCESSES["hawkes"].description
'10 + sum_j exp(-(t - t_j))'
"""
