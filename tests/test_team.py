"""Several processes fit as one does with the same batches, also where one of them is killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sessions import LONGEST, session

import fourpoint as fp
from fourpoint.data.synthetic import simulate
from fourpoint.errors import UserError
from fourpoint.events.draws import RowGenerator, uniform_rows
from fourpoint.models import DAPP
from fourpoint.training import exchange
from fourpoint.training.sources import Selected
from fourpoint.training.team import Team, agreed_prefix, launch, unit_of

FIT = (
    "--set steps=120 --set validate_every=20 --set batch_size=16 --set baselines=false "
    "--set heads=2 --set patience=99"
)


def test_batches_are_shared_out_by_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 64)
    for size in (2, 3, 5):
        parts = [Team(rank, size).share(lengths) for rank in range(size)]
        assert sorted(np.concatenate(parts).tolist()) == list(range(64))
        loads = [int((lengths[part] + 1).sum()) for part in parts]
        units = np.add.reduceat(lengths + 1, np.arange(0, 64, unit_of(64)))
        assert max(loads) - min(loads) <= units.max()
        assert all((part.reshape(-1, unit_of(64)) % unit_of(64) == [0, 1]).all() for part in parts)
    assert [len(Team(rank, 3).share(np.array([4]))) for rank in range(3)] == [1, 0, 0]
    assert Team().share(lengths).tolist() == list(range(64))


def test_every_process_draws_for_all_rows() -> None:
    like = torch.zeros(4, 3, dtype=torch.float64)
    whole = uniform_rows(like, torch.Generator().manual_seed(7))
    for rows in ([0, 3], [1, 2]):
        random = RowGenerator.of(torch.tensor(rows), 4)
        random.manual_seed(7)
        assert torch.equal(uniform_rows(like[rows], random), whole[rows])


def test_gradients_do_not_depend_on_how_a_batch_is_shared_out() -> None:
    """Sums in float32 in another order differ by 1e-7, and fits by 0.02 nats after 500 steps."""
    data = simulate("hawkes", 70, seed=3)
    model = DAPP(data.marks, heads=2, features=8, seed=0).train()
    model.initialise(data)
    chosen = Selected(data, np.arange(70), data.scored_events)

    def gradients(team: Team) -> list[np.ndarray]:
        own = team.share(chosen.lengths)
        random = team.generator(own, 70).manual_seed(5)
        found = model.gradients(chosen.batch(own), 3, random, "window", -1e-3, unit_of(70))
        assert found is not None
        return [gradient for _, gradient in found[1]]

    alone = gradients(Team())
    parts = [gradients(Team(rank, 3)) for rank in range(3)]
    for whole, *some in zip(alone, *parts, strict=True):
        scale = max(1e-3, float(np.abs(whole).max()))
        np.testing.assert_allclose(sum(some), whole, rtol=0, atol=1e-13 * scale)


class Group:
    """Threads in the place of the processes of a group."""

    def __init__(self, size: int) -> None:
        self.both = threading.Barrier(size, timeout=60)
        self.told: list[str] = []

    def barrier(self) -> None:
        self.both.wait()

    def broadcast_object_list(self, held: list[str], src: int) -> None:
        self.told += [name for name in held if name]
        self.both.wait()
        held[:] = self.told


def test_sums_through_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange.possible():
        pytest.skip("this system has no Unix sockets")
    monkeypatch.setattr(exchange, "dist", Group(3))
    numbers = np.random.default_rng(0).normal(size=(20, 3, 50))

    def process(rank: int) -> list[torch.Tensor]:
        shared = exchange.SharedSum(rank, 3, 50)
        found = [torch.from_numpy(step[rank].copy()) for step in numbers]
        for one in found:
            shared.add(one)
        if rank == 1:
            shared.close()
            return found
        with pytest.raises(RuntimeError, match="has ended"):
            shared.add(found[0].clone())
        shared.close()
        return found

    with ThreadPoolExecutor(3) as pool:
        for sums in pool.map(process, range(3)):
            assert torch.equal(torch.stack(sums), torch.from_numpy(numbers.sum(1)))
    assert not Path(exchange.dist.told[0]).exists()  # type: ignore[attr-defined]


def test_what_is_gathered_is_in_the_order_in_which_it_was_dealt_out() -> None:
    team = Team()
    assert team.gather(team.mine([1, 2, 3])) == [1, 2, 3]
    assert [Team(rank, 2).mine([1, 2, 3]) for rank in (0, 1)] == [[1, 3], [2]]
    assert (team.agree(2.5), team.tell({"a": 1})) == (2.5, {"a": 1})


def test_a_new_start_shares_no_keys_with_processes_that_died() -> None:
    """All starts use one store, in which those before have left their addresses."""
    store = dist.HashStore()
    store.set("hello/1", "of a process that died")
    found = []
    for _ in range(2):
        with ThreadPoolExecutor(3) as pool:
            ranks = [pool.submit(agreed_prefix, store, rank, 3, 60.0) for rank in (0, 1, 2)]
            prefixes = {rank.result() for rank in ranks}
        assert len(prefixes) == 1
        found += prefixes
    assert found[0] != found[1]
    with pytest.raises(UserError, match="2 processes that find each other"):
        agreed_prefix(dist.HashStore(), 1, 2, timeout=0.0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "events.parquet"
    fp.write(simulate("hawkes", 80, seed=0), path)
    return path


def _curve(folder: Path) -> np.ndarray:
    with (folder / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("step", "train_log_likelihood", "dev_log_likelihood")
    return np.array([[float(row[name]) for name in names] for row in rows])


def _command(data: Path, folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "fourpoint", "fit", str(data), "-o", str(folder), *more]


def test_two_processes_have_the_curve_of_one_also_where_one_is_killed(
    data: Path, tmp_path: Path
) -> None:
    alone = subprocess.run(_command(data, tmp_path / "one", *FIT.split()), capture_output=True)
    assert alone.returncode == 0, alone.stderr.decode()
    words = _command(data, tmp_path / "two", "--processes", "2", *FIT.split())
    history = tmp_path / "two" / "history.csv"
    with session(words) as together:
        until = time.monotonic() + LONGEST
        killed = False
        while together.process.poll() is None and not killed and time.monotonic() < until:
            # A checkpoint follows each row; five of the six validations are still to come.
            if history.is_file() and len(history.read_text().splitlines()) > 1:
                victim = next(iter(_workers(together.process.pid)), None)
                if victim is not None:
                    os.kill(victim, signal.SIGKILL)
                    killed = True
            time.sleep(0.005)
        assert together.wait() == 0, together.stderr
        assert killed and "saved dapp" in together.stdout
        assert "resumed at step" in together.stderr
    np.testing.assert_allclose(
        _curve(tmp_path / "two"), _curve(tmp_path / "one"), atol=1e-4, rtol=0
    )
    about = [json.loads((tmp_path / name / "model.json").read_text()) for name in ("one", "two")]
    assert about[0]["about"]["best_step"] == about[1]["about"]["best_step"]


def _workers(parent: int) -> list[int]:
    """The processes that a process has started, those of rank 1 first."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            status = (place / "stat").read_text()
            variables = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(status.rsplit(")", 1)[1].split()[1]) == parent and b"RANK=1" in variables:
            found.append(int(place.name))
    return found


def test_a_signal_ends_a_group_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.launcher import api

    def told(*_: object) -> None:
        raise SignalException("told to end", signal.SIGTERM)

    monkeypatch.setattr(api, "elastic_launch", lambda *_: told)
    assert launch(2, ["fit"]) == 128 + signal.SIGTERM


def test_errors_of_the_user_end_all_processes_once(data: Path, tmp_path: Path) -> None:
    words = _command(data, tmp_path / "m", "--processes", "2", "--set", "heads=none")
    found = subprocess.run(words, capture_output=True, text=True)
    assert found.returncode == 2, found.stderr
    assert found.stderr.count("expected") >= 1 and "Traceback" not in found.stderr
    assert not (tmp_path / "m").exists()
