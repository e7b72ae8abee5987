"""The paper's sources: hand-made files in the raw formats, what comes out of them, and what is
refused with file and line.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fourpoint.data.formats import convert, guess_source
from fourpoint.data.readers import read as read_own
from fourpoint.data.sources import SOURCES, congestion, memetracker, mimic, transactions
from fourpoint.events import EventDataError, UserError


def saved(folder: Path, text: str | bytes, name: str = "raw.csv") -> Path:
    path = folder / name
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


# MIMIC-III

ADMISSIONS = """\
"ROW_ID","SUBJECT_ID","HADM_ID","ADMITTIME","DISCHTIME","DEATHTIME","ADMISSION_TYPE",\
"ADMISSION_LOCATION",\
"DISCHARGE_LOCATION","INSURANCE","LANGUAGE","RELIGION","MARITAL_STATUS","ETHNICITY","EDREGTIME",\
"EDOUTTIME","DIAGNOSIS","HOSPITAL_EXPIRE_FLAG","HAS_CHARTEVENTS_DATA"
21,22,165315,2196-04-09 12:26:00,2196-04-10 15:54:00,,"EMERGENCY","EMERGENCY ROOM ADMIT",\
"DISC-TRAN CANCER/CHLDRN H",\
"Private",,"UNOBTAINABLE","MARRIED","WHITE",2196-04-09 10:06:00,2196-04-09 13:24:00,\
"BENZODIAZEPINE OVERDOSE",0,1
22,23,152223,2153-09-03 07:15:00,2153-09-08 19:10:00,,"ELECTIVE","PHYS REFERRAL/NORMAL DELI",\
"HOME HEALTH CARE","Medicare",,"CATHOLIC",\
"MARRIED","WHITE",,,"CORONARY ARTERY DISEASE, BYPASS",0,1
23,23,124321,2157-10-18 19:34:00,2157-10-25 14:00:00,,"EMERGENCY","TRANSFER FROM HOSP/EXTRAM",\
"HOME HEALTH CARE",\
"Medicare","ENGL","CATHOLIC","MARRIED","WHITE",,,"BRAIN MASS",0,1
24,24,161859,2139-06-06 16:14:00,2139-06-09 12:48:00,,"EMERGENCY","TRANSFER FROM HOSP/EXTRAM",\
"HOME","Private",,"PROTESTANT QUAKER",\
"SINGLE","WHITE",,,"INTERIOR MYOCARDIAL INFARCTION",0,1
25,23,129635,2155-11-02 02:06:00,2155-11-05 14:55:00,,"EMERGENCY","EMERGENCY ROOM ADMIT","HOME",\
"Private",,"UNOBTAINABLE",\
"MARRIED","WHITE",2155-11-01 20:22:00,2155-11-02 03:12:00,,0,1
"""


def test_mimic_admissions(tmp_path: Path) -> None:
    data, notes = mimic.read(saved(tmp_path, ADMISSIONS, "ADMISSIONS.csv"))
    days = (np.datetime64("2155-11-02T02:06") - np.datetime64("2153-09-03T07:15")) / np.timedelta64(
        1, "D"
    )
    last = (np.datetime64("2157-10-18T19:34") - np.datetime64("2153-09-03T07:15")) / np.timedelta64(
        1, "D"
    )
    assert data.ids == ("23",) and data.times.tolist() == [0.0, days, last] and not data.marks.names
    assert (
        data.inferred
        and data.starts.tolist() == [0.0]
        and data.stops.tolist() == [last]
        and data.unit == "days"
    )
    assert notes == [
        "1 of 3 patients have at least 3 visits; the others are left out (--set visits=N)",
        "1 admissions came after a later one of the same patient and were sorted by time",
        "days since each patient's first admission, which is an event at 0",
    ]


def test_mimic_marks(tmp_path: Path) -> None:
    path = saved(tmp_path, ADMISSIONS, "ADMISSIONS.csv.gz")
    data, _ = mimic.read(path, mark="type", visits=1)
    assert data.ids == ("22", "23", "24") and data.marks.names == ("ELECTIVE", "EMERGENCY")
    assert [s.marks.tolist() for s in data] == [[1], [0, 1, 1], [1]]
    data, _ = mimic.read(path, mark="diagnosis", types=1)
    assert data.marks.names == ("BRAIN MASS", "other") and data.mark_ids.tolist() == [1, 1, 0]
    data, _ = mimic.read(path, mark="diagnosis")
    assert data.marks.names == (
        "BRAIN MASS",
        "CORONARY ARTERY DISEASE, BYPASS",
        "unknown",
    ) and data.mark_ids.tolist() == [1, 2, 0]


def test_mimic_iv_and_the_demo_write_lower_case(tmp_path: Path) -> None:
    rows = "".join(f"10,{i},2150-01-0{i} 00:00:00,URGENT\n" for i in (1, 2, 4))
    path = saved(
        tmp_path,
        b"\xef\xbb\xbfsubject_id,hadm_id,admittime,admission_type\r\n"
        + rows.replace("\n", "\r\n\r\n").encode(),
    )
    data, _ = mimic.read(path, mark="type")
    assert data.times.tolist() == [0.0, 1.0, 3.0] and data.marks.names == ("URGENT",)
    with pytest.raises(
        EventDataError,
        match=(
            "MIMIC's ADMISSIONS.csv with a column 'diagnosis'; received .*raw.csv: none. "
            "MIMIC-IV has no"
        ),
    ):
        mimic.read(path, mark="diagnosis")


def test_mimic_faults(tmp_path: Path) -> None:
    cases = {
        "SUBJECT_ID,ADMIT\n1,2\n": (
            "with a column 'admittime'; received FILE, line 1: columns 'SUBJECT_ID', 'ADMIT'. "
            "Rename 'admit'"
        ),
        (
            "SUBJECT_ID,ADMITTIME\n1,2101-01-01 00:00:00\n\n1,2101-13-01 00:00:00\n"
        ): "FILE, line 4: '2101-13-01 00:00:00'. Remove or correct",
        "SUBJECT_ID,ADMITTIME\n1,2101-01-01 00:00:00\n1\n": (
            "received FILE, line 3, which cannot be read as one (CSV parse error"
        ),
        "SUBJECT_ID,ADMITTIME\n1,\n": (
            "19:08:00, without a zone, in column 'admittime'; received FILE, line 2: ''"
        ),
        (
            "SUBJECT_ID,ADMITTIME\n1,2101-01-01T00:00:00Z\n"
        ): "received FILE, line 2: '2101-01-01T00:00:00Z'",
        "SUBJECT_ID,ADMITTIME\n": "received FILE, which has no rows",
        "SUBJECT_ID,ADMITTIME\n1,2101-01-01 00:00:00\n": (
            "patients with at least 3 visits; received FILE: 1 patients with at most 1"
        ),
    }
    for text, message in cases.items():
        path = saved(tmp_path, text)
        with pytest.raises(EventDataError) as caught:
            mimic.read(path)
        assert message.replace("FILE", str(path)) in str(caught.value)
    with pytest.raises(UserError, match="mark none, type, diagnosis; received 'sex'"):
        mimic.read(path, mark="sex")
    with pytest.raises(UserError, match="at least one visit"):
        mimic.read(path, visits=0)


# MemeTracker

QUOTES = (
    b"P\thttp://www.first.com/a.html\nT\t2008-09-09 22:35:24\nQ\tthat's not "
    b"change\nQ\tlipstick on a pig\nQ\tthat's not change\nL\thttp://b.com/x\n\n"
    b"P\thttp://blog.second.org:80/b\nT\t2008-09-09 22:35:24\nQ\tlipstick on a pig\n\n"
    b"P\thttp://third.net\nT\t2008-09-10 "
    b"01:05:24\nL\thttp://first.com/a.html\nL\thttp://b.com/x\n\n"
    b"P\thttp://first.com/c\nT\t2008-09-10 00:35:24\nQ\tlipstick on a pig\nQ\tna\xefve \xff\n\n"
)


def test_memetracker_quotes(tmp_path: Path) -> None:
    data, notes = memetracker.read(saved(tmp_path, QUOTES, "quotes_2008-09.txt.gz"))
    assert (
        data.ids == ("lipstick on a pig",)
        and data.times.tolist() == [0.0, 0.0, 2.0]
        and data.unit == "hours"
    )
    # The last post, at 01:05:24, quotes nothing, but it was seen.
    assert (
        data.starts.tolist() == [0.0]
        and data.stops.tolist() == [2.5 + 1 / 3600]
        and not data.inferred
    )
    assert notes == [
        "1 mentions repeat a meme in one post and count once",
        "1 of 3 memes have at least 2 mentions; the others are left out (--set least=N)",
        "hours since each meme's first mention, which is an event at 0; "
        "windows end with the last post of the files (--set window=mentions)",
    ]
    data, _ = memetracker.read(
        tmp_path / "quotes_2008-09.txt.gz", least=1, window="mentions", mark="site", types=1
    )
    assert (
        data.ids == ("that's not change", "lipstick on a pig", "na\\xefve \\xff") and data.inferred
    )
    assert data.marks.names == ("first.com", "other") and [s.marks.tolist() for s in data] == [
        [0],
        [0, 1, 0],
        [0],
    ]
    assert data.stops.tolist() == [1.0, 2.0, 1.0]


def test_memetracker_months_are_read_as_one(tmp_path: Path) -> None:
    months = tmp_path / "months"
    months.mkdir()
    saved(months, QUOTES, "quotes_2008-09.txt.gz")
    saved(
        months,
        b"P\thttp://x.com\nT\t2008-10-01 00:00:00\nQ\tlipstick on a pig\nQ\tthat's not change",
        "quotes_2008-10.txt",
    )
    data, _ = memetracker.read(months)
    assert data.ids == ("that's not change", "lipstick on a pig") and data.lengths.tolist() == [
        2,
        4,
    ]
    same, _ = memetracker.read(months / "quotes_*")
    assert same.times.tolist() == data.times.tolist()
    drawn, notes = memetracker.read(months, sample=1, seed=3)
    assert (
        len(drawn) == 1 and "1 of them are drawn with seed 3" in notes and drawn.ids[0] in data.ids
    )
    with pytest.raises(EventDataError, match="files such as quotes_2008-08.txt.gz"):
        memetracker.read(tmp_path / "nothing*")


CLUSTERS = (
    "format:\n<ClSz>\t<TotFq>\t<Root>\t<RootId>\n\t<QtFq>\t<Urls>\t<QtStr>\t<QtId>\n\t\t<Tm>\t<Fq>\t<UrlTy>\t<Url>\n\n"
    "2\t8\twe're not commenting on that story i'm afraid\t2131865\n"
    "\t3\t3\twe're not commenting on that\t489007\n"
    "\t\t2008-08-18 14:23:05\t1\tM\thttp://business.theage.com.au/business/bb-chief.html\n"
    "\t\t2008-11-26 01:27:13\t1\tB\thttp://sfweekly.com/2008-11-26/news/buy-line\n"
    "\t\t2008-11-27 "
    "18:55:30\t1\tB\thttp://aconstantineblacklist.blogspot.com/2008/11/re-researcher.html\n"
    "\n"
    "\t5\t2\twe're not commenting on that story\t2131864\n"
    "\t\t2008-12-08 14:50:18\t3\tB\thttp://videogaming247.com/2008/12/08/home-in-10-days\n"
    "\t\t2008-08-18 14:23:05\t2\tM\thttp://business.theage.com.au/business/bb-chief.html\n"
    "\n"
    "1\t2\tanother\t77\n"
    "\t2\t2\tanother\t78\n"
    "\t\t2008-09-01 00:00:00\t1\tB\thttp://b.com\n"
    "\t\t2008-09-01 12:00:00\t1\tM\thttp://m.com\n"
)


def test_memetracker_clusters(tmp_path: Path) -> None:
    data, notes = memetracker.read(
        saved(tmp_path, CLUSTERS, "clust-qt08080902w3mfq5.txt.gz"), mark="media"
    )
    assert (
        data.ids == ("2131865", "77")
        and data.lengths.tolist() == [4, 2]
        and data.times[-2:].tolist() == [0.0, 12.0]
    )
    assert data.marks.names == ("blog", "mainstream media") and data.mark_ids.tolist() == [
        1,
        0,
        0,
        0,
        0,
        1,
    ]
    assert notes[0] == "1 mentions repeat a meme in one post and count once"
    end = np.datetime64("2008-12-08T14:50:19")
    assert data.stops.tolist() == [
        (end - np.datetime64(t)) / np.timedelta64(3600, "s")
        for t in ("2008-08-18T14:23:05", "2008-09-01T00:00:00")
    ]
    data, _ = memetracker.read(tmp_path / "clust-qt08080902w3mfq5.txt.gz", mark="site", types=2)
    assert data.marks.names == ("aconstantineblacklist.blogspot.com", "b.com", "other")


@pytest.mark.parametrize("block", [64, 200, 1000])
@pytest.mark.parametrize("text", [QUOTES, CLUSTERS.encode()])
def test_blocks_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, text: bytes
) -> None:
    path = saved(tmp_path, text, "a.txt")
    whole, notes = memetracker.read(path, least=1, mark="site")
    monkeypatch.setattr(memetracker, "BLOCK", block)
    parts, said = memetracker.read(path, least=1, mark="site")
    assert (
        whole.ids == parts.ids
        and whole.times.tolist() == parts.times.tolist()
        and whole.mark_ids.tolist() == parts.mark_ids.tolist()
    )
    assert whole.stops.tolist() == parts.stops.tolist() and notes == said


def test_memetracker_faults(tmp_path: Path) -> None:
    cases: dict[bytes, str] = {
        QUOTES + b"X\twhat\n": (
            "a line of P, T, Q or L and a tab; received FILE, line 22: b'X\\twhat\\n'. Correct the "
            "line, or pass over"
        ),
        QUOTES.replace(
            b"09-09 22:35:24\nQ\tthat", b"02-30 22:35:24\nQ\tthat"
        ): "a time such as 2008-09-09 22:35:24; received FILE, line 2: b'T\\t2008-",
        b"P\thttp://a.com\nQ\tno time\n": (
            "a line of T after that of P; received FILE, line 2: b'Q\\tno time\\n'"
        ),
        b"P\thttp://a.com\nT\t2008-01-01 00:00:00\n": "received FILE: no mention of any phrase",
        CLUSTERS.encode() + b"\t\t2008-09-01 12:99\t1\tB\thttp://x.com\n": (
            "a time such as 2008-09-09 22:35:24; received FILE, line 20"
        ),
        CLUSTERS.encode() + b"\t\tx\tB\n": (
            "a mention: time, number, B or M, and url, with tabs between; received FILE, line 20"
        ),
        CLUSTERS.encode() + b"words without tabs\n": (
            "a cluster: size, mentions, root and id, with tabs between; received FILE, line 20"
        ),
        b"\t\t2008-09-01 12:00:00\t1\tB\thttp://x.com\n": (
            "a cluster before its mentions; received FILE, line 1"
        ),
    }
    for text, message in cases.items():
        path = saved(tmp_path, text, "a.txt")
        with pytest.raises(EventDataError) as caught:
            memetracker.read(path)
        assert message.replace("FILE", str(path)) in str(caught.value), str(caught.value)
    data, notes = memetracker.read(
        saved(tmp_path, QUOTES + b"X\twhat\nQ\x00\n", "a.txt"), skip=True
    )
    assert data.events == 3 and "2 lines are not in the format and were passed over" in notes
    with pytest.raises(
        EventDataError,
        match="memes with at least 9 mentions; received .*a.txt: 3 with at most 3. Lower least",
    ):
        memetracker.read(tmp_path / "a.txt", least=9, skip=True)
    with pytest.raises(UserError, match="a file of phrase clusters for mark=media"):
        memetracker.read(saved(tmp_path, QUOTES, "a.txt"), mark="media")
    with pytest.raises(UserError, match="window collection, mentions; received 'day'"):
        memetracker.read(tmp_path / "a.txt", window="day")


def test_a_record_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memetracker, "BLOCK", 1000)
    monkeypatch.setattr(memetracker, "LONGEST", 5000)
    with pytest.raises(EventDataError, match="a.txt: a record of more than 5,000 bytes"):
        memetracker.read(saved(tmp_path, b"P\t" + b"x" * 10_000, "a.txt"))


# Transactions

MESSAGES = (
    "34200.004241176,1,16113575,18,5853300,1\n"
    "34200.02560,4,16113575,18,5853300,1\n"
    "34200.201743,5,0,100,5853600,-1\n"
    "34201.5,3,16113584,18,5853200,-1\n"
    "40000,7,0,0,-1,-1\n"
    "45000.000000001,6,0,1000,5850000,-1\n"
    "57599.999999999,4,99,5,5853300,-1\n"
)
NAME = "AAPL_2012-06-21_34200000_57600000_message_10.csv"


def test_lobster_messages(tmp_path: Path) -> None:
    data, notes = transactions.read_lobster(saved(tmp_path, MESSAGES, NAME))
    assert data.ids == ("AAPL 2012-06-21",) and data.times.tolist() == [
        34200.0256,
        34200.201743,
        57599.999999999,
    ]
    # The order that was executed first stood on the buying side, so that a seller came.
    assert [data.marks.names[i] for i in data.mark_ids] == ["sell", "buy", "buy"]
    assert (data.starts[0], data.stops[0], data.inferred, data.unit) == (
        34200.0,
        57600.0,
        False,
        "seconds",
    )
    assert notes == [
        f"{NAME}: 4 of 7 messages are no trades",
        f"{NAME}: 1 messages of halts; the time in a halt counts as observed",
    ]
    data, _ = transactions.read_lobster(tmp_path / NAME, mark="message")
    assert [data.marks.names[i] for i in data.mark_ids] == [
        "submit buy",
        "trade buy",
        "trade hidden sell",
        "delete sell",
        "trade sell",
    ]


def test_lobster_windows(tmp_path: Path) -> None:
    saved(tmp_path, MESSAGES, NAME)
    saved(tmp_path, MESSAGES, NAME.replace("06-21", "06-22"))
    (tmp_path / NAME.replace("message", "orderbook")).write_text("5859400,200\n")
    data, _ = transactions.read_lobster(tmp_path, seconds=300)
    assert (
        len(data) == 2 * 78
        and data.events == 6
        and data.ids[:2] == ("AAPL 2012-06-21 0", "AAPL 2012-06-21 1")
    )
    assert (
        set(data.durations.tolist()) == {300.0}
        and data[0].times.tolist() == [34200.0256, 34200.201743]
        and len(data[77]) == 1
    )
    uneven, _ = transactions.read_lobster(tmp_path / NAME, seconds=10_000)
    assert uneven.durations.tolist() == [10_000, 10_000, 3_400]
    tiny, _ = transactions.read_lobster(tmp_path / NAME, seconds=0.1)
    assert (tiny.durations > 0.0999).all() and tiny.events == 3
    for seconds in (-1.0, float("nan"), 1e-9):
        with pytest.raises(UserError):
            transactions.read_lobster(tmp_path / NAME, seconds=seconds)


def test_lobster_without_its_name(tmp_path: Path) -> None:
    data, notes = transactions.read_lobster(
        saved(tmp_path, MESSAGES + "57600.5,4,1,1,1,1\n", "x.csv")
    )
    assert data.stops.tolist() == [57600.0] and data.events == 3
    assert (
        notes[0] == "x.csv does not say from when to when it was recorded: taken as 9:30 to 16:00"
    )
    assert notes[-1] == "1 events are outside the observed window and left out"


def test_lobster_faults(tmp_path: Path) -> None:
    cases = {
        MESSAGES + "57599.9999999995,9,1,1,1,1\n": "a type from 1 to 7; received FILE, line 8: '9'",
        MESSAGES
        + "57599.9999999995,4,1,1,1,0\n": "a direction of 1 or -1; received FILE, line 8: '0'",
        MESSAGES + "34300,4,1,1,1,1\n": (
            "times in order, at least 57599.999999999; received FILE, line 8: '34300.0'"
        ),
        MESSAGES + "x,4,1,1,1,1\n": "a finite number in column 'time'; received FILE, line 8: 'x'",
        MESSAGES
        + "nan,4,1,1,1,1\n": "a finite number in column 'time'; received FILE, line 8: 'nan'",
        MESSAGES + "34300,4,1\n": "received FILE, line 8, which cannot be read as one",
        MESSAGES.replace(",4,", ",1,").replace(
            ",5,0", ",1,0"
        ): "at least one event; received FILE: none in 1 days",
    }
    for text, message in cases.items():
        path = saved(tmp_path, text, NAME)
        with pytest.raises(EventDataError) as caught:
            transactions.read_lobster(path)
        assert message.replace("FILE", str(path)) in str(caught.value)
    with pytest.raises(
        EventDataError,
        match="AAPL_2012-06-21_34200000_57600000_message_10.csv; received .*which holds none",
    ):
        (tmp_path / "none").mkdir()
        transactions.read_lobster(tmp_path / "none")
    with pytest.raises(UserError, match="mark side, message; received 'x'"):
        transactions.read_lobster(path, mark="x")


def test_plain_trades(tmp_path: Path) -> None:
    stamps = (
        "Time,Side\n2019-01-02 09:30:00.125,buy\n2019-01-02 15:59:59.999,SELL\n2019-01-03 "
        "08:00:00,B\n2019-01-03 10:00:00,S\n"
    )
    data, notes = transactions.read_trades(saved(tmp_path, stamps))
    assert data.ids == ("2019-01-02", "2019-01-03") and data.times.tolist() == [
        34200.125,
        57599.999,
        36000.0,
    ]
    assert data.mark_ids.tolist() == [0, 1, 1] and data.stops.tolist() == [57600.0] * 2
    assert notes == ["1 events are outside the observed window and left out"]
    epoch = 1546419600000  # 2019-01-02 09:00 UTC
    numbers = f"timestamp,direction\n{epoch + 3_600_001},1\n{epoch + 3_600_000},-1\n"
    data, notes = transactions.read_trades(saved(tmp_path, numbers), session=(0, 86400))
    assert (
        data.ids == ("2019-01-02",)
        and data.times.tolist() == [36000.0, 36000.001]
        and data.mark_ids.tolist() == [1, 0]
    )
    assert notes == ["1 trades came after a later one and were sorted by time"]
    data, _ = transactions.read_trades(
        saved(tmp_path, "time,side\n36000,buy\n"), clock="s", seconds=3600
    )
    assert data.ids[0] == "1970-01-01 0" and len(data) == 7 and data[0].times.tolist() == [36000.0]


def test_plain_trades_faults(tmp_path: Path) -> None:
    cases = {
        "time,side\n1,hold\n": (
            "a side: buy or sell, B or S, 1 or -1; received FILE, line 2: 'hold'"
        ),
        "time,side\n1,buy\nsoon,buy\n": "in column 'time'; received FILE, line 2: '1'",
        "time,side\n99999999999999999999,buy\n": "received FILE: times too large",
        "when,side\n1,buy\n": "with a column 'time'; received FILE, line 1: columns 'when', 'side'",
        "time,side\n1,buy\n": "at least one event; received FILE: none in 1 days",
    }
    for text, message in cases.items():
        path = saved(tmp_path, text)
        with pytest.raises(EventDataError) as caught:
            transactions.read_trades(path)
        assert message.replace("FILE", str(path)) in str(caught.value)
    for session in ((0.0,), (5.0, 5.0), (0.0, 90_000.0)):
        with pytest.raises(UserError, match="a session of two times of day"):
            transactions.read_trades(path, session=session)


# Congestion

CONGESTION = (
    "Time,Site,Level\n2017-06-01 07:42:00,I-75 N at 17th St,3\n2017-06-01 00:00:00,I-85 "
    "S,1\n2017-06-03 23:59:59.5,I-85 S,3\n"
    "2017-06-03 12:00:00,I-85 S,2\n"
)


def test_congestion_days(tmp_path: Path) -> None:
    data, notes = congestion.read(saved(tmp_path, CONGESTION))
    assert data.ids == ("2017-06-01", "2017-06-03") and data.times.tolist() == [
        0.0,
        7.7,
        12.0,
        24 - 0.5 / 3600,
    ]
    assert data.marks.names == ("I-75 N at 17th St", "I-85 S") and data.mark_ids.tolist() == [
        1,
        0,
        1,
        1,
    ]
    assert (
        data.starts.tolist() == [0, 0]
        and data.stops.tolist() == [24, 24]
        and not data.inferred
        and data.unit == "hours"
    )
    assert notes == [
        "2 events came after a later one of the same day and were sorted by time",
        "1 of 3 days from first to last have no event; they are left out, observed or not",
    ]
    names = {
        "level": ("1", "2", "3"),
        "site-level": ("I-75 N at 17th St 3", "I-85 S 1", "I-85 S 2", "I-85 S 3"),
        "none": (),
    }
    for mark, expected in names.items():
        assert congestion.read(tmp_path / "raw.csv", mark=mark)[0].marks.names == expected


def test_congestion_faults(tmp_path: Path) -> None:
    cases = {
        "time,site\n2017-06-01 07:42:00,x\n": (
            "with a column 'level'; received FILE, line 1: columns 'time', 'site'"
        ),
        "time,site,level\n2017-06-01 07:42:00+02:00,x,1\n": (
            "in column 'time'; received FILE, line 2: '2017-06-01 07:42:00+02:00'"
        ),
        "time,site,level\n07:42:00,x,1\n": "received FILE, line 2: '07:42:00'",
    }
    for text, message in cases.items():
        path = saved(tmp_path, text)
        with pytest.raises(EventDataError) as caught:
            congestion.read(path)
        assert message.replace("FILE", str(path)) in str(caught.value)
    with pytest.raises(UserError, match="mark site, level, site-level, none; received 'x'"):
        congestion.read(path, mark="x")


# All of them

RAW: dict[str, tuple[str, bytes]] = {
    "mimic": ("ADMISSIONS.csv", ADMISSIONS.encode()),
    "memetracker": ("quotes_2008-09.txt.gz", QUOTES),
    "lobster": (NAME, MESSAGES.encode()),
    "trades": ("trades.csv", b"time,side\n36000000,buy\n36000500,sell\n"),
    "congestion": ("gdot.csv", CONGESTION.encode()),
}


@pytest.mark.parametrize("name", RAW)
def test_convert_writes_our_parquet(tmp_path: Path, name: str) -> None:
    file, text = RAW[name]
    path = saved(tmp_path, text, file)
    done = convert(path, tmp_path / "out.parquet", from_=name)
    again = read_own(tmp_path / "out.parquet")
    assert (
        done.from_ == name
        and again.times.tolist() == done.data.times.tolist()
        and again.ids == done.data.ids
    )
    assert (
        again.stops.tolist() == done.data.stops.tolist()
        and again.marks == done.data.marks
        and again.unit == done.data.unit
    )
    assert set(SOURCES[name](path)[1]) <= set(done.notes)


def test_sources_are_guessed_where_they_can_be(tmp_path: Path) -> None:
    for name in ("mimic", "memetracker", "lobster"):
        file, text = RAW[name]
        assert guess_source(saved(tmp_path, text, file)) == name
    assert guess_source(saved(tmp_path, CLUSTERS, "clusters.txt.gz")) == "memetracker"
    assert guess_source(saved(tmp_path, QUOTES, "x.txt")) == "memetracker"


def test_settings_reach_the_source(tmp_path: Path) -> None:
    path = saved(tmp_path, ADMISSIONS, "ADMISSIONS.csv")
    done = convert(path, tmp_path / "out.json", settings={"mark": "type", "visits": 1})
    assert (
        done.from_ == "mimic"
        and done.data.marks.names == ("ELECTIVE", "EMERGENCY")
        and len(done.data) == 3
    )


def refused(read: Any, path: Path) -> None:
    try:
        read(path)
    except EventDataError as error:
        assert path.name in str(error), error


@pytest.mark.parametrize("name", RAW)
@settings(max_examples=60)
@given(drawn=st.data())
def test_cut_damaged_and_random_files(
    tmp_path_factory: pytest.TempPathFactory, name: str, drawn: st.DataObject
) -> None:
    file, text = RAW[name]
    path = tmp_path_factory.mktemp("cut") / file.removesuffix(".gz")
    content = bytearray(text)
    for _ in range(drawn.draw(st.integers(0, 4))):
        content[drawn.draw(st.integers(0, len(content) - 1))] = drawn.draw(st.integers(0, 255))
    cut = bytes(content[: drawn.draw(st.integers(0, len(content)))])
    random = drawn.draw(st.binary(max_size=100))
    header = text.split(b"\n", 1)[0] + b"\n"
    for data in (
        cut,
        random,
        header + random,
        gzip.compress(cut)[: drawn.draw(st.integers(1, 400))],
    ):
        path.write_bytes(data)
        refused(SOURCES[name], path)


def test_a_cell_of_a_million_characters(tmp_path: Path) -> None:
    long = "x" * 1_000_000
    for name, text in {
        "mimic": f"SUBJECT_ID,ADMITTIME\n{long},{long}\n",
        "lobster": f"{long},4,1,1,1,1\n",
        "trades": f"time,side\n1,{long}\n",
        "congestion": f"time,site,level\n{long},1,1\n",
        "memetracker": f"P\t{long}\nT\t{long}\n",
    }.items():
        path = saved(tmp_path, text, "long.csv")
        with pytest.raises(EventDataError) as caught:
            SOURCES[name](path)
        assert "long.csv" in str(caught.value) and len(str(caught.value)) < 600
    data, _ = memetracker.read(
        saved(tmp_path, f"P\thttp://a\nT\t2008-01-01 00:00:00\nQ\t{long}\n", "a.txt"), least=1
    )
    assert data.ids == (long,)


def test_a_source_that_unfolds_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURPOINT_MEMORY_LIMIT", "1MiB")
    monkeypatch.setattr(memetracker, "BLOCK", 2**20)
    path = saved(tmp_path, b"P\thttp://a\nT\t2008-01-01 00:00:00\n\n" * 500_000, "bomb.csv.gz")
    for name in SOURCES:
        with pytest.raises(EventDataError, match="bomb.csv.gz, whose .* expand into"):
            SOURCES[name](path)
