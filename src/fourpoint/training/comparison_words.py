"""The answer of a comparison in sentences that need no statistics to be understood."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fourpoint.events.dates import span_words

if TYPE_CHECKING:
    from fourpoint.training.comparing import Comparison, Step

NEGLIGIBLE = 5e-5  # nats per event, which are printed as 0
UNDECIDED = 0.01  # nats per event that excitation may gain at most where clustering is denied
CLOSED_FORMS = ("poisson", "frailty", "hawkes")
WHAT = {
    "time": "The time since the start of the window",
    "covariates": "Covariates",
    "frailty": "A separate rate for every sequence",
    "days": "A separate level for every day",
    "slow-excitation": "Excitation that fades fast at first and slowly later",
    "cross-excitation": "Excitation that depends on the types",
    "dapp": "A neural model (DAPP)",
    "deep-dapp": "A deep neural model (Deep DAPP)",
}


def sentences(found: Comparison) -> list[str]:
    """One sentence for each step after the first, then the verdict, the model to use, and what the
    numbers mean.
    """
    said = [_of_step(found, step) for step in found.steps[1:]]
    said.append(_verdict(found))
    said.append(_of_regularity(found))
    said.append(f"Use: {found.recommended}{_how(found)}.")
    said.append(_meaning(found))
    return [one for one in said if one]


def _of_step(found: Comparison, step: Step) -> str:
    interval = f"95% interval {number(step.gain_low)} to {number(step.gain_high)}"
    amount = f"{signed(step.gain)} nats per event ({interval})"
    if step.name == "calendar":
        terms = ", ".join(found.calendar)
        if not terms:
            return "The log is too short for a calendar: less than two days."
        if found.harmful:
            return (
                f"The calendar ({terms}) predicts worse than a constant rate, {amount}, and is "
                "left out of the later steps."
            )
        if step.gain_low > 0:
            return f"The calendar ({terms}) explains {amount}."
        return f"The calendar ({terms}) does not clearly explain more than chance: {amount}."
    better = step.gain_low > 0 and step.gain >= NEGLIGIBLE
    if step.name == "excitation":
        if better and found.drifting:
            return (
                f"Past events explain {amount}{_beyond(found)}, on average {lag_words(found)} "
                "later: in a log of this length, this is not told apart from a level of the rate "
                "that changes slowly for other reasons."
            )
        if better:
            return f"Past events explain {amount}{_beyond(found)}."
        if found.clustering_beyond_calendar and found.days:
            return (
                f"Past events alone do not explain more than chance{_beyond(found)}, {amount}, but "
                "within days the rate depends on them more than by chance."
            )
        if found.clustering_beyond_calendar:
            return (
                f"Past events improve predictions only a little{_beyond(found)}, {amount}, but the "
                f"rate depends on them more than by chance ({found.evidence:.1f} standard errors)."
            )
        return f"Past events do not explain more than chance{_beyond(found)}: {amount}."
    what = WHAT[step.name]
    adds, does = ("add", "do") if step.name == "covariates" else ("adds", "does")
    performs = "perform" if step.name == "covariates" else "performs"
    if step.name == "days":
        adds = "adds" if step.gain_low > 0 else "may add"
        return (
            f"{what} {adds} {amount}: beyond chance, the levels of days have a standard deviation "
            f"of about {100 * found.days:.0f}%."
        )
    if better:
        return f"{what} {adds} {amount}."
    if step.gain_high < 0 and step.gain <= -NEGLIGIBLE:
        return f"{what} {performs} worse than the previous step: {amount}."
    return f"{what} {does} not clearly add more than chance: {amount}."


def _beyond(found: Comparison) -> str:
    names = [step.name for step in found.steps]
    before = names[2 if found.harmful else 1 : names.index("excitation")]
    words = {
        "calendar": "the calendar",
        "time": "the time of the window",
        "covariates": "covariates",
        "frailty": "differences between sequences",
        "days": "levels of days",
    }
    known = [words[name] for name in before]
    listed = ", ".join(known[:-1]) + " and " if len(known) > 1 else ""
    return f" beyond {listed}{known[-1]}" if known else ""


def _verdict(found: Comparison) -> str:
    names = [step.name for step in found.steps]
    if "excitation" not in names:
        return ""
    has_rhythm = names[1] in ("calendar", "time") and not found.harmful
    rhythm = "the calendar" if has_rhythm else "chance"
    if "frailty" in names and found.step("frailty").gain_low > 0:
        rhythm += " and the differences between sequences"
    if found.days:
        rhythm += " and the levels of days"
    if not found.clustering_beyond_calendar and found.days:
        return (
            f"There is no clustering beyond {rhythm}: some days are busier than others, without "
            "evidence that events lead to further ones."
        )
    if found.drifting and found.step("excitation").gain_low > 0:
        return f"There is no evidence of clustering beyond {rhythm} and slow changes of the rate."
    most = found.step("excitation").gain_high
    if not found.clustering_beyond_calendar and most > UNDECIDED:
        return (
            f"No clustering beyond {rhythm} was found, but {found.held_out:,} held-out events do "
            f"not exclude it: excitation may gain up to {number(most)} nats per event."
        )
    if not found.clustering_beyond_calendar:
        return f"There is no clustering beyond {rhythm}."
    share = f"about {100 * min(found.branching, 1.0):.0f}% of events are triggered by earlier ones"
    if found.slow:
        half, nearly_all = (span_words(lag, found.unit) for lag in found.lags)
        return (
            f"There is clustering beyond {rhythm}: {share}, half of them within {half} and nine in "
            f"ten within {nearly_all}. Slow changes of the rate for other reasons would count "
            "towards this share."
        )
    return f"There is clustering beyond {rhythm}: {share}, on average {lag_words(found)} later."


def _of_regularity(found: Comparison) -> str:
    if not found.regular:
        return ""
    said = (
        "Events are spaced more evenly than independent ones: neighbouring gaps differ less, with "
        f"a local variation of {found.local_variation:.2f} in place of 1."
    )
    if found.step(found.recommended).model in CLOSED_FORMS:
        said += (
            " A Poisson or Hawkes process cannot represent this, and its intervals of counts are "
            "too wide: a model of the time since the last event (rmtpp) can."
        )
    return said


def lag_words(found: Comparison) -> str:
    """The mean lag in a unit that suits it."""
    return span_words(found.lag, found.unit)


def _how(found: Comparison) -> str:
    step = found.step(found.recommended)
    if step.name == "constant":
        return ": a constant rate, since no other model is clearly better"
    if step.name in ("calendar", "time", "covariates"):
        return " (a Poisson process with these effects)"
    if step.name == "frailty":
        return " (a Poisson process with a random factor of the rate of every sequence)"
    if step.name == "days":
        return " (a Poisson process with these effects, whose level is a hidden Markov chain)"
    if step.name == "slow-excitation":
        return " (a Hawkes process with several exponentials)"
    if step.name in ("excitation", "cross-excitation"):
        if found.days and not found.clustering_beyond_calendar:
            return " (a Hawkes process, which follows the level of a day by its events so far)"
        return " (a Hawkes process)"
    return ""


def _meaning(found: Comparison) -> str:
    best = found.step(found.recommended)
    gain = best.nats_per_event - found.steps[0].nats_per_event
    if gain <= 0:
        return (
            "A gain of 0.1 nats per event means that held-out events are on average exp(0.1) = "
            "1.11 times as probable."
        )
    return (
        f"The gain over a constant rate is {signed(gain)} nats per event: held-out events are on "
        f"average exp({number(gain)}) = {math.exp(gain):.3g} times as probable."
    )


def number(value: float) -> str:
    """A number with the digits that matter.

    >>> number(0.19234), number(-0.00042)
    ('0.192', '-0.0004')
    """
    if not math.isfinite(value):
        return "unknown"
    return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.4f}"


def signed(value: float) -> str:
    """The same with its sign.

    >>> signed(0.19234)
    '+0.192'
    """
    return f"+{number(value)}" if value >= 0 else number(value)
