"""Tasks in local processes and on a Ray cluster: the same numbers, and what is lost runs again."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from sessions import session

from fourpoint.errors import UserError
from fourpoint.workers import Failure, Numbered, open_executor, run_all

RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)"
)


def square(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 5:
        raise ValueError("five")
    return number**2


def test_results_come_in_order_and_failures_have_reasons() -> None:
    with open_executor(Numbered(square), jobs=2) as executor:
        assert list(run_all(executor, range(4))) == [0, 1, 4, 9]
    found = {}
    with open_executor(square, jobs=1) as executor:
        for task in (7, 5, 3):
            executor.submit(task)
            found.update(executor.wait())
    assert found[3] == 9
    assert isinstance(found[7], Failure) and "SIGKILL" in found[7].reason
    assert isinstance(found[5], Failure) and found[5].reason == "ValueError: five"
    failing = open_executor(Numbered(square), jobs=1)
    with failing as executor, pytest.raises(UserError, match="ValueError: five"):
        list(run_all(executor, [5]))
    with pytest.raises(UserError, match="at least one process"), open_executor(square, jobs=0):
        pass


def test_threads_run_tasks_that_start_processes() -> None:
    with open_executor(Numbered(square), jobs=2, threads=True) as executor:
        assert list(run_all(executor, range(3))) == [0, 1, 4]


CLUSTER = """
import json, os, subprocess, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster

model, data, folder = sys.argv[1:]
small = dict(num_cpus=1, object_store_memory=8 * 10**7)
cluster = Cluster(initialize_head=True, head_node_args=dict(small, include_dashboard=False))
lost = cluster.add_node(**small)

def forecast(name, *more):
    words = ["forecast", model, data, "--all", "--horizon", "2", "--paths", "8", "-o"]
    return [sys.executable, "-m", "fourpoint", *words, folder + name, *more]

subprocess.run(forecast("/ray.parquet", "--ray", cluster.address), check=True, timeout=200)

import ray
from fourpoint.workers import open_executor
import slow_tasks

ray.init(address=cluster.address, log_to_driver=False)
found = {}
with open_executor(slow_tasks.marked, ray=cluster.address) as executor:
    waiting = list(range(6))
    killed = False
    while waiting or executor.busy():
        while waiting and executor.free() > 0:
            executor.submit((waiting.pop(0), folder))
        if not killed and len(list(__import__("pathlib").Path(folder).glob("begun-*"))) >= 2:
            cluster.remove_node(lost, allow_graceful=False)
            killed = True
        for task, result in executor.wait(0.05):
            found[task[0]] = result
told = dict(killed=killed, found=sorted(found.items()))
Path("told.json").write_text(json.dumps(told))
ray.shutdown()
cluster.shutdown()
"""
SLOW = """
import time
from pathlib import Path

def marked(task):
    number, folder = task
    Path(folder, f"begun-{number}-{time.monotonic_ns()}").touch()
    time.sleep(0.4)
    return number**2
"""


@RAY
@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_gives_the_numbers_of_local_processes_and_outlives_a_node(
    tmp_path: Path,
) -> None:
    import pyarrow.parquet as pq

    import fourpoint as fp
    from fourpoint.data.synthetic import simulate
    from fourpoint.models import Hawkes

    data = tmp_path / "events.parquet"
    fp.write(simulate("hawkes", 1100, seed=0), data)
    fp.save(Hawkes(baseline=10.0, branching=1.0), tmp_path / "model")
    (tmp_path / "slow_tasks.py").write_text(SLOW)
    (tmp_path / "cluster.py").write_text(CLUSTER)
    words = [sys.executable, "-W", "ignore", "cluster.py", "model", "events.parquet", "."]
    places = [str(tmp_path), *sys.path]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(places), "RAY_DISABLE_IMPORT_WARNING": "1"}
    with session(words, cwd=tmp_path, env=env) as ran:
        assert ran.wait() == 0, ran.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told == {"killed": True, "found": [[i, i**2] for i in range(6)]}
    model = fp.restore(tmp_path / "model")
    expected = fp.forecasts(model, fp.read(data), 2.0, paths=8)
    assert pq.read_table(tmp_path / "ray.parquet").equals(expected)


@RAY
def test_an_address_without_a_cluster_is_an_error_of_the_user() -> None:
    nowhere = open_executor(square, ray="127.0.0.1:1")
    with pytest.raises(UserError, match="the address of a Ray cluster"), nowhere:
        pass
