r"""At which frequencies do events keep time? Peaks of their periodogram, and the tick of the clock they were read from.

Of S stretches of events, each of n_s events at times t, the mean periodogram is

    P(w) = 1/S sum_s 1/n_s | sum_i exp(i w t_i) |^2,

about 1 where events know nothing of w, and larger where they come in step: a daily rhythm stands out at w = 2 pi / day although
every sequence has a phase of its own. P is compared with the median L of its neighbours, and since S P / L is about gamma
distributed there,

    z(w) = 3 sqrt(S) (1 - 1/(9 S)) ((P / L)^(1/3) - 1)

is about standard normal (Wilson and Hilferty, 1931). Peaks with a large z are frequencies worth beginning with. Times read from
a clock of tick r repeat themselves at w = 2 pi / r, which is the clock's rhythm and not the events'; frequencies above pi / r
cannot be told from lower ones and are left out. Used by Deep DAPP.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PIECE = 200  # events of a stretch: longer sequences are cut
STRETCHES = 400  # at most so many are looked at
FINEST = 2**17  # bins of the longest stretch
NEIGHBOURS = 101  # frequencies whose median a peak is compared with
OVERSAMPLED = 3  # frequencies per resolved one
SHORTEST = 0.1  # shortest period looked at, in median gaps
COARSE = 10  # ticks: where a quarter of all gaps is no longer, a clock is coarse
MULTIPLES = 1e-3  # how far gaps may be from multiples of a clock's tick, in ticks


def peaks(
    times: NDArray[np.float64], offsets: NDArray[np.int64], *, most: int = 8, least: float = 5.0, seed: int = 0
) -> NDArray[np.float64]:
    """At most ``most`` angular frequencies whose z is at least ``least``, the strongest first; per unit of time.

    Sequence i owns ``times[offsets[i]:offsets[i + 1]]``; a ``seed``-ed draw of stretches is looked at where there are many.

    >>> random = np.random.default_rng(0)
    >>> days = [np.sort(random.permutation(60)[:20] + random.normal(0, 0.05, 20)) for _ in range(40)]
    >>> found = peaks(np.concatenate(days), np.arange(0, 801, 20))
    >>> round(2 * np.pi / float(found[0]), 2)  # a day
    1.0
    """
    stretches = _stretches(times, offsets, seed)
    gaps = np.concatenate([np.diff(s) for s in stretches]) if stretches else np.zeros(0)
    gaps = gaps[gaps > 0]
    if not len(gaps):
        return np.zeros(0)
    tick = clock(gaps)
    period = max(SHORTEST * float(np.median(gaps)), 2 * tick)
    span = float(np.median([s[-1] - s[0] for s in stretches]))
    width = max(period / 4, OVERSAMPLED * span / FINEST)
    if tick:  # bins of whole ticks: others would hold now one tick and now two, which looks like a rhythm
        width = tick * max(0.5, np.floor(width / tick))
    bins = int(2 ** np.ceil(np.log2(max(2.0, OVERSAMPLED * span / width))))
    last = min(bins // 4, int(bins * width / period)) + 1
    if last - OVERSAMPLED < NEIGHBOURS:
        return np.zeros(0)
    power = np.zeros(last)
    for s in stretches:
        place = ((s - s[0]) / width + MULTIPLES).astype(np.int64)
        place = place[place < bins]
        power += np.abs(np.fft.rfft(np.bincount(place, minlength=bins))[:last]) ** 2 / len(place)
    return 2 * np.pi / (bins * width) * _standing_out(power / len(stretches), len(stretches), most, least)


def clock(gaps: NDArray[np.float64]) -> float:
    """The tick that all of these positive gaps are multiples of, or 0 where there is none.

    >>> clock(np.array([0.003, 0.001, 0.014]))
    0.001
    >>> clock(np.array([0.2871, 0.1001, 0.5737001]))
    0.0
    """
    smallest = float(gaps.min())
    for parts in (1, 2, 3):
        ticks = gaps * (parts / smallest)
        if np.all(np.abs(ticks - np.round(ticks)) < MULTIPLES * np.maximum(1.0, 1e-6 * ticks)):
            return smallest / parts
    return 0.0


def coarse_clock(gaps: NDArray[np.float64]) -> float:
    """The tick of these positive gaps where a quarter of them is at most COARSE ticks long, so that a rate can aim at ticks; 0 otherwise.

    >>> coarse_clock(np.array([3.0, 1.0, 14.0])), coarse_clock(np.array([1.0, 50.0, 70.0, 90.0]))
    (1.0, 0.0)
    """
    tick = clock(gaps) if len(gaps) else 0.0
    return tick if tick and np.quantile(gaps, 0.25) <= COARSE * tick else 0.0


def _stretches(times: NDArray[np.float64], offsets: NDArray[np.int64], seed: int) -> list[NDArray[np.float64]]:
    found = []
    for i in np.random.default_rng(seed).permutation(len(offsets) - 1):
        sequence = times[offsets[i] : offsets[i + 1]]
        pieces = [sequence[first : first + PIECE] for first in range(0, len(sequence), PIECE)]
        found += [piece for piece in pieces if len(piece) > 2 and piece[-1] > piece[0]]
        if len(found) >= STRETCHES:
            break
    return found[:STRETCHES]


def _standing_out(power: NDArray[np.float64], stretches: int, most: int, least: float) -> NDArray[np.float64]:
    """Places of local maxima far above their neighbourhood's median; between indices, by the parabola through three of them."""
    around = np.lib.stride_tricks.sliding_window_view(np.pad(power, NEIGHBOURS // 2, mode="edge"), NEIGHBOURS)
    ratio = power / np.maximum(np.median(around, 1), np.finfo(float).tiny)
    z = 3 * np.sqrt(stretches) * (1 - 1 / (9 * stretches)) * (np.cbrt(ratio) - 1)
    top = np.flatnonzero((power[1:-1] > power[:-2]) & (power[1:-1] >= power[2:])) + 1
    top = top[(top >= OVERSAMPLED) & (z[top] >= least)]
    top = top[np.argsort(-z[top], kind="stable")][:most]
    left, here, right = power[top - 1], power[top], power[top + 1]
    return top + 0.5 * (left - right) / (left - 2 * here + right)
