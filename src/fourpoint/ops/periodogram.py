r"""At which frequencies events keep time: peaks of their periodogram; the timestamp resolution.

Of S stretches of events, each of n_s events at times t, the mean periodogram is

    P(w) = 1/S sum_s 1/n_s | sum_i exp(i w t_i) |^2,

about 1 where events know nothing of w, and larger where they come in step: a daily rhythm stands
out at w = 2 pi / day although every sequence has a phase of its own. P is compared with the
median L of its neighbours, and since S P / L is about gamma distributed there,

    z(w) = 3 sqrt(S) (1 - 1/(9 S)) ((P / L)^(1/3) - 1)

is about standard normal (Wilson and Hilferty, 1931). Peaks with a large z are frequencies worth
beginning with.

Stretches are chosen in two ways. Those of PIECE events show rhythms of up to about a hundred
gaps. In a busy log a day has thousands of events, and no such stretch lasts as long; so sequences
are also cut by time, into pieces of the longest sequence's length, a STEP-th of it, and so on
down to the former. Events are counted in bins, less the mean count and under a Hann window, since
the ends of a piece and the slow course of a rate would leak into all frequencies (n events in one
piece make a leak of order n). A piece shows periods of which it holds at least CYCLES, and a peak
has to stand out above the neighbours on both of its sides: where events cluster, power falls with
frequency, and that decline is no rhythm.

Times of resolution r repeat themselves at w = 2 pi / r, which is the clock's rhythm and not the
events'; frequencies above pi / r cannot be told from lower ones and are left out.
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
STEP = 16  # times by which pieces cut by time are shorter from level to level
CYCLES = 4  # periods at least in a piece that is cut by time
FULL = 0.75  # share of a piece that has to lie inside its sequence
FEWEST = 10  # events of such a piece
LOBE = 2 * OVERSAMPLED  # frequencies on each side of a peak that the Hann window spreads it over
STRICTER = 0.5  # added to the least z of pieces cut by time, of which there may be only one
SAME = 0.02  # relative difference below which two peaks are one


def peaks(
    times: NDArray[np.float64],
    offsets: NDArray[np.int64],
    *,
    most: int = 8,
    least: float = 5.0,
    seed: int = 0,
) -> NDArray[np.float64]:
    """At most ``most`` angular frequencies whose z is at least ``least``, the strongest first.

    They are per unit of time. Sequence i owns ``times[offsets[i]:offsets[i + 1]]``; a ``seed``-ed
    draw of stretches is looked at where there are many.

    >>> random = np.random.default_rng(0)
    >>> days = [
    ...     np.sort(random.permutation(60)[:20] + random.normal(0, 0.05, 20)) for _ in range(40)
    ... ]
    >>> found = peaks(np.concatenate(days), np.arange(0, 801, 20))
    >>> round(2 * np.pi / float(found[0]), 2)  # a day
    1.0
    """
    stretches = _stretches(times, offsets, seed)
    if not stretches:
        return np.zeros(0)
    gaps = np.concatenate([np.diff(s) for s in stretches])
    gaps = gaps[gaps > 0]
    tick = timestamp_resolution(gaps)
    median_gap = float(np.median(gaps))
    usual = float(np.median([s[-1] - s[0] for s in stretches]))
    found = [_in_stretches(stretches, median_gap, usual, tick, most, least)]
    for length in _levels(times, offsets, usual):
        pieces = _pieces(times, offsets, length, seed)
        found.append(_in_pieces(pieces, length, tick, most, least + STRICTER))
    return _strongest(np.concatenate(found), most)


Peaks = NDArray[np.float64]  # (peaks, 2): angular frequency and z


def _in_stretches(
    stretches: list[NDArray[np.float64]],
    median_gap: float,
    span: float,
    tick: float,
    most: int,
    least: float,
) -> Peaks:
    """Peaks of stretches of equally many events, whose usual length is ``span``."""
    period = max(SHORTEST * median_gap, 2 * tick)
    width = max(period / 4, OVERSAMPLED * span / FINEST)
    if tick:  # bins of whole ticks: with others, now one tick and now two, counts have a rhythm
        width = tick * max(0.5, np.floor(width / tick))
    bins = _power_of_two(max(2.0, OVERSAMPLED * span / width))
    last = min(bins // 4, int(bins * width / period)) + 1
    pieces = [s - s[0] for s in stretches]
    return _peaks_of(pieces, span, width, bins, last, most, least)


def _power_of_two(least: float) -> int:
    """The smallest power of two from ``least`` on."""
    return int(2 ** np.ceil(np.log2(least)))


def _in_pieces(
    pieces: list[NDArray[np.float64]], length: float, tick: float, most: int, least: float
) -> Peaks:
    """Peaks of pieces of equal length in time, whose events are at times from 0 to ``length``."""
    width = OVERSAMPLED * length / FINEST
    if tick:
        width = tick * np.ceil(width / tick)
    bins = _power_of_two(OVERSAMPLED * np.ceil(length / width))
    return _peaks_of(pieces, length, width, bins, bins // 8, most, least)


def _peaks_of(
    pieces: list[NDArray[np.float64]],
    span: float,
    width: float,
    bins: int,
    last: int,
    most: int,
    least: float,
) -> Peaks:
    """Peaks of the mean periodogram of counts in bins of that ``width``, under a Hann window.

    ``span`` is the usual length of a piece, ``last`` the last of the frequencies that is looked at.
    """
    first = int(np.ceil(CYCLES * bins * width / span))
    if not pieces or last - first < NEIGHBOURS:
        return np.zeros((0, 2))
    power = np.zeros(last)
    for piece in pieces:
        inside = min(int(piece[-1] / width) + 1, bins)
        place = (piece / width + MULTIPLES).astype(np.int64)
        counts = np.bincount(place[place < inside], minlength=inside)
        middle = np.arange(inside) + 0.5
        hann = np.sin(np.pi * middle / inside) ** 2
        windowed = (counts - counts.mean()) * hann
        spectrum = np.fft.rfft(windowed, bins)[:last]
        noise = (counts * hann**2).sum()
        power += np.abs(spectrum) ** 2 / noise
    power = power / len(pieces)
    level = _beside(power, first)
    top = _standing_out(power, level, len(pieces), first, most, least)
    unit = 2 * np.pi / (bins * width)
    return top * [unit, 1.0]


def _strongest(found: Peaks, most: int) -> NDArray[np.float64]:
    """The frequencies of the largest z; of two that are all but equal the stronger one."""
    kept: list[float] = []
    order = np.argsort(-found[:, 1], kind="stable")
    for frequency in found[order, 0]:
        new = all(abs(frequency - other) > SAME * other for other in kept)
        if new:
            kept.append(float(frequency))
    return np.array(kept[:most])


def timestamp_resolution(gaps: NDArray[np.float64]) -> float:
    """The resolution that all of these positive gaps are multiples of, or 0 if there is none.

    >>> timestamp_resolution(np.array([0.003, 0.001, 0.014]))
    0.001
    >>> timestamp_resolution(np.array([0.2871, 0.1001, 0.5737001]))
    0.0
    """
    smallest = float(gaps.min())
    if smallest < np.finfo(np.float64).eps * float(gaps.max()):
        return 0.0  # no clock counts as far as this, and its counts would overflow
    for parts in (1, 2, 3):
        ticks = gaps * (parts / smallest)
        off = np.abs(ticks - np.round(ticks))
        allowed = MULTIPLES * np.maximum(1.0, 1e-6 * ticks)
        if np.all(off < allowed):
            return smallest / parts
    return 0.0


def coarse_resolution(gaps: NDArray[np.float64]) -> float:
    """The resolution of these positive gaps if a quarter of them is at most COARSE times as long,
    so that a rate can overfit it; 0 otherwise.

    >>> (
    ...     coarse_resolution(np.array([3.0, 1.0, 14.0])),
    ...     coarse_resolution(np.array([1.0, 50.0, 70.0, 90.0])),
    ... )
    (1.0, 0.0)
    """
    if not len(gaps):
        return 0.0
    tick = timestamp_resolution(gaps)
    coarse = np.quantile(gaps, 0.25) <= COARSE * tick
    return tick if tick and coarse else 0.0


def _stretches(
    times: NDArray[np.float64], offsets: NDArray[np.int64], seed: int
) -> list[NDArray[np.float64]]:
    found = []
    for i in np.random.default_rng(seed).permutation(len(offsets) - 1):
        sequence = times[offsets[i] : offsets[i + 1]]
        for first in range(0, len(sequence), PIECE):
            piece = sequence[first : first + PIECE]
            if len(piece) > 2 and piece[-1] > piece[0]:
                found.append(piece)
        if len(found) >= STRETCHES:
            break
    return found[:STRETCHES]


def _levels(times: NDArray[np.float64], offsets: NDArray[np.int64], usual: float) -> list[float]:
    """Lengths of pieces to cut by time: the longest sequence's, and shorter ones."""
    first = offsets[:-1]
    last = offsets[1:] - 1
    full = last > first
    spans = times[last[full]] - times[first[full]]
    length = float(spans.max(initial=0.0))
    found = []
    while length > CYCLES * usual:
        found.append(length)
        length /= STEP
    return found


def _pieces(
    times: NDArray[np.float64], offsets: NDArray[np.int64], length: float, seed: int
) -> list[NDArray[np.float64]]:
    """Pieces of that length, as times since they begin; at most STRETCHES, in a seeded order."""
    found: list[NDArray[np.float64]] = []
    for i in np.random.default_rng(seed).permutation(len(offsets) - 1):
        sequence = times[offsets[i] : offsets[i + 1]]
        if len(sequence) < FEWEST:
            continue
        since = sequence - sequence[0]
        if since[-1] < FULL * length:
            continue
        count = max(int(since[-1] / length + 1 - FULL), 1)
        edges = np.searchsorted(since, length * np.arange(count + 1), side="left")
        edges[-1] = np.searchsorted(since, length * count, side="right")
        for k in range(count):
            piece = since[edges[k] : edges[k + 1]]
            if len(piece) >= FEWEST:
                found.append(piece - k * length)
        if len(found) >= STRETCHES:
            break
    return found[:STRETCHES]


def _around(power: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of the neighbours of each frequency."""
    padded = np.pad(power, NEIGHBOURS // 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS)
    return np.median(windows, 1)


def _beside(power: NDArray[np.float64], first: int) -> NDArray[np.float64]:
    """The larger of the medians of the neighbours below and above each frequency's own peak.

    At low frequencies, where neighbours are few, those from a third to three times the frequency
    count.
    """
    half = NEIGHBOURS // 2
    last = len(power) - 1
    medians = _around(power)
    reach = LOBE + half
    index = np.arange(len(power))
    below = np.maximum(index - reach, 0)
    above = np.minimum(index + reach, last)
    found = np.maximum(medians[below], medians[above])
    low = min(3 * (NEIGHBOURS + LOBE) // 2, last)
    for i in range(first, low):
        lower = power[i // 3 : i - LOBE + 1]
        higher = power[i + LOBE : 3 * i + 1]
        sides = [side for side in (lower, higher) if len(side)]
        found[i] = max(np.median(side) for side in sides)
    return found


def _standing_out(
    power: NDArray[np.float64],
    level: NDArray[np.float64],
    stretches: int,
    first: int,
    most: int,
    least: float,
) -> NDArray[np.float64]:
    """Local maxima far above ``level``, from index ``first`` on: place and z of each.

    The place lies between indices, by the parabola through three powers.
    """
    ratio = power / np.maximum(level, np.finfo(float).tiny)
    correction = 1 - 1 / (9 * stretches)
    z = 3 * np.sqrt(stretches) * correction * (np.cbrt(ratio) - 1)
    inner = power[1:-1]
    maximum = (inner > power[:-2]) & (inner >= power[2:])
    top = np.flatnonzero(maximum) + 1
    top = top[(top >= first) & (z[top] >= least)]
    order = np.argsort(-z[top], kind="stable")
    top = top[order[:most]]
    left = power[top - 1]
    here = power[top]
    right = power[top + 1]
    bend = left - 2 * here + right
    place = top + 0.5 * (left - right) / bend
    return np.stack([place, z[top]], 1)
