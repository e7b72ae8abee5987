"""Beyond one process and beyond memory: files read chunk by chunk, data-parallel training, Ray.

    python benchmarks/scale.py [--parts memory steps processes reduce ray] [--files 50]
                               [--sequences 4000] [--steps 1000] [--folder DIR]

The data are simulated: ``--files`` Parquet files of ``--sequences`` sequences, a Hawkes process of
three types whose events are followed by others after about a unit of time, 100 events each.

    memory      `fourpoint fit --model dapp`, one epoch, and `fourpoint evaluate` of the folder: the
                largest resident size of each process, and its processor seconds
    steps       processor seconds per event of steps on the folder and on the same data in memory,
                one after the other in the same process, round by round
    processes   `fit --processes 2` beside one process with one thread, the same batches: events per
                second, and the largest difference of the two loss curves; the same again with one
                of the two processes killed in the middle
    reduce      a step's exchange of gradients: one all-reduce of one array beside torch's
                DistributedDataParallel, two processes, by the number of weights
    ray         `forecast --all` and six cells of the leaderboard, which end after some steps, on a
                Ray cluster of two nodes, one of which is killed, beside local processes: whether
                the numbers are the same

Speeds are meaningful on an idle machine only; resident sizes and differences always are.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from records import Record, figure, options, ratios

from fourpoint.data.event_files import scan
from fourpoint.data.readers import write
from fourpoint.events import Dataset, MarkSpace

PARTS = ("memory", "steps", "processes", "reduce", "ray")
BASE = np.array([0.25, 0.15, 0.1])
OFFSPRING = np.array([[0.3, 0.1, 0.0], [0.2, 0.3, 0.1], [0.0, 0.1, 0.4]])  # of each type, by type
WINDOW = 100.0
GIB = 2**30
MOST_GIB = 2.0  # resident
CELLS = ("dapp@steps=40", "rmtpp@steps=40", "nhp@steps=20")  # of the leaderboard, for two seeds
CLOCKED = ("seconds", "scoring_seconds", "events_per_second")  # of a cell: differ between runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--sequences", type=int, default=4000, help="of each file")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64, help="sequences of a step")
    parser.add_argument("--folder", type=Path, help="where files are, or are written")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options(parser)
    given = parser.parse_args()
    if given.child:
        _reduce_child(json.loads(given.child))
        return
    record = Record("scale", "Files, processes and clusters.", given.quick)
    with tempfile.TemporaryDirectory() as spare:
        place = Path(spare)
        data = simulated(given.folder or place / "events", given.files, given.sequences)
        files = scan(data)
        print(f"{files}", flush=True)
        for part in given.parts:
            PART[part](record, data, place, given)
    print(f"wrote {record.write(given.results)}")


def simulated(folder: Path, files: int, sequences: int) -> Path:
    """The files, which are simulated unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        path = folder / f"part-{number:03d}.parquet"
        if not path.is_file():
            write(hawkes(sequences, number), path)
    return folder


def hawkes(count: int, seed: int) -> Dataset:
    """Sequences of a Hawkes process as clusters, generation by generation; offspring come after a
    gamma-distributed time with mean 1.
    """
    rng = np.random.default_rng(seed)
    many = [rng.poisson(rate * WINDOW, count) for rate in BASE]
    row = np.concatenate([np.repeat(np.arange(count), own) for own in many])
    mark = np.repeat(np.arange(3), [own.sum() for own in many])
    time_of = rng.random(len(row)) * WINDOW
    found = [(row, time_of, mark)]
    while len(row):
        counts = rng.poisson(OFFSPRING[:, mark])
        parent = np.concatenate([np.repeat(np.arange(len(row)), own) for own in counts])
        child_mark = np.repeat(np.arange(3), counts.sum(1))
        child_time = time_of[parent] + rng.gamma(8.0, 1 / 8.0, len(parent))
        kept = child_time < WINDOW
        row, time_of, mark = row[parent][kept], child_time[kept], child_mark[kept]
        found.append((row, time_of, mark))
    row, time_of, mark = (np.concatenate([part[i] for part in found]) for i in range(3))
    order = np.lexsort((time_of, row))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))])
    ids = tuple(f"e{seed * count + i}" for i in range(count))
    stops = np.full(count, WINDOW)
    marks = MarkSpace.categorical(3)
    return Dataset(time_of[order], mark[order], offsets, np.zeros(count), stops, marks, ids=ids)


def run(words: list[str]) -> tuple[float, float, float]:
    """A command of fourpoint: seconds, processor seconds and the largest resident bytes."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "fourpoint", *words], env=env, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"fourpoint {' '.join(words)}: exit code {process.returncode}")
    return time.monotonic() - began, used.ru_utime + used.ru_stime, 1024.0 * used.ru_maxrss


def recipe(given: Any, *more: str) -> list[str]:
    settings = [f"batch_size={given.batch}", "baselines=false", *more]
    return [word for setting in settings for word in ("--set", setting)]


# ---------------------------------------------------------------------- parts


def memory(record: Record, data: Path, place: Path, given: Any) -> None:
    steps = ("steps=4",) if given.quick else ("steps=1", "epochs=1")
    buffer = ["--buffer", "2000000"]
    events = scan(data).events
    model = place / "streamed"
    for name, words in (
        ("fit", ["fit", str(data), "-o", str(model), *buffer, *recipe(given, *steps)]),
        ("evaluate", ["evaluate", str(model), str(data), *buffer, "--split", "all"]),
    ):
        seconds, used, largest = run(words)
        record.row(
            "larger than memory",
            f"{name}, {events:,} events",
            seconds=figure([seconds], "s"),
            **{"processor seconds": figure([used], "s")},
            **{"resident GiB": figure([largest / GIB], "GiB")},
        )
        print(
            f"{name:9} {events:,} events: {seconds:,.0f} s, {used:,.0f} processor seconds, "
            f"{largest / GIB:.2f} GiB resident",
            flush=True,
        )
        record.bar(f"{name} from files, GiB resident", largest / GIB, most=MOST_GIB)


def steps(record: Record, data: Path, place: Path, given: Any) -> None:
    import torch

    from fourpoint.models import DAPP
    from fourpoint.training.run import Recipe, Run
    from fourpoint.training.sources import InMemory, Source, Streamed
    from fourpoint.training.steps import Steps

    torch.set_num_threads(1)
    files = scan(data)
    whole = files.load()
    model = DAPP(files.marks, seed=0)
    model.initialise(whole.some(20_000, 0))
    values = dict(steps=10, batch_size=given.batch, learning_rate=1e-3, weight_decay=0.0, warmup=1)
    values |= dict(clip=1.0, nodes=3, validate_every=10, patience=1, mixed=False, epochs=0.0)
    own = Recipe(**values, average=0.0, dequantise=False)
    kinds: dict[str, Source] = {
        "files": Streamed(files, seed=0).prepare(given.batch, False),
        "memory": InMemory(whole, given.batch, False, 0),
    }
    some = whole.some(2_000, 0)
    takers = {}
    for name, source in kinds.items():
        run_of = Run(model, some, some, None, 0, own, dict(convention="window"), source, whole)
        optimiser = torch.optim.AdamW(
            [dict(params=list(model.parameters()), pace=1.0)], lr=1e-3, fused=True
        )
        takers[name] = Steps(run_of, optimiser, own, "window")
        takers[name].take(0, 1e-4)
    costs: dict[str, list[float]] = {"files": [], "memory": []}
    first = 1
    for _ in range(3):
        for name, taker in takers.items():
            began, seen = time.process_time(), 0
            for step in range(first, first + given.steps):
                taker.take(step, 1e-4)
                seen += kinds[name].at(step).scored
            costs[name].append(1e6 * (time.process_time() - began) / seen)
        first += given.steps
    one, other = (figure(costs[name], "us") for name in ("files", "memory"))
    times = ratios(one, other)
    record.row("steps", "processor microseconds per event", files=one, memory=other, ratio=times)
    record.bar("files beside memory, processor time per event", times, most=1.2)
    print(
        f"steps     {one['median']:.2f} microseconds per event from files, {other['median']:.2f} "
        f"from memory: ratio {times['median']:.3f}",
        flush=True,
    )


def processes(record: Record, data: Path, place: Path, given: Any) -> None:
    source = str(sorted(data.glob("*.parquet"))[0])
    every = max(1, given.steps // 5)
    words = recipe(given, f"steps={given.steps}", f"validate_every={every}", "patience=99")
    curves, speeds = [], []
    for name, more in (("one", []), ("two", ["--processes", "2"])):
        run(["fit", source, "-o", str(place / name), *words, *more])
        curves.append(loss_curve(place / name))
        rows = history(place / name)
        speeds.append(figure([float(row["events_per_second"]) for row in rows][1:], "events/s"))
    apart = float(np.abs(curves[0] - curves[1]).max())
    times = ratios(speeds[1], speeds[0])
    record.row("processes", f"batches of {given.batch}", one=speeds[0], two=speeds[1], ratio=times)
    print(
        f"processes {speeds[0]['median']:,.0f} events/s in one, {speeds[1]['median']:,.0f} in two: "
        f"{times['median']:.2f} times",
        flush=True,
    )
    record.bar("two processes beside one, events per second", times, least=1.6)
    record.bar("curves of two processes and of one, nats per event", apart, most=1e-4)
    kill_one([*("fit", source, "-o", str(place / "killed")), *words, "--processes", "2"])
    apart = float(np.abs(curves[0] - loss_curve(place / "killed")).max())
    record.bar("the same with one process killed, nats per event", apart, most=1e-4)


def history(folder: Path) -> list[dict[str, str]]:
    """The validations of a fit, those before the first step left out."""
    with (folder / "history.csv").open() as file:
        return [row for row in csv.DictReader(file) if float(row["step"])]


def loss_curve(folder: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The log-likelihoods per event of a fit's validations."""
    columns = ("train_log_likelihood", "dev_log_likelihood")
    return np.array([[float(row[name]) for name in columns] for row in history(folder)])


def kill_one(words: list[str]) -> None:
    """Run a fit in two processes, and kill the second of them after its second validation."""
    folder = Path(words[words.index("-o") + 1])
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "fourpoint", *words], env=env, stdout=subprocess.DEVNULL
    )
    while not ((folder / "history.csv").is_file() and len(history(folder)) >= 2):
        if process.poll() is not None:
            raise RuntimeError("the fit ended before a process could be killed")
        time.sleep(0.01)
    os.kill(second_process(process.pid), signal.SIGKILL)
    if process.wait():
        raise RuntimeError(f"the fit did not go on: exit code {process.returncode}")
    print("processes one of two killed with SIGKILL: the fit went on to its end", flush=True)


def second_process(parent: int) -> int:
    """The process of rank 1 among those that a process has started."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if b"RANK=1" in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise RuntimeError("there is no process of rank 1")


def reduce(record: Record, data: Path, place: Path, given: Any) -> None:
    for size in (3_000, 30_000, 300_000):
        child = json.dumps(dict(size=size, repeats=5 if given.quick else 200))
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *words, __file__, "--child", child],
            env=env,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        found = json.loads(done.stdout.strip().splitlines()[-1])
        plain, ddp = (figure(found[name], "ms") for name in ("plain", "ddp"))
        record.row("exchange of gradients", f"{size:,} weights", plain=plain, ddp=ddp)
        print(
            f"reduce    {size:,} weights: backward and one all-reduce {plain['median']:.2f} ms, "
            f"DistributedDataParallel {ddp['median']:.2f} ms",
            flush=True,
        )


def _reduce_child(asked: dict[str, Any]) -> None:
    """Milliseconds of a backward pass with either exchange, in one of two processes."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from fourpoint.training.team import Team

    dist.init_process_group("gloo")
    team = Team(dist.get_rank(), dist.get_world_size())
    width = int((asked["size"] / 8) ** 0.5)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))
    wrapped = nn.parallel.DistributedDataParallel(model)
    inputs = torch.randn(16, width)
    weights = list(model.parameters())
    found: dict[str, list[float]] = {"plain": [], "ddp": []}
    for _ in range(asked["repeats"]):
        for name in found:
            model.zero_grad()
            dist.barrier()
            began = time.perf_counter()
            (model if name == "plain" else wrapped)(inputs).square().mean().backward()
            if name == "plain":
                team.add(weights, 0.0)
            found[name].append(1e3 * (time.perf_counter() - began))
    if team.first:
        print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)  # threads of the process group may outlive its end


def ray(record: Record, data: Path, place: Path, given: Any) -> None:
    import importlib.util

    if importlib.util.find_spec("ray") is None:
        print("ray       not installed (extra ray)", flush=True)
        return
    import pyarrow.parquet as pq

    model = place / "streamed"
    if not model.is_dir():
        run(["fit", str(data), "-o", str(model), "--buffer", "2000000", *recipe(given, "steps=4")])
    words = ["forecast", str(model), str(data), "--all", "--horizon", "5", "--paths", "20"]
    words += ["--buffer", "2000000"]
    run([*words, "-o", str(place / "local.parquet"), "--jobs", "2"])
    out = place / "ray.parquet"
    killed = on_cluster([sys.executable, "-m", "fourpoint", *words, "-o", str(out), "--ray"], place)
    same = pq.read_table(place / "local.parquet").equals(pq.read_table(out))
    compared(record, "forecast --all", same, killed)
    board = [sys.executable, str(Path(__file__).with_name("leaderboard.py"))]
    board += ["--data", str(place), "--sets", "simulated", "--models", *CELLS, "--seeds", "2"]
    board += ["--budget", "3600", "--most", "1000"]
    few = hawkes(120, 0)
    parts = np.array([("train", "train", "dev", "test")[i % 4] for i in range(len(few))])
    write(replace(few, splits=parts), place / "simulated.parquet")
    one, other = place / "local.jsonl", place / "ray.jsonl"
    subprocess.run(
        [*board, "--jobs", "2", "--output", str(one)], check=True, stdout=subprocess.DEVNULL
    )
    killed = on_cluster([*board, "--output", str(other), "--ray"], place)
    compared(record, "leaderboard", cells(one) == cells(other), killed)


def compared(record: Record, name: str, same: bool, killed: bool) -> None:
    """A row and a line of whether numbers are the same."""
    record.row("Ray", name, same=str(same), killed=str(killed))
    print(f"ray       {name} on two nodes, one of them killed: {killed}", flush=True)
    record.bar(f"{name}: numbers differ from those of local processes", float(not same), most=0)


def cells(file: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The rows of the leaderboard without what the clock decides."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    if failed := [row for row in rows if "failed" in row]:
        raise RuntimeError(f"{len(failed)} cells have failed: {failed[0]}")
    kept = [{key: value for key, value in row.items() if key not in CLOCKED} for row in rows]
    return {(row["model"], row["seed"]): row for row in kept}


def on_cluster(command: list[str], place: Path) -> bool:
    """Run a command whose last word is --ray on a cluster of two nodes, of which one is killed as
    soon as both are busy; whether it was.
    """
    script = place / "cluster.py"
    script.write_text(CLUSTER)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), json.dumps(command)],
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return bool(json.loads(done.stdout.strip().splitlines()[-1])["killed"])


CLUSTER = """
import json, subprocess, sys, time
from ray.cluster_utils import Cluster
small = dict(num_cpus=1, object_store_memory=10**8)
cluster = Cluster(initialize_head=True, head_node_args=dict(small, include_dashboard=False))
other = cluster.add_node(**small)
process = subprocess.Popen([*json.loads(sys.argv[1]), cluster.address])
began, killed = time.monotonic(), False
import ray
ray.init(address=cluster.address, log_to_driver=False)
while process.poll() is None:
    free = ray.available_resources().get("CPU", 0.0)
    if not killed and free == 0.0:
        cluster.remove_node(other, allow_graceful=False)
        killed = True
    time.sleep(0.1)
print(json.dumps(dict(killed=killed, code=process.returncode)))
ray.shutdown()
cluster.shutdown()
sys.exit(process.returncode)
"""
PART = {"memory": memory, "steps": steps, "processes": processes, "reduce": reduce, "ray": ray}

if __name__ == "__main__":
    main()
