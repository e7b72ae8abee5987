"""The leaderboard: EasyTPP's models say through the adapter what they say themselves, cells resume,
tables carry intervals.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fourpoint.data.synthetic import simulate
from fourpoint.events import Dataset, Sequence
from fourpoint.inference.goodness import compensators
from fourpoint.inference.likelihood import log_likelihoods, sampled_log_likelihood
from fourpoint.inference.predictions import _next_scores
from fourpoint.inference.sampling import eval_mode
from fourpoint.models import MODELS

ARCHITECTURES = ("S2P2", "S2P2-dependent", "NHP", "AttNHP")


@pytest.fixture(scope="module")
def peers(root: Path) -> ModuleType:
    return _module(root, "easytpp_models")


@pytest.fixture(scope="module")
def board(root: Path, peers: ModuleType) -> ModuleType:
    return _module(root, "leaderboard")


@pytest.fixture(scope="module")
def data() -> Dataset:
    rng = np.random.default_rng(0)
    times = [5 + np.cumsum(rng.exponential(0.3, n)) for n in (6, 1, 9, 2, 4)]
    return Dataset.from_sequences(
        [
            Sequence(t, rng.integers(3, size=len(t)), start=4.0, stop=t[-1] + 0.1, space=3)
            for t in times
        ]
    )


def test_peers_learn_from_events_inside_their_ticks_too(peers: ModuleType) -> None:
    _needs_easytpp()
    ticking = Dataset.from_sequences([Sequence([1.0, 2.0, 4.0, 5.0, 9.0], start=0.0, stop=10.0)])
    for changes, tick, rate in (
        ("", 1.0, 3e-3),
        ("@dequantise=false", 0.0, 3e-3),
        ("@rate=0.01,dequantise=false", 0.0, 0.01),
    ):
        peer, found = peers.build(f"easytpp-nhp{changes}", ticking, 0)
        assert (
            peer.train().gap_resolution() == tick
            and peer.eval().gap_resolution() == 0.0
            and found == rate
        )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_adapter_gives_the_likelihood_of_easytpp_on_a_dense_grid(
    peers: ModuleType, data: Dataset, name: str
) -> None:
    peer = _peer(peers, data, name)
    rows = np.flatnonzero(data.lengths > 1)
    batch, scale = data.batch(rows), float(peer.time_scale)
    found = log_likelihoods(peer, batch, tolerance=1e-5)["gaps"]
    peer.net.use_mc_samples, peer.net.loss_integral_num_sample_per_step = False, 4000
    with torch.no_grad():
        loss, events = peer.net.loglike_loss(**_inputs(batch, 3, scale))
    assert int(found.events.sum()) == events == 17
    assert float(found.value.sum()) == pytest.approx(-float(loss) - 17 * math.log(scale), abs=2e-3)
    assert abs(float(loss)) > 1


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_adapter_knows_nothing_of_the_event_it_scores_nor_of_later_ones(
    peers: ModuleType, data: Dataset, name: str
) -> None:
    peer = _peer(peers, data, name)
    whole = data[2]
    cut = Sequence(whole.times[:5], whole.marks[:5], start=4.0, stop=20.0, space=3)
    other = Sequence(
        whole.times, (whole.marks + (np.arange(9) >= 5)) % 3, start=4.0, stop=20.0, space=3
    )
    at = torch.linspace(
        float(whole.times[4]) + 1e-3, float(whole.times[5]), 7, dtype=torch.float64
    )[None]
    with torch.no_grad():
        full, early, changed = (
            peer.intensity(peer.encode(s.batch()), at) for s in (whole, cut, other)
        )
    torch.testing.assert_close(full, early, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(full, changed, rtol=1e-4, atol=1e-6)
    assert float((full[0, 0] - full[0, -1]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_adapter_is_finite_everywhere_and_trains(
    peers: ModuleType, data: Dataset, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = _peer(peers, data, name)
    value = sampled_log_likelihood(
        peer.train(), data.batch(), 4, torch.Generator().manual_seed(0), convention="gaps"
    )
    value.sum().backward()
    assert bool(torch.isfinite(value).all())
    assert all(bool(torch.isfinite(p.grad).all()) for p in peer.parameters() if p.grad is not None)
    before = peers.dev_score(peer, data)
    clock = itertools.count()  # a second each time that somebody looks, which is once for each step
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    facts = peers.train(peer, data, data, rate=3e-3, budget=60.0, seed=0)
    assert facts["steps"] >= 1 and facts["validations"] >= 1 and facts["skipped"] == 0
    assert peers.dev_score(peer, data) > before


@pytest.mark.parametrize(
    "name", ("deep-dapp", "nhp", "rmtpp", "sahp", "thp", "S2P2", "S2P2-dependent", "NHP")
)
def test_scores_make_nothing_away_from_the_models_device(
    peers: ModuleType, data: Dataset, name: str
) -> None:
    """A tensor on the default device meets others on theirs: with "meta" as the default that is an
    error, as it is on a GPU.

    DAPP and AttNHP make some on the CPU and move them, which is right on a GPU but cannot be seen
    in this way.
    """
    model = _peer(peers, data, name) if name in ARCHITECTURES else MODELS[name](data.marks, seed=0)
    if name not in ARCHITECTURES:
        model.initialise(data)
    chosen = np.setdiff1d(np.arange(data.events), data.offsets[:-1])
    with eval_mode(model):
        batch = data.batch()
        plain = (
            log_likelihoods(model, batch)["gaps"],
            compensators(model, batch),
            _next_scores(model, data, chosen),
        )
        torch.set_default_device("meta")
        try:
            again = (
                log_likelihoods(model, batch)["gaps"],
                compensators(model, batch),
                _next_scores(model, data, chosen),
            )
        finally:
            torch.set_default_device(None)
    assert (
        torch.equal(plain[0].value, again[0].value)
        and torch.equal(plain[1], again[1])
        and plain[2] == again[2]
    )


def test_one_rule_gives_what_refinement_gives(board: ModuleType, data: Dataset) -> None:
    model = MODELS["nhp"](data.marks, seed=0)
    model.initialise(data)
    inside = board._up_to_last_event(data)
    assert (inside.stops[:2] == [data.times[5], data.times[6]]).all() and (inside.starts == 4).all()
    with eval_mode(model):
        plain = log_likelihoods(model, data.batch())["gaps"]
        found = [
            way(model, inside.batch())
            for way in (partial(board._refined, tolerance=1e-4), board._by_rule)
        ]
        total, error, gaps = board._likelihood(model, inside)
    for value, doubt, _ in found:
        torch.testing.assert_close(value, plain.value, rtol=0, atol=1e-4)
        assert float(doubt.sum()) < 1e-3
    torch.testing.assert_close(found[0][2], found[1][2], rtol=0, atol=1e-4)
    assert (
        total == pytest.approx(float(plain.value.sum()), abs=1e-3)
        and len(gaps) == int(plain.events.sum()) == 17
    )
    assert gaps.sum() == pytest.approx(float(plain.integral.sum()), abs=1e-3)


def test_a_lone_event_at_the_start_of_its_window_counts_for_nothing(board: ModuleType) -> None:
    alone, others = (
        Sequence([0.0], start=0.0, stop=5.0),
        Sequence([0.0, 1.0, 2.0, 3.0], start=0.0, stop=5.0),
    )
    both = Dataset.from_sequences([alone, others])
    model = MODELS["nhp"](both.marks, seed=0)
    model.initialise(both)
    with eval_mode(model):
        value, error, _ = board._refined(
            model, board._up_to_last_event(both).batch(), tolerance=1e-4
        )
        torch.testing.assert_close(
            value, log_likelihoods(model, both.batch())["gaps"].value, rtol=0, atol=1e-3
        )
    assert float(value[0]) == float(error[0]) == 0.0


@pytest.mark.parametrize("most", [None, 20])
def test_a_part_of_the_split_is_scored_where_that_is_asked_for(
    board: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    import fourpoint as fp

    parts = {
        name: simulate("hawkes", 20, seed=k) for k, name in enumerate(("train", "dev", "test"))
    }
    monkeypatch.setattr(
        fp, "read", lambda path: SimpleNamespace(part=parts.__getitem__, marks=parts["train"].marks)
    )
    monkeypatch.setattr(
        board, "_trained", lambda cell, train, dev: (MODELS["nhp"](train.marks), {})
    )
    monkeypatch.setattr(
        board, "_scores", lambda model, dev, scored: dict(score=0.0, events=scored.events)
    )
    row = board.run_cell(
        dict(
            set="taxi",
            model="nhp",
            seed=0,
            budget=1.0,
            device="cpu",
            split="test",
            most=most,
            data=str(tmp_path),
            peers=None,
        )
    )
    assert (
        row["events"] == parts["test"].events
        if most is None
        else most <= row["events"] < parts["test"].events
    )


def test_command_resumes_and_shows_what_is_missing(
    board: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran = []

    def pretend(cell: dict[str, Any]) -> dict[str, Any]:
        key = {name: cell[name] for name in board.KEY}
        ran.append((cell["model"], cell["seed"]))
        if cell["model"] == "nhp":
            return key | dict(failed="RuntimeError: no")
        if cell["model"] == "easytpp-nhp":
            return key | dict(missing="No module named 'easy_tpp'")
        return key | _numbers(1.0 + cell["seed"])

    monkeypatch.setattr(board, "_in_process", pretend)
    (tmp_path / "taxi.parquet").touch()
    models = ["deep-dapp", "nhp", "easytpp-nhp"]
    command = [
        "leaderboard",
        "--data",
        str(tmp_path),
        "--sets",
        "taxi",
        "--models",
        *models,
        "--output",
        str(tmp_path / "out.jsonl"),
    ]
    monkeypatch.setattr(sys, "argv", command)
    assert board.main() == 0
    assert len(ran) == 9 and len((tmp_path / "out.jsonl").read_text().splitlines()) == 9
    said = capsys.readouterr().out
    assert "| deep-dapp | 2.0000 ± 2.4841 |" in said  # t(2) = 4.3027 times 1 / sqrt 3
    assert (
        "| nhp | failed |" in said
        and "| easytpp-nhp | missing |" in said
        and "FAILED (RuntimeError: no)" in said
    )
    ran.clear()
    assert board.main() == 0
    assert {model for model, _ in ran} == {"nhp"}  # only what failed


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--models", "s2p2"], "expected models of deep-dapp"),
        (
            ["--models", "easytpp-nhp@0.003"],
            "NAME@rate=NUMBER or NAME@dequantise=false; received easytpp-nhp@0.003",
        ),
        (["--sets", "nowhere"], "received none for nowhere"),
        (["--seeds", "0"], "expected positive --seeds"),
    ],
)
def test_command_refuses_what_cannot_be_run(
    board: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    text: str,
) -> None:
    (tmp_path / "taxi.parquet").touch()
    monkeypatch.setattr(
        sys, "argv", ["leaderboard", "--data", str(tmp_path), "--sets", "taxi", *more]
    )
    assert board.main() == 2
    assert text in capsys.readouterr().err


def test_failed_cell_is_a_row_with_its_reason(board: ModuleType, tmp_path: Path) -> None:
    cell = dict(
        set="none",
        model="nhp",
        seed=0,
        budget=1.0,
        device="cpu",
        split="test",
        data=str(tmp_path),
        peers=None,
    )
    row = board._in_process(cell)
    assert "none.parquet" in row["failed"] and row["set"] == "none" and "score" not in row


def test_table_ranks_by_likelihood(board: ModuleType) -> None:
    options = argparse.Namespace(
        budget=1.0,
        device="cpu",
        split="test",
        most=None,
        seeds=2,
        sets=["a"],
        models=["dapp", "nhp"],
    )
    shared = dict(set="a", budget=1.0, device="cpu", split="test", seed=0)
    rows = [
        dict(model="dapp", **shared) | _numbers(0.1),
        dict(model="nhp", **shared) | _numbers(0.2),
    ]
    lines = board.tables(json.loads(json.dumps(rows)), options).splitlines()
    assert [line.split(" |")[0] for line in lines if line.startswith(("| dapp", "| nhp"))] == [
        "| nhp",
        "| dapp",
    ]


def _module(root: Path, name: str) -> ModuleType:
    """A benchmark as a module, under the name by which another imports it."""
    spec = importlib.util.spec_from_file_location(name, root / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _peer(peers: ModuleType, data: Dataset, name: str) -> Any:
    _needs_easytpp()
    model, _, dependent = name.partition("-")
    more = dict(relative_time=True, int_backward_variant=True) if dependent else {}
    torch.manual_seed(0)
    peer = peers.Peer(peers.Setting(model, 8, layers=2, heads=2, specs=dict(P=6, **more)), data)
    return peer.eval()


def _inputs(batch: Any, marks: int, scale: float) -> dict[str, torch.Tensor]:
    """A batch as EasyTPP wants it: gaps beside times, padded marks out of range, and a causal mask
    (True is hidden).
    """
    times = ((batch.times - batch.start[:, None]) / scale).float()
    gaps = torch.where(
        batch.valid, torch.cat([torch.zeros_like(times[:, :1]), times.diff(dim=1)], 1), 0.0
    )
    kinds = torch.where(batch.valid, batch.marks, marks)
    n = times.shape[1]
    hidden = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)[None] | ~batch.valid[:, None]
    return dict(
        time_seqs=times,
        time_delta_seqs=gaps,
        type_seqs=kinds,
        seq_non_pad_mask=batch.valid,
        attention_mask=hidden,
    )


def _numbers(score: float) -> dict[str, Any]:
    return dict(
        score=score,
        integral_error=1e-5,
        rmse=1.0,
        accuracy=0.5,
        ks=0.01,
        parameters=10,
        events_per_second=100.0,
        best_dev=0.0,
        steps=1,
        scoring_seconds=1.0,
    )


def _needs_easytpp() -> None:
    """The peers' own code comes with an extra that the tests do without."""
    pytest.importorskip("easy_tpp", reason="easy-tpp is not installed (the extra `bench`)")
