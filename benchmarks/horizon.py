"""Predictions of the next ten events and of all events up to a horizon, in the setting of HoTPP.

    python benchmarks/horizon.py --data DIR [--set stackoverflow_easytpp] [--models MODEL ...]
        [--budget 300] [--split test|dev] [--paths 400] [--device cpu|cuda] [--most N]
        [--undecoded] [--save FILE.npz] [--score FILE.npz] [--decoding]

DIR holds stackoverflow_easytpp.parquet: EasyTPP's file with its splits, which HoTPP downloads and
uses in its unit of time. A MODEL is a saved model's folder, or NAME or NAME@key=value,... of one
that is trained on `train` for at most ``--budget`` seconds, with weights chosen on `dev`. Paths are
drawn from all models in equal parts.

The setting is that of HoTPP 0.7, experiments/stackoverflow: each sequence is cut to a random part
of 80 to 101 events (all of it where it is shorter) as in its data loader; a forecast is made after
event 4, 8, 12, ... (counted from 0) of the part wherever 32 events follow, from the events of the
part up to it. Horizon 10; T-mAP of the events up to it among those 32 (paths end at their 32nd
event too), with delta 2, over at most 32 predicted times with a score for each of the 22 types; OTD
of 10 predicted and the next 10 true events with costs 1 and 1.
HoTPP's random numbers come from four loader processes and cannot be repeated; the parts are drawn
with seed 42, and the mean number of events up to the horizon is printed to compare with that of
HoTPP's results (test 15.58, dev 15.26).

Decoders: `decoded` minimises the expected OTD and orders times by the probability to be matched
(`fp.predict`). With ``--undecoded`` also `sampling`, which is one path with the model's
probabilities of types as scores, and `argmax`, which takes the median time and the likeliest type,
again and again: these have no kernel and take longer than all the rest.

``--save`` writes predictions and truth, and ``--score`` scores such a file. Scores are those of
HoTPP's own metric code where it is installed (`hotpp_metrics.py` says how, in one line), and
otherwise those of `inference.horizon_metrics`, which is tested to be equal. Last line: OTD and
T-mAP of the decoded predictions, the latter in per cent.

With the defaults the whole takes about eight minutes on two cores, five of them for training.

``--decoding`` measures seconds instead: 1,000 forecasts of ten events with ``--paths`` paths each,
drawn and decoded, and one forecast by the compiled and the plain decoder.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hotpp_metrics
import numpy as np
from records import Record, options as shared_options

MIN_LENGTH, MAX_LENGTH, EVERY, FOLLOWING = 80, 101, 4, 32
HORIZON, DELTAS, STEPS, INSERT, DELETE = 10.0, (2.0,), 10, 1.0, 1.0
SLOTS = 32
FAR = 60.0  # after which a path of fewer than ten events ends
CROP_SEED = 42
FORECASTS = 1000  # that are timed
ALONE = 128  # histories whose states are in memory together, without a kernel for paths
PUBLISHED = {"OTD": 12.14, "T-mAP": 22.72}  # of DeTPP on test
DECODERS = ("sampling", "argmax", "decoded")
Arrays = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of Parquet files")
    parser.add_argument("--set", default="stackoverflow_easytpp")
    parser.add_argument("--models", nargs="+", default=["dapp"])
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of training of each")
    parser.add_argument("--split", default="test", choices=("test", "dev"))
    parser.add_argument("--paths", type=int, default=400, help="sampled futures of a forecast")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--most", type=int, help="score so many sequences; all by default")
    parser.add_argument("--save", type=Path, help="write predictions and truth")
    parser.add_argument("--score", type=Path, help="score a file of predictions")
    parser.add_argument(
        "--undecoded", action="store_true", help="score the other two decoders too, which is slow"
    )
    parser.add_argument("--decoding", action="store_true", help="measure seconds")
    shared_options(parser)
    options = parser.parse_args()
    record = Record("horizon", "Predictions up to a horizon in the setting of HoTPP.")
    if options.score is None and options.data is None:
        print("no --data: nothing to predict (the folder of Parquet files, see --help)")
        return 0
    if options.decoding:
        measure(options, record)
        record.write(options.results)
        return 0
    if options.score is not None:
        with np.load(options.score) as file:
            arrays = dict(file)
    else:
        arrays = predictions(options, record)
    if options.save is not None:
        np.savez_compressed(options.save, **arrays)
    report(arrays, record, options.results)
    return 0


def predictions(options: argparse.Namespace, record: Record) -> Arrays:
    """Everything that is scored: truth and the predictions of each decoder."""
    import fourpoint as fp

    whole = fp.read(options.data / f"{options.set}.parquet")
    models = _models(options, whole)
    histories, truth = prepared(whole.part(options.split), options.most)
    arrays: Arrays = truth | {"types": np.array(whole.marks.count)}
    print(f"{options.split}: {len(histories):,} forecasts", flush=True)
    arrays |= decode(models, histories, whole.marks.count, options.paths, record)
    if options.undecoded:
        arrays |= alone(models[0], histories)
    return arrays


def prepared(data: Any, most: int | None) -> tuple[Any, Arrays]:
    """The histories of all forecasts as a data set, and what followed each, counted from the last
    event.
    """
    from fourpoint import Dataset, Sequence

    rng = random.Random(CROP_SEED)
    histories, times, marks = [], [], []
    for sequence in list(data)[:most]:
        length = len(sequence.times)
        wanted = rng.randint(min(length, MIN_LENGTH), min(length, MAX_LENGTH))
        first = rng.randint(0, length - wanted)
        t = sequence.times[first : first + wanted] - sequence.times[first]
        kinds = sequence.marks[first : first + wanted]
        for i in range(EVERY, wanted - FOLLOWING, EVERY):
            stop = float(np.nextafter(t[i], np.inf))
            own = dict(start=0.0, stop=stop, space=data.marks)
            histories.append(Sequence(t[: i + 1], kinds[: i + 1], **own))
            times.append(t[i + 1 : i + 1 + FOLLOWING] - t[i])
            marks.append(kinds[i + 1 : i + 1 + FOLLOWING])
    return Dataset.from_sequences(histories), {
        "true_times": np.stack(times),
        "true_marks": np.stack(marks),
    }


def decode(
    models: list[Any], histories: Any, types: int, paths: int, record: Record | None = None
) -> Arrays:
    """The decoded predictions from paths of all models."""
    from fourpoint.inference.decoding import least_transport, match_confidence
    from fourpoint.inference.sampling import eval_mode

    grid = (np.arange(SLOTS) + 0.5) * HORIZON / SLOTS
    each = math.ceil(paths / len(models))
    found: list[list[Any]] = [[], [], []]
    drawing = 0.0
    decoding = 0.0
    for rows in np.array_split(np.arange(len(histories)), math.ceil(len(histories) / 1024)):
        clock = time.monotonic()
        near, far = [], []
        for seed, model in enumerate(models):
            with eval_mode(model):
                far.append(_futures(model, histories, rows, FAR, each, 2 * seed, STEPS))
                near.append(
                    _futures(model, histories, rows, HORIZON, each, 2 * seed + 1, FOLLOWING)
                )
        drawing += time.monotonic() - clock
        clock = time.monotonic()
        events = least_transport(_mixed(far), types, STEPS, INSERT, DELETE)
        confidence = match_confidence(_mixed(near), types, grid, DELTAS[0])
        decoding += time.monotonic() - clock
        for part, values in zip(found, (events.times, events.marks, confidence), strict=True):
            part.append(values)
    count = len(histories) * each * len(models)
    print(
        f"drawing {2 * count:,} paths: {drawing:.1f} s, {1e6 * drawing / (2 * count):.1f} us each; "
        f"decoding: {decoding:.1f} s",
        flush=True,
    )
    if record is not None:
        each_path = 1e6 * drawing / (2 * count)
        record.row(
            "cost", "drawing and decoding", **{"us/path": each_path, "decoding, s": decoding}
        )
    scores = np.concatenate(found[2]).transpose(0, 2, 1)
    return {
        "decoded_otd_times": np.concatenate(found[0]),
        "decoded_otd_marks": np.concatenate(found[1]),
        "decoded_map_times": np.tile(grid, (len(histories), 1)),
        "decoded_map_scores": scores.astype(np.float32),
    }


def alone(model: Any, histories: Any) -> Arrays:
    """One sampled path and one path of medians and likeliest types, for each forecast."""
    arrays: Arrays = {}
    for name in ("sampling", "argmax"):
        parts = [
            _single(model, histories, rows, name == "sampling")
            for rows in np.array_split(np.arange(len(histories)), math.ceil(len(histories) / ALONE))
        ]
        times, marks, scores = (np.concatenate(part) for part in zip(*parts, strict=True))
        inside = np.where(times < HORIZON, times, np.nan)
        arrays |= {
            f"{name}_otd_times": times[:, :STEPS],
            f"{name}_otd_marks": marks[:, :STEPS],
            f"{name}_map_times": inside,
            f"{name}_map_scores": scores.astype(np.float32),
        }
    return arrays


def measure(options: argparse.Namespace, record: Record) -> None:
    """Seconds of 1,000 forecasts, and of one by the compiled and the plain decoder."""
    import fourpoint as fp
    from fourpoint.inference.decoding import CANDIDATES, least_transport
    from fourpoint.inference.sampling import eval_mode
    from fourpoint.kernels import numba_decoding

    whole = fp.read(options.data / f"{options.set}.parquet")
    types = whole.marks.count
    model = _models(options, whole)[0]
    histories, _ = prepared(whole.part(options.split), options.most)
    rows = np.arange(min(FORECASTS, len(histories)))
    with eval_mode(model):
        _futures(model, histories, rows[:2], FAR, 2, 0, STEPS)  # compile
        clock, used_before = time.monotonic(), time.process_time()
        futures = _futures(model, histories, rows, FAR, options.paths, 0, STEPS)
        drawing = time.monotonic() - clock
    first = _futures_of(futures, 0)
    least_transport(first, types, STEPS, INSERT, DELETE)  # compile
    clock = time.monotonic()
    least_transport(futures, types, STEPS, INSERT, DELETE)
    decoding = time.monotonic() - clock
    processor = time.process_time() - used_before
    name = f"{len(rows):,} forecasts, {options.paths} paths"
    figures = {"drawing, s": drawing, "decoding, s": decoding, "processor, s": processor}
    record.row("seconds", name, **figures)
    print(
        f"{name}: drawing {drawing:.1f} s, decoding {decoding:.1f} s by the clock, "
        f"{processor:.1f} s of processor time with compiling the decoder",
        flush=True,
    )
    used = []
    for loops in (numba_decoding.load(), numba_decoding):
        into = (np.zeros((1, STEPS)), np.zeros((1, STEPS), dtype=np.int64))
        rest = (np.zeros(1, dtype=np.int64), np.zeros(1))
        given = (first.times, first.marks, first.offsets, first.paths, types, STEPS)
        costs = (INSERT + DELETE, -1.0, CANDIDATES)
        clock = time.process_time()
        loops.transport(0, 1, *given, *costs, *into, *rest)
        used.append(time.process_time() - clock)
    factor = used[1] / max(used[0], 1e-9)
    record.row("kernel", "transport of one forecast", **{"s": used[0], "plain": used[1]})
    print(f"one forecast: {used[0]:.4f} s, plain Python {used[1]:.2f} s, {factor:.0f} times")


def report(arrays: Arrays, record: Record, folder: Path) -> None:
    """Print the scores of all decoders."""
    score: Callable[[Arrays, str], tuple[float, float, float]]
    try:
        metrics = hotpp_metrics.load()
        score, by = (
            partial(_scores_of_hotpp, metrics),
            f"the metric code of HoTPP {metrics.version}",
        )
    except ImportError as error:
        score, by = _own_scores, f"inference.horizon_metrics ({error})"
    until = (arrays["true_times"] < HORIZON).sum(1).mean()
    print(
        f"horizon {HORIZON:g}, map_deltas {DELTAS}, otd_steps {STEPS}, costs {INSERT:g} and "
        f"{DELETE:g}, forecasts every {EVERY} events with {FOLLOWING} after them, parts of "
        f"{MIN_LENGTH} to {MAX_LENGTH} events; {until:.4f} events up to the horizon on average"
    )
    print(f"scores by {by}")
    found = {}
    for name in DECODERS:
        if f"{name}_otd_times" in arrays:
            otd, tmap, weighted = found[name] = score(arrays, name)
            print(f"{name:10} OTD {otd:.4f} T-mAP {100 * tmap:.3f} weighted {100 * weighted:.3f}")
            record.row("scores", name, **{"OTD": otd, "T-mAP": 100 * tmap})
    otd, tmap, _ = found["decoded"]
    record.bar("OTD of decoded predictions", otd, most=PUBLISHED["OTD"])
    record.bar("T-mAP of decoded predictions", 100 * tmap, least=PUBLISHED["T-mAP"])
    record.write(folder)
    print(f"OTD {otd:.4f} T-mAP {100 * tmap:.3f}")


def _own_scores(arrays: Arrays, name: str) -> tuple[float, float, float]:
    from fourpoint.inference.horizon_metrics import temporal_map, transport_distances

    times, marks = arrays["true_times"], arrays["true_marks"]
    predicted = (arrays[f"{name}_otd_times"], arrays[f"{name}_otd_marks"])
    distance = transport_distances(*predicted, times[:, :STEPS], marks[:, :STEPS], INSERT, DELETE)
    ranked = (arrays[f"{name}_map_times"], arrays[f"{name}_map_scores"].astype(np.float64))
    found = temporal_map(*ranked, times, marks, HORIZON, DELTAS)
    return float(distance.mean()), found.mean, found.weighted


def _scores_of_hotpp(metrics: Any, arrays: Arrays, name: str) -> tuple[float, float, float]:
    import torch

    otd = metrics.OTDMetric(insert_cost=INSERT, delete_cost=DELETE)
    tmap = metrics.TMAPMetric(horizon=HORIZON, time_delta_thresholds=list(DELTAS))
    given = {key: torch.from_numpy(np.asarray(value)) for key, value in arrays.items()}
    for some in torch.arange(len(given["true_times"])).split(64):
        times, marks = given["true_times"][some], given["true_marks"][some].clone()
        otd.update(
            times[:, :STEPS],
            marks[:, :STEPS],
            given[f"{name}_otd_times"][some],
            given[f"{name}_otd_marks"][some],
        )
        predicted = given[f"{name}_map_times"][some]
        tmap.update(
            initial_times=torch.zeros(len(some), dtype=torch.float64),
            target_mask=torch.ones(marks.shape, dtype=torch.bool),
            target_times=times,
            target_labels=marks,
            predicted_mask=~predicted.isnan(),
            predicted_times=predicted.nan_to_num(2 * HORIZON),
            predicted_labels_scores=given[f"{name}_map_scores"][some],
        )
    found = tmap.compute()
    distance = otd.compute()["optimal-transport-distance"]
    return distance, found["T-mAP"], found["T-mAP-weighted"]


def _models(options: argparse.Namespace, whole: Any) -> list[Any]:
    import fourpoint as fp
    from fourpoint.settings import parse_settings

    found = []
    for word in options.models:
        if Path(word).is_dir():
            found.append(fp.restore(word).to(options.device))
            continue
        name, _, changes = word.partition("@")
        pairs = changes.split(",") if changes else []
        of_model, of_training = parse_settings(pairs, fp.MODELS[name], fp.fit)
        model = fp.MODELS[name](whole.marks, **of_model)
        fitted = fp.fit(
            model,
            whole.part("train"),
            whole.part("dev"),
            baselines=False,
            convention="gaps",
            device=options.device,
            time_budget=options.budget,
            progress=False,
            **of_training,
        )
        steps, best = fitted.history[-1]["step"], fitted.best
        print(f"{word}: {fitted.stopped} after {steps:,} steps, dev {best:.4f}", flush=True)
        found.append(model.to(options.device))
    return found


def _futures_of(futures: Any, row: int) -> Any:
    """The paths of one forecast."""
    bounds = futures.offsets[row * futures.paths : (row + 1) * futures.paths + 1]
    own = slice(bounds[0], bounds[-1])
    return futures._replace(
        times=futures.times[own], marks=futures.marks[own], offsets=bounds - bounds[0]
    )


def _futures(
    model: Any, histories: Any, rows: Any, length: float, paths: int, seed: int, most: int | None
) -> Any:
    from fourpoint.inference.futures import draw_futures

    at = histories.stops[rows]
    keys = np.uint64(seed) * np.uint64(2**40) + rows.astype(np.uint64)
    return draw_futures(model, histories.batch(rows), at, at + length, paths, keys, most)


def _mixed(parts: list[Any]) -> Any:
    """The paths of several models side by side."""
    from fourpoint.inference.futures import Futures

    if len(parts) == 1:
        return parts[0]
    paths = parts[0].paths
    begins = np.cumsum([0, *(part.offsets[-1] for part in parts)])
    times = np.concatenate([part.times for part in parts])
    marks = np.concatenate([part.marks for part in parts])
    first = np.concatenate(
        [
            (part.offsets[:-1] + begin).reshape(-1, paths)
            for part, begin in zip(parts, begins[:-1], strict=True)
        ],
        1,
    )
    size = np.concatenate([np.diff(part.offsets).reshape(-1, paths) for part in parts], 1).ravel()
    offsets = np.concatenate([[0], np.cumsum(size)])
    where = np.repeat(first.ravel() - offsets[:-1], size) + np.arange(offsets[-1])
    return Futures(times[where], marks[where], offsets, paths * len(parts))


def _single(
    model: Any, histories: Any, rows: Any, sampled: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """32 events after each of the histories ``rows``, one after the other: drawn, or the median
    time and the likeliest type; with the log of each type's share of the rate.
    """
    import torch

    from fourpoint.inference.sampling import eval_mode, last_rates, remember
    from fourpoint.ops.compensator import reach
    from fourpoint.ops.thinning import draw_marks, unit_exponentials

    device = next(model.parameters()).device
    rng = torch.Generator(device).manual_seed(int(rows[0]))
    with eval_mode(model):
        batch = histories.batch(rows)
        begin = torch.from_numpy(histories.stops[rows]).to(device)
        past = remember(model, batch.to(device))
        at = begin
        times, marks, scores = [], [], []
        for _ in range(SLOTS):

            def totals(t: Any, past: Any = past) -> Any:
                return model.total_intensity(past, t[:, None], past.lengths[:, None])[:, 0, :, None]

            mass = torch.full_like(at, math.log(2))
            if sampled:
                mass = unit_exponentials(at.shape, rng)
            shortest = model.shortest_time(past)
            width = 1 / totals(at[:, None])[:, 0, 0].double().clamp(min=1e-6)
            longest = model.longest_panel
            at = reach(totals, at, begin + 1e4, mass, width, longest=longest, shortest=shortest)
            at = torch.where(at.isfinite(), at, begin + 1e4)
            rates = last_rates(model, past, at[:, None])[:, 0].double()
            mark = draw_marks(rates, rng) if sampled else rates.argmax(1)
            past = model.extend(past, at, mark)
            times.append((at - begin).cpu())
            marks.append(mark.cpu())
            scores.append((rates / rates.sum(1, keepdim=True)).log().cpu())
    found = [torch.stack(parts, 1).numpy() for parts in (times, marks, scores)]
    return found[0], found[1], found[2]


if __name__ == "__main__":
    sys.exit(main())
