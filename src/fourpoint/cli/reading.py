"""The events that a command works on: an embedded data set or a file, read as the options say, and
its parts.

Choices made on the user's behalf are printed, in lines that name the option to choose otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from fourpoint.cli.checks import check_applies, one_of
from fourpoint.cli.console import print_notice
from fourpoint.cli.options import ReadingOptions
from fourpoint.errors import UserError

if TYPE_CHECKING:
    from fourpoint.data.readers import Asked
    from fourpoint.events import Box, Dataset, Ties
    from fourpoint.models.base import PointProcess

CHECKED = 20_000  # events that the goodness of fit looks at
HELD_OUT = "held-out"  # a split: what a model was not trained on


@dataclass(frozen=True)
class FittedTo:
    """What a model was fitted to: the unit of time, the names of the types and the box, where
    there are any.
    """

    unit: str | None = None
    marks: tuple[str, ...] | None = None
    box: Box | None = None


def asked(options: ReadingOptions) -> Asked:
    """The options as the readers take them."""
    from fourpoint.data.readers import Asked

    same_names = {field.name: getattr(options, field.name) for field in fields(options)}
    parsed = {
        "bounds": _bounds(options.bounds),
        "window": _window(options.window),
        "ties": _policy(options.ties),
        "sequence_covariates": options.sequence_covariates or (),
        "event_features": options.event_features or (),
    }
    return Asked(**same_names | parsed)


def open_events(source: str, options: ReadingOptions, fitted: FittedTo | None = None) -> Dataset:
    """An embedded data set by its name, or a file, read as the options say; choices made on the
    user's behalf are printed.

    Where the data is for a fitted model, what it was ``fitted`` to is the default.
    """
    from fourpoint.data.datasets import available
    from fourpoint.data.readers import describe_choices, read_with_notes

    policy = _policy(options.ties)
    file = Path(source).exists() or Path(source).suffix or "/" in source
    if not file or (source in available() and not Path(source).exists()):
        found = _load(source, options)
        notes: Iterable[str] = describe_choices(found, policy)
    else:
        reading = read_with_notes(source, _with_defaults(source, asked(options), fitted))
        found = reading.data
        notes = reading.notes
    for notice in notes:
        print_notice(notice)
    return found


def _with_defaults(source: str, wanted: Asked, fitted: FittedTo | None) -> Asked:
    """What is asked for, with what a model was fitted to in place of what is not given."""
    if fitted is None:
        return wanted
    place = wanted.place
    if place is None and fitted.box is not None and not _is_ours(source):
        place = fitted.box.names
    return replace(
        wanted,
        place=place,
        bounds=wanted.bounds or fitted.box,
        time_unit=wanted.time_unit or fitted.unit,
        marks=fitted.marks,
    )


def open_with_model(
    folder: Path, source: str, options: ReadingOptions
) -> tuple[PointProcess, Dataset]:
    """A saved model, and data for it, in the unit of time, with the types and in the box that it
    was fitted to.
    """
    from fourpoint.storage.checkpoints import restore

    model = restore(folder)
    return model, open_events(source, options, _fitted_to(folder, model))


def train_and_dev(
    events: Dataset, split: str | None, seed: int, closed_form: bool = False
) -> tuple[Dataset, Dataset | None]:
    """The part to train on and the part to stop by: the data's own, else a seeded 90/10 by
    sequence.

    A model in closed form has no early stopping: without a dev split of the data's own it is fitted
    to all of them.
    """
    name = split or default_split(events, "train")
    if name == "train" and events.splits is not None and (events.splits == "dev").any():
        return events.part("train"), events.part("dev")
    part = events.part(name)
    if closed_form:
        return part, None
    train, dev = part.split((0.9, 0.1), by="sequence", seed=seed)
    kept = "the last tenth of the window is"
    if len(part) > 1:
        kept = f"{len(dev):,} of {len(part):,} sequences, drawn with seed {seed}, are"
    print_notice(f"no dev split: {kept} kept for early stopping")
    return train, dev


def scored_part(model: PointProcess, events: Dataset, split: str | None) -> Dataset:
    """The part to score: as asked, else the test split, else what `fit` kept from training, else
    all.

    A notice names the sequences that were left out because the model was trained on them; a warning
    gives the number of scored sequences that it was trained on.
    """
    from fourpoint.storage.trained_on import chose_weights, held_out, overlap

    name = split or default_split(events, "test")
    kept = None
    if name == HELD_OUT or (split is None and name == "all"):
        kept = held_out(model, events)
    if name == HELD_OUT and kept is None:
        raise UserError(
            "data of which the model was trained on a part",
            "none of it, or all of it",
            "Score the data that you fitted, or use --split all.",
        )
    part = events.part(name) if kept is None else kept
    if kept is not None:
        stopped = ", and were used for early stopping" if chose_weights(model, kept) else ""
        what = (
            f"{kept.scored_events:,} of {events.scored_events:,} events in {len(kept):,} of "
            f"{len(events):,} sequences"
        )
        if kept.scored_events < kept.events:
            what += " (the end of a sequence, given the events before)"
        print_notice(
            f"scored: {what}, which were kept from training{stopped}; --split all scores everything"
        )
    seen = overlap(model, part)
    if seen is not None:
        print_notice(f"warning: {seen}. Score other data, or --split {HELD_OUT}", style="yellow")
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
    rows = order[: max(1, int((np.cumsum(events.scored_lengths[order]) <= CHECKED).sum()))]
    some = events.select(np.sort(rows))
    what = f"{len(some):,} of {len(events):,} sequences, drawn with seed {seed}"
    if some.scored_events > 2 * CHECKED:
        share = CHECKED / some.scored_events
        some = beginning(some[:1], CHECKED)
        what = f"the first {100 * share:.2g}% of the window of sequence {some.ids[0]}"
    print_notice(f"goodness of fit: {some.scored_events:,} of {total:,} events, {what}")
    return some


def default_split(events: Dataset, wanted: str) -> str:
    """The split ``wanted`` where the data has it, else all of the data."""
    return wanted if events.splits is not None and (events.splits == wanted).any() else "all"


def _policy(typed: str) -> Ties:
    from fourpoint.events import Ties

    policies: tuple[Ties, ...] = get_args(Ties)
    return one_of("--ties", typed, policies)


def _load(name: str, options: ReadingOptions) -> Dataset:
    """An embedded data set, whose columns are known, so that few options apply."""
    import numpy as np

    from fourpoint.data.datasets import load

    found = load(name).with_ties(_policy(options.ties))
    others = replace(options, ties="keep", window=None)
    fine = others in (ReadingOptions(), ReadingOptions(place=["none"]))
    check_applies(
        f"the embedded data set {name}",
        "--time, --mark, --sequence, --place, --time-unit, --timezone and --sort",
        fine,
    )
    found = found.without_places() if options.place else found
    window = _window(options.window)
    if window is None:
        return found
    if not isinstance(window[0], float):
        raise UserError(
            "a window in numbers",
            f"{window[0]} {window[1]}",
            "Pass two numbers, such as --window 0 24.",
        )
    return replace(
        found,
        starts=np.full(len(found), window[0]),
        stops=np.full(len(found), window[1]),
        inferred=False,
    )


def _window(window: tuple[str, str] | None) -> tuple[float, float] | tuple[str, str] | None:
    """A window in numbers where both parts are, else in times."""
    if window is None:
        return None
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
    from fourpoint.storage.checkpoints import about

    unit = str(about(folder).get("unit") or "")
    known = unit if unit in SECONDS else None
    return FittedTo(known, tuple(model.marks.names) or None, model.marks.box)
