"""Tables beside the events: gaps, exposure, covariates and event features, read, refused and
stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fourpoint as fp
from fourpoint.events import Dataset, EventDataError, UserError

DAYS = ["2025-06-01 08:00", "2025-06-01 12:00", "2025-06-02 09:30", "2025-06-03 10:00"]
OUTAGE = {"start": ["2025-06-01 20:00"], "stop": ["2025-06-02 09:30"]}


def log(**options: Any) -> Dataset:
    window = ("2025-06-01", "2025-06-04")
    given = {"sequence": "none", "window": window, "time_unit": "hours"} | options
    return fp.read({"time": DAYS}, **given)


def shops(**options: Any) -> Dataset:
    table = {
        "time": [1.0, 4.0, 2.0, 7.0],
        "shop": ["a", "a", "b", "b"],
        "age": [40.0, 40.0, 25.0, 25.0],
        "plan": ["pro", "pro", "basic", "basic"],
        "amount": [10.0, 2.5, 3.0, 8.0],
    }
    return fp.read(table, sequence="shop", window=(0, 10), **options)


def exposure(data: Dataset, row: int, times: list[float]) -> list[float]:
    assert data.context is not None and data.context.exposure is not None
    return data.context.exposure.at(row, np.array(times))[:, 0].tolist()


def covariates(data: Dataset, row: int, times: list[float]) -> list[list[float]]:
    assert data.context is not None and data.context.covariates is not None
    return data.context.covariates.at(row, np.array(times)).tolist()


def test_gaps_are_intervals_without_exposure() -> None:
    data = log(gaps=OUTAGE)
    # An event at the very end of the gap was recorded.
    assert exposure(data, 0, [0.0, 19.9, 20.0, 33.4, 33.5, 72.0]) == [1, 1, 0, 0, 1, 1]
    assert data.context is not None and data.context.origin is not None


def test_gaps_in_days_of_their_own_origin() -> None:
    data = log(sequence="day", gaps=OUTAGE, timezone="Europe/Berlin")
    assert [exposure(data, i, [0.0, 9.4, 9.5, 21.0]) for i in range(3)] == [
        [1, 1, 1, 0],
        [0, 0, 1, 1],
        [1, 1, 1, 1],
    ]


def test_gaps_of_single_sequences() -> None:
    data = shops(gaps={"shop": ["b", "b"], "start": [3.0, 8.0], "stop": [5.0, 9.0]})
    assert exposure(data, 0, [3.0, 8.5]) == [1, 1]
    assert exposure(data, 1, [2.9, 3.0, 5.0, 8.5, 9.0]) == [1, 0, 1, 0, 1]


def test_observed_intervals_leave_gaps_between_them() -> None:
    observed = {"start": [0.5, 3.5, 6.0], "stop": [2.5, 5.0, 9.0]}
    data = shops(observed=observed)
    for row in range(2):
        assert exposure(data, row, [0.0, 0.5, 2.5, 3.5, 5.5, 8.9, 9.5]) == [0, 1, 0, 1, 0, 1, 0]
    # A window that is taken from the events becomes that of the intervals.
    alone = fp.read({"time": [1.0, 4.0]}, observed={"start": [0.5, 3.0], "stop": [2.0, 6.0]})
    assert (alone[0].start, alone[0].stop, alone.inferred) == (0.0, 6.0, False)
    with pytest.raises(UserError, match="either gaps or the intervals.*both"):
        shops(observed=observed, gaps=observed)


def test_exposure_times_gaps() -> None:
    staff = {"time": ["2025-05-31", "2025-06-02", "2025-06-03"], "staff": [2, 4, 3]}
    data = log(exposure=staff, gaps=OUTAGE)
    assert exposure(data, 0, [0.0, 20.0, 24.0, 33.5, 48.0, 100.0]) == [2, 0, 0, 4, 3, 3]


def test_covariates_of_time_hold_from_each_time_on() -> None:
    weather = {
        "time": ["2025-05-31 12:00", "2025-06-01 06:00", "2025-06-02 00:00"],
        "temperature": [10.0, 12.5, 9.0],
        "sky": ["clear", "rain", "clear"],
        "holiday": [False, False, True],
    }
    data = log(covariates=weather)
    assert data.context is not None and data.context.covariates is not None
    assert data.context.covariates.names == ("temperature", "sky=rain", "holiday")
    assert covariates(data, 0, [0.0, 6.0, 30.0]) == [[10, 0, 0], [12.5, 1, 0], [9, 0, 1]]
    assert data.log is not None and data.log.levels == {"sky": ("clear", "rain")}


def test_covariates_of_time_in_calendar_windows() -> None:
    weather = {"time": ["2025-06-01", "2025-06-02 06:00"], "temperature": [1.0, 2.0]}
    data = log(sequence="day", covariates=weather)
    assert [covariates(data, i, [0.0, 6.0]) for i in range(3)] == [
        [[1], [1]],
        [[1], [2]],
        [[2], [2]],
    ]


def test_covariates_of_sequences_and_of_time_together() -> None:
    promotion = {"time": [0.0, 5.0, 0.0], "shop": ["a", "a", "b"], "discount": [0.0, 0.2, 0.1]}
    data = shops(sequence_covariates="age,plan", covariates=promotion, event_features="amount")
    assert data.context is not None and data.context.covariates is not None
    assert data.context.covariates.names == ("age", "plan=pro", "discount")
    assert covariates(data, 0, [1.0, 6.0]) == [[40, 1, 0], [40, 1, 0.2]]
    assert covariates(data, 1, [1.0, 6.0]) == [[25, 0, 0.1], [25, 0, 0.1]]
    assert data.feature_names == ("amount",) and data.features is not None
    assert data.features[:, 0].tolist() == [10.0, 2.5, 3.0, 8.0]


def test_later_data_are_encoded_as_the_first() -> None:
    first = shops(sequence_covariates="plan")
    assert first.log is not None
    later = {"time": [1.0, 2.0], "shop": ["c", "c"], "plan": ["pro", "pro"]}
    data = fp.read(
        later, sequence="shop", window=(0, 9), sequence_covariates="plan", levels=first.log.levels
    )
    assert covariates(data, 0, [0.0]) == [[1.0]]
    later["plan"] = ["team", "team"]
    with pytest.raises(EventDataError, match="'basic', 'pro', as in training.*'team' at row 0"):
        fp.read(
            later,
            sequence="shop",
            window=(0, 9),
            sequence_covariates="plan",
            levels=first.log.levels,
        )


def test_missing_values_are_refused_or_imputed_by_name() -> None:
    weather = {"time": [0.0, 2.0, 4.0], "x": [1.0, None, 4.0], "sky": ["a", "b", None]}
    with pytest.raises(EventDataError, match="every row of column 'x'.*1 missing.*row 1.*impute"):
        shops(covariates=weather)
    assert covariates(shops(covariates=weather, impute="previous"), 0, [2.0, 4.0]) == [
        [1, 1],
        [4, 1],
    ]
    numbers = {"time": [0.0, 2.0, 4.0], "x": [1.0, float("nan"), 4.0]}
    assert covariates(shops(covariates=numbers, impute="mean"), 0, [2.0]) == [[2.5]]
    with pytest.raises(EventDataError, match="words have no mean.*1 missing.*previous"):
        shops(covariates=weather, impute="mean")
    first = {"time": [0.0, 2.0], "x": [None, 4.0]}
    with pytest.raises(EventDataError, match="a previous value.*none before row 0"):
        shops(covariates=first, impute="previous")
    with pytest.raises(UserError, match="an imputation: previous or mean.*'zero'"):
        shops(covariates=first, impute="zero")
    # The value before belongs to another shop.
    mixed = {"time": [0.0, 0.0, 3.0], "shop": ["a", "b", "a"], "x": [1.0, 5.0, None]}
    assert covariates(shops(covariates=mixed, impute="previous"), 0, [4.0]) == [[1.0]]


def test_event_in_a_gap_is_named_by_date_and_row() -> None:
    outage = {"start": ["2025-06-01 10:00"], "stop": ["2025-06-02"]}
    with pytest.raises(
        EventDataError,
        match=r"no event from 2025-06-01 10:00 to 2025-06-02 00:00, when nothing was recorded.*"
        r"2025-06-01 12:00 at event 1 of sequence 0 \(row 1\)",
    ):
        log(gaps=outage)


def test_intervals_that_overlap_or_end_before_they_start() -> None:
    with pytest.raises(
        EventDataError,
        match="do not overlap; received .*2025-06-01 20:00 to 2025-06-02 04:00 at row 1 and "
        "2025-06-02 03:00 to 2025-06-02 09:00 at row 0",
    ):
        log(
            gaps={
                "start": ["2025-06-02 03:00", "2025-06-01 20:00"],
                "stop": ["2025-06-02 09:00", "2025-06-02 04:00"],
            }
        )
    with pytest.raises(EventDataError, match="start is before their stop.*2 to 1 at row 0"):
        shops(gaps={"start": [2.0], "stop": [1.0]})


def test_tables_that_begin_after_the_window() -> None:
    late = {"time": ["2025-06-01 06:00"], "x": [1.0]}
    with pytest.raises(
        EventDataError,
        match="covariates from the start of the window, 2025-06-01 00:00, on; received .*begins at "
        "2025-06-01 06:00 for sequence 0",
    ):
        log(covariates=late)
    with pytest.raises(EventDataError, match="exposure from the start.*begins at nowhere for seq"):
        shops(exposure={"time": [0.0], "shop": ["a"], "staff": [1.0]})


def test_mixed_time_zones_are_refused() -> None:
    zoned = {"time": ["2025-06-01T00:00:00Z"], "x": [1.0]}
    with pytest.raises(EventDataError, match="times without a zone in column 'time'"):
        log(covariates=zoned)
    events = {"time": ["2025-06-01T08:00:00Z", "2025-06-02T08:00:00Z"]}
    naive = {"time": ["2025-05-01 00:00"], "x": [1.0]}
    with pytest.raises(EventDataError, match="times with a zone in column 'time'.*--timezone"):
        fp.read(events, covariates=naive)
    data = fp.read(events, covariates=naive, timezone="Europe/Berlin")
    assert covariates(data, 0, [0.0]) == [[1.0]]
    one_of_two = {"time": ["2025-05-01 00:00", "2025-05-02T00:00:00Z"], "x": [1.0, 2.0]}
    with pytest.raises(EventDataError, match="a zone at every time, or at none"):
        log(covariates=one_of_two)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gaps": {"from": [1.0]}}, "columns 'start' and 'stop' of gaps.*'from'"),
        ({"gaps": {"start": ["2025-06-01"], "stop": ["2025-06-02"]}}, "numbers in column 'start'"),
        ({"exposure": {"time": [0.0], "a": [1], "b": [2]}}, "one column of exposure.*'a', 'b'"),
        ({"exposure": {"time": [0.0], "a": [-1.0]}}, "an exposure of at least 0.*-1 from 0 on"),
        ({"exposure": {"time": [0.0, 0.0], "a": [1, 2]}}, "rising times of exposure.*0 at row 1"),
        ({"covariates": {"time": [0.0]}}, "a column of covariates beside the times"),
        ({"covariates": {"time": [0.0], "x": ["a"]}}, "two different values in column 'x'.*'a'"),
        ({"covariates": {"time": [0.0], "shop": ["z"], "x": [1.0]}}, "ids of sequences.*'z'"),
        ({"covariates": {"time": [0.0], "x": [float("inf")]}}, "finite numbers in column 'x'"),
        ({"sequence_covariates": ["amount"]}, "one value of column 'amount' in each sequence"),
        ({"sequence_covariates": "income"}, "a column 'income' for the sequence covariates"),
        ({"event_features": "plan"}, "numbers in column 'plan'"),
        (
            {"sequence_covariates": "age", "covariates": {"time": [0.0], "age": [1.0]}},
            "covariates with different names.*'age' twice",
        ),
    ],
)
def test_faults_of_tables(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        shops(**options)


def test_words_that_change_within_a_sequence() -> None:
    table = {"time": [1.0, 2.0], "shop": ["a", "a"], "plan": ["pro", "basic"]}
    with pytest.raises(
        EventDataError, match="'plan' in each sequence.*pro and basic in sequence a"
    ):
        fp.read(table, sequence="shop", sequence_covariates="plan")


def test_any_table_will_do(tmp_path: Path) -> None:
    weather = {"time": [0.0, 5.0], "x": [1.0, 2.0]}
    path = tmp_path / "weather.csv"
    path.write_text("time,x\n0,1\n5,2\n")
    for source in (weather, path, str(path), pa.table(weather)):
        assert covariates(shops(covariates=source), 1, [4.0, 6.0]) == [[1.0], [2.0]]


def test_context_and_features_survive_parquet(tmp_path: Path) -> None:
    weather = {"time": ["2025-06-01", "2025-06-02"], "x": [1.5, 2.0], "sky": ["a", "b"]}
    gap = {"start": [8.0], "stop": [9.0]}
    cases = [
        log(sequence="day", gaps=OUTAGE, covariates=weather, timezone="Europe/Berlin"),
        log(covariates=weather),
        shops(sequence_covariates="age,plan", event_features="amount", gaps=gap),
    ]
    for i, data in enumerate(cases):
        path = tmp_path / f"{i}.parquet"
        fp.write(data, path)
        found = fp.read(path)
        assert found.context is not None and data.context is not None
        for name in ("covariates", "exposure"):
            one, two = getattr(data.context, name), getattr(found.context, name)
            assert (one is None) == (two is None)
            if one is not None:
                assert one.names == two.names
                assert np.array_equal(one.times, two.times)
                assert np.array_equal(one.values, two.values)
                assert np.array_equal(one.offsets, two.offsets)
        assert (data.context.origin is None) == (found.context.origin is None)
        assert found[0].dates == data[0].dates
        assert found.feature_names == data.feature_names
        assert (data.features is None) == (found.features is None)
        if data.features is not None and found.features is not None:
            assert np.array_equal(found.features, data.features)
        assert found.log is not None and data.log is not None
        assert found.log.levels == data.log.levels


def test_damaged_context_is_refused(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "log.parquet"
    fp.write(log(gaps=OUTAGE), path)
    table = pq.read_table(path)
    good = table.schema.metadata[b"fourpoint.context"]
    for bad in (b"{}", b"[", good.replace(b'"origin":[', b'"origin":[0,'), b'"x"'):
        changed = table.replace_schema_metadata(
            {**table.schema.metadata, b"fourpoint.context": bad}
        )
        pq.write_table(changed, path)
        with pytest.raises(EventDataError, match="a context of the sequences.*damaged"):
            fp.read(path)


def test_an_hourly_table_over_the_change_of_clocks() -> None:
    hours = ["2025-10-26 01:00", "2025-10-26 02:00", "2025-10-26 02:00", "2025-10-26 03:00"]
    table = {"time": hours, "x": [1.0, 2.0, 3.0, 4.0]}
    events = {"time": ["2025-10-26 01:30", "2025-10-26 05:00"]}
    window = ("2025-10-26 01:00", "2025-10-26 06:00")
    data = fp.read(
        events, window=window, covariates=table, timezone="Europe/Berlin", time_unit="hours"
    )
    assert covariates(data, 0, [0.0, 1.0, 2.0, 3.0]) == [[1.0], [2.0], [3.0], [4.0]]
    skipped = {"time": ["2025-03-30 00:00", "2025-03-30 02:00"], "x": [1.0, 2.0]}
    with pytest.raises(EventDataError, match="times that exist in Europe/Berlin.*at row 1"):
        fp.read(
            {"time": ["2025-03-30 08:00", "2025-03-30 09:00"]},
            covariates=skipped,
            timezone="Europe/Berlin",
        )


def test_formats_of_the_field_leave_out_the_context(tmp_path: Path) -> None:
    from fourpoint.data.formats import convert

    fp.write(shops(sequence_covariates="plan", event_features="amount"), tmp_path / "a.parquet")
    done = convert(tmp_path / "a.parquet", tmp_path / "b.json", None, "easytpp", {})
    assert any("event features, covariates" in note for note in done.notes)


def test_stored_dates_are_the_clock_of_later_data(tmp_path: Path) -> None:
    fp.write(log(), tmp_path / "log.parquet")
    found = fp.read(tmp_path / "log.parquet")
    assert found.log is not None and found.log.origin == "2025-06-01T00:00:00"
