"""A stream equals the batch, event by event, for every model; it scores before it absorbs,
remembers, forgets and refuses.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from test_laws import CASES, build, data

from fourpoint.data.synthetic import simulate
from fourpoint.events import Dataset, MarkSpace, Sequence, UserError
from fourpoint.inference.forecasting import forecast
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.inference.sampling import eval_mode
from fourpoint.models import DAPP, Hawkes, Poisson
from fourpoint.streaming.kept import ByActiveSets
from fourpoint.streaming.stream import Observation, Recent, Stream

# Those with covariates are in test_stream_context.
STREAMED = [case for case in CASES if "-calendar" not in case[0]]
every_model = pytest.mark.parametrize(
    ("name", "marks"), STREAMED, ids=[f"{name}-{marks}" for name, marks in STREAMED]
)


def lively(marks: int | MarkSpace = 1, **settings: Any) -> DAPP:
    """A default DAPP with splines whose attention matters."""
    model = DAPP(marks, heads=4, eval_features=32, **settings)
    model.initialise(simulate("hawkes", 50) if marks == 1 else data(model.marks.count))
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=random)
    return model.eval()


def followed(stream: Stream, sequence: Sequence) -> list[Observation]:
    """The observations of a sequence, the stream left at its end."""
    stream.reset(sequence.start)
    found = [
        stream.observe(t, m)
        for t, m in zip(sequence.times.tolist(), sequence.marks.tolist(), strict=True)
    ]
    stream.advance(sequence.stop)
    return found


@every_model
def test_a_stream_equals_the_batch_event_by_event(name: str, marks: int) -> None:
    model = build(name, marks)
    for sequence in data(marks, name=name):
        stream = Stream(model, start=sequence.start, top=0)
        batch = sequence.batch()
        with torch.no_grad():
            history = model.encode(batch)
            each = model.log_intensity(
                history, batch.times[..., None], torch.arange(len(sequence))[None]
            )[0, :, 0].detach()
        found = followed(stream, sequence)
        assert np.allclose([o.rate for o in found], each.exp().sum(-1).numpy(), rtol=1e-10, atol=0)
        own = [o.log_density + o.gap for o in found]
        assert np.allclose(
            own,
            [float(row[m]) for row, m in zip(each, sequence.marks, strict=True)],
            rtol=1e-10,
            atol=1e-10,
        )
        exact = log_likelihood(model, batch, tolerance=1e-8 / (1 + len(sequence)))
        allowed = 1e-6 * (1 + len(sequence) + float(exact.integral)) + float(exact.error)
        assert stream.log_likelihood == pytest.approx(float(exact.value), abs=allowed)
        assert stream.count == len(sequence) and stream.time == sequence.stop


@every_model
def test_intensity_is_that_of_the_batch(name: str, marks: int) -> None:
    model, sequence = build(name, marks), data(marks, name=name)[2]
    stream = Stream(model, start=sequence.start, alarms=None)
    followed(stream, sequence)
    later = sequence.stop + 0.7
    with torch.no_grad():
        expected = model.intensity(
            model.encode(sequence.batch()), torch.tensor([[later]], dtype=torch.float64)
        )[0, 0].numpy()
    assert np.allclose(stream.intensity(later), expected, rtol=1e-10, atol=0)


@every_model
def test_silence_in_parts_is_silence(name: str, marks: int) -> None:
    model, sequence = build(name, marks), data(marks, name=name)[0]
    whole, parts = (Stream(model, start=sequence.start, top=0) for _ in range(2))
    for t, m in zip(sequence.times.tolist(), sequence.marks.tolist(), strict=True):
        middle = parts.time + 0.3 * (t - parts.time)
        parts.advance(middle)
        parts.advance(middle)
        a, b = whole.observe(t, m), parts.observe(t, m)
        assert (b.gap, b.log_density) == pytest.approx(
            (a.gap, a.log_density), abs=4e-6
        ) and b.rate == pytest.approx(a.rate, rel=1e-10)
    assert parts.log_likelihood == pytest.approx(whole.log_likelihood, abs=1e-5)


@every_model
def test_a_restored_stream_goes_on_as_if_nothing_had_been_between(name: str, marks: int) -> None:
    model, sequence = build(name, marks), data(marks, name=name)[2]
    stream = Stream(model, start=sequence.start, recent=4)
    pairs = list(zip(sequence.times.tolist(), sequence.marks.tolist(), strict=True))
    for t, m in pairs[:5]:
        stream.observe(t, m)
    stream.advance(pairs[5][0] - 1e-3)
    saved = stream.state()
    again = Stream.restore(model, saved)
    assert again.state() == saved
    assert [again.observe(t, m) for t, m in pairs[5:]] == [
        stream.observe(t, m) for t, m in pairs[5:]
    ]
    assert again.state() == stream.state() and again.log_likelihood == stream.log_likelihood


@pytest.mark.parametrize(
    "name",
    [
        "sum",
        "sum-still",
        "ratio",
        "softmax",
        "paper",
        "keep",
        "keep-softmax",
        "dot",
        "sum-identity",
    ],
)
def test_attended_events_have_the_weights_of_the_batch(name: str) -> None:
    model, sequence = build(name, 3), data(3)[2]
    stream = Stream(model, start=sequence.start, top=2)
    dense = DAPP(3, **{**model.settings(), "form": "dense"}).double().eval()
    dense.load_state_dict(model.state_dict())
    for i, (t, m) in enumerate(zip(sequence.times.tolist(), sequence.marks.tolist(), strict=True)):
        found = stream.observe(t, m).attended
        before = Sequence(
            sequence.times[:i],
            sequence.marks[:i],
            start=sequence.start,
            stop=sequence.stop,
            space=3,
        ).batch()
        with torch.no_grad():
            own = dense.attended(
                dense.encode(before), torch.tensor([t], dtype=torch.float64), torch.tensor([m])
            )
        times, _, weights = (x[0].T.numpy() for x in own)
        assert len(found) == 2
        for k, head in enumerate(found):
            best = np.sort(np.abs(weights[k][np.isfinite(times[k])]))[::-1][:2]
            assert np.allclose([abs(a.weight) for a in head], best, rtol=0, atol=2e-6)
            assert all(a.time <= t for a in head)


def test_only_recent_events_are_named_and_there_may_be_none() -> None:
    model = lively(decay=False)
    stream = Stream(model, recent=5, top=8)
    assert stream.observe(0.1).attended == ((), (), (), ())
    for i in range(2, 30):
        seen = stream.observe(0.1 * i)
        assert all(
            len(head) == min(5, i - 1) and min(a.time for a in head) > 0.1 * i - 0.55
            for head in seen.attended
        )
    assert Stream(model, top=0).observe(1.0).attended == ()
    assert Stream(Hawkes()).observe(1.0).attended == ()


def test_memory_is_constant_for_linear_models_and_with_keep() -> None:
    for model, keep in ((lively(), None), (lively(), 5), (Hawkes(), None), (Poisson(), None)):
        stream = Stream(model, keep=keep, recent=8, alarms=None)
        sizes = []
        for i in range(1, 201):
            stream.observe(0.05 * i)
            if i % 50 == 0:
                sizes.append(len(stream.state()))
        assert max(sizes) - min(sizes) < 40  # numbers in the header have a few digits more or less
    grows = Stream(build("softmax", 1), recent=8)
    before = len(grows.state())
    for i in range(1, 50):
        grows.observe(0.05 * i)
    assert len(grows.state()) > before + 49 * 8


def test_keep_streams_as_the_bounded_model_does() -> None:
    model = lively(3)
    bounded, sequence = model.keeping(3), data(3)[2]
    a, b = Stream(model, start=sequence.start, keep=3), Stream(bounded, start=sequence.start)
    assert followed(a, sequence) == followed(b, sequence)
    assert Stream.restore(model, a.state()).keep == 3 and type(a._stepper) is ByActiveSets
    with pytest.raises(UserError, match="expected a DAPP to bound the memory of; received Hawkes"):
        Stream(Hawkes(), keep=3)


def test_alarms_come_with_events_and_with_silence_and_are_part_of_the_state() -> None:
    stream = Stream(Poisson(), alarms=1e-3)
    raised = [a for i in range(1, 200) for a in stream.observe(0.3 * i).alarms]
    assert raised and raised[0].kind == "burst" and raised[0].size > 2
    quiet = stream.advance(stream.time + 100.0)
    assert (
        [a.kind for a in quiet] == ["silence"]
        and quiet[0].time == stream.time
        and quiet[0].size < 0.2
    )
    again = Stream.restore(Poisson(), stream.state())
    for one in (stream, again):
        assert one.advance(one.time + 5.0) == () and not [
            a for a in one.observe(one.time + 1.0).alarms if a.kind == "silence"
        ]
    assert Stream(Poisson(), alarms=None).monitor is None
    with pytest.raises(
        UserError,
        match="a false-alarm probability per 1,000 events between 0 and 1; received alarms=2",
    ):
        Stream(Poisson(), alarms=2)


def test_an_observation_is_json() -> None:
    model = lively(MarkSpace.categorical(["fire", "medical"]))
    stream = Stream(model)
    stream.observe(0.5, "fire")
    found = json.loads(
        json.dumps(stream.observe(0.9, "medical").to_dict(model.marks), allow_nan=False)
    )
    assert (
        found["mark"] == "medical"
        and found["attended"][0][0]["mark"] == "fire"
        and found["alarms"] == []
    )
    assert set(found) == {"time", "mark", "log_density", "gap", "rate", "attended", "alarms"}
    assert Stream(Hawkes()).observe(1.0).to_dict(MarkSpace())["mark"] is None
    assert (
        Observation(1.0, 0, -math.inf, 0.0, 0.0, (), ()).to_dict(MarkSpace())["log_density"] is None
    )


@pytest.mark.parametrize("model", [Hawkes(2), lively(2)], ids=["verbs", "states"])
def test_what_is_wrong_is_refused_and_changes_nothing(model: Any) -> None:
    stream = Stream(model, start=1.0)
    stream.observe(12.5, 1)
    before = stream.state()
    for time, mark, words in (
        (11.0, 0, r"expected a time of at least 12.5, the last one; received 11.0"),
        (math.nan, 0, "expected a finite time; received nan"),
        (math.inf, 0, "expected a finite time; received inf"),
        ("soon", 0, "expected a finite time; received 'soon'"),
        (None, 0, "expected a finite time; received None"),
        (13.0, 2, "expected a mark that the model knows, one of 0, 1; received 2"),
        (13.0, -1, "expected a mark that the model knows, one of 0, 1; received -1"),
        (13.0, "fire", "received 'fire'"),
        (13.0, True, "received True"),
        (13.0, 0.5, "received 0.5"),
        (13.0, None, "received None"),
    ):
        with pytest.raises(UserError, match=words):
            stream.observe(time, mark)
    for call in (stream.advance, stream.intensity):
        with pytest.raises(UserError, match="at least 12.5"):
            call(12.0)
    assert stream.state() == before
    assert stream.observe(12.5, "1").gap == 0.0
    with pytest.raises(UserError, match="received recent=0, top=3"):
        Stream(model, recent=0)
    with pytest.raises(UserError, match="a finite time"):
        stream.reset(math.nan)


def test_a_rate_that_explodes_is_refused_and_changes_nothing() -> None:
    model = DAPP(eval_features=8, heads=1, link="exp", base="constant", drift="none")
    model.initialise(simulate("hawkes", 20))
    with torch.no_grad():
        model.value_weight.fill_(30.0)
    stream = Stream(model.double())
    with pytest.raises(UserError, match="expected a (rate that can be integrated|finite rate)"):
        for i in range(1, 1000):
            before = stream.state()
            stream.observe(1e-3 * i)
    assert stream.state() == before


def test_reset_begins_anew() -> None:
    model, sequence = lively(), simulate("hawkes", 3)[1]
    stream = Stream(model, start=sequence.start)
    fresh = stream.state()
    first = followed(stream, sequence)
    stream.reset(sequence.start)
    assert stream.state() == fresh and followed(stream, sequence) == first


def test_bytes_that_are_not_this_streams_state_are_refused() -> None:
    model = lively()
    stream = Stream(model)
    stream.observe(0.5)
    good = stream.state()
    other = lively()
    with torch.no_grad():
        other.readout += 0.1
    flipped = bytearray(good)
    flipped[-3] ^= 1
    newer = bytearray(good)
    newer[16] = 9
    for state, words in (
        (b"", r"the bytes of a stream's state; received 0 bytes"),
        (
            b"PAR1 something else",
            r"the bytes of a stream's state; received 19 bytes that begin with b'PAR1 something e'",
        ),
        (good[:20], r"the whole of a stream's state; received its first 20 bytes"),
        (good[:-7], f"a state of {len(good):,} bytes; received {len(good) - 7:,} of them"),
        (good + b"x", f"a state of {len(good):,} bytes; received {len(good) + 1:,}"),
        (bytes(flipped), "a state with its own hash; received another hash"),
        (bytes(newer), "a state of version 2; received version 9"),
        ("text", "the bytes of a stream's state; received str"),
    ):
        with pytest.raises(UserError, match=words):
            Stream.restore(model, state)
    for wrong in (other, lively(decay=False), Hawkes()):
        with pytest.raises(
            UserError, match=r"a state of this model \(.*\); received a state of model"
        ):
            Stream.restore(wrong, good)
    assert Stream.restore(model, memoryview(good)).count == 1


@pytest.mark.parametrize("name", ["sum", "softmax", "keep", "hawkes"])
def test_a_forecast_from_a_stream_is_that_from_the_sequence(name: str) -> None:
    model, sequence = build(name, 3), data(3)[2]
    stream = Stream(model, start=sequence.start)
    followed(stream, sequence)
    mine, theirs = (
        stream.forecast(2.0, paths=200, seed=3),
        forecast(model, sequence, 2.0, paths=200, seed=3),
    )
    assert mine.next_event.mean == pytest.approx(theirs.next_event.mean, rel=1e-8)
    assert np.allclose(mine.counts.mean, theirs.counts.mean) and np.allclose(
        mine.rate.mean, theirs.rate.mean, rtol=1e-6
    )
    assert np.array_equal(mine.past.times, sequence.times) and len(mine.past_rate) == len(sequence)
    assert mine.plot() is not None and mine.to_dict()["at"] == sequence.stop
    with pytest.raises(UserError, match="a positive horizon"):
        stream.forecast(0.0)


def test_a_forecast_right_after_an_event_and_before_any() -> None:
    model = lively()
    stream = Stream(model, recent=3)
    assert stream.forecast(1.0, paths=20).at == 0.0
    for i in range(1, 8):
        stream.observe(0.1 * i)
    found = stream.forecast(1.0, paths=20)
    assert found.at == pytest.approx(0.7) and np.allclose(found.past.times, [0.5, 0.6, 0.7])


def test_the_model_is_left_in_the_mode_it_was_in() -> None:
    for model in (lively().train(), build("softmax", 1).train()):
        stream = Stream(model)
        first = stream.observe(0.5)
        stream.advance(1.0)
        stream.intensity(1.5)
        assert model.training
        with eval_mode(model):
            assert Stream(model).observe(0.5) == first


def test_recent_events_stay_in_order() -> None:
    recent, growing = Recent(3), Recent(2, growing=True)
    for i in range(5):
        for one in (recent, growing):
            one.append(float(i), i, 10.0 * i)
    assert recent.in_order(recent.times).tolist() == [2.0, 3.0, 4.0] and recent.in_order(
        recent.marks
    ).tolist() == [2, 3, 4]
    assert growing.times.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    again = Recent(3)
    again.load(recent.arrays())
    assert again.in_order(again.rates).tolist() == [20.0, 30.0, 40.0]


def test_rescaled_gaps_of_the_true_model_are_unit_exponential() -> None:
    from scipy.stats import kstest

    model, gaps = Hawkes(baseline=2.0, branching=0.7, decay=3.0), []
    from fourpoint.inference.sampling import sample

    drawn: Dataset = sample(model, 0.0, 50.0, 1, seed=5)
    for sequence in drawn:
        stream = Stream(model, alarms=None)
        gaps += [stream.observe(t).gap for t in sequence.times.tolist()]
    assert len(gaps) > 200 and kstest(gaps, "expon").pvalue > 1e-3


def test_a_stream_without_covariates_refuses_a_model_that_needs_them() -> None:
    with pytest.raises(UserError, match="the covariates temperature.*; received no covariates"):
        Stream(build("hawkes-calendar", 1))
