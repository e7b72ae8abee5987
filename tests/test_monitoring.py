"""Alarms: false ones as rare as promised, true ones soon, each with its direction and size, and a
silence told once.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from fourpoint.events import UserError
from fourpoint.streaming.monitor_table import MonitorTable
from fourpoint.streaming.monitoring import (
    CELLS,
    LOG2,
    WINDOW,
    Alarm,
    Monitor,
    burst_chain,
    crossing,
    silence_chain,
    thresholds,
)


def alarms_of(gaps: np.ndarray, alarms: float) -> list[Alarm]:
    monitor = Monitor(alarms)
    return [a for i, gap in enumerate(gaps.tolist()) for a in monitor.gap(gap, float(i))]


def test_false_alarms_are_as_rare_as_promised_on_a_thousand_streams() -> None:
    rng, promised = np.random.default_rng(1), 0.1
    raised = [alarms_of(rng.exponential(size=1000), promised) for _ in range(1000)]
    false = sum(bool(r) for r in raised)
    assert false <= binom.ppf(0.999, 1000, promised)  # never more than promised
    assert false >= 0.4 * 1000 * promised  # nor are thresholds so high that nothing is ever seen
    assert {a.kind for r in raised for a in r} >= {"burst", "silence"}


@pytest.mark.parametrize("share", [0.05, 0.002])
def test_thresholds_of_the_cusums_are_calibrated(share: float) -> None:
    rng, rows = np.random.default_rng(2), 20_000 if share > 0.01 else 60_000
    limits = thresholds(4 * share)
    burst, silence = np.zeros(rows), np.zeros(rows)
    crossed, fell = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    for step in range(1200):  # the first 200 bring the sums to where they are in the long run
        gap = rng.exponential(size=rows)
        burst, peak = np.maximum(0, burst + LOG2 - gap), silence + gap / 2
        silence = np.maximum(0, peak - LOG2)
        if step < 200:
            burst[burst >= limits.burst], silence[peak >= limits.silence] = 0, 0
        else:
            crossed |= burst >= limits.burst
            fell |= peak >= limits.silence
    for found in (crossed.mean(), fell.mean()):
        assert (
            0.75 * share - 4 * math.sqrt(share / rows) < found < share + 4 * math.sqrt(share / rows)
        )


def test_the_chain_is_above_a_simulation_and_close_to_it() -> None:
    height = 4 * CELLS
    for chain in (burst_chain, silence_chain):
        assert (
            crossing(chain, height, 10)
            < crossing(chain, height, 1000)
            < crossing(chain, height // 2, 1000)
            <= 1
        )
    step = burst_chain(3 * CELLS)
    assert np.all(
        np.diff(step(np.ones(3 * CELLS))) <= 1e-12
    )  # the higher it stands, the sooner it crosses


@pytest.mark.parametrize(
    ("ratio", "kind"), [(2.0, "burst"), (4.0, "burst"), (0.5, "silence"), (0.25, "silence")]
)
def test_a_changed_rate_is_caught_with_its_direction_and_size(ratio: float, kind: str) -> None:
    rng, delays, sizes = np.random.default_rng(3), [], []
    for _ in range(60):
        gaps = np.concatenate([rng.exponential(size=500), rng.exponential(size=400) / ratio])
        true = [a for a in alarms_of(gaps, 1e-3) if a.time >= 500 and a.kind == kind]
        assert true
        delays.append(true[0].time - 500)
        sizes.append(true[0].size)
    assert np.median(delays) < {2.0: 90, 4.0: 30, 0.5: 120, 0.25: 40}[ratio]
    assert np.median(sizes) == pytest.approx(ratio, rel=0.35)


def test_gaps_of_the_right_mean_and_the_wrong_law_are_drift() -> None:
    raised = alarms_of(np.random.default_rng(4).uniform(0.5, 1.5, 600), 1e-3)
    assert {a.kind for a in raised} == {"drift"}
    first = raised[0]
    assert first.time < 200 and first.size == first.statistic > first.threshold > 0


def test_an_unfinished_gap_is_told_once_however_often_it_is_asked() -> None:
    for parts in (1, 3, 1000):
        monitor = Monitor(1e-3)
        for i in range(50):
            assert monitor.gap(1.0, float(i)) == ()
        told = [
            a
            for g in np.linspace(0, 30, parts + 1)[1:]
            for a in monitor.silence(float(g), 50 + float(g))
        ]
        assert [a.kind for a in told] == ["silence"] and told[0].size < 0.1
        if parts == 1000:
            assert told[0].time - 50 == pytest.approx(monitor.thresholds.gap, abs=0.05)
        assert [a.kind for a in monitor.gap(30.5, 81.0)] == []
        assert [a.kind for a in monitor.gap(40.0, 121.0)] == [
            "silence"
        ]  # the next one is told again


def test_whether_a_silence_was_asked_for_does_not_change_what_is_told() -> None:
    rng = np.random.default_rng(5)
    gaps = np.concatenate([rng.exponential(size=300), rng.exponential(size=300) * 3])
    asked, waited = Monitor(0.01), Monitor(0.01)
    told: list[list[str]] = [[], []]
    for i, gap in enumerate(gaps.tolist()):
        for share in (0.2, 0.7, 1.0):
            told[0] += [f"{i} {a.kind}" for a in asked.silence(share * gap, float(i))]
        told[0] += [f"{i} {a.kind}" for a in asked.gap(gap, float(i))]
        told[1] += [f"{i} {a.kind}" for a in waited.gap(gap, float(i))]
    assert told[0] == told[1] and len(told[0]) > 5


def test_state_and_restore() -> None:
    rng = np.random.default_rng(6)
    for seen in (0, 3, 100, 700):
        monitor = Monitor(0.01)
        for i, gap in enumerate(rng.exponential(size=seen).tolist()):
            monitor.gap(gap, float(i))
        monitor.silence(14.0, 1e3)
        numbers, window = monitor.state()
        assert len(window) == min(seen, WINDOW) or monitor._seen < seen
        again = Monitor.restore(numbers, window)
        later = (rng.exponential(size=400) * 0.5).tolist()
        assert [again.gap(g, 0.0) for g in later] == [monitor.gap(g, 0.0) for g in later]
    monitor.reset()
    assert monitor.state()[0] == Monitor(0.01).state()[0]


def test_wrong_rates_are_refused_and_alarms_are_json() -> None:
    for alarms in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(
            UserError,
            match="a false-alarm probability per 1,000 events between 0 and 1; received alarms=",
        ):
            Monitor(alarms)
    assert Alarm(1.0, "burst", 2.0, 14.0, 13.0).to_dict() == {
        "time": 1.0,
        "of": "stream",
        "name": None,
        "kind": "burst",
        "direction": "more",
        "size": 2.0,
        "statistic": 14.0,
        "threshold": 13.0,
    }


def test_tied_events_are_a_burst_of_finite_size() -> None:
    raised = alarms_of(np.zeros(100), 1e-3)
    assert raised[0].kind == "burst" and math.isfinite(raised[0].size) and raised[0].size > 10


@pytest.mark.parametrize("compiled", [True, False])
def test_a_table_of_monitors_is_one_monitor_per_row(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of any size, with bursts, silences and drifts among them: the very alarms and states
    of single monitors.
    """
    if not compiled:
        plain = MonitorTable.observe_one_by_one
        monkeypatch.setattr(MonitorTable, "observe", plain)
    rng, count, per = np.random.default_rng(7), 6, 700
    rows = rng.permutation(np.repeat(np.arange(count), per))
    gaps = rng.exponential(size=len(rows))
    gaps[rows == 1] *= 0.4  # bursts
    gaps[rows == 2] *= 2.5  # silences
    gaps[rows == 3] = rng.gamma(9.0, 1 / 9.0, size=per)  # the right mean, and drifts
    gaps[rng.integers(0, len(rows), 20)] = 30.0
    times = np.arange(len(rows)) + 0.5
    single = [Monitor(0.05, 0.5) for _ in range(count)]
    expected = [
        single[row].gap(gap, time)
        for row, gap, time in zip(rows.tolist(), gaps.tolist(), times.tolist(), strict=True)
    ]
    table, found = MonitorTable(0.05, 0.5), [()] * len(rows)
    table.grow(count)
    for part in np.split(np.arange(len(rows)), [1, 3, 64, 1000, 1001, 2500]):
        raised = table.observe(rows[part], gaps[part], times[part])
        assert all(raised.values())
        for place, alarms in raised.items():
            found[part[place]] = alarms
    assert found == expected
    assert {alarm.kind for alarms in found for alarm in alarms} == {"burst", "silence", "drift"}
    for row in range(count):
        (numbers, window), (own, own_window) = table[row].state(), single[row].state()
        assert numbers == own and np.array_equal(window, own_window)


def test_a_table_tells_silences_once_and_forgets_what_is_cleared() -> None:
    table, single = MonitorTable(0.01), [Monitor(0.01) for _ in range(3)]
    table.grow(2)
    table.grow(3)
    open_gaps = np.array([1.0, 40.0, 20.0])
    for time in (1.0, 2.0):
        expected = [
            monitor.silence(gap, time)
            for monitor, gap in zip(single, open_gaps.tolist(), strict=True)
        ]
        found = table.silences(np.arange(3), open_gaps, time)
        assert [found.get(row, ()) for row in range(3)] == expected
        assert len(found) == (2 if time == 1.0 else 0)
    assert table.observe(np.array([1]), np.array([41.0]), np.array([3.0])) == {}, (
        "it was told while it lasted"
    )
    table.clear(np.array([1]))
    assert table[1] is None and table[2] is not None
    nothing = MonitorTable(None)
    nothing.grow(3)
    assert nothing.observe(np.arange(3), open_gaps, open_gaps) == {} and nothing[0] is None
