"""The events that a command works on: an embedded data set or a file, read as the options say, and
its parts.

Choices made on the user's behalf are printed, in lines that name the option to choose otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from fourpoint.cli.checks import check_applies, one_of
from fourpoint.cli.console import print_notice
from fourpoint.cli.options import ReadingOptions
from fourpoint.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from fourpoint.data.event_files import EventFiles
    from fourpoint.data.readers import Asked
    from fourpoint.events import Box, Dataset, Sequence, Ties
    from fourpoint.log_format import LogFormat
    from fourpoint.models.base import PointProcess

CHECKED = 20_000  # events that the goodness of fit looks at
SHARES = 3  # of train, dev and test
DEV_BEGINS = 0.9  # of the time before the test, where only the test is given
NONE = "none"
MAGNITUDES = ("magnitude", "mag")  # columns of an earthquake catalogue
STORED = ("covariates", "exposure")  # parts of the context that files of ours keep
HELD_OUT = "held-out"  # a split: what a model was not trained on


@dataclass(frozen=True)
class FittedTo:
    """What a model was fitted to: the unit of time, the names of the types and the box, where
    there are any; how the log was read, and the number of sequences.
    """

    unit: str | None = None
    marks: tuple[str, ...] | None = None
    box: Box | None = None
    log: LogFormat | None = None
    sequences: int | None = None


def asked(options: ReadingOptions) -> Asked:
    """The options as the readers take them."""
    from fourpoint.data.readers import Asked

    same_names = {field.name: getattr(options, field.name) for field in fields(options)}
    parsed = {
        "bounds": _bounds(options.bounds),
        "window": _window(options.window),
        "ties": _policy(options.ties),
        "covariates": None if options.covariates == NONE else options.covariates,
        "exposure": None if options.exposure == NONE else options.exposure,
        "sequence_covariates": options.sequence_covariates or (),
        "event_features": options.event_features or (),
    }
    return Asked(**same_names | parsed)


def open_events(
    source: str,
    options: ReadingOptions,
    fitted: FittedTo | None = None,
    *,
    project: bool = False,
) -> Dataset:
    """An embedded data set by its name, or a file, read as the options say; choices made on the
    user's behalf are printed.

    Where the data is for a fitted model, what it was ``fitted`` to is the default. With ``project``
    longitude and latitude are projected to km.
    """
    from fourpoint.data.datasets import available
    from fourpoint.data.readers import describe_choices, read_with_notes

    policy = _policy(options.ties)
    file = Path(source).exists() or Path(source).suffix or "/" in source
    if "://" not in source and (not file or (source in available() and not Path(source).exists())):
        log = None if fitted is None else fitted.log
        if log is not None and options.covariates_as_of is None:
            options = replace(options, covariates_as_of=log.as_of)
        found = _load(source, options)
        notes: Iterable[str] = describe_choices(found, policy)
    else:
        wanted = _with_defaults(source, asked(options), fitted)
        if project and is_degrees(options.place):
            wanted = replace(wanted, project=True)
        reading = read_with_notes(source, wanted)
        found = _without(reading.data, options)
        notes = reading.notes
    for notice in notes:
        print_notice(notice)
    return found


def open_large(
    source: str,
    options: ReadingOptions,
    buffer: int | None,
    fitted: FittedTo | None = None,
) -> Dataset | EventFiles:
    """As :func:`open_events`, but a folder or URL of many rows, or with a ``buffer``, is left where
    it is and read chunk by chunk.
    """
    from fourpoint.data.event_files import IN_MEMORY, scan
    from fourpoint.data.parquet_files import Store, are_files

    if not are_files(source) or (buffer is None and Store.open(source).rows <= IN_MEMORY):
        check_applies("a file or a data set in memory", "--buffer", buffer is None)
        return open_events(source, options, fitted)
    if buffer is not None and buffer < 1:
        raise UserError("a buffer of at least one event", f"--buffer {buffer}", "Raise it.")
    found = scan(source, _with_defaults(source, asked(options), fitted))
    for notice in found.notes:
        print_notice(notice)
    return found


def _without(found: Dataset, options: ReadingOptions) -> Dataset:
    """The data without the covariates or the exposure that were stored with them, where "none" is
    asked for.
    """
    dropped = [name for name in STORED if getattr(options, name) == NONE]
    if not dropped or found.context is None:
        return found
    context = found.context.without(*dropped)
    log = found.log
    if log is not None and "covariates" in dropped:
        log = replace(log, covariates=(), levels={})
    if log is not None and "exposure" in dropped:
        log = replace(log, exposure=False)
    return replace(found, context=context, log=log)


def _with_defaults(source: str, wanted: Asked, fitted: FittedTo | None) -> Asked:
    """What is asked for, with what a model was fitted to in place of what is not given."""
    if fitted is None:
        return wanted
    place = wanted.place
    ours = _is_ours(source)
    log = fitted.log
    if place is None and log is not None and log.projected:
        place = list(log.projected)
        wanted = replace(wanted, project=(log.centre[0], log.centre[1]))
    elif place is None and fitted.box is not None and (not ours or _has(source, fitted.box.names)):
        place = fitted.box.names
    if fitted.log is not None:
        wanted = replace(
            wanted,
            known_zone=fitted.log.zone,
            known_origin=fitted.log.origin,
            known_noon=fitted.log.noon,
            levels=fitted.log.levels,
        )
        if wanted.covariates_as_of is None and (ours or wanted.covariates is not None):
            wanted = replace(wanted, covariates_as_of=fitted.log.as_of)
        if not ours:
            wanted = _same_columns(source, wanted, fitted, fitted.log)
        elif not wanted.event_features and _has(source, fitted.log.features):
            wanted = replace(wanted, event_features=fitted.log.features)
    return replace(
        wanted,
        place=place,
        bounds=wanted.bounds or fitted.box,
        time_unit=wanted.time_unit or fitted.unit,
        marks=fitted.marks,
    )


def _has(source: str, names: Iterable[str]) -> bool:
    """Whether a file has columns of these names."""
    from fourpoint.data.tables import open_table

    known = open_table(source).schema.names
    return set(names) <= set(known)


def catalogue_columns(source: str, options: ReadingOptions) -> ReadingOptions:
    """The options with the columns of an earthquake catalogue, for models of such: x and y in km,
    or longitude and latitude to be projected, as the place; the magnitude as an event feature; one
    sequence without types, with days as the unit of time. What is asked for otherwise stays.
    """
    from fourpoint.data.places import guessed_places
    from fourpoint.data.roles import guess_time, plain_name
    from fourpoint.data.tables import open_table

    if not Path(source).exists():
        return options
    table = open_table(source)
    names = table.schema.names
    plain = {plain_name(name): name for name in names}
    chosen = options
    if options.place is None and {"x", "y"} <= set(plain):
        chosen = replace(chosen, place=[plain["x"], plain["y"]])
        print_notice("place: columns x and y, in km (--place to choose; none for times alone)")
    elif options.place is None:
        found = guessed_places({name: word for word, name in plain.items()})
        if found:
            chosen = replace(chosen, place=list(found))
            print_notice(f"place: columns {found[0]} and {found[1]}, projected to km")
    magnitude = next((plain[name] for name in MAGNITUDES if name in plain), None)
    if options.event_features is None and magnitude is not None:
        chosen = replace(chosen, event_features=magnitude)
        print_notice(f"event features: {magnitude} (--event-features to choose)")
    if _is_ours(source):
        return chosen
    time = options.time or guess_time(table)
    dated = time not in names or not _is_number(table.schema.field(time).type)
    unit = options.time_unit
    if not unit and dated:
        unit = "days"
    return replace(
        chosen,
        mark=options.mark or NONE,
        sequence=options.sequence or NONE,
        time_unit=unit or None,
    )


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_degrees(place: list[str] | None) -> bool:
    """Whether the columns of a place are called longitude and latitude.

    >>> is_degrees(["Longitude", "Latitude"]), is_degrees(["x", "y"]), is_degrees(None)
    (True, False, False)
    """
    from fourpoint.data.places import PAIRS
    from fourpoint.data.roles import plain_name

    if place is None:
        return False
    names = tuple(plain_name(name) for name in place)
    return names in PAIRS[:-1]


def _same_columns(source: str, wanted: Asked, fitted: FittedTo, log: LogFormat) -> Asked:
    """What is asked for, with the columns of the training log where the file has them too."""
    from fourpoint.data.date_time import has_column
    from fourpoint.data.tables import open_table

    names = open_table(source).schema.names
    if not has_column(names, log.time) or wanted.time not in (None, log.time):
        return wanted
    wanted = replace(wanted, time=log.time)
    if wanted.mark is None and (log.mark is None or log.mark in names):
        wanted = replace(wanted, mark=log.mark or "none")
    if wanted.sequence is None:
        if log.calendar or log.sequence in names:
            wanted = replace(wanted, sequence=log.calendar or log.sequence)
        elif log.sequence is None and fitted.sequences == 1:
            wanted = replace(wanted, sequence="none")
    if not wanted.event_features and set(log.features) <= set(names):
        wanted = replace(wanted, event_features=log.features)
    return _same_sequence_columns(wanted, set(names), log)


def _same_sequence_columns(wanted: Asked, names: set[str], log: LogFormat) -> Asked:
    """What is asked for, with the columns that said of each sequence of the training log what it
    was like and when it was observed, where the file or the table of entities has them too.
    """
    from fourpoint.data.tables import open_table

    if wanted.entities is not None:
        names = names | set(open_table(wanted.entities).schema.names)
    if not wanted.sequence_covariates and names.issuperset(log.constant):
        wanted = replace(wanted, sequence_covariates=log.constant)
    if wanted.window is None and wanted.observed is None and names.intersection(log.window):
        start, stop = log.window
        wanted = replace(wanted, window=(start, stop))
        print_notice(f"window: {start} to {stop}, as in training (--window)")
    return wanted


def _check_like_training(found: Dataset, options: ReadingOptions, log: LogFormat) -> Dataset:
    """The data with the covariates and event features that a model knows, in its order.

    Refuses data that lack some of them, and times with a zone where those of training had none, or
    the other way round.
    """
    from fourpoint.log_format import NUMBERS

    own = found.log
    both = own is not None and NUMBERS not in (own.clock, log.clock)
    if own is not None and both and own.zoned != log.zoned and (log.zone is None or log.zoned):
        if log.zone is None:
            raise UserError(
                "times without a zone, as in training",
                "times with a zone",
                "Write them as the training log does, or fit again with --timezone.",
            )
        if options.timezone is None:
            raise UserError(
                "times with a zone, as in training",
                "times without one",
                "Write them as the training log does, or name their zone with --timezone.",
            )
    if log.exposure and not (own is not None and own.exposure):
        print_notice(
            "warning: the model was fitted with an exposure, and these data have none: it is "
            "assumed to be 1 (--exposure FILE)",
            style="yellow",
        )
    found = with_known_covariates(found, log.covariates)
    return _with_known_features(found, log.features)


def with_known_covariates(found: Dataset, names: tuple[str, ...]) -> Dataset:
    """The data with the covariates that a model was fitted to, in its order."""
    context = found.context
    if not names:
        return found
    steps = None if context is None else context.covariates
    have = () if steps is None else steps.names
    _check_columns("covariates", names, have, "--covariates FILE or --sequence-covariates A,B")
    if context is None or steps is None or have == names:
        return found
    order = [have.index(name) for name in names]
    same = replace(steps, names=names, values=steps.values[:, order])
    context = replace(context, covariates=same)
    return replace(found, context=context)


def _with_known_features(found: Dataset, names: tuple[str, ...]) -> Dataset:
    if not names:
        return found
    have = found.feature_names
    _check_columns("event features", names, have, "--event-features A,B")
    if found.features is None or have == names:
        return found
    order = [have.index(name) for name in names]
    return replace(found, features=found.features[:, order].copy(), feature_names=names)


def _check_columns(what: str, names: tuple[str, ...], have: tuple[str, ...], options: str) -> None:
    lost = [name for name in names if name not in have]
    if lost:
        raise UserError(
            f"the {what} {', '.join(names)}, as the model was fitted to",
            f"data without {', '.join(lost)}",
            f"Pass the same columns as for the fit ({options}).",
        )


def chosen_sequence(events: Dataset, id: str | None) -> Sequence:
    """The sequence with this id, or the only one."""
    from fourpoint.events import only_sequence

    if id is not None:
        return events.find(id)
    if len(events) != 1:
        near = ", ".join(map(repr, events.ids[:3]))
        raise UserError(
            "the id of a sequence, with --sequence",
            f"data with {len(events):,} sequences, with ids like {near}",
            f"Choose one: --sequence {events.ids[-1] if len(events) else 'ID'}.",
        )
    return only_sequence(events)


def horizon_after(events: Dataset, one: Sequence, at: str | None, horizon: str) -> float:
    """How far to look from ``at``, or from the end of a sequence, in the unit of the data."""
    from fourpoint.events.dates import length_after, time_at

    now = one.stop
    if at is not None:
        now = time_at(one.dates, at)
    return length_after(one.dates, now, horizon, events.unit)


def open_with_model(
    folder: Path, source: str, options: ReadingOptions
) -> tuple[PointProcess, Dataset]:
    """A saved model, and data for it, in the unit of time, with the types and in the box that it
    was fitted to.
    """
    from fourpoint.storage.checkpoints import restore

    model = restore(folder)
    fitted = _fitted_to(folder, model)
    return model, _like_training(open_events(source, options, fitted), options, fitted)


def open_large_with_model(
    folder: Path, source: str, options: ReadingOptions, buffer: int | None
) -> tuple[PointProcess, Dataset | EventFiles]:
    """As :func:`open_with_model`, but many files are left where they are."""
    from fourpoint.data.event_files import EventFiles
    from fourpoint.storage.checkpoints import restore

    model = restore(folder)
    fitted = _fitted_to(folder, model)
    found = open_large(source, options, buffer, fitted)
    if isinstance(found, EventFiles):
        return model, found
    return model, _like_training(found, options, fitted)


def _like_training(found: Dataset, options: ReadingOptions, fitted: FittedTo) -> Dataset:
    if fitted.log is None:
        return found
    checked = _check_like_training(found, options, fitted.log)
    if checked.log is None:
        return checked
    log = replace(checked.log, split_at=fitted.log.split_at)
    return replace(checked, log=log)


def cut_by_time(events: Dataset, typed: str) -> tuple[Dataset, Dataset]:
    """Train and dev of a data set that is cut at the times ``typed``, which are remembered in its
    log: two times, one (the test begins there; dev is the last tenth before it), three times (what
    is before the first is history), or three shares.
    """
    whole = replace(events, splits=None)
    words = [word.strip() for word in typed.split(",")]
    if len(words) == SHARES and not _are_shares(words):
        begin, *words = words
        whole = whole.between(begin, None)
        earlier = whole.events - whole.scored_events
        end = _plain(events, begin)
        print_notice(f"history: {earlier:,} events until {end} condition and are not scored")
    cuts = _cuts(whole, words)
    if whole.log is not None:
        whole = replace(whole, log=replace(whole.log, split_at=cuts))
    train, dev, test = whole.split_at(cuts)
    first, second = (_plain(events, cut) for cut in cuts)
    said = [
        f"train until {first} ({train.scored_events:,} events)",
        f"dev until {second} ({dev.scored_events:,})",
        f"test after ({test.scored_events:,}); earlier events are history",
    ]
    print_notice(f"split: {', '.join(said)}")
    return train, dev


def _are_shares(words: list[str]) -> bool:
    """Whether all are numbers below 1.

    >>> _are_shares([".8", ".1", ".1"]), _are_shares(["366", "2192", "2922"])
    (True, False)
    """
    from fourpoint.events.dates import as_number

    numbers = [as_number(word) for word in words]
    return all(number is not None and number < 1 for number in numbers)


def _plain(events: Dataset, cut: str | float) -> str:
    """A time to cut at, as a reader wants it."""
    from fourpoint.events.dates import shown, time_at

    dates = events.dates(0)
    return shown(dates, time_at(dates, cut))


def _cuts(events: Dataset, words: list[str]) -> tuple[str | float, str | float]:
    """Two times to cut at: dates as ISO 8601 with their offset from UTC, or numbers."""
    from fourpoint.events.dates import as_number, time_at

    numbers = [as_number(word) for word in words]
    shares = [number for number in numbers if number is not None]
    first, last = events.extent()
    dates = events.dates(0)
    if len(words) == SHARES and len(shares) == SHARES:
        if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
            raise UserError(
                "three positive shares with the sum 1",
                f"--split-at {' '.join(words)}",
                "Type shares such as --split-at .8 .1 .1.",
            )
        length = last - first
        low = first + shares[0] * length
        high = first + (shares[0] + shares[1]) * length
    elif len(words) == 2:
        low = time_at(dates, words[0])
        high = time_at(dates, words[1])
    elif len(words) == 1:
        high = time_at(dates, words[0])
        low = first + DEV_BEGINS * (high - first)
    else:
        raise UserError(
            "one or two times, or three shares",
            f"--split-at {' '.join(words)}",
            "Type dates such as --split-at 2025-05-01 2025-06-01, or shares such as .8 .1 .1.",
        )
    origin = None if events.context is None else events.context.origin
    shared = origin is None or bool((origin == origin[0]).all())
    if shared and low < high and (low <= first or high >= last):
        span = f"from {_plain(events, first)} to {_plain(events, last)}"
        raise UserError(
            f"times to cut at inside the windows, {span}",
            f"--split-at {' '.join(words)}",
            "Choose times in between, or shares such as --split-at .8 .1 .1.",
        )
    if dates is None:
        return low, high
    return dates.iso(low), dates.iso(high)


def train_and_dev(
    events: Dataset,
    split: str | None,
    seed: int,
    closed_form: bool = False,
) -> tuple[Dataset, Dataset | None, Dataset | None]:
    """The part to train on and the part to stop by: the data's own, else a seeded 90/10 by
    sequence.

    A model in closed form has no early stopping: without a dev split of the data's own it is fitted
    to all of them.

    The third part is the whole that both were drawn from, None if the data has a dev split.
    """
    cuts = _known_cuts(events)
    if cuts and split is None:
        print_notice(f"split: {_parts_said(events, cuts)}; earlier events are history")
        first, second = cuts
        return events.between(None, first), events.between(first, second), None
    name = split or default_split(events, "train")
    if name == "train" and _has_split(events, "dev"):
        return events.part("train"), events.part("dev"), None
    part = events.part(name)
    if closed_form:
        return part, None, None
    train, dev = part.split((0.9, 0.1), by="sequence", seed=seed)
    kept = "the last tenth of the window is"
    if len(part) > 1:
        kept = f"{len(dev):,} of {len(part):,} sequences, drawn with seed {seed}, are"
    print_notice(f"no dev split: {kept} held out for early stopping")
    return train, dev, part


def _known_cuts(events: Dataset) -> tuple[str | float, ...]:
    """The times at which `fit` has cut a log; none for data with splits of their own."""
    if events.log is None or events.splits is not None:
        return ()
    return events.log.split_at


def _has_split(events: Dataset | EventFiles, name: str) -> bool:
    splits = events.splits
    return splits is not None and bool((splits == name).any())


def train_and_dev_files(
    events: EventFiles, split: str | None, seed: int
) -> tuple[EventFiles, EventFiles]:
    """As :func:`train_and_dev`, for files."""
    name = split or default_split(events, "train")
    if name == "train" and _has_split(events, "dev"):
        return events.part("train"), events.part("dev")
    part = events.part(name)
    train, dev = part.split((0.9, 0.1), seed=seed)
    print_notice(
        f"no dev split: {len(dev):,} of {len(part):,} sequences, drawn with seed {seed}, are kept "
        "for early stopping"
    )
    return train, dev


def scored_files(model: PointProcess, events: EventFiles, split: str | None) -> EventFiles:
    """As :func:`scored_part`, for files."""
    name = split or default_split(events, "test")
    kept = None
    if name == HELD_OUT or (split is None and name == "all"):
        kept = events.held_out(model)
    if kept is not None:
        part = kept
        print_notice(
            f"scored: {kept.events:,} of {events.events:,} events in {len(kept):,} of "
            f"{len(events):,} sequences, which were held out from training; --split all scores "
            "everything"
        )
    elif name == HELD_OUT:
        raise _nothing_held_out()
    else:
        part = events.part(name)
    seen = part.overlap(model)
    if seen is not None:
        print_notice(f"warning: {seen}. Score other data, or --split {HELD_OUT}", style="yellow")
    return part


def _nothing_held_out() -> UserError:
    return UserError(
        "data of which the model was trained on a part",
        "none of it, or all of it",
        "Score the data that you fitted, or use --split all.",
    )


def _parts_said(events: Dataset, cuts: tuple[str | float, ...]) -> str:
    """The parts of a log that is cut by time, in words."""
    said = []
    begin = None
    for name, end in zip(("train", "dev", "test"), (*cuts, None), strict=True):
        part = events.between(begin, end)
        until = ""
        if end is not None:
            until = f" until {_plain(events, end)}"
        said.append(f"{name}{until} ({part.scored_events:,} events)")
        begin = end
    return ", ".join(said)


def scored_part(model: PointProcess, events: Dataset, split: str | None) -> Dataset:
    """The part to score: as asked, else the test split, else what `fit` kept from training, else
    all.

    A notice names the sequences that were left out because the model was trained on them; a warning
    gives the number of scored sequences that it was trained on.
    """
    from fourpoint.storage.trained_on import held_out, overlap

    cut = _part_by_time(events, split)
    if cut is not None:
        return cut
    name = split or default_split(events, "test")
    kept = None
    if name == HELD_OUT or (split is None and name == "all"):
        kept = held_out(model, events)
    if kept is not None:
        part = kept
        _report_held_out(model, events, kept)
    elif name == HELD_OUT:
        raise _nothing_held_out()
    else:
        part = events.part(name)
    seen = overlap(model, part)
    if seen is not None:
        print_notice(f"warning: {seen}. Score other data, or --split {HELD_OUT}", style="yellow")
    return part


def _report_held_out(model: PointProcess, events: Dataset, kept: Dataset) -> None:
    """Print which part of the data was held out from training."""
    from fourpoint.storage.trained_on import chose_weights

    stopped = ", and were used for early stopping" if chose_weights(model, kept) else ""
    what = (
        f"{kept.scored_events:,} of {events.scored_events:,} events in {len(kept):,} of "
        f"{len(events):,} sequences"
    )
    if kept.scored_events < kept.events:
        what += " (the end of a sequence, given the events before)"
    print_notice(
        f"scored: {what}, which were held out from training{stopped}; --split all scores everything"
    )


def _part_by_time(events: Dataset, split: str | None) -> Dataset | None:
    """A part of a log that `fit` has cut by time, with the events before as history; None where it
    was not cut, or other data are asked for.
    """
    from fourpoint.events import SPLITS

    cuts = _known_cuts(events)
    name = split or "test"
    if not cuts or name not in SPLITS:
        return None
    edges = [None, *cuts, None]
    number = SPLITS.index(name)
    begin, end = edges[number : number + 2]
    part = events.between(begin, end)
    span = "from the beginning"
    if begin is not None:
        span = f"from {_plain(events, begin)}"
    if end is not None:
        span += f" to {_plain(events, end)}"
    earlier = part.events - part.scored_events
    print_notice(
        f"scored: {part.scored_events:,} events of the {name} part, {span}, given {earlier:,} "
        "events before; --split all scores everything"
    )
    return part


def some_of(events: Dataset, seed: int) -> Dataset:
    """All sequences, or a seeded draw of them with about ``CHECKED`` events; of one that is longer
    still, its beginning.
    """
    import numpy as np

    from fourpoint.events.windows import beginning

    total = events.scored_events
    if total <= CHECKED:
        return events
    order = np.random.default_rng(seed).permutation(len(events))
    drawn = np.cumsum(events.scored_lengths[order])
    count = max(1, int(np.count_nonzero(drawn <= CHECKED)))
    some = events.select(np.sort(order[:count]))
    what = f"{len(some):,} of {len(events):,} sequences, drawn with seed {seed}"
    if some.scored_events > 2 * CHECKED:
        share = CHECKED / some.scored_events
        some = beginning(some[:1], CHECKED)
        what = f"the first {100 * share:.2g}% of the window of sequence {some.ids[0]}"
    print_notice(f"goodness of fit: {some.scored_events:,} of {total:,} events, {what}")
    return some


def default_split(events: Dataset | EventFiles, wanted: str) -> str:
    """The split ``wanted`` where the data has it, else all of the data."""
    if _has_split(events, wanted):
        return wanted
    return "all"


def _policy(typed: str) -> Ties:
    from fourpoint.events import Ties

    policies: tuple[Ties, ...] = get_args(Ties)
    return one_of("--ties", typed, policies)


def _load(name: str, options: ReadingOptions) -> Dataset:
    """An embedded data set, whose columns are known, so that few options apply."""
    import numpy as np

    from fourpoint.data.datasets import load

    found = _without(load(name).with_ties(_policy(options.ties)), options)
    others = replace(
        options,
        ties="keep",
        window=None,
        gaps=None,
        observed=None,
        exposure=None,
        covariates=None,
        impute=None,
        covariates_as_of=None,
    )
    fine = others in (ReadingOptions(), ReadingOptions(place=["none"]))
    check_applies(
        f"the embedded data set {name}",
        "--time, --mark, --sequence, --place, --time-unit, --timezone and --sort",
        fine,
    )
    found = found.without_places() if options.place else found
    window = _window(options.window)
    if window is None:
        return _with_tables(found, options)
    if isinstance(window, str) or not isinstance(window[0], float):
        raise UserError(
            "a window in numbers",
            window if isinstance(window, str) else f"{window[0]} {window[1]}",
            "Pass two numbers, such as --window 0 24.",
        )
    found = replace(
        found,
        starts=np.full(len(found), window[0]),
        stops=np.full(len(found), window[1]),
        inferred=False,
    )
    return _with_tables(found, options)


def _with_tables(found: Dataset, options: ReadingOptions) -> Dataset:
    """An embedded data set with what the tables beside it say."""
    from fourpoint.data.context_tables import with_tables

    data, notes = with_tables(found, asked(options).tables())
    for note in notes:
        print_notice(note)
    return data


def _window(
    window: tuple[str, str] | None,
) -> tuple[float, float] | tuple[str, str] | Literal["each", "all"] | None:
    """A window in numbers where both parts are, else in times, or a word for both."""
    if window is None:
        return None
    if window == ("each", "each"):
        return "each"
    if window == ("all", "all"):
        return "all"
    try:
        return float(window[0]), float(window[1])
    except ValueError:
        return window


def _bounds(words: list[str] | None) -> dict[str, tuple[float, float]] | None:
    """Bounds as they are typed, COLUMN=LOW:HIGH."""
    found = {}
    for word in words or ():
        name, _, edges = word.rpartition("=")
        low, _, high = edges.partition(":")
        try:
            found[name] = (float(low), float(high))
        except ValueError:
            raise UserError(
                "--bounds as COLUMN=LOW:HIGH",
                f"{word!r}",
                "Type bounds such as --bounds longitude=-180:180.",
            ) from None
    return found or None


def _is_ours(source: str) -> bool:
    """Whether a file is in our own format, which includes coordinates."""
    from fourpoint.data.tables import open_table

    return {"seq_id", "t"} <= set(open_table(source).schema.names)


def _fitted_to(folder: Path, model: PointProcess) -> FittedTo:
    """What a saved model was fitted to."""
    from fourpoint.events.dates import SECONDS
    from fourpoint.log_format import LogFormat
    from fourpoint.storage.checkpoints import about

    known = about(folder)
    unit = str(known.get("unit") or "")
    log = known.get("log")
    sequences = known.get("sequences")
    return FittedTo(
        unit if unit in SECONDS else None,
        tuple(model.marks.names) or None,
        model.marks.box,
        None if log is None else LogFormat.from_dict(log),
        sequences if isinstance(sequences, int) else None,
    )
