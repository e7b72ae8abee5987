"""Processes whose truth is known: simulate them exactly, and score any model against their own rate.

    hawkes              10 + sum_j exp(-(t - t_j))                            15 events on [0, 1)
    self_correcting     exp(10 t - N(t))                                      7.95
    nonhomogeneous1     100 phi(t - 1/2)                                      38.3
    nonhomogeneous2     50 phi(6 (t - .35)) + 50 phi(6 (t - .75))             16.0

phi is the standard normal density. With ``amplitude="random"`` every bump of the last two is multiplied by a fresh
U[0, 1] in every sequence: a Cox process, whose rate given the past is the filtered one, E[sum_b U_b f_b(t) | past].
Simulation is exact: Poisson counts placed by the inverse of their distribution, and for the first two the next event by
inversion, all sequences side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import erf, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Dataset, UserError
from fourpoint.models import protocol
from fourpoint.models.bumps import Bump, Bumps, FilteredBumps

Amplitude = Literal["fixed", "random"]
Events = tuple[NDArray[np.float64], NDArray[np.int64]]  # times, and the sequence that each belongs to


def simulate(name: str, sequences: int, seed: int = 0, amplitude: Amplitude = "fixed") -> Dataset:
    """Draw ``sequences`` independent sequences on [0, 1) from the process called ``name``.

    >>> data = simulate("nonhomogeneous2", 1000, seed=1)
    >>> len(data), data.name, abs(data.events / 1000 - 16.0) < 0.5
    (1000, 'nonhomogeneous2', True)
    """
    return process(name, amplitude).simulate(sequences, seed)


def process(name: str, amplitude: Amplitude = "fixed") -> Process:
    """The process called ``name``, in any spelling; ``nonhomogeneous1-random`` is short for ``amplitude="random"``.

    >>> process("self-correcting").name, process("Nonhomogeneous1", "random").name
    ('self_correcting', 'nonhomogeneous1-random')
    """
    known = {_plain(key): key for key in PROCESSES}
    plain = _plain(name)
    if plain.endswith("random"):
        plain, amplitude = plain.removesuffix("random"), "random"
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

    ``mean_count`` is the expected number of events on [0, ``stop``); ``truth()`` is a model with the verbs of
    ``protocol.py``, so that likelihoods and plots work on it as on any other.
    """

    name: str
    description: str
    mean_count: float
    draw: Callable[[np.random.Generator, int, float], Events]
    truth: Callable[[], protocol.Model[Any]]
    bumps: tuple[Bump, ...] = ()
    stop: float = 1.0

    def simulate(self, sequences: int, seed: int = 0, stop: float | None = None) -> Dataset:
        """Draw sequences on [0, stop), the process's own window where ``stop`` is None.

        >>> PROCESSES["hawkes"].simulate(3, seed=1)
        Dataset(3 sequences, 45 events, no marks, windows of 1)
        """
        end = self.stop if stop is None else float(stop)
        if sequences < 1 or not 0 < end < np.inf:
            raise UserError("at least one sequence and a positive end", f"sequences={sequences}, stop={end:g}", "Raise them.")
        times, rows = self.draw(np.random.default_rng(seed), sequences, end)
        order = np.lexsort((times, rows))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=sequences))])
        marks = np.zeros(len(times), dtype=np.int64)
        return Dataset(times[order], marks, offsets, np.zeros(sequences), np.full(sequences, end), name=self.name)


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _hawkes(rng: np.random.Generator, sequences: int, stop: float, mu: float = 10.0, alpha: float = 1.0, beta: float = 1.0) -> Events:
    """Dassios and Zhao (2013): the next event is the earlier of one from the base and one from the excited part."""
    rows, t, excited = np.arange(sequences), np.zeros(sequences), np.zeros(sequences)
    parts = []
    while len(rows):
        with np.errstate(divide="ignore"):
            left = 1 - beta * rng.exponential(size=len(rows)) / excited
            own = np.where(left > 0, -np.log(np.maximum(left, 0)) / beta, np.inf)
        gap = np.minimum(own, rng.exponential(size=len(rows)) / mu)
        t, excited = t + gap, excited * np.exp(-beta * gap) + alpha * beta
        inside = t < stop
        rows, t, excited = rows[inside], t[inside], excited[inside]
        parts.append((t, rows))
    return _joined(parts)


def _self_correcting(rng: np.random.Generator, sequences: int, stop: float, drift: float = 10.0, correction: float = 1.0) -> Events:
    """The integral of the rate from the last event reaches an Exp(1) draw at t + log(1 + drift e / rate) / drift."""
    rows, t, n = np.arange(sequences), np.zeros(sequences), 0
    parts = []
    while len(rows):
        e = rng.exponential(size=len(rows))
        t = t + np.logaddexp(0, np.log(drift * e) - drift * t + correction * n) / drift
        n += 1
        rows, t = rows[t < stop], t[t < stop]
        parts.append((t, rows))
    return _joined(parts)


def _bumps(bumps: tuple[Bump, ...], amplitude: Amplitude) -> Callable[[np.random.Generator, int, float], Events]:
    def draw(rng: np.random.Generator, sequences: int, stop: float) -> Events:
        """Poisson counts, then the inverse normal distribution cut to the window."""
        from scipy.special import ndtr, ndtri

        parts = []
        for height, speed, centre in bumps:
            low, high = ndtr(-speed * centre), ndtr(speed * (stop - centre))
            factor = rng.random(sequences) if amplitude == "random" else np.ones(sequences)
            number = rng.poisson(factor * height / speed * (high - low))
            times = centre + ndtri(rng.uniform(low, high, number.sum())) / speed
            # Only the last bit of a draw at the very edge can fall outside.
            parts.append((np.clip(times, 0.0, np.nextafter(stop, 0.0)), np.repeat(np.arange(sequences), number)))
        return _joined(parts)

    return draw


def _joined(parts: list[Events]) -> Events:
    return np.concatenate([t for t, _ in parts]), np.concatenate([r for _, r in parts])


def _mean(bumps: tuple[Bump, ...]) -> float:
    return sum(c / s * (erf(s * (1 - m) / sqrt(2)) + erf(s * m / sqrt(2))) / 2 for c, s, m in bumps)


def _with_random_amplitude(fixed: Process) -> Process:
    if not fixed.bumps:
        can = ", ".join(name for name, p in PROCESSES.items() if p.bumps)
        raise UserError(f"a process with amplitudes ({can}) for amplitude='random'", f"{fixed.name!r}", "Use amplitude='fixed'.")
    return replace(
        fixed,
        name=f"{fixed.name}-random",
        description=f"{fixed.description}, each bump times U[0, 1]",
        mean_count=fixed.mean_count / 2,
        draw=_bumps(fixed.bumps, "random"),
        truth=lambda: FilteredBumps(fixed.bumps),
    )


def _hawkes_truth() -> protocol.Model[Any]:
    from fourpoint.models.hawkes import Hawkes

    return Hawkes(baseline=10.0, branching=1.0, decay=1.0)


def _self_correcting_truth() -> protocol.Model[Any]:
    from fourpoint.models.self_correcting import SelfCorrecting

    return SelfCorrecting(drift=10.0, correction=1.0)


def _bump_process(name: str, description: str, bumps: tuple[Bump, ...]) -> Process:
    return Process(name, description, _mean(bumps), _bumps(bumps, "fixed"), lambda: Bumps(bumps), bumps)


PROCESSES: dict[str, Process] = {
    p.name: p
    for p in (
        Process("hawkes", "10 + sum_j exp(-(t - t_j))", 15.0, _hawkes, _hawkes_truth),
        Process("self_correcting", "exp(10 t - N(t))", 7.9544868, _self_correcting, _self_correcting_truth),
        _bump_process("nonhomogeneous1", "100 phi(t - 1/2)", ((100.0, 1.0, 0.5),)),
        _bump_process("nonhomogeneous2", "50 phi(6 (t - .35)) + 50 phi(6 (t - .75))", ((50.0, 6.0, 0.35), (50.0, 6.0, 0.75))),
    )
}
