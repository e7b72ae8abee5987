"""Which claims of the paper hold here: who beats whom, on which data, with intervals over seeds.

Each claim is judged for the paper's own form, and after the paper's claims come those on our
default. A model *beats* another where the mean difference over seeds is in its favour and the
interval excludes 0; it *leads* where only the mean does, or with a single seed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fourpoint.reproduce.cells import DONE, Record
from fourpoint.reproduce.plan import BASELINES, LABELS, NEURAL, REAL_MODELS, STANDS_FOR, SYNTHETIC
from fourpoint.reproduce.tallies import difference, number, tally

ERROR, LIKELIHOOD, REGRET = "intensity_mse", "log_likelihood_per_event", "regret_per_event"
NEAR = 0.005  # nats per event from the oracle


class Verdict(NamedTuple):
    """A claim, whether it holds, and on what evidence."""

    claim: str
    holds: str
    evidence: str


def verdicts(records: list[Record]) -> list[Verdict]:
    """Every claim, in the order of the paper."""
    found = [
        _all_sets(
            records,
            (
                "DAPP or ODAPP recovers the intensity better than SAHP, NHP and RMTPP (Table 1), "
                "paper's form"
            ),
            ("dapp-paper", "odapp-paper"),
            ("sahp", "nhp", "rmtpp"),
            SYNTHETIC,
            ERROR,
        ),
        _all_sets(
            records,
            "The Fourier kernel recovers the intensity better than the dot product (Table 1)",
            ("dapp-paper",),
            ("dapp-paper-dot",),
            SYNTHETIC,
            ERROR,
        ),
        _all_sets(
            records,
            "The Fourier kernel recovers the intensity better than a neural score (Table 1)",
            ("dapp-paper",),
            ("dapp-paper-nn",),
            SYNTHETIC,
            ERROR,
        ),
        _all_sets(
            records,
            "A neural score recovers the intensity better than the dot product (Table 1)",
            ("dapp-paper-nn",),
            ("dapp-paper-dot",),
            SYNTHETIC,
            ERROR,
        ),
        _all_sets(
            records,
            "HP is best on its own data (Table 1)",
            ("hawkes",),
            tuple(m for m in LABELS if m != "hawkes"),
            ("hawkes",),
            ERROR,
        ),
        _online(records),
        _all_sets(
            records,
            "DAPP or ODAPP has the highest likelihood (Table 2), paper's form, synthetic sets",
            ("dapp-paper", "odapp-paper"),
            BASELINES,
            SYNTHETIC,
            LIKELIHOOD,
        ),
        _all_sets(
            records,
            "DAPP or ODAPP has the highest likelihood (Table 2), paper's form, real stand-ins",
            ("dapp-paper", "odapp-paper"),
            BASELINES,
            tuple(STANDS_FOR),
            LIKELIHOOD,
        ),
        _all_sets(
            records,
            "Our default DAPP has the lowest intensity error of all neural models",
            ("dapp",),
            tuple(m for m in NEURAL if m not in ("dapp", "odapp")),
            SYNTHETIC,
            ERROR,
        ),
        _all_sets(
            records,
            "Our default DAPP has the highest likelihood of all neural models, synthetic sets",
            ("dapp",),
            tuple(m for m in NEURAL if m not in ("dapp", "odapp")),
            SYNTHETIC,
            LIKELIHOOD,
        ),
        _near_oracle(records),
        _all_sets(
            records,
            "Our default DAPP at least matches every baseline of Table 2, real stand-ins",
            ("dapp",),
            tuple(m for m in REAL_MODELS if m in BASELINES),
            tuple(STANDS_FOR),
            LIKELIHOOD,
        ),
    ]
    return found + _of_experiments(records)


def _all_sets(
    records: list[Record],
    claim: str,
    ours: tuple[str, ...],
    others: tuple[str, ...],
    sets: tuple[str, ...],
    metric: str,
) -> Verdict:
    """Whether the better of ``ours`` is ahead of all ``others`` on every set of data."""
    sign = -1 if metric == ERROR else 1
    words, ahead, judged = [], [], 0
    for data in sets:
        mine = {m: tally(records, m, data, metric) for m in ours}
        mine = {m: t for m, t in mine.items() if t.values}
        theirs = {m: t for m in others if (t := tally(records, m, data, metric)).values}
        if not mine or not theirs:
            words.append(f"{data}: not judged")
            continue
        judged += 1
        best = max(mine, key=lambda m: sign * mine[m].mean)
        rival = max(theirs, key=lambda m: sign * theirs[m].mean)
        gap, half = difference(mine[best], theirs[rival])
        ahead.append(sign * gap >= 0)
        verb = (
            ("beats" if half < abs(gap) else "leads")
            if ahead[-1]
            else ("loses to" if half < abs(gap) else "trails")
        )
        words.append(
            f"{data}: {LABELS[best]} {verb} {LABELS[rival]} by "
            f"{_with_interval(abs(gap), half)} ({number(mine[best].mean)} against "
            f"{number(theirs[rival].mean)})"
        )
    return Verdict(claim, _holds(sum(ahead), judged, len(sets)), "; ".join(words))


def behind(records: list[Record], model: str = "dapp") -> dict[str, dict[str, tuple[float, float]]]:
    """The stand-ins on which a baseline has the higher mean likelihood than ``model``: by how much
    each, and half of the interval.
    """
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for data in STANDS_FOR:
        mine = tally(records, model, data, LIKELIHOOD)
        gaps = {
            rival: difference(tally(records, rival, data, LIKELIHOOD), mine) for rival in BASELINES
        }
        ahead = {
            rival: gap
            for rival, gap in sorted(gaps.items(), key=lambda item: -item[1][0])
            if gap[0] > 0
        }
        if ahead:
            found[data] = ahead
    return found


def left_behind(records: list[Record]) -> str:
    """In words: where our default does not match a baseline on the stand-ins; empty where it was
    not scored on any.
    """
    scored = [data for data in STANDS_FOR if tally(records, "dapp", data, LIKELIHOOD).values]
    if not scored:
        return ""
    found = behind(records)
    lines = [
        f"- **{data}**: behind "
        + ", ".join(f"{LABELS[rival]} by {_with_interval(*gap)}" for rival, gap in ahead.items())
        + "."
        for data, ahead in found.items()
    ]
    fine = [data for data in scored if data not in found]
    matched = (
        "Our default DAPP matches every baseline of Table 2 on "
        f"{', '.join(fine) or 'none of the stand-ins'}"
    )
    rest = ", and does not on these (nats per event):\n\n" + "\n".join(lines) if lines else "."
    return matched + rest


def _with_interval(value: float, half: float) -> str:
    return number(value, 2) + ("" if math.isnan(half) else f" \u00b1 {number(half, 2)}")


def _holds(ahead: int, judged: int, sets: int) -> str:
    if judged == 0:
        return "not judged"
    if ahead == judged:
        return "holds" if judged == sets else f"holds on the {judged} of {sets} sets judged"
    return "does not hold" if ahead == 0 else f"holds on {ahead} of {judged}"


def _online(records: list[Record]) -> Verdict:
    words, fine, judged = [], 0, 0
    for data in SYNTHETIC:
        all_events, half_of_them = (
            tally(records, m, data, LIKELIHOOD) for m in ("dapp-paper", "odapp-paper")
        )
        gap, half = difference(half_of_them, all_events)
        if math.isnan(gap):
            words.append(f"{data}: not judged")
            continue
        judged += 1
        fine += abs(gap) <= 0.01
        words.append(f"{data}: {_with_interval(gap, half)} nats per event")
    claim = (
        "ODAPP with half of the events is as good as DAPP (within .01 nats per event), paper's form"
    )
    return Verdict(
        claim, _holds(fine, judged, len(SYNTHETIC)), "ODAPP less DAPP: " + "; ".join(words)
    )


def _near_oracle(records: list[Record]) -> Verdict:
    found = {data: tally(records, "dapp", data, REGRET) for data in SYNTHETIC}
    near = sum(t.values != {} and t.mean <= NEAR for t in found.values())
    judged = sum(bool(t.values) for t in found.values())
    text = "; ".join(f"{data}: {t.text(2)}" for data, t in found.items())
    claim = (
        f"Our default DAPP is within {NEAR} nats per event of the oracle on three of the four "
        "synthetic sets"
    )
    holds = (
        "not judged"
        if not judged
        else "holds"
        if near >= 3
        else f"does not hold: on {near} of {judged}"
    )
    return Verdict(claim, holds, f"regret per event: {text}")


def _of_experiments(records: list[Record]) -> list[Verdict]:
    done = {
        r["data"]: r["metrics"]
        for r in records
        if r["kind"] in ("theory", "claim") and r["status"] == DONE and not r["model"]
    }
    judges = {
        "proposition1": _unbiased,
        "proposition2": _bounded,
        "features": _few_features,
        "thinning": _algorithm2,
    }
    return [judge(done[name]) for name, judge in judges.items() if name in done] + _remembering(
        records
    )


def _unbiased(found: dict[str, Any]) -> Verdict:
    worst = max(value for key, value in found.items() if key.endswith("_largest_z"))
    text = (
        f"largest deviation {worst:.1f} standard errors over 84 comparisons, each a mean of "
        f"{found['draws']:,} draws of 20 features"
    )
    return Verdict(
        "Proposition 1: the estimated score is unbiased, both phases",
        "holds" if worst < 4.5 else "does not hold",
        text,
    )


def _bounded(found: dict[str, Any]) -> Verdict:
    row = next(r for r in found["needed"] if r["error"] == 0.1)
    text = (
        "paired phases stay under it at every D; it says nothing at D = 20, and for an "
        f"error of .1 it asks for {row['bound']:,} "
        f"features where {row['measured']:,} are enough"
    )
    return Verdict(
        "Proposition 2: the largest error is bounded",
        "violated" if found["violations"] else "holds, and is loose",
        text,
    )


def _few_features(found: dict[str, Any]) -> Verdict:
    few, many = found["rows"][0], found["rows"][-1]
    spreads = [number(row["log_likelihood_spread"], 2) for row in (few, many)]
    text = (
        f"from draw to draw the likelihood moves by {spreads[0]} nats per event with D = 20 "
        "and the intensity error is "
        f"{number(few['intensity_mse'])}; with 10,000, {spreads[1]} and "
        f"{number(many['intensity_mse'])}"
    )
    matters = (
        few["intensity_mse"] > 1.05 * many["intensity_mse"] or few["log_likelihood_spread"] > 0.005
    )
    return Verdict(
        "D = 20 serves for training, 10,000 for recovery",
        "holds" if matters else "D = 20 is enough for both",
        text,
    )


def _algorithm2(found: dict[str, Any]) -> Verdict:
    text = "; ".join(
        f"{r['data']}: {number(r['printed'])} events as printed, {number(r['turned'])} with "
        "its test turned round, "
        f"{number(r['law'])} by the law"
        for r in found["rows"]
    )
    wrong = all(
        abs(r["printed"] - r["law"]) > 4 * max(r["printed_error"], 1e-9) for r in found["rows"]
    )
    return Verdict(
        "Algorithm 2 samples from the model", "does not hold" if wrong else "holds", text
    )


def _remembering(records: list[Record]) -> list[Verdict]:
    """Whether attention is ahead of the better recurrent model by a tenth or more, after the most
    events in between.
    """
    memories = [
        r
        for r in records
        if r["kind"] == "claim" and r["data"].startswith("memory-") and r["status"] == DONE
    ]
    most = max((r["metrics"]["events"] for r in memories), default=0)
    kept = {
        r["model"]: r["metrics"]["remembered"] for r in memories if r["metrics"]["events"] == most
    }
    recurrent = [kept[m] for m in ("rmtpp", "nhp") if m in kept]
    text = (
        f"after {most} events: "
        + ", ".join(f"{LABELS[m]} {number(v, 2)}" for m, v in kept.items())
        + " (1: all of it)"
    )
    found = []
    for model, name in (("dapp-paper", "paper's form"), ("dapp", "our default")):
        if model in kept and recurrent:
            holds = "holds" if kept[model] > max(recurrent) + 0.1 else "does not hold"
            found.append(
                Verdict(
                    f"Attention remembers a far event that recurrent models forget, {name}",
                    holds,
                    text,
                )
            )
    return found
