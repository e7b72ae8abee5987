"""Every model on the field's public data, in one run: same splits, same seconds of training, one
honest integral.

    python benchmarks/leaderboard.py --data DIR [--sets taxi stackoverflow_easytpp taobao] [--models
        deep-dapp easytpp-s2p2 nhp ...] [--seeds 3] [--budget 60] [--device cpu|cuda] [--jobs 1]
        [--ray ADDRESS] [--split test|dev] [--most EVENTS] [--peers DIR] [--output results.jsonl]

DIR holds Parquet files NAME.parquet with the splits train, dev and test. A cell is one (set, model,
seed) and has a process and a CPU thread of its own, ``--jobs`` at a time, or as many as the Ray
cluster at ``--ray`` has processors (data and this repository must be at the same place on every
node; a cell whose node is lost is run again on another): it is trained on `train`
for ``--budget`` seconds (fewer where a model's own recipe ends earlier), its weights are chosen on
`dev`, and it is scored once on ``--split``, or on sequences of it that are drawn at random with
about ``--most`` events, the same for all. What a process sets up once (kernels, caches) is not
counted. Fourpoint's models go by their own recipe with `fit`; EasyTPP's by `easytpp_models.py`,
which also lists their settings. ``NAME@key=value,...`` is one of ours with other settings (an
ablation: add ``--split dev``); peers know ``rate`` and ``dequantise``.

Scores, all given events before and in the data's unit of time:

    log-likelihood   nats per event of events 2..N on [t_1, t_N] (the `gaps` convention), all
                     sequences; Gauss-Legendre in every gap, doubled and cut until it converges to
                     1e-4 nats per event, with an upper estimate of its error (1e-3 for rates with
                     narrow peaks; where it does not converge so far, to 1e-2, and where not even
                     to that, 256 nodes and the change from 128; on a GPU 1,024 and 512)
    per timestamp    where many gaps are a few multiples of the timestamp resolution:
                     `fp.resolution_score`, the log-probability of the recorded timestamp and the
                     mark, of sequences drawn at random with 20,000 events
    KS               distance of 1 - exp(-integral over the gap) from uniform, all gaps of all
                     sequences: calibration
    time RMSE        of the mean of the next event's law (n/a where a law has none: no event may
                     ever come), and
    accuracy         of the likeliest mark at the true time: both over 1,000 events drawn at random,
                     none the first of its sequence
    events/s         of training, validations not counted
    best dev         nats per event on dev of the weights that were kept, by one rule of 12 nodes
                     per gap

Results are appended to ``--output`` as JSON lines; a cell that is there with the same budget,
device and split is not run again, a failed one is. At the end a Markdown table of each set: means
over seeds and half of a 95% t interval. A peer that cannot be imported is shown as missing;
``--peers`` is a folder for the module path that holds easy_tpp and what else is missing where
nothing can be installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

SETS = ("taxi", "stackoverflow_easytpp", "taobao")
OURS = ("deep-dapp", "dapp", "nhp", "rmtpp", "sahp", "thp")
THEIRS = ("easytpp-s2p2", "easytpp-nhp", "easytpp-attnhp")
KEY = ("set", "model", "seed", "budget", "device", "split", "most")
EVENTS = 1000  # next events that are predicted
TICKED = 20_000  # events at most, in sequences drawn at random, whose ticks are scored
TOLERANCES, TICK_TOLERANCES = (
    (1e-4, 1e-3, 1e-2),
    (1e-3, 1e-2),
)  # nats per event, one after the other
NODES = dict(cpu=256, cuda=1024)  # per gap, where integrals do not settle
PADDED = 2048  # slots of a batch that is scored: up to 1,024 nodes in each of them are held at once
CHANGES = r"(rate=[\d.e-]+|dequantise=false)(,(rate=[\d.e-]+|dequantise=false))*"  # of peers
Row = dict[str, Any]
Found = tuple[Any, Any, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of Parquet files")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--models", nargs="+", default=[*OURS, *THEIRS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of training")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--ray", help="address of a Ray cluster: auto, local, HOST:PORT")
    parser.add_argument("--split", default="test", choices=("test", "dev"))
    parser.add_argument("--most", type=int, help="score about so many events; all by default")
    parser.add_argument("--peers", type=Path, help="folder that holds easy_tpp and what it imports")
    parser.add_argument("--output", type=Path, default=Path("leaderboard.jsonl"))
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(run_cell(json.loads(options.cell))))
        return 0
    if options.data is None:
        print("no --data: nothing to score (the folder of Parquet files, see --help)")
        return 0
    if options.peers:
        sys.path.append(str(options.peers))
    if wrong := _wrong(options):
        print(wrong, file=sys.stderr)
        return 2
    run_all(options)
    print(tables(_read(options.output), options))
    return 0


def run_all(options: argparse.Namespace) -> None:
    """Run what is not there yet, ``--jobs`` cells at a time, and append each as it ends; one line
    of progress per cell.
    """
    shared = dict(
        budget=options.budget, device=options.device, split=options.split, most=options.most
    )
    places = dict(
        data=str(options.data.resolve()),
        peers=str(options.peers.resolve()) if options.peers else None,
    )
    cells = [
        dict(set=s, model=m, seed=seed, **shared)
        for seed in range(options.seeds)
        for s in options.sets
        for m in options.models
    ]
    done = {_key(row) for row in _read(options.output) if "failed" not in row}
    left = [cell for cell in cells if _key(cell) not in done]
    print(f"{len(cells)} cells, {len(cells) - len(left)} of them done before", flush=True)
    from fourpoint.workers import Failure, open_executor

    began = time.monotonic()
    ended, waiting = 0, list(left)
    gpus = 1.0 if options.device == "cuda" else 0.0
    with open_executor(
        _in_process, jobs=options.jobs, ray=options.ray, gpus=gpus, threads=True
    ) as executor:
        while waiting or executor.busy():
            while waiting and executor.free() > 0:
                executor.submit(waiting.pop(0) | places)
            for cell, row in executor.wait():
                if isinstance(row, Failure):
                    row = {name: cell.get(name) for name in KEY} | dict(failed=row.reason)
                with options.output.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                ended += 1
                passed = time.monotonic() - began
                print(f"[{ended}/{len(left)}, {passed:.0f} s] {_said(row)}", flush=True)


def run_cell(cell: Row) -> Row:
    """Train and score one model: a row of numbers, or why there is none."""
    import torch

    torch.set_num_threads(1)
    data, peers = Path(cell.pop("data")), cell.pop("peers")
    if peers:
        sys.path.append(peers)
    import fourpoint as fp

    whole = fp.read(data / f"{cell['set']}.parquet")
    parts = {name: whole.part(name) for name in ("train", "dev", cell["split"])}
    try:
        model, facts = _trained(cell, parts["train"], parts["dev"])
    except ImportError as error:
        if not cell["model"].startswith("easytpp-"):
            raise
        return cell | dict(missing=str(error))
    clock = time.monotonic()
    model.to(cell["device"]).eval()
    row = (
        cell
        | facts
        | dict(parameters=_parameters(model), marks=whole.marks.count, torch=torch.__version__)
    )
    scored = parts[cell["split"]]
    row |= _scores(model, parts["dev"], scored.some(cell["most"], 0) if cell["most"] else scored)
    return row | dict(scoring_seconds=time.monotonic() - clock)


def tables(rows: list[Row], options: argparse.Namespace) -> str:
    """One Markdown table per set, the best likelihood first."""
    wanted = dict(
        budget=options.budget, device=options.device, split=options.split, most=options.most
    )
    latest = {
        _key(row): row
        for row in rows
        if all(row.get(k) == v for k, v in wanted.items()) and row["seed"] < options.seeds
    }
    out = []
    for name in options.sets:
        columns = (
            "model",
            f"{options.split}, nats per event",
            "integral error",
            "per timestamp",
            "time RMSE",
            "mark accuracy",
            "KS",
            "parameters",
            "events/s",
            "best dev",
            "seeds",
        )
        lines = [
            f"\n**{name}** ({options.budget:g} s on {options.device})\n",
            f"| {' | '.join(columns)} |",
            "|---" * len(columns) + "|",
        ]
        groups = {
            m: [r for r in latest.values() if (r["set"], r["model"]) == (name, m)]
            for m in options.models
        }
        ranked = sorted(
            groups.items(), key=lambda item: -_mean(r["score"] for r in item[1] if "score" in r)
        )
        out += [*lines, *(_line(model, found) for model, found in ranked)]
    return "\n".join(out)


# ---------------------------------------------------------------------- one cell


def _trained(cell: Row, train: Any, dev: Any) -> tuple[Any, Row]:
    """The model after its budget, and what training did. A first, short fit of a copy makes ready
    what is made once.
    """
    if cell["model"].startswith("easytpp-"):
        import easytpp_models as peers

        from fourpoint.training.run import look_for_narrow_peaks

        for budget in (1e-3, cell["budget"]):
            model, rate = peers.build(cell["model"], train, cell["seed"])
            facts = peers.train(
                model.to(cell["device"]), train, dev, rate=rate, budget=budget, seed=cell["seed"]
            )
        look_for_narrow_peaks(model, train)
        return model, facts
    from fourpoint import fit
    from fourpoint.former_names import FORMER_SETTINGS
    from fourpoint.models import MODELS
    from fourpoint.settings import current_pairs, parse_settings

    name, _, changes = cell["model"].partition("@")
    pairs, _ = current_pairs(changes.split(",") if changes else [], FORMER_SETTINGS.get(name, {}))
    of_model, of_training = parse_settings(pairs, MODELS[name], fit)
    common = dict(
        device=cell["device"], convention="gaps", seed=cell["seed"], baselines=False, progress=False
    )
    few = [data.select(range(min(len(data), 64))) for data in (train, dev)]
    fit(
        MODELS[name](train.marks, seed=cell["seed"], **of_model),
        *few,
        steps=2,
        epochs=0,
        validate_every=2,
        **common,
    )
    model = MODELS[name](train.marks, seed=cell["seed"], **of_model)
    began = time.monotonic()
    found = fit(model, train, dev, time_budget=cell["budget"], **common, **of_training)
    speeds = sorted(row["events_per_second"] for row in found.history)
    facts = dict(
        steps=int(found.history[-1]["step"]) if found.history else 0,
        stopped=found.stopped,
        best_step=found.best_step,
    )
    return model, facts | dict(
        seconds=time.monotonic() - began,
        validations=len(found.history),
        events_per_second=speeds[len(speeds) // 2] if speeds else None,
    )


def _scores(model: Any, dev: Any, data: Any) -> Row:
    """Likelihood, calibration and predictions on ``data``, the likelihood alone on ``dev``."""
    import numpy as np
    from easytpp_models import dev_score

    from fourpoint.inference.sampling import eval_mode
    from fourpoint.ops.rescaling import ks_test

    with eval_mode(model):
        total, error, passed = _likelihood(model, _up_to_last_event(data))
        best, ahead = dev_score(model, dev), _ahead(model, data)
    ks, _ = ks_test(-np.expm1(-passed))
    events = max(1, len(passed))
    found = dict(
        score=total / events,
        integral_error=error / events,
        events=len(passed),
        ks=ks,
        best_dev=best,
    )
    return found | ahead | _by_ticks(model, data)


def _by_ticks(model: Any, data: Any) -> Row:
    """Where many gaps are a few ticks of a clock, the log-probability of the ticks, which narrow
    peaks cannot raise.
    """
    from fourpoint.inference.resolution import resolution_score
    from fourpoint.ops.periodogram import coarse_resolution
    from fourpoint.ops.quadrature import Unconverged

    tick, data = coarse_resolution(data.gaps[data.gaps > 0]), data.some(TICKED, 0)
    if not tick:
        return {}
    for tolerance in TICK_TOLERANCES:
        try:
            return dict(
                tick=tick,
                resolution_score=resolution_score(model, data, tick, tolerance=tolerance),
                tick_tolerance=tolerance,
            )
        except Unconverged as error:
            why = str(error)
    return dict(tick=tick, ticks=why)


def _ahead(model: Any, data: Any) -> Row:
    """Scores of predictions of the next event; None where there is no number."""
    import numpy as np

    from fourpoint.inference.predictions import _next_scores
    from fourpoint.ops.quadrature import Unconverged

    inner = np.setdiff1d(np.arange(data.events), data.offsets[:-1][data.lengths > 0])
    names = ("rmse", "mae", "crps", "coverage", "accuracy", "log_loss")
    try:
        chosen = np.sort(np.random.default_rng(0).permutation(inner)[:EVENTS])
        found = _next_scores(model, data, chosen)
    except Unconverged as error:
        return dict.fromkeys(names) | dict(predictions=str(error))
    numbers = {name: getattr(found, name) for name in names}
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in numbers.items()
    }


def _likelihood(model: Any, data: Any) -> tuple[float, float, Any]:
    """Log-likelihood, its error and the integrals over all gaps. Once integrals do not settle, all
    that follow go by a coarser way.
    """
    import numpy as np
    import torch

    from fourpoint.ops.quadrature import Unconverged

    tolerances = TOLERANCES[1:] if getattr(model, "narrow", False) else TOLERANCES
    total, error, gaps, ways = (
        0.0,
        0.0,
        [],
        [*(partial(_refined, tolerance=t) for t in tolerances), _by_rule],
    )
    for rows in data.batches(64, padded=PADDED):
        batch, found = data.batch(rows).to(next(model.parameters()).device), None
        while found is None:
            try:
                found = ways[0](model, batch)
            except Unconverged:
                ways = ways[1:]
        inner = (
            torch.arange(1, batch.times.shape[1], device=batch.times.device)
            < batch.lengths[:, None]
        )
        total, error = total + float(found[0].sum()), error + float(found[1].sum())
        gaps.append(found[2][inner].cpu().numpy())
    return total, error, np.concatenate(gaps)


def _up_to_last_event(data: Any) -> Any:
    """The same events in windows that end with their last: what comes after is not scored, and need
    not be integrated.
    """
    import numpy as np

    last = data.times[np.maximum(data.offsets[1:], 1) - 1] if data.events else data.stops
    stops = np.where((data.lengths > 0) & (last > data.starts), last, data.stops)
    return dataclasses.replace(data, stops=stops, inferred=True)


def _refined(model: Any, batch: Any, *, tolerance: float) -> Found:
    """Log-likelihood of each sequence, its error, and the integral over every gap between events;
    or `Unconverged`.
    """
    import torch

    from fourpoint.inference.goodness import gap_integrals

    integral, error = (
        torch.where(batch.valid[:, 1:], part[:, 1:-1], 0.0)
        for part in gap_integrals(model, batch, tolerance)
    )
    return _logs(model, batch).sum(1) - integral.sum(1), error.sum(1), integral


def _by_rule(model: Any, batch: Any) -> Found:
    """The same by NODES in every gap, for rates that swing hundreds of times in one; the change
    from half as many is the error.

    The rule is one for the square root of the time since the event, where rates change fastest.
    """
    import torch

    from fourpoint.ops.quadrature import gauss_legendre

    (B, N), history = batch.times.shape, model.encode(batch)
    seen = torch.arange(1, N, device=batch.times.device).expand(B, N - 1)
    left, width, integrals = batch.times[:, :-1, None], batch.times.diff(dim=1), []
    for nodes in (NODES[batch.times.device.type] // 2, NODES[batch.times.device.type]):
        x, w = (part.to(batch.times) for part in gauss_legendre(nodes))
        rates = (
            model.log_intensity(history, left + width[..., None] * x**2, seen)
            .exp()
            .sum(-1)
            .double()
        )
        integrals.append(torch.where(batch.valid[:, 1:], (rates @ (2 * x * w)) * width, 0.0))
    rough, fine = integrals
    return _logs(model, batch).sum(1) - fine.sum(1), (fine - rough).sum(1).abs(), fine


def _logs(model: Any, batch: Any) -> Any:
    """log lambda of each event's own mark, of all but the first of each sequence."""
    import torch

    logs = model.log_rates_at_events(model.encode(batch), batch)
    return torch.where(batch.valid, logs, 0.0).double()[:, 1:]


def _parameters(model: Any) -> int:
    """Numbers that are learned; a complex one is two."""
    return sum(
        p.numel() * (2 if p.is_complex() else 1) for p in model.parameters() if p.requires_grad
    )


# ---------------------------------------------------------------------- many cells


def _in_process(cell: Row) -> Row:
    """:func:`run_cell` in a process of its own, on one thread; a failure is a row too."""
    key = {name: cell.get(name) for name in KEY}
    env = os.environ | dict(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    command = [sys.executable, __file__, "--cell", json.dumps(cell)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=4 * cell["budget"] + 1800
        )
    except subprocess.TimeoutExpired as error:
        return key | dict(failed=f"no end after {error.timeout:.0f} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return key | dict(failed=lines[-1], trace=lines[-30:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def _wrong(options: argparse.Namespace) -> str:
    """What is wrong with the options, in words; nothing where they are right."""
    from easytpp_models import PEERS

    known = [*OURS, *PEERS]
    if odd := [m for m in options.models if m.partition("@")[0] not in known]:
        return (
            f"expected models of {', '.join(known)}; received {', '.join(odd)}. Choose among them."
        )
    theirs = [m.partition("@") for m in options.models if m.startswith("easytpp-") and "@" in m]
    if odd := [
        f"{name}@{changes}" for name, _, changes in theirs if not re.fullmatch(CHANGES, changes)
    ]:
        return (
            "expected peers as NAME@rate=NUMBER or NAME@dequantise=false; received "
            f"{', '.join(odd)}. Write them so."
        )
    if absent := [s for s in options.sets if not (options.data / f"{s}.parquet").is_file()]:
        return (
            f"expected NAME.parquet for every set in {options.data}; received none for "
            f"{', '.join(absent)}. Check --data and --sets."
        )
    if (
        min(
            options.seeds, options.jobs, options.budget, 1 if options.most is None else options.most
        )
        <= 0
    ):
        received = f"{options.seeds}, {options.jobs}, {options.budget}, {options.most}"
        return (
            f"expected positive --seeds, --jobs, --budget and --most; received {received}. Raise "
            "them."
        )
    return ""


def _read(path: Path) -> list[Row]:
    return (
        [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        if path.is_file()
        else []
    )


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in KEY)


def _said(row: Row) -> str:
    """A row in a line."""
    cell = f"{row['set']} {row['model']} seed {row['seed']}:"
    if why := row.get("failed") or row.get("missing"):
        return f"{cell} {'FAILED' if 'failed' in row else 'missing'} ({why})"
    ticks = f" ({row['resolution_score']:.4f} per timestamp)" if "resolution_score" in row else ""
    return (
        f"{cell} {row['score']:.4f} nats per event{ticks}, dev {row['best_dev']:.4f}, KS "
        f"{row['ks']:.4f}, {row['steps']} steps, "
        f"{row['events_per_second'] or math.nan:,.0f} events/s, scored in "
        f"{row['scoring_seconds']:.0f} s"
    )


def _line(model: str, rows: list[Row]) -> str:
    """One model's row of the table."""
    good = [r for r in rows if "score" in r]
    if not good:
        why = "missing" if any("missing" in r for r in rows) else "failed" if rows else "not run"
        return f"| {model} | {why} |" + " |" * 9
    cells = (
        model,
        _with_interval([r["score"] for r in good], 4),
        f"{max(r['integral_error'] for r in good):.1g}",
        *(
            _with_interval([r.get(name) for r in good], 4)
            for name in ("resolution_score", "rmse", "accuracy", "ks")
        ),
        f"{good[0]['parameters']:,}",
        f"{_mean(r['events_per_second'] or math.nan for r in good):,.0f}",
        f"{_mean(r['best_dev'] for r in good):.4f}",
        f"{len(good)}" + (f" ({len(rows) - len(good)} failed)" if len(rows) > len(good) else ""),
    )
    return f"| {' | '.join(cells)} |"


def _with_interval(found: list[float | None], digits: int) -> str:
    """Mean and half of the 95% t interval; the mean alone of one value."""
    values = [v for v in found if v is not None]
    if len(values) < len(found):
        return "n/a"
    mean = _mean(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    from scipy.special import stdtrit

    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return f"{mean:.{digits}f} ± {stdtrit(len(values) - 1, 0.975) * error:.{digits}f}"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else -math.inf


if __name__ == "__main__":
    sys.exit(main())
