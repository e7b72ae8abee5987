"""Live streams: is memory and time per event flat, how fast is one stream and a bank of 10,000, and
what are the alarms worth?

    python benchmarks/streaming.py [--events 100000] [--keep 64] [--keep-events 20000] [--seconds
                                   10] [--plain] [--only flat observe bank alarms fleet command
                                   latency]

**flat**: one stream of DAPP, with nothing forgotten and with ``keep``; at event 10^3, 10^4, ... the
bytes of its state, the resident memory of the process, and the median time of the last 1,000
events, by the clock and of the processor. Then the streams as they were at those events are taken
up again and timed side by side, an event each in turn, since a machine is not as fast now as it was
a minute ago. **observe**: the median of one stream at 128 features, on which DAPP mostly settles,
and at 1,024. **bank**: events per second of 10,000 entities (2 heads, 64 features), by the clock on
one thread and on two, and per second of processor time, which other processes on the machine
disturb less. **alarms**: how many of 1,000 streams from the true model raise a false alarm within
1,000 events, and how soon a doubled rate is seen. **fleet**: 40 services with five types of events;
false alarms of entities, types and the fleet in 20 days, and when the type is named whose
background has risen six-fold, or which has stopped. **command**: what `fourpoint stream` does once
it has started, from a file of JSON Lines to another; events per second of processor time and by the
clock. **latency**: how long single events take from a pipe to the file of scores, after a burst of
new entities, while the state of those is written, with alarms and without. DAPP is fitted for
``--seconds`` to the paper's Hawkes process. ``--plain`` does without numba. Set OMP_NUM_THREADS=1:
a stream needs one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from records import Record, figure, options

from fourpoint.data.synthetic import process, simulate
from fourpoint.events import Dataset, MarkSpace
from fourpoint.inference.sampling import sample
from fourpoint.models import DAPP, Hawkes
from fourpoint.storage.checkpoints import save
from fourpoint.streaming.bank import StreamBank
from fourpoint.streaming.feed.feed import score_feed
from fourpoint.streaming.monitoring import Alarm
from fourpoint.streaming.stream import Stream
from fourpoint.training.fitting import fit

FEATURES = 128  # of every head: DAPP mostly settles on so many after a fit
LAST = 1000  # events whose median time is taken
FIRST = 1000  # events of a stream before its state and memory are looked at for the first time
OBSERVED, WARM_UP = (
    3000,
    500,
)  # events of one stream in `observe`, and those of them that are not timed
WATCHED = 800.0  # length of the windows in which false alarms are counted
MOST_LATENCY = 50.0  # milliseconds that an event may take from a pipe to the file of scores
POLL = 2e-4  # seconds between two looks at that file
DOUBLED, SEEN = 150.0, 220.0  # when the rate doubles, and until when that is to be seen
PARTS = ("flat", "observe", "bank", "alarms", "fleet", "command", "latency")
TYPES = ("login", "error", "query", "deploy", "backup")
SERVICES, CHANGED = 40, 12.0  # of `fleet`; hours after which a type changes
CHANGES = {"error": "errors have risen six-fold", "login": "logins have stopped"}
LEVELS = (0.3, 1e-3)  # of false alarms in 20 days, and of alarms of a change


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000, help="events of the exact stream")
    parser.add_argument(
        "--keep", type=int, default=64, help="events that each head of the bounded stream remembers"
    )
    parser.add_argument(
        "--keep-events", type=int, default=20_000, help="events of the bounded stream"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="time to fit DAPP")
    parser.add_argument("--entities", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=1000, help="streams from the true model")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--plain", action="store_true", help="as where numba is not installed")
    parser.add_argument(
        "--command-events", type=int, default=100_000, help="lines of the feeds of `command`"
    )
    parser.add_argument("--command-entities", type=int, default=1000, help="entities in them")
    parser.add_argument("--repeats", type=int, default=3, help="of `command`")
    parser.add_argument("--burst", type=int, default=50_000, help="new entities of `latency`")
    parser.add_argument("--singles", type=int, default=1500, help="events after the burst")
    parser.add_argument("--days", type=float, default=20.0, help="without a change, of `fleet`")
    parser.add_argument("--changes", type=int, default=20, help="of each kind, of `fleet`")
    options(parser)
    given = parser.parse_args()
    if given.plain:
        sys.modules["numba"] = None
    torch.set_num_threads(1)
    record = Record(
        "streaming", "Live streams: time, state and memory per event, banks, alarms.", given.quick
    )
    model = DAPP(eval_features=FEATURES)
    if {"flat", "observe", "command", "latency"} & set(given.only):
        fit(
            model,
            process("hawkes").simulate(300, stop=3.58),
            time_budget=given.seconds,
            progress=False,
        )
        print(
            f"DAPP of {model.spectrum(fixed=True).weight.shape[0]} heads, "
            f"{model.settings()['eval_features']} features, fitted to hawkes"
        )
    if "flat" in given.only:
        flat(record, "the exact stream", model, None, given.events)
        flat(record, f"keep={given.keep}", model, given.keep, given.keep_events)
    if "observe" in given.only:
        observe(record, model)
    if "bank" in given.only:
        bank(record, given.entities)
    if "alarms" in given.only:
        alarms(record, given.streams)
    if "fleet" in given.only:
        fleet(record, given.days, given.changes)
    if "command" in given.only:
        command(record, model, given.command_events, given.command_entities, given.repeats)
    if "latency" in given.only:
        latency(record, model, given.burst, given.singles)
    print(f"wrote {record.write(given.results)}")


def command(record: Record, model: DAPP, events: int, entities: int, repeats: int) -> None:
    """Events per second of `fourpoint stream`, JSON in and JSON out, with one stream and with one
    per entity.
    """
    print(f"\nfourpoint stream, {events:,} lines of JSON in and out, {repeats} repeats")
    random, scale = np.random.default_rng(4), float(model.time_scale)
    small = DAPP(heads=2, eval_features=64)
    small.initialise(simulate("hawkes", 200))
    hawkes = Hawkes(baseline=0.5 / scale, branching=0.5, decay=2.0 / scale)
    models = {"Hawkes": hawkes, "DAPP": model, "DAPP of 2 heads, 64 features": small.eval()}
    cells = {(name, feed): [] for name in models for feed in ("alone", "several")}
    times = np.cumsum(random.exponential(size=events)) * scale
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pairs = zip(
            (times / entities).tolist(), random.integers(0, entities, events).tolist(), strict=True
        )
        lines = {
            "alone": [json.dumps({"time": t}) for t in times.tolist()],
            "several": [json.dumps({"time": t, "who": f"entity {i}"}) for t, i in pairs],
        }
        for name, content in lines.items():
            (folder / name).write_text("\n".join(content) + "\n")
            (folder / f"{name} first").write_text(content[0] + "\n")
        for name, feed in cells:
            timed_feed(folder, models[name], f"{feed} first")  # loads or compiles the loops
        for _ in range(repeats):  # in turn, so that what disturbs the machine meets all alike
            for (name, feed), found in cells.items():
                found.append(
                    [events / seconds for seconds in timed_feed(folder, models[name], feed)]
                )
        scored = (folder / "scores").read_bytes().count(b"\n")
    if scored != events:
        raise RuntimeError(
            f"expected {events:,} lines of scores; received {scored:,}. The command skipped some."
        )
    for (name, feed), rates in cells.items():
        own, clock = (figure(values, "events/s") for values in zip(*rates, strict=True))
        row = f"{name}, {'one stream' if feed == 'alone' else f'--by, {entities:,} entities'}"
        record.row("fourpoint stream", row, **{"events/s of processor": own, "events/s": clock})
        print(
            f"{row:<50} {own['median']:>10,.0f} events per second of processor, "
            f"{clock['median']:>10,.0f} by the clock"
        )
    medians = {cell: statistics.median(own for own, _ in rates) for cell, rates in cells.items()}
    entity = medians["DAPP", "several"]
    record.bar(
        "one DAPP stream scores 40,000 events per second of processor",
        medians["DAPP", "alone"],
        least=40_000,
    )
    record.bar(
        "DAPP of 4 heads by entity scores 150,000 events per second of processor",
        entity,
        least=150_000,
    )
    ratio = medians["Hawkes", "alone"] / medians["DAPP", "alone"]
    record.bar("Hawkes streams are no slower than DAPP streams", ratio, least=1)


def timed_feed(folder: Path, model: DAPP | Hawkes, feed: str) -> tuple[float, float]:
    """Seconds of the processor and by the clock for a feed, by what `fourpoint stream` calls once
    it has started.
    """
    by = "who" if feed.startswith("several") else None
    (folder / "scores").unlink(missing_ok=True)
    own, clock = time.process_time(), time.perf_counter()
    score_feed(
        model,
        input=folder / feed,
        output=folder / "scores",
        by=by,
        max_gap="none",
        tell=lambda text: None,
    )
    return time.process_time() - own, time.perf_counter() - clock


def latency(record: Record, model: DAPP, burst: int, singles: int) -> None:
    """Milliseconds from an event's line in a pipe to its line of scores, after a burst."""
    print(f"\n{singles:,} events through a pipe, after a burst of {burst:,} new entities")
    longest: dict[str, float] = {}
    for alarms in ("0.001", "none"):
        with tempfile.TemporaryDirectory() as place:
            found = 1e3 * single_events(Path(place), model, alarms, burst, singles)
        above = int(np.count_nonzero(found > MOST_LATENCY))
        longest[alarms] = float(found.max())
        row = "with alarms" if alarms != "none" else "without alarms"
        record.row(
            f"latency after {burst:,} new entities",
            row,
            **{"ms, median": float(np.median(found)), "ms, at most": longest[alarms]},
        )
        print(
            f"{row:<16} median {np.median(found):.2f} ms, at most {longest[alarms]:.1f} ms, "
            f"{above:,} above {MOST_LATENCY:g} ms"
        )
    record.bar(
        f"no event waits for more than {MOST_LATENCY:g} ms after a burst of new entities",
        max(longest.values()),
        most=MOST_LATENCY,
    )


def single_events(
    folder: Path, model: DAPP, alarms: str, burst: int, singles: int
) -> NDArray[np.float64]:
    """Seconds of each of ``singles`` events, sent one after the other, each when the last has been
    scored.
    """
    save(model, folder / "model")
    scale = float(model.time_scale)
    random = np.random.default_rng(5)
    files = ["--state", str(folder / "state"), "--output", str(folder / "scores")]
    options = ["--by", "who", "--start", "0", "--max-gap", "none", "--alarms", alarms]
    command = [sys.executable, "-m", "fourpoint", "stream", str(folder / "model"), *files, *options]
    scores = folder / "scores"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        if process.stdin is None:
            raise RuntimeError("expected a pipe to the command; received none. Check the system.")
        feed = process.stdin
        scored = ScoredLines(scores, process)
        times = scale * np.arange(1, burst + 1) / burst
        lines = [json.dumps({"time": t, "who": f"new {i}"}) for i, t in enumerate(times.tolist())]
        content = "".join(f"{line}\n" for line in lines).encode()
        sender = threading.Thread(target=send, args=(feed, content))
        sender.start()
        scored.wait_for(burst)
        sender.join()
        found = np.empty(singles)
        for i in range(singles):
            who = f"new {random.integers(burst)}"
            line = json.dumps({"time": scale * (1 + (i + 1) / burst), "who": who}) + "\n"
            began = time.perf_counter()
            send(feed, line.encode())
            scored.wait_for(burst + i + 1)
            found[i] = time.perf_counter() - began
        feed.close()
    return found


def send(feed: IO[bytes], content: bytes) -> None:
    """Write to a pipe at once."""
    feed.write(content)
    feed.flush()


class ScoredLines:
    """The lines of a file that a process writes."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        self.path, self.process = path, process
        self.read = 0  # bytes
        self.lines = 0

    def wait_for(self, lines: int) -> None:
        """Wait until there are so many."""
        while self.lines < lines:
            content = b""
            if self.path.exists():
                with self.path.open("rb") as file:
                    file.seek(self.read)
                    content = file.read()
            self.read += len(content)
            self.lines += content.count(b"\n")
            if not content:
                if self.process.poll() is not None:
                    raise RuntimeError(
                        f"expected {lines:,} lines of scores; received {self.lines:,} before the "
                        "command ended. Run it alone to see its error."
                    )
                time.sleep(POLL)


def flat(record: Record, name: str, model: DAPP, keep: int | None, events: int) -> None:
    """State, memory and time at every power of ten."""
    heads = (
        "event",
        "state, bytes",
        "resident, MB",
        "median, us",
        "processor, us",
        "nine in ten below",
    )
    print(
        f"\n{name}\n{heads[0]:>10} {heads[1]:>13} {heads[2]:>13} {heads[3]:>11} "
        f"{heads[4]:>14} {heads[5]:>18}"
    )
    stream, random, now = Stream(model, keep=keep), np.random.default_rng(0), 0.0
    last, rows, states, began = deque[tuple[float, float]](maxlen=LAST), [], [], time.perf_counter()
    for i in range(1, events + 1):
        now += random.exponential() * float(model.time_scale)
        last.append(timed(stream, now))
        if i >= FIRST and (math.log10(i).is_integer() or i == events):
            states.append((i, stream.state()))
            (clock, own), tail = (
                1e6 * np.median(last, axis=0),
                1e6 * np.quantile(last, 0.9, axis=0)[0],
            )
            rows.append((len(states[-1][1]), resident()))
            sizes = {"state, bytes": rows[-1][0], "resident, MB": rows[-1][1]}
            record.row(
                f"one stream, {name}",
                f"event {i:,}",
                **sizes,
                **{"median, us": float(clock), "nine in ten below, us": float(tail)},
            )
            print(
                (
                    f"{i:>10,} {rows[-1][0]:>13,} {rows[-1][1]:>13.1f} {clock:>11.0f} "
                    f"{own:>14.0f} {tail:>18.0f}"
                ),
                flush=True,
            )
    print(f"{events / (time.perf_counter() - began):,.0f} events per second in all")
    for column, label in enumerate(("state", "resident memory")):
        apart(label, [row[column] for row in rows])
    apart(
        "median time side by side, us", side_by_side(model, [state for _, state in states], random)
    )


def side_by_side(model: DAPP, states: list[bytes], random: np.random.Generator) -> list[float]:
    """The median time of streams as they were, taken up again in turn, an event each: what else the
    machine does meets all alike.
    """
    streams = [Stream.restore(model, state) for state in states]
    found = np.empty((2 * LAST, len(streams)))
    for row in found:
        gap = random.exponential() * float(model.time_scale)
        for j in random.permutation(len(streams)):  # the first of a round finds a colder cache
            row[j] = 1e6 * timed(streams[j], streams[j].time + gap)[0]
    return np.median(found, axis=0).tolist()


def apart(label: str, values: list[float]) -> None:
    """From first to last, and how far apart they are."""
    print(
        f"{label}: {', '.join(f'{v:,.5g}' for v in values)}; "
        f"{max(values) / min(values) - 1:.1%} apart"
    )


def timed(stream: Stream, now: float) -> tuple[float, float]:
    """Seconds that one event takes, by the clock and of the processor."""
    start, own = time.perf_counter(), time.thread_time()
    stream.observe(now)
    return time.perf_counter() - start, time.thread_time() - own


def resident() -> float:
    """Resident memory of this process, in MB."""
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def observe(record: Record, model: DAPP) -> None:
    """The median time of one stream."""
    print()
    own = int(model.settings()["eval_features"])
    for features in (1024, own):  # what follows uses the model with its own
        model.fix_features(features)
        stream, random, now, found = Stream(model), np.random.default_rng(1), 0.0, []
        for _ in range(OBSERVED):
            now += random.exponential() * float(model.time_scale)
            found.append(timed(stream, now))
        clock, processor = 1e6 * np.array(found[WARM_UP:]).T
        low, middle, high = np.quantile(clock, (0.1, 0.5, 0.9))
        words = (
            f"median {middle:.0f} us, from {low:.0f} to {high:.0f} for eight in ten; "
            f"{np.median(processor):.0f} us of processor"
        )
        print(f"observe at {features} features per head: {words}")
        record.row(
            "observe",
            f"{features} features per head",
            **{"us an event": spread(clock), "us of processor": spread(processor)},
        )


def spread(values: np.ndarray) -> dict[str, object]:
    """The median of many events with the tenth and ninetieth percentile as its spread; single
    events would fill the file.
    """
    low, middle, high = (float(v) for v in np.quantile(values, (0.1, 0.5, 0.9)))
    return dict(median=middle, min=low, max=high, repeats=[low, middle, high], unit="us")


def bank(record: Record, entities: int) -> None:
    """Events per second of many entities, each with log-density, rescaled gap and rate."""
    print()
    random, names = np.random.default_rng(2), [f"entity {i}" for i in range(entities)]
    for label, settings in (
        ("splines", {}),
        ("constant base, no drift", {"base": "constant", "drift": "none"}),
    ):
        model = DAPP(heads=2, eval_features=64, **settings)
        model.initialise(simulate("hawkes", 200))
        for threads in (1, 2):
            many, now, found = StreamBank(model.eval(), threads=threads), np.zeros(entities), []
            for _ in range(15):
                now += random.exponential(size=entities) * float(model.time_scale)
                order = random.permutation(entities)
                call, times = [names[i] for i in order], now[order]
                start, own = time.perf_counter(), time.process_time()
                many.observe(call, times)
                found.append((time.perf_counter() - start, time.process_time() - own))
            speed, share = entities / np.median(found[3:], axis=0)
            speeds = figure([entities / clock for clock, _ in found[3:]], "events/s")
            shares = figure([entities / own for _, own in found[3:]], "events/s")
            row = f"{label}, {threads} thread{'s' * (threads > 1)}"
            record.row(
                f"bank of {entities:,}",
                row,
                **{"events/s": speeds, "events/s of processor": shares},
            )
            words = f"{speed:>10,.0f} events per second, {share:,.0f} per second of processor"
            print(f"bank of {entities:,}, {label}, {threads} thread{'s' * (threads > 1)}: {words}")


def alarms(record: Record, streams: int) -> None:
    """False alarms of the true model, and the delay at a doubled rate, at three promised rates."""
    true, doubled = (
        Hawkes(baseline=1.0, branching=0.4, decay=2.0),
        Hawkes(baseline=2.0, branching=0.8, decay=2.0),
    )
    drawn = sample(true, 0.0, WATCHED, streams, seed=1)
    before = sample(true, 0.0, DOUBLED, min(streams, 200), seed=2)
    after = sample(
        doubled, DOUBLED, SEEN, len(before), seed=3, history=before
    )  # given any past, twice the true model's rate
    print(
        f"\n{streams:,} streams from the true model, {int(drawn.lengths.min()):,} events or "
        "more, of which the first 1,000 count"
    )
    for promised in (1e-3, 1e-2, 1e-1):
        false = {row for row, _ in watch(true, promised, drawn, most=1000)}
        seen: dict[int, int] = {}
        for row, alarm in watch(true, promised, joined(before, after), most=10**9):
            if alarm.kind == "burst" and alarm.time >= DOUBLED:
                seen.setdefault(row, int(np.searchsorted(after[row].times, alarm.time)) + 1)
        delay = (
            f"after a median of {np.median(list(seen.values())):.0f} events ({len(seen)} of "
            f"{len(before)} within the window)"
        )
        told = {
            "share of streams with a false alarm": len(false) / streams,
            "events until a doubled rate is seen, median": delayed(seen),
        }
        record.row(f"alarms of {streams:,} streams", f"promised at most {promised:g}", **told)
        print(
            (
                f"promised at most {promised:g}: {len(false) / streams:.4f} of streams raised "
                f"one; a doubled rate is seen {delay}"
            ),
            flush=True,
        )


def services(raised: float = 1.0) -> Hawkes:
    """Five types of events per service and hour; the background of errors times ``raised``."""
    excitation = np.full((5, 5), 0.02) + 0.1 * np.eye(5)
    return Hawkes(
        MarkSpace.categorical(list(TYPES)),
        baseline=[0.5, 0.5 * raised, 0.4, 0.3, 0.3],
        branching=excitation.tolist(),
        decay=4.0,
    )


def fleet(record: Record, days: float, repeats: int) -> None:
    """False alarms of 40 services with five types, and the hours until a changed type is named."""
    true = services()
    quiet = merged(sample(true, 0.0, 24 * days, SERVICES, seed=1))
    level, strict = LEVELS
    false = len(watch_fleet(true, level, quiet))
    events = len(quiet[0])
    rate = 1000 * false / events
    part = f"fleet of {SERVICES} services"
    record.row(part, f"promised at most {level:g}", **{"false alarms per 1,000 events": rate})
    print(
        f"\n{SERVICES} services, {days:g} days, {events:,} events: {false} false alarms, "
        f"{rate:.3f} per 1,000 events (at most {level:g})",
        flush=True,
    )
    for change, named in (
        ("errors have risen six-fold", "error"),
        ("logins have stopped", "login"),
    ):
        delays = []
        for seed in range(repeats):
            before = sample(true, 0.0, CHANGED, SERVICES, seed=100 + seed)
            after = sample(
                services(6.0 if named == "error" else 1.0), 0.0, CHANGED, SERVICES, seed=200 + seed
            )
            times, marks, entities = merged(after)
            kept = np.ones(len(times), dtype=bool)
            if named == "login":
                kept = marks != TYPES.index("login")
            later = (CHANGED + times[kept], marks[kept], entities[kept])
            rows = tuple(np.concatenate(pair) for pair in zip(merged(before), later, strict=True))
            raised = watch_fleet(true, strict, rows)
            own = [a.time for a in raised if (a.of, a.name) == ("type", named)]
            delays.append(60 * (own[0] - CHANGED) if own else math.inf)
        median = float(np.median(delays))
        record.row(part, change, **{"minutes until the type is named, median": median})
        print(
            f"{change}: named after a median of {median:.0f} minutes ({repeats} repeats, level "
            f"{strict:g})",
            flush=True,
        )


Events = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]


def merged(data: Dataset) -> Events:
    """Times, types and entities of all events in the order of time."""
    entities = np.repeat(np.arange(len(data)), data.lengths)
    order = np.argsort(data.times, kind="stable")
    return data.times[order], data.mark_ids[order], entities[order]


def watch_fleet(model: Hawkes, promised: float, rows: tuple[NDArray[Any], ...]) -> list[Alarm]:
    """The alarms of a bank in which every service is an entity."""
    times, marks, entities = rows
    many = StreamBank(model, alarms=promised, fleet=True)
    found: list[Alarm] = []
    first = 0
    while first < len(times):
        last = first + min(len(times) - first, many.until_look or 1)
        names = [f"s{i}" for i in entities[first:last]]
        kinds = [TYPES[m] for m in marks[first:last]]
        raised = many.observe(names, times[first:last], kinds).alarms
        found += [alarm for own in raised for alarm in own]
        first = last
    return found


def delayed(seen: dict[int, int]) -> float | str:
    return float(np.median(list(seen.values()))) if seen else "never"


def watch(model: Hawkes, promised: float, data: Dataset, most: int) -> Iterator[tuple[int, Alarm]]:
    """The alarms of the first ``most`` events of every sequence, with the sequence's number."""
    many = StreamBank(model, alarms=promised)
    for i in range(min(most, int(data.lengths.max()))):
        rows = np.flatnonzero(data.lengths > i)
        found = many.observe([str(r) for r in rows], data.times[data.offsets[rows] + i])
        for row, raised in zip(rows.tolist(), found.alarms, strict=True):
            yield from ((row, alarm) for alarm in raised)


def joined(first: Dataset, second: Dataset) -> Dataset:
    """Sequences that go on from each other."""
    times = [np.concatenate([first[i].times, second[i].times]) for i in range(len(first))]
    offsets = np.concatenate([[0], np.cumsum([len(t) for t in times])]).astype(np.int64)
    flat_times = np.concatenate(times)
    return Dataset(
        flat_times,
        np.zeros(len(flat_times), dtype=np.int64),
        offsets,
        first.starts.copy(),
        second.stops.copy(),
        first.marks,
    )


if __name__ == "__main__":
    main()
