"""Events, windows, ties, splits and batches; and the text of every error about them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import fourpoint as fp
from fourpoint.events import (
    Batch,
    Box,
    Context,
    Dataset,
    EventDataError,
    MarkSpace,
    Sequence,
    Steps,
    UserError,
    check_marks,
    inferred_window,
)
from fourpoint.models import Poisson

# Times of 1e-33 would be windows that are refused as too short where they are inferred.
TIME = st.floats(0, 100, allow_nan=False, width=32).map(lambda t: t if t > 1e-20 else 0.0)


@st.composite
def datasets(draw: st.DrawFn, ties: bool = False, inferred: bool = False) -> Dataset:
    """A few sequences, some empty, on a coarse grid where ``ties`` are wanted."""
    value = st.integers(0, 5).map(float) if ties else TIME
    sequences = []
    for i in range(draw(st.integers(1, 6))):
        times = sorted(draw(st.lists(value, min_size=1 if inferred else 0, max_size=12)))
        marks = draw(st.lists(st.integers(0, 2), min_size=len(times), max_size=len(times)))
        window: dict[str, float] = {} if inferred else dict(start=-1.0, stop=101.0)
        sequences.append(Sequence(times, marks, space=3, id=f"s{i}", **window))
    return Dataset.from_sequences(sequences)


def flat(**changes: Any) -> Dataset:
    """Two sequences of two events on [0, 10), with some parts replaced."""
    parts: dict[str, Any] = dict(
        times=np.array([1.0, 2.0, 3.0, 4.0]),
        mark_ids=np.zeros(4, dtype=np.int64),
        offsets=np.array([0, 2, 4]),
        starts=np.zeros(2),
        stops=np.full(2, 10.0),
        ids=("a", "b"),
    )
    return Dataset(**(parts | changes))


# Mark spaces


def test_marks_of_a_model_and_of_data_are_compared_by_number_name_and_box() -> None:
    named, none = MarkSpace.of(["fire", "flood"]), MarkSpace()
    for data in (named, MarkSpace.of(2)):
        check_marks(named, data)
    check_marks(MarkSpace.of(2), named)
    check_marks(none, MarkSpace.of(["fire"]))
    with pytest.raises(
        UserError,
        match=(
            "expected data with the types 'fire', 'flood', as the model has; received 2 types: the "
            "same names in another order, 'flood', 'fire'. Read the data with marks=model.marks."
        ),
    ):
        check_marks(named, MarkSpace.of(["flood", "fire"]))
    with pytest.raises(UserError, match="received 3 types: 'storm' is unknown to the model. Read"):
        check_marks(named, MarkSpace.of(["fire", "flood", "storm"]))
    with pytest.raises(UserError, match="received 1 types: 'flood' is missing. Read"):
        check_marks(named, MarkSpace.of(["fire"]))
    many, other = ([f"{x}{i}" for i in range(9)] for x in "ab")
    with pytest.raises(
        UserError,
        match=(
            "the types 'a0', 'a1', 'a2', 'a3' and 5 more, as the model has; received 9 types: 'b0',"
            " 'b1', 'b2', 'b3' and 5 more are unknown to the model, 'a0', .* 5 more are missing. R"
        ),
    ):
        check_marks(MarkSpace.of(many), MarkSpace.of(other))
    with pytest.raises(
        UserError,
        match="expected data with 2 types, as the model has; received no marks. Use data of the",
    ):
        check_marks(named, none)
    box = Box(("x",), (0.0,), (1.0,))
    with pytest.raises(UserError, match="expected events with places in x 0 to 1, as the model ha"):
        check_marks(MarkSpace(box=box), none)
    with pytest.raises(
        UserError, match="expected events without places, as the model has; received"
    ):
        check_marks(none, MarkSpace(box=box))


@pytest.mark.parametrize(
    "use",
    [
        fp.evaluate,
        fp.resolution_score,
        fp.fit,
        fp.goodness_of_fit,
        fp.prediction_scores,
        fp.explain,
        lambda model, data: fp.forecast(model, data, horizon=1.0, paths=2),
        lambda model, data: fp.sample(model, 6.0, 7.0, 1, history=data),
        lambda model, data: fp.intensity(model, data, [1.0]),
    ],
)
def test_names_of_marks_that_differ_are_refused(use: Callable[[Poisson, Dataset], object]) -> None:
    events = Sequence([1.0, 2.0, 4.0], [0, 1, 0], stop=6.0, space=MarkSpace.of(["fire", "storm"]))
    model = Poisson(MarkSpace.of(["fire", "flood"]))
    with pytest.raises(
        UserError, match="the types 'fire', 'flood', as .* 'storm' is unknown .*, 'flood' is missi"
    ):
        use(model, Dataset.from_sequences([events]))


def test_mark_spaces() -> None:
    assert MarkSpace().count == 1 and str(MarkSpace()) == "no marks"
    assert (
        MarkSpace.categorical(3).names == ("0", "1", "2")
        and str(MarkSpace.categorical(3)) == "3 types"
    )
    assert MarkSpace.of(None) == MarkSpace()
    assert MarkSpace.of(2) == MarkSpace.of(["0", "1"]) == MarkSpace(("0", "1"))
    assert MarkSpace.of(MarkSpace(("x",))).names == ("x",)


@pytest.mark.parametrize("names", [[], 0, ["a", "a"]])
def test_mark_names_are_distinct(names: Any) -> None:
    with pytest.raises(
        EventDataError, match="expected at least one mark name, all different; received .*Rename"
    ):
        MarkSpace.categorical(names)


# Sequences and windows


def test_a_sequence_keeps_its_window() -> None:
    s = Sequence([0.5, 2.0], [1, 0], start=-1, stop=4, id="x")
    assert (len(s), s.start, s.stop, s.duration, s.id, s.inferred) == (
        2,
        -1.0,
        4.0,
        5.0,
        "x",
        False,
    )
    assert (
        s.times.dtype == np.float64
        and s.marks.dtype == np.int64
        and s.space == MarkSpace.categorical(2)
    )


@pytest.mark.parametrize(
    ("times", "window"),
    [
        ([], (0.0, 1.0)),
        ([2.0, 5.0], (0.0, 5.0)),
        ([-3.0, 5.0], (-3.0, 5.0)),
        ([0.0], (0.0, 1.0)),
        ([-2.0], (-2.0, -1.0)),
    ],
)
def test_windows_are_inferred_from_events(times: list[float], window: tuple[float, float]) -> None:
    assert inferred_window(np.array(times)) == window
    s = Sequence(times)
    assert (s.start, s.stop) == window and s.inferred


def test_an_event_at_stop_is_admitted_only_where_the_window_was_inferred() -> None:
    assert Sequence([1.0, 4.0]).stop == 4.0
    with pytest.raises(
        EventDataError,
        match=re.escape(
            "times inside the window [0.0, 4.0); received 4.0 at event 1 of sequence 0"
        ),
    ):
        Sequence([1.0, 4.0], stop=4.0)


def test_before_is_strict_and_ends_the_window() -> None:
    s = Sequence([1.0, 2.0, 3.0], start=0, stop=4).before(2.0)
    assert s.times.tolist() == [1.0] and (s.start, s.stop) == (0.0, 2.0)


def test_inputs_of_a_sequence_are_copied() -> None:
    times, marks = np.array([1.0, 2.0]), np.array([0, 1])
    s = Sequence(times, marks, start=0, stop=3)
    times[0], marks[0] = 9.0, 9
    assert s.times.tolist() == [1.0, 2.0] and s.marks.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        s.times[0] = 0.0


# Errors, one by one

BAD_DATASETS = [
    (
        dict(times=np.array([1.0, np.nan, 3.0, 4.0])),
        "expected finite times; received nan at event 1 of sequence a. Remove or correct the row.",
    ),
    (dict(times=np.array([1.0, 2.0, np.inf, 4.0])), "received inf at event 0 of sequence b"),
    (
        dict(times=np.array([1.0, 2.0, 4.0, 3.0])),
        (
            "expected non-decreasing times; received 3.0 after 4.0 at event 1 of sequence b. "
            "Sort the rows, or read with sort=True."
        ),
    ),
    (
        dict(times=np.array([1.0, 2.0, 3.0, 10.0])),
        (
            "expected times inside the window [0.0, 10.0); received 10.0 at event 1 of sequence "
            "b. Widen the window or drop the event."
        ),
    ),
    (dict(times=np.array([-1.0, 2.0, 3.0, 4.0])), "received -1.0 at event 0 of sequence a"),
    (
        dict(mark_ids=np.array([0, 0, 3, 0]), marks=MarkSpace.categorical(3)),
        (
            "expected marks from 0 to 2; received 3 at event 0 of sequence b. Correct the mark, or "
            "declare more types."
        ),
    ),
    (
        dict(mark_ids=np.array([0, -1, 0, 0])),
        "expected marks from 0 to 0; received -1 at event 1 of sequence a",
    ),
    (
        dict(stops=np.array([10.0, 0.0])),
        (
            "expected a finite window with start < stop; received [0.0, 0.0) of sequence b. "
            "Correct its start and stop."
        ),
    ),
    (dict(stops=np.array([np.inf, 10.0])), "received [0.0, inf) of sequence a"),
    (
        dict(splits=np.array(["train", "valid"])),
        (
            "expected splits called train, dev or test; received 'valid'. Rename the values of "
            "the split column."
        ),
    ),
    (
        dict(mark_ids=np.zeros(3, dtype=np.int64)),
        "expected one mark per time and one window per sequence; received 4 times, 3 marks",
    ),
    (dict(stops=np.array([10.0])), "2 starts, 1 stops. Make the lengths equal."),
    (dict(ids=("a",)), "expected one mark per time and one window per sequence"),
    (dict(splits=np.array(["train"])), "expected one mark per time and one window per sequence"),
    (
        dict(offsets=np.array([0, 3, 3])),
        (
            "expected offsets that rise from 0 to the number of events; received [0, 3, 3]. "
            "Count the events again."
        ),
    ),
    (dict(offsets=np.array([0, 5, 4])), "received [0, 5, 4]"),
]


@pytest.mark.parametrize(("changes", "text"), BAD_DATASETS)
def test_bad_data_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(EventDataError) as caught:
        flat(**changes)
    assert text in str(caught.value)


def test_bad_times_and_marks_of_a_sequence() -> None:
    with pytest.raises(
        EventDataError,
        match="expected numbers for times; received .*noon.*Convert the times to numbers",
    ):
        Sequence(["noon"])
    with pytest.raises(
        EventDataError,
        match=r"expected marks as integers 0..M-1; received .*0\.5.*Number the types",
    ):
        Sequence([1.0], [0.5])
    with pytest.raises(
        EventDataError,
        match=(
            "expected sequences of one mark space; received 2 spaces. Pass space= to each Sequence"
        ),
    ):
        Dataset.from_sequences([Sequence([1.0]), Sequence([1.0], [1])])


def test_an_error_carries_its_three_clauses() -> None:
    error = UserError("a", "b", "Do c.")
    assert (error.expected, error.received, error.remedy, str(error)) == (
        "a",
        "b",
        "Do c.",
        "expected a; received b. Do c.",
    )
    assert issubclass(EventDataError, UserError) and issubclass(UserError, ValueError)


def test_an_unknown_id_names_near_ones() -> None:
    data = flat(ids=("monday", "tuesday"))
    assert data.find("monday").times.tolist() == [1.0, 2.0]
    with pytest.raises(
        EventDataError,
        match="expected the id of a sequence; received 'mondey'. Ids here are like 'monday'",
    ):
        data.find("mondey")


# Data sets


@given(datasets())
def test_a_dataset_is_its_sequences(data: Dataset) -> None:
    again = Dataset.from_sequences(list(data))
    assert (
        again.times.tolist() == data.times.tolist()
        and again.offsets.tolist() == data.offsets.tolist()
    )
    assert [s.id for s in data] == list(data.ids) and sum(
        map(len, data)
    ) == data.events == data.lengths.sum()
    assert data.gaps.tolist() == [gap for s in data for gap in np.diff(s.times).tolist()]


@given(datasets(), st.data())
def test_selecting_keeps_whole_sequences_in_order(data: Dataset, draw: st.DataObject) -> None:
    rows = draw.draw(st.lists(st.integers(0, len(data) - 1), max_size=8))
    chosen = data.select(rows)
    assert list(chosen.ids) == [data.ids[i] for i in rows]
    assert [s.times.tolist() for s in chosen] == [data[i].times.tolist() for i in rows]
    assert [s.marks.tolist() for s in chosen] == [data[i].marks.tolist() for i in rows]


def test_indexing() -> None:
    data = flat()
    assert data[-1].id == "b" and [s.id for s in data[1:]] == ["b"] and len(data[:0]) == 0
    with pytest.raises(IndexError):
        data[2]


def test_text_of_a_dataset() -> None:
    assert str(flat(unit="hours")) == "2 sequences, 4 events, no marks, windows of 10 hours"
    assert (
        repr(flat(stops=np.array([10.0, 12.0])))
        == "Dataset(2 sequences, 4 events, no marks, windows of many lengths)"
    )


def test_repeated_ids_of_sequences_become_numbers() -> None:
    assert Dataset.from_sequences([Sequence([1.0], id="x"), Sequence([2.0], id="x")]).ids == (
        "0",
        "1",
    )


# Ties


@given(datasets(ties=True))
def test_ties_are_counted_and_kept(data: Dataset) -> None:
    gaps = [gap for s in data for gap in np.diff(s.times).tolist()]
    assert data.tied == pytest.approx(np.mean(np.array(gaps) == 0) if gaps else 0.0)
    assert data.with_ties("keep") is data


@given(datasets(ties=True))
def test_drop_keeps_the_first_of_equals(data: Dataset) -> None:
    dropped = data.with_ties("drop")
    assert dropped.tied == 0
    for old, new in zip(data, dropped, strict=True):
        first = np.unique(old.times, return_index=True)[1]
        assert (
            new.times.tolist() == old.times[first].tolist()
            and new.marks.tolist() == old.marks[first].tolist()
        )


@given(st.one_of(datasets(ties=True), datasets(ties=True, inferred=True)), st.integers(0, 9))
def test_jitter_leaves_no_tie_and_disturbs_little(data: Dataset, seed: int) -> None:
    spread = data.with_ties("jitter", seed=seed)
    assert spread.tied == 0
    assert (
        spread.mark_ids.tolist() == data.mark_ids.tolist()
        and spread.offsets.tolist() == data.offsets.tolist()
    )
    assert spread.times.tolist() == data.with_ties("jitter", seed=seed).times.tolist()
    for old, new in zip(data, spread, strict=True):
        distinct = np.unique(old.times, return_counts=True)
        alone = np.isin(old.times, distinct[0][distinct[1] == 1])
        assert (new.times[alone] == old.times[alone]).all()
        if not data.inferred:
            assert (
                np.searchsorted(distinct[0], new.times, side="right")
                == np.searchsorted(distinct[0], old.times, side="right")
            ).all()


def test_jitter_at_the_end_of_an_inferred_window_spreads_back() -> None:
    data = Dataset.from_sequences([Sequence([1.0, 1.0, 2.0, 2.0, 2.0])]).with_ties("jitter")
    assert data.stops.tolist() == [2.0] and data.times[-1] == 2.0 and data.times[0] == 1.0
    assert 1.0 < data.times[1] < 1.5 <= data.times[2] < data.times[3] < 2.0


def test_tie_errors() -> None:
    data = flat(times=np.array([1.0, 2.0, 2.0, 2.0]))
    with pytest.raises(EventDataError) as caught:
        data.with_ties("error")
    assert str(caught.value) == (
        "expected distinct times; received a repeated time 2.0 at event 1 of sequence b. Use "
        "ties='keep', 'jitter' or 'drop'."
    )
    assert flat().with_ties("error").events == 4


@pytest.mark.parametrize("times", [[1.0, 1.0], [1.0, 2.0]])
def test_an_unknown_tie_policy_is_refused_with_and_without_ties(times: list[float]) -> None:
    with pytest.raises(
        EventDataError, match="expected a tie policy keep, error, jitter or drop; received 'shake'"
    ):
        Dataset.from_sequences([Sequence(times)]).with_ties("shake")


# Splits


@given(st.integers(3, 60), st.integers(0, 5))
def test_split_by_sequence_is_a_seeded_partition(count: int, seed: int) -> None:
    data = Dataset.from_sequences(
        [Sequence([0.5], start=0, stop=1, id=str(i)) for i in range(count)]
    )
    parts = data.split(seed=seed)
    assert len(parts) == 3 and all(len(part) for part in parts)
    assert sorted(id for part in parts for id in part.ids) == sorted(data.ids)
    assert [p.ids for p in parts] == [p.ids for p in data.split(seed=seed)]


def test_split_given() -> None:
    data = flat(splits=np.array(["test", "train"]))
    assert [p.ids for p in data.split()] == [("b",), ("a",)]
    assert data.part("test").ids == ("a",) and data.part("all") is data
    assert len(data.split((0.5, 0.5), by="sequence")) == 2


def test_split_by_time_puts_earlier_windows_first() -> None:
    data = Dataset.from_sequences(
        [Sequence([], start=s, stop=s + 1, id=str(s)) for s in (3, 1, 2, 0)]
    )
    train, test = data.split((0.5, 0.5), by="time")
    assert sorted(train.ids) == ["0", "1"] and sorted(test.ids) == ["2", "3"]


@given(datasets(), st.booleans())
def test_a_lone_sequence_is_cut_at_times(data: Dataset, inferred: bool) -> None:
    lone = Sequence(
        data[0].times, data[0].marks, space=3, **({} if inferred else dict(start=-0.1, stop=100.3))
    )
    parts = Dataset.from_sequences([lone]).split()
    assert np.concatenate([p.times[p.scored] for p in parts]).tolist() == lone.times.tolist()
    assert all(p.times.tolist() == lone.times[: p.events].tolist() for p in parts)
    edges = [parts[0].starts[0], *(p.stops[0] for p in parts)]
    assert edges[0] == lone.start and edges[-1] == lone.stop
    assert all(p.starts[0] == lone.start for p in parts)
    assert [p.context.scored_from[0] for p in parts[1:]] == pytest.approx(edges[1:-1])


def test_split_errors() -> None:
    with pytest.raises(
        EventDataError, match=r"expected positive fractions that sum to 1; received \(0.5, 0.6\)"
    ):
        flat().split((0.5, 0.6))
    with pytest.raises(
        EventDataError,
        match="expected a split called 'dev'; received no split column. Use --split all",
    ):
        flat().part("dev")
    with pytest.raises(
        EventDataError, match=r"expected a split called 'dev'; received splits \['test', 'train'\]"
    ):
        flat(splits=np.array(["test", "train"])).part("dev")


# Batches


@given(datasets())
def test_a_batch_pads_with_stop_and_mark_0(data: Dataset) -> None:
    batch = data.batch()
    assert batch.times.dtype == torch.float64 and batch.times.shape == (
        len(data),
        int(data.lengths.max(initial=0)),
    )
    assert batch.lengths.tolist() == data.lengths.tolist()
    for i, s in enumerate(data):
        assert (
            batch.times[i, : len(s)].tolist() == s.times.tolist()
            and batch.marks[i, : len(s)].tolist() == s.marks.tolist()
        )
        assert (batch.times[i, len(s) :] == s.stop).all() and (batch.marks[i, len(s) :] == 0).all()
    assert (batch.edges.diff(dim=1) >= 0).all() and torch.allclose(
        batch.edges.diff(dim=1).sum(1), batch.stop - batch.start
    )


def test_padding_is_overwritten() -> None:
    valid = torch.tensor([[True, False]])
    batch = Batch(
        torch.tensor([[1.0, torch.nan]]).double(),
        torch.tensor([[0, 99]]),
        valid,
        torch.zeros(1).double(),
        torch.full((1,), 5.0).double(),
    )
    assert batch.times.tolist() == [[1.0, 5.0]] and batch.marks.tolist() == [[0, 0]]
    assert batch.to("cpu").edges.tolist() == [[0.0, 1.0, 5.0, 5.0]]


def test_a_batch_moves_whole_to_another_device() -> None:
    places = [[0.0, 1.0], [2.0, 3.0]]
    steps = Steps.constant(("age",), [[40.0]])
    context = Context(np.zeros(1), np.zeros(1), covariates=steps, exposure=steps)
    batch = Sequence(
        [1.0, 2.0], start=0.0, stop=3.0, places=places, features=places, context=context
    ).batch()

    def devices(value: object) -> set[str]:
        if isinstance(value, torch.Tensor):
            return {value.device.type}
        return set().union(*(devices(part) for part in vars(value).values()))

    assert devices(batch) == {"cpu"} and devices(batch.to("meta")) == {"meta"}
    later = batch.columns(1, 2)
    assert later.places is not None and later.features is not None and later.context is not None


def test_batches_of_nothing() -> None:
    data = Dataset.from_sequences([Sequence([], start=0, stop=1), Sequence([], start=0, stop=2)])
    assert data.batch().times.shape == (2, 0) and data.batch().edges.tolist() == [[0, 1], [0, 2]]
    assert data[0].batch().times.shape == (1, 0)


def test_columns_share_out_the_window() -> None:
    batch = Dataset.from_sequences(
        [Sequence([1.0, 2.0, 3.0], start=0, stop=4), Sequence([1.5], start=0, stop=4)]
    ).batch()
    blocks = [batch.columns(i, i + 1) for i in range(3)]
    assert [b.times.flatten().tolist() for b in blocks] == [[1.0, 1.5], [2.0, 4.0], [3.0, 4.0]]
    assert [b.start.tolist() for b in blocks] == [[0.0, 0.0], [1.0, 1.5], [2.0, 4.0]]
    assert [b.stop.tolist() for b in blocks] == [[1.0, 1.5], [2.0, 4.0], [4.0, 4.0]]


@given(
    datasets(),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(0, 3)),
    st.sampled_from([1, 20, 131072]),
)
def test_batches_partition_the_rows_within_their_limits(
    data: Dataset, size: int, seed: int | None, padded: int
) -> None:
    batches = data.batches(size, seed=seed, padded=padded)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(data)))
    for rows in batches:
        assert len(rows) <= size
        assert len(rows) == 1 or len(rows) * (1 + data.lengths[rows].max()) <= padded
    assert [rows.tolist() for rows in batches] == [
        rows.tolist() for rows in data.batches(size, seed=seed, padded=padded)
    ]


def test_batches_hold_like_lengths() -> None:
    data = Dataset.from_sequences(
        [Sequence(np.arange(n) / 10, start=0, stop=100) for n in (50, 1, 52, 2, 51, 3)]
    )
    assert [sorted(data.lengths[rows].tolist()) for rows in data.batches(3)] == [
        [1, 2, 3],
        [50, 51, 52],
    ]
