"""What `fourpoint reproduce` is made of: workers that may die, tabled scores, data, experiments,
intervals and verdicts.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import fourpoint
from fourpoint import workers
from fourpoint.data.synthetic import simulate
from fourpoint.events import Dataset, Sequence, UserError
from fourpoint.inference.evaluation import evaluate, intensity
from fourpoint.models import MODELS
from fourpoint.ops.feature_error import chance_of_error, error_bound, features_needed
from fourpoint.reproduce import experiments, running, tables
from fourpoint.reproduce.cells import Record
from fourpoint.reproduce.pace import Pace
from fourpoint.reproduce.plan import FULL, LABELS, QUICK, REAL_MODELS, STANDS_FOR, Cell, cells_of
from fourpoint.reproduce.running import attempt, run_cells
from fourpoint.reproduce.sets import PREPARED, NoData, Preparation, _some, parts_of, prepared
from fourpoint.reproduce.tabled import Tabled, tabled
from fourpoint.reproduce.tables import (
    Tally,
    behind,
    difference,
    left_behind,
    tally,
    verdicts,
)


def work(cell: Cell) -> Record:
    """What a worker does in the test: one cell is killed, one never ends, one fails, one has no
    data, the others are done.
    """
    if cell.data == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if cell.data.startswith("asleep"):
        Path(cell.data.removeprefix("asleep ")).touch()
        time.sleep(600)
    if cell.data == "diverged":
        raise ArithmeticError("not finite")
    if cell.data == "absent":
        raise NoData("a file", "no such file", "Give it.")
    return {"metrics": {"threads": torch.get_num_threads(), "process": os.getpid()}}


def test_a_worker_that_is_killed_costs_its_own_cell_alone() -> None:
    names = ["killed", "diverged", "absent", "fine", "also fine"]
    cells = [Cell("fit", "nhp", name, 0) for name in names]
    found: dict[str, Record] = {}
    run_cells(
        cells,
        work,
        lambda cell, outcome: found.update({cell.data: outcome}),
        jobs=1,
        progress=False,
    )
    assert {name: found[name]["status"] for name in names} == {
        "killed": "failed",
        "diverged": "failed",
        "absent": "no data given",
        "fine": "done",
        "also fine": "done",
    }
    assert (
        found["killed"]["reason"] == "killed by signal 9 (SIGKILL)"
        and found["diverged"]["reason"] == "ArithmeticError: not finite"
    )
    assert (
        found["fine"]["metrics"]["threads"] == 1
        and found["fine"]["metrics"]["process"] != os.getpid()
    )


def test_where_time_is_up_nothing_is_begun_and_what_runs_is_stopped_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [Cell("fit", "nhp", name, 0) for name in ("fine", "also fine")]
    kept: list[Cell] = []
    for jobs in (0, 1):
        left = run_cells(
            cells,
            work,
            lambda cell, outcome: kept.append(cell),
            jobs=jobs,
            progress=False,
            until=time.monotonic(),
        )
        assert (
            sorted(left, key=lambda cell: cell.data) == sorted(cells, key=lambda cell: cell.data)
            and not kept
        )
    asleep, begun, limits, real = (
        [Cell("fit", "nhp", f"asleep {tmp_path / 'begun'}", 0)],
        tmp_path / "begun",
        [],
        workers.wait,
    )

    def time_is_up(pipes: list[Connection], limit: float) -> list[Any]:
        """The seconds that are left are over once the worker is at work."""
        limits.append(limit)
        give_up = time.monotonic() + 600.0
        while not begun.exists():
            assert time.monotonic() < give_up and not real(pipes, 0.01), "the worker did not begin"
        return real(pipes, 0.0)

    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    monkeypatch.setattr(workers, "wait", time_is_up)
    assert (
        run_cells(
            asleep,
            work,
            lambda cell, outcome: kept.append(cell),
            jobs=1,
            progress=False,
            until=1007.0,
        )
        == asleep
    )
    assert begun.exists() and limits == [7.0] and not kept and not multiprocessing.active_children()


def test_long_cells_go_first_and_none_that_cannot_end_is_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        running, "time", SimpleNamespace(monotonic=lambda: 1000.0, process_time=lambda: 0.0)
    )
    cells = [
        Cell("fit", model, "hawkes", seed)
        for seed in (0, 1)
        for model in ("poisson", "rmtpp", "odapp-paper-nn")
    ]
    begun: list[Cell] = []
    run_cells(
        cells, lambda cell: {}, lambda cell, outcome: begun.append(cell), jobs=0, progress=False
    )
    assert [cell.model for cell in begun] == ["odapp-paper-nn"] * 2 + ["rmtpp"] * 2 + [
        "poisson"
    ] * 2
    pace = Pace()
    run_cells(
        [Cell("fit", "nhp", "absent", 0)],
        work,
        lambda cell, outcome: None,
        jobs=0,
        progress=False,
        pace=pace,
    )
    assert pace.seconds(cells[2]) == 0  # one without data says nothing
    pace.learn(cells[2], 100.0)
    left = run_cells(
        cells,
        lambda cell: {},
        lambda cell, outcome: None,
        jobs=0,
        progress=False,
        until=1060.0,
        pace=pace,
    )
    assert [cell.model for cell in left] == ["odapp-paper-nn"] * 2


def test_an_attempt_keeps_its_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, own = iter([1000.0, 1002.5]), iter([7.0, 8.25])
    monkeypatch.setattr(
        running,
        "time",
        SimpleNamespace(monotonic=lambda: next(wall), process_time=lambda: next(own)),
    )
    outcome = attempt(work, Cell("fit", "", "fine", 0))
    assert (outcome["status"], outcome["seconds"], outcome["processor_seconds"]) == (
        "done",
        2.5,
        1.25,
    )


@pytest.mark.parametrize("name", ["dapp-paper", "odapp-paper"])
def test_tabled_scores_give_the_numbers_of_the_direct_sum(name: str) -> None:
    data = simulate("hawkes", 12, seed=3)
    model = MODELS[name](eval_features=60, generator=(8,), seed=1).eval()
    model.initialise(data)
    quick = tabled(model, 1.0)
    assert isinstance(quick, Tabled)
    direct, read = (evaluate(m, data[:4], truth="hawkes").to_dict() for m in (model, quick))
    assert read["log_likelihood_per_event"] == pytest.approx(
        direct["log_likelihood_per_event"], abs=1e-6
    )
    assert read["intensity_mse"] == pytest.approx(direct["intensity_mse"], rel=1e-5)


def test_tabled_scores_know_marks() -> None:
    data = experiments.first_matters(6, 5, seed=2)
    model = MODELS["dapp-paper"](data.marks, eval_features=60, generator=(8,), seed=1).eval()
    model.initialise(data)
    times = np.linspace(0.05, 0.95, 31)
    np.testing.assert_allclose(
        intensity(tabled(model, 1.0), data[0], times), intensity(model, data[0], times), rtol=2e-5
    )


def test_tabled_scores_choose_the_events_that_the_direct_sum_chooses() -> None:
    data = experiments.first_matters(6, 12, seed=2)
    model = MODELS["odapp-paper"](
        data.marks, keep=5, eval_features=60, generator=(8,), seed=1
    ).eval()
    model.initialise(data)
    direct, read = (m.encode(data.batch()) for m in (model, tabled(model, 1.0)))
    assert torch.equal(direct.past.dropped, read.past.dropped) and torch.equal(
        direct.memory.active.index, read.memory.active.index
    )
    assert int((direct.past.dropped < 2**61).sum()) > 0  # some were dropped


def test_what_has_no_random_phases_is_left_alone() -> None:
    for model in (
        MODELS["dapp"](features=4, eval_features=8),
        MODELS["dapp-paper-dot"](),
        MODELS["poisson"](),
    ):
        assert tabled(model, 1.0) is model


@given(
    st.floats(0.01, 1.5),
    st.floats(0.1, 10),
    st.floats(1.0, 100),
    st.integers(1, 4),
    st.floats(0.001, 0.5),
)
def test_features_needed_is_the_smallest_number_that_the_bound_allows(
    error: float, radius: float, sigma: float, dimension: int, probability: float
) -> None:
    D = features_needed(
        error, radius=radius, sigma=sigma, dimension=dimension, probability=probability
    )
    assert chance_of_error(
        error, D, radius=radius, sigma=sigma, dimension=dimension
    ) <= probability * (1 + 1e-9)
    if D > 1:
        assert chance_of_error(
            error, D - 1, radius=radius, sigma=sigma, dimension=dimension
        ) > probability * (1 - 1e-9)
    back = error_bound(D, radius=radius, sigma=sigma, dimension=dimension, probability=probability)
    assert back <= error * (1 + 1e-9)


def test_features_needed_is_public_and_refuses_what_has_no_bound() -> None:
    assert fourpoint.features_needed(0.1, radius=0.5, sigma=10.0) == 22275
    with pytest.raises(UserError, match="sigma above 0 and finite"):
        fourpoint.features_needed(0.1, radius=0.5, sigma=math.inf)
    with pytest.raises(UserError, match="a probability between 0 and 1"):
        fourpoint.features_needed(0.1, radius=0.5, sigma=1.0, probability=1.0)


def test_the_law_of_the_drawn_spectra_is_the_one_stated() -> None:
    gaussian = experiments.draw_spectra("gaussian", 40, 500, "paired", seed=0)
    assert (
        gaussian.frequency.std().item() == pytest.approx(math.hypot(*experiments.KEY), rel=0.02)
        and gaussian.phase is None
    )
    cauchy = experiments.draw_spectra("cauchy", 40, 500, "random", seed=0)
    assert cauchy.frequency.abs().median().item() == pytest.approx(experiments.DECAY, rel=0.03)
    assert cauchy.phase is not None and cauchy.phase.mean().item() == pytest.approx(
        math.pi, rel=0.02
    )


def test_a_biased_estimate_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    true_draw = experiments.draw_spectra

    def shifted(*arguments: object) -> object:
        modes = true_draw(*arguments)
        return modes._replace(weight=1.2 * modes.weight)

    monkeypatch.setattr(experiments, "draw_spectra", lambda *a, seed: shifted(*a, seed))
    found = experiments.proposition1(replace(QUICK, draws=20))["metrics"]
    assert max(value for key, value in found.items() if key.endswith("_largest_z")) > 4.5


def test_algorithm_2_is_exact_for_falling_rates_once_its_test_is_turned_round() -> None:
    hawkes = fourpoint.Hawkes(baseline=10.0, branching=1.0, decay=1.0)
    counts = experiments.literal_counts(hawkes, 400, seed=1, turned=True)
    assert abs(counts.mean() - 15) < 4 * counts.std() / 20
    assert experiments.literal_counts(hawkes, 400, seed=1, turned=False).mean() < 1


def test_the_far_event_decides_the_late_rate_and_nothing_else() -> None:
    data = experiments.first_matters(400, 10, seed=0)
    kinds = np.array([one.marks[0] for one in data])
    late = np.array([(one.marks == 3).sum() for one in data])
    middle = np.array([((one.marks == 2) & (one.times < experiments.SWITCH)).sum() for one in data])
    assert late[kinds == 0].mean() == pytest.approx(
        experiments.HIGH * (1 - experiments.SWITCH), rel=0.1
    )
    assert late[kinds == 1].mean() == pytest.approx(
        experiments.LOW * (1 - experiments.SWITCH), rel=0.2
    )
    assert (
        middle[kinds == 0].mean()
        == pytest.approx(middle[kinds == 1].mean(), rel=0.1)
        == pytest.approx(10, rel=0.1)
    )
    assert all(
        one.times[0] < experiments.FIRST
        and one.times[(one.marks == 3)].min(initial=1.0) >= experiments.SWITCH
        for one in data
    )


def test_the_true_likelihood_of_the_far_event_is_that_of_its_law() -> None:
    """Against counting: P(first event in a cell of a grid, Poisson counts in cells) per unit of
    volume.
    """
    one = Sequence([0.02, 0.3, 0.7], [0, 2, 3], start=0.0, stop=1.0, space=experiments.KINDS)
    noise, late = 10 / (experiments.SWITCH - experiments.FIRST), experiments.HIGH
    expected = (
        math.log(0.5 / experiments.FIRST)
        + math.log(noise)
        + math.log(late)
        - noise * (1 - experiments.FIRST)
        - late * (1 - experiments.SWITCH)
    )
    assert experiments.true_log_likelihood(one, 10) == pytest.approx(expected)


def test_what_a_model_is_asked_of_the_far_event_is_its_intensity() -> None:
    data = experiments.first_matters(7, 10, seed=3)
    model = MODELS["hawkes"](data.marks, baseline=2.0, branching=0.5, decay=1.0)
    slow = [
        intensity(model, replace_stop(one.before(experiments.SWITCH)), [experiments.ASKED])[0, 3]
        for one in data
    ]
    np.testing.assert_allclose(experiments.late_rates(model, data), slow, rtol=1e-12)


def replace_stop(one: Sequence) -> Sequence:
    """The same events, watched to the end."""
    return Sequence(one.times, one.marks, start=one.start, stop=1.0, space=one.space)


def test_memes_count_from_the_first_mention_which_is_not_scored() -> None:
    data = Dataset.from_sequences(
        [Sequence([5.0, 7.0, 9.0], start=0.0, stop=9.5), Sequence([1.0, 2.0], start=0.0, stop=3.0)]
    )
    found = prepared(data, PREPARED["memetracker"])
    assert [one.times.tolist() for one in found] == [[2.0, 4.0], [1.0]]
    assert (
        found.starts.tolist() == [0.0, 0.0]
        and found.stops.tolist() == [4.0, 1.0]
        and found.inferred
    )


def test_long_sequences_end_where_they_are_cut_unless_the_window_is_known() -> None:
    data = prepared(
        Dataset.from_sequences([Sequence(np.arange(1.0, 9.0), start=0.0, stop=8.5)] * 3),
        Preparation(None, False, False, ""),
    )
    cut = _some(replace(data, inferred=True), 2, 5)
    assert len(cut) == 2 and cut.lengths.tolist() == [5, 5] and cut.stops.tolist() == [5.0, 5.0]
    assert _some(replace(data, inferred=False), 0, 5).lengths.tolist() == [8, 8, 8]


def test_synthetic_training_data_change_with_the_seed_and_test_data_do_not() -> None:
    one, other = (
        parts_of("hawkes", replace(QUICK, sequences=30, test=5), seed, None) for seed in (0, 1)
    )
    assert len(one.train) == 27 and len(one.dev) == 3 and len(one.test) == 5
    assert (
        one.test.times.tolist() == other.test.times.tolist()
        and one.train.times.tolist() != other.train.times.tolist()
    )


def test_real_files_are_read_as_written_down(shared_data: Path) -> None:
    small = replace(QUICK, real_train=20, real_test=10, longest=30)
    meme = parts_of("memetracker", small, 0, shared_data)
    assert (
        meme.train.marks.count == 1
        and meme.train.lengths.max() <= 30
        and meme.test.tied == 0
        and len(meme.test) == 10
    )
    traffic = parts_of("pems_congestion", small, 0, shared_data)
    assert (
        traffic.train.marks.count == 16
        and traffic.train.tied == 0
        and set(traffic.train.durations) == {24.0}
    )
    assert "20.3% of gaps are ties" in traffic.about
    with pytest.raises(NoData, match="memetracker.parquet"):
        parts_of("memetracker", small, 0, None)


def test_the_paper_s_numbers_are_those_it_prints() -> None:
    assert (
        tables.PUBLISHED1["hawkes"]["dapp-paper"] == 0.258
        and tables.PUBLISHED1["nonhomogeneous2"]["sahp"] == 9858.9
    )
    assert (
        tables.PUBLISHED2["traffic"]["dapp-paper"] == 458.5
        and tables.PUBLISHED2["mimic-iii"]["rmtpp"] == 8.7
    )
    assert [len(row) for row in tables.PUBLISHED1.values()] == [10] * 4 and [
        len(row) for row in tables.PUBLISHED2.values()
    ] == [6] * 8


def record(model: str, data: str, seed: int, **metrics: float) -> Record:
    return dict(
        id=f"{model}{data}{seed}",
        kind="fit",
        model=model,
        data=data,
        seed=seed,
        status="done",
        tables=[],
        metrics=metrics,
    )


def test_intervals_need_two_seeds_and_differences_are_taken_seed_by_seed() -> None:
    records = [
        record("nhp", "hawkes", seed, intensity_mse=value)
        for seed, value in enumerate((10.0, 20.0, 30.0))
    ]
    found = tally(records, "nhp", "hawkes", "intensity_mse")
    assert (
        found.text() == "20.0 \u00b1 25"
        and tally(records[:1], "nhp", "hawkes", "intensity_mse").text() == "10.0"
    )
    other = Tally({seed: value - 1 for seed, value in found.values.items()}, "")
    assert difference(found, other) == (1.0, 0.0)
    assert (
        tally(
            [{**records[0], "status": "failed", "metrics": {}}], "nhp", "hawkes", "intensity_mse"
        ).text()
        == "failed"
    )


def test_verdicts_follow_the_numbers() -> None:
    def judged(fourier: float, dot: float) -> str:
        records = [
            record(m, "hawkes", s, intensity_mse=v + 0.01 * s)
            for s in (0, 1, 2)
            for m, v in (("dapp-paper", fourier), ("dapp-paper-dot", dot))
        ]
        return next(
            v
            for v in verdicts(records)
            if "better than the dot product" in v.claim and v.claim.startswith("The Fourier")
        ).holds

    assert (
        judged(1.0, 2.0) == "holds on the 1 of 4 sets judged"
        and judged(2.0, 1.0) == "does not hold"
    )
    assert all(v.holds == "not judged" for v in verdicts([]))


def test_the_stand_ins_where_our_default_is_behind_are_named() -> None:
    values = {
        "dapp": (1.0, 1.1),
        "nhp": (1.2, 1.3),
        "hawkes": (0.9, 1.0),
        "sahp": (1.4, 1.6),
        "rmtpp": (0.0, 0.0),
    }
    records = [
        record(m, "memetracker", s, log_likelihood_per_event=v)
        for m, pair in values.items()
        for s, v in enumerate(pair)
    ]
    records += [
        record(m, "readmission", 0, log_likelihood_per_event=v)
        for m, v in (("dapp", 2.0), ("nhp", 1.0))
    ]
    found = behind(records)
    assert list(found) == ["memetracker"] and list(found["memetracker"]) == ["sahp", "nhp"]
    assert found["memetracker"]["sahp"][0] == pytest.approx(0.45) and found["memetracker"][
        "nhp"
    ] == pytest.approx((0.2, 0.0), abs=1e-9)
    text = left_behind(records)
    assert (
        "matches every baseline of Table 2 on readmission, and does not" in text
        and "- **memetracker**: behind SAHP by 0.45" in text
    )
    assert left_behind([]) == ""


def test_every_cell_of_the_full_setting_has_a_cost() -> None:
    pace = Pace()
    costs = {cell: pace.cost(cell) for cell in cells_of("all", "", 3, True, FULL)}
    assert min(costs.values()) > 0 and len(costs) > 3 * (
        4 * len(LABELS) + len(STANDS_FOR) * len(REAL_MODELS)
    )
