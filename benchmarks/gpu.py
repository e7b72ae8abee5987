"""Training on one CUDA device: events per second, the share of what the card can do, and agreement
with the CPU in float64.

    python benchmarks/gpu.py [--data DIR] [--peers DIR] [--only card scan agreement dapp deep]
        [--repeats 5] [--quick] [--device cuda]

    card        what the card does: float32 and tf32 matrix products, and a copy in its memory
    scan        the recursion of Fourier modes by its kernel and in plain torch
    agreement   log-likelihood and gradient of one batch with the same nodes and features: float32
                on the card, float64 on the CPU
    dapp        DAPP with 2 heads, 20 features and 8 nodes per gap on Hawkes sequences of about 50
                events: whole steps of `fit`
    deep        Deep DAPP beside EasyTPP's S2P2 (width 64, 64 modes, 4 layers: as many parameters),
                batches of 256 sequences of `taxi` and `stackoverflow_easytpp` from DIR, at 8 nodes
                per gap and at each library's own number (Deep DAPP 4, EasyTPP 20)

Fourpoint's events per second are those that `fit` reports: whole steps on padded batches of all
lengths, from the choice of sequences to the running mean of weights. S2P2 has the card to itself,
its batches lie on the device beforehand, and a step is forward, backward and optimiser. Operations
are those of matrix products, two for a multiplication and an addition, three times the forward ones
for a step; the floor of a step is their number over the card's float32 rate, which is the model's
precision; the share of the tf32 rate, by whose units the products are made in training, stands
beside it. Where no CUDA device is found, nothing is measured. ``--device cpu`` runs every part on
the processor, to see that it runs: there the plain float32 model stands in for the CUDA kernels.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from records import Record, figure, options, ratios

BATCH, NODES = 256, 8
SETS = ("taxi", "stackoverflow_easytpp")
OWN_NODES = {"deep-dapp": 4, "easytpp-s2p2": 20}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--peers", type=Path, help="folder that holds easy_tpp and what it imports")
    parser.add_argument("--only", nargs="+", default=["card", "scan", "agreement", "dapp", "deep"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only to see that it runs"
    )
    options(parser)
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 0
    if given.peers:
        sys.path.append(str(given.peers))
    repeats = 2 if given.quick else given.repeats
    size = Size.quick() if given.quick else Size()
    record = Record("gpu", "training on one CUDA device", quick=given.quick)
    rates = (
        card(record, repeats, given.device, size)
        if {"card", "deep", "dapp"} & set(given.only)
        else {}
    )
    if "scan" in given.only:
        scan(record, repeats, given.device)
    if "agreement" in given.only:
        agreement(record, given.device, size)
    if "dapp" in given.only:
        dapp(record, rates, repeats, given.device, size)
    if "deep" in given.only:
        for name in SETS:
            deep(record, name, given.data, rates, repeats, given.device, size)
    name = (
        torch.cuda.get_device_name()
        if given.device == "cuda"
        else f"none ({platform.machine()} processor)"
    )
    record.write(given.results, dict(gpu=name))
    return 0


class Size(NamedTuple):
    """How large the work of each part is."""

    matrix: int = 8192  # rows and columns of the factors of the matrix product
    copied: int = 2**28  # float32 numbers that are copied
    compared: int = 64  # sequences whose likelihood and gradient are compared with the CPU
    trained: int = 40_000  # sequences that DAPP trains on
    batch: int = 100_000  # sequences of a batch of DAPP, if so many
    steps: int = 200  # steps between two validations, about

    @classmethod
    def quick(cls) -> Size:
        return cls(matrix=256, copied=2**16, compared=8, trained=40, batch=40, steps=4)


# ---------------------------------------------------------------------- the card


def card(record: Record, repeats: int, device: str, size: Size) -> dict[str, float]:
    """Operations and bytes per second, of large products and a large copy of random numbers."""
    a, b = (torch.randn(size.matrix, size.matrix, device=device) for _ in range(2))
    product = 2 * size.matrix**3
    found = {"float32, operations/s": [product / s for s in timed(lambda: a @ b, repeats)]}
    torch.backends.cuda.matmul.allow_tf32 = True
    found["tf32, operations/s"] = [product / s for s in timed(lambda: a @ b, repeats)]
    torch.backends.cuda.matmul.allow_tf32 = False
    source = torch.randn(size.copied, device=device)
    target = torch.empty_like(source)
    moved = 2 * 4 * size.copied
    found["copy, bytes read and written/s"] = [
        moved / s for s in timed(lambda: target.copy_(source), repeats)
    ]
    for name, values in found.items():
        record.row("what the card does", name, measured=figure(values))
        print(f"{name}: {figure(values)['median']:.3g}", flush=True)
    return {name: figure(values)["median"] for name, values in found.items()}


def timed(work: Callable[[], Any], repeats: int, each: int = 10) -> list[float]:
    """Seconds of one call, ``repeats`` times, each the mean over calls in a row; after a first one
    that is not counted.
    """
    work()
    wait()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(each):
            work()
        wait()
        found.append((time.perf_counter() - began) / each)
    return found


def wait() -> None:
    """Wait until the CUDA device has finished its queue; a processor has none."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# ---------------------------------------------------------------------- the recursion


def scan(record: Record, repeats: int, device: str, shape: tuple[int, ...] = (256, 40, 64)) -> None:
    """Seconds of one scan of complex modes, by the kernel if there is a CUDA device, and in plain
    torch.
    """
    from fourpoint.ops.recurrence import recur, running

    factor, driven = (torch.randn(shape, dtype=torch.complex64, device=device) for _ in range(2))
    factor = factor / factor.abs().clamp(min=1.0)
    kernel = figure(timed(lambda: recur(factor, driven), repeats))
    plain = figure(timed(lambda: running(factor, driven), repeats))
    name = "{} sequences, {} events, {} modes".format(*shape)
    found = {"kernel, s": kernel, "plain, s": plain, "factor": ratios(plain, kernel)}
    record.row("one scan", name, **found)
    print(f"scan: {kernel['median']:.3g} s by the kernel, {plain['median']:.3g} s in plain torch")


# ---------------------------------------------------------------------- agreement with the CPU


def agreement(record: Record, device: str, size: Size) -> None:
    """Relative differences of the log-likelihood and of its gradient, float32 on the device against
    float64 on the CPU.
    """
    compared = {"dapp": dapp_agrees, "deep-dapp": deep_agrees}
    for name, compare in compared.items():
        value, slope = compare(device, size.compared)
        record.row(
            "agreement with the CPU in float64",
            name,
            **{"log-likelihood": value, "gradient": slope},
        )
        record.bar(
            f"{name}: log-likelihood on the device as on the CPU, relative difference",
            value,
            most=1e-4,
        )
        record.bar(
            f"{name}: gradient on the device as on the CPU, relative difference", slope, most=2e-3
        )


def dapp_agrees(device: str, sequences: int) -> tuple[float, float]:
    """The same nodes and features on both sides."""
    from fourpoint.inference.likelihood import _sampled
    from fourpoint.models import DAPP
    from fourpoint.ops.quadrature import stratified

    data = hawkes(sequences)
    plain, batch, random = (
        DAPP(heads=2, features=20),
        data.batch(),
        torch.Generator().manual_seed(0),
    )
    plain.initialise(data)
    plain.redraw(random)
    left, right = batch.edges[:, :-1], batch.edges[:, 1:]
    nodes = stratified(left, right, NODES, random)
    sides = []
    for place, kind in (("cpu", torch.float64), (device, torch.float32)):
        model = copy.deepcopy(plain).to(place, kind).train()
        model.modes._drawn = tuple(x.to(place, kind) for x in plain.modes._drawn)
        there = batch.to(torch.device(place))
        value = _sampled(model, there, there.edges[:, 1:], nodes.to(place), None)[0].sum()
        sides.append((value, model))
    return _apart(sides)


def deep_agrees(device: str, sequences: int) -> tuple[float, float]:
    """The same nodes on both sides: the kernels where there is a CUDA device or triton interprets
    them, else the float32 model.
    """
    from fourpoint.models import DeepDAPP

    data = hawkes(sequences)
    plain, batch = DeepDAPP(dropout=0.0, event_dropout=0.0, mark_dropout=0.0), data.batch()
    plain.initialise(data)
    ours, there = copy.deepcopy(plain).to(device).train(), batch.to(torch.device(device))
    random = torch.Generator(device).manual_seed(0)
    exact = plain.double().train()
    if not with_kernels(device):
        where = torch.rand(
            batch.times.shape[0] * (batch.times.shape[1] + 1), device=device, generator=random
        )
        sides = [(_deep_value(exact, batch, where), exact), (_deep_value(ours, there, where), ours)]
        return _apart(sides)
    from fourpoint.kernels.triton_deep_dapp.given import Events
    from fourpoint.kernels.triton_deep_dapp.loss import draw, log_likelihoods

    given = ours.kernel_model()
    events = Events(there.times, there.marks, there.start, there.stop, there.lengths)
    drawn = draw(given, events, NODES, random)
    by_kernels = log_likelihoods(given, events, drawn, gaps=False).sum()
    return _apart([(_deep_value(exact, batch, drawn.where), exact), (by_kernels, ours)])


def with_kernels(device: str) -> bool:
    """Whether Deep DAPP's kernels can run: on a CUDA device, or in triton's interpreter
    (TRITON_INTERPRET=1).
    """
    interpreted = (
        os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
    )
    return device == "cuda" or interpreted


def _deep_value(model: Any, batch: Any, where: torch.Tensor) -> torch.Tensor:
    """The log-likelihood by the model's plain layers, with nodes at ``where`` in their strata as
    the kernels have them.
    """
    from fourpoint.inference.likelihood import _sampled
    from fourpoint.ops.quadrature import early

    left, right = batch.edges[:, :-1], batch.edges[:, 1:]
    inside = where.to(left).view(len(batch.times), -1, 1)
    every_other = torch.arange(NODES, device=inside.device) % 2 == 0
    times, weights = early(left, right, torch.where(every_other, inside, 1 - inside))
    return _sampled(model, batch, right, times, None, weights=weights)[0].sum()


def _apart(sides: list[tuple[torch.Tensor, Any]]) -> tuple[float, float]:
    slopes = []
    for value, model in sides:
        value.backward()
        slopes.append(
            torch.cat(
                [p.grad.flatten().cpu().double() for p in model.parameters() if p.grad is not None]
            )
        )
    (true, _), (found, _) = sides
    return abs(float(found.detach()) / float(true.detach()) - 1), float(
        (slopes[1] - slopes[0]).norm() / slopes[0].norm()
    )


def hawkes(sequences: int) -> Any:
    """Hawkes sequences of about 50 events."""
    import fourpoint as fp
    from fourpoint.models import Hawkes

    return fp.sample(Hawkes(baseline=0.85, branching=0.5, decay=1.0), 0.0, 30.0, sequences, seed=1)


# ---------------------------------------------------------------------- training


def dapp(record: Record, rates: dict[str, float], repeats: int, device: str, size: Size) -> None:
    from fourpoint.models import DAPP

    train = hawkes(size.trained)
    K, D, Q = 2, 20, NODES + 1
    speed = trained(
        DAPP(heads=K, features=D), train, size.batch, repeats, device, size, nodes=NODES
    )
    moved = (
        3 * 4 * Q + 3 * 4 * Q * K + 2 * 8 * K * D
    )  # lags, outputs and their slopes, and states, each written and read
    sinusoids = (
        2 * 3 * (Q + 1) * K * D
    )  # an exponential, a cosine and a sine per mode and time, forward and backward
    record.row(
        "DAPP, 2 heads, 20 features, 8 nodes per gap",
        f"{len(train):,} sequences of {train.events / len(train):.0f} events on average",
        **{
            "events/s": speed,
            "bytes per event": moved,
            "exponentials, cosines and sines per event": sinusoids,
        },
    )
    share = figure([v * moved / rates["copy, bytes read and written/s"] for v in speed["repeats"]])
    record.row(
        "DAPP, 2 heads, 20 features, 8 nodes per gap",
        "share of the card's memory rate that these bytes are",
        measured=share,
    )
    print(f"dapp: {speed['median']:,.0f} events/s", flush=True)
    record.bar("DAPP: million training events per second", speed["median"] / 1e6, least=10)


def trained(
    model: Any, train: Any, batch_size: int, repeats: int, device: str, size: Size, **settings: Any
) -> Any:
    """Events per second of `fit` between validations, once all shapes of batches have been seen."""
    from fourpoint import fit

    dev = train[:32]
    per_epoch = len(
        train.batches(batch_size, seed=0, mixed=bool((model.recipe or {}).get("mixed", False)))
    )
    each = max(4 * per_epoch, size.steps // per_epoch * per_epoch)
    found = fit(
        model,
        train,
        dev,
        steps=(repeats + 1) * each,
        epochs=0,
        batch_size=batch_size,
        validate_every=each,
        patience=10**6,
        device=device,
        baselines=False,
        progress=False,
        **settings,
    )
    for note in found.notes:
        if "graph" in note:
            print(note, flush=True)
    return figure([row["events_per_second"] for row in found.history[1:]])


def deep(
    record: Record,
    name: str,
    folder: Path | None,
    rates: dict[str, float],
    repeats: int,
    device: str,
    size: Size,
) -> None:
    part = f"Deep DAPP and S2P2, {name}, batches of {BATCH}"
    if folder is None or not (folder / f"{name}.parquet").is_file():
        record.missing(part, name, "no data given (--data DIR)")
        return
    import fourpoint as fp
    from fourpoint.models import MODELS

    train = fp.read(folder / f"{name}.parquet").part("train")
    speeds = {}
    for nodes, label in ((NODES, f"{NODES} nodes per gap"), (None, "own nodes")):
        model = MODELS["deep-dapp"](train.marks)
        used = nodes or OWN_NODES["deep-dapp"]
        work = operations(model, used)
        speeds["deep", label] = trained(
            model, train, BATCH, repeats, device, size, nodes=used, convention="gaps"
        )
        share = figure(
            [v * work / rates["float32, operations/s"] for v in speeds["deep", label]["repeats"]]
        )
        record.row(
            part,
            f"Fourpoint deep-dapp, {label} ({used})",
            **{
                "events/s": speeds["deep", label],
                "parameters": parameters(model),
                "operations per event": work,
                "share of the float32 rate": share,
                "share of the tf32 rate": figure(
                    [
                        v * work / rates["tf32, operations/s"]
                        for v in speeds["deep", label]["repeats"]
                    ]
                ),
            },
        )
        print(
            (
                f"{name} deep-dapp {label}: {speeds['deep', label]['median']:,.0f} events/s, "
                f"{share['median']:.1%} of the floor"
            ),
            flush=True,
        )
        if nodes:
            record.bar(f"Deep DAPP on {name}: share of the float32 floor", share, least=0.15)
        try:
            speeds["s2p2", label], count = s2p2(
                train, nodes or OWN_NODES["easytpp-s2p2"], repeats, device
            )
        except ImportError as error:
            record.missing(part, f"EasyTPP S2P2, {label}", error)
            continue
        named = f"EasyTPP S2P2, {label} ({nodes or OWN_NODES['easytpp-s2p2']})"
        record.row(part, named, **{"events/s": speeds["s2p2", label], "parameters": count})
        print(f"{name} S2P2 {label}: {speeds['s2p2', label]['median']:,.0f} events/s", flush=True)
        times = ratios(speeds["deep", label], speeds["s2p2", label])
        record.bar(f"Deep DAPP trains as fast as S2P2 on {name}, {label}, times", times, least=20)


def s2p2(train: Any, nodes: int, repeats: int, device: str) -> tuple[Any, int]:
    """Events per second of S2P2 alone on the card, and its parameters."""
    import easytpp_models as peers

    from fourpoint.inference.likelihood import sampled_log_likelihood

    model = peers.build("easytpp-s2p2", train, 0)[0].to(device).train()
    optimiser = torch.optim.AdamW(peers._groups(model), lr=1e-4)
    rows = train.batches(BATCH, seed=0, mixed=True)[:5]
    batches = [train.batch(some).to(torch.device(device)) for some in rows]
    random, turn = torch.Generator(device).manual_seed(0), iter(range(10**9))

    def step() -> None:
        batch = batches[next(turn) % len(batches)]
        loss = (
            -sampled_log_likelihood(model, batch, nodes, random, convention="gaps").sum()
            / batch.valid.sum()
        )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    events = float(np.mean([train.lengths[some].sum() for some in rows]))
    return figure([events / s for s in timed(step, repeats, 10)]), parameters(model)


def operations(model: Any, nodes: int) -> int:
    """Of the matrix products of one training step, per event: one position and ``nodes`` + 1 query
    times.
    """
    s = model.settings()
    H, J, L, T, M = s["width"], s["modes"], s["layers"], len(model.scales), model.marks.count
    layer = H * (4 * J + 2 * H) + 2 * J * H + H * H + 4 * H * H
    query = 2 * J * L * H + T * H + 4 * H * H + H
    return 3 * 2 * (L * layer + T * H + H * H + (nodes + 1) * query + H * M)


def parameters(model: Any) -> int:
    """Numbers that are learned; a complex one is two."""
    return sum(
        p.numel() * (2 if p.is_complex() else 1) for p in model.parameters() if p.requires_grad
    )


if __name__ == "__main__":
    raise SystemExit(main())
