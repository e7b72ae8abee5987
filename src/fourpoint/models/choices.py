"""The choices a DAPP leaves open, and which of them contradict each other."""

from __future__ import annotations

from typing import Any

from fourpoint.events import UserError
from fourpoint.ops.fourier import ACTIVATIONS

CHOICES = {
    "normalise": ("none", "ratio", "softmax"),
    "phase": ("paired", "random"),
    "values": ("mark", "affine", "linear"),
    "score": ("fourier", "dot", "neural"),
    "link": ("exp", "softplus", "identity"),
    "base": ("auto", "constant", "spline"),
    "drift": ("auto", "none", "spline"),
    "form": ("auto", "dense", "scan"),
    "draw": ("even", "independent"),
    "activation": tuple(ACTIVATIONS),
}


def check_choices(s: dict[str, Any]) -> None:
    """Raise :class:`UserError` for an unknown choice, a number below 1, or two choices that cannot
    hold together.
    """
    for name, allowed in CHOICES.items():
        if s[name] not in allowed:
            raise UserError(
                f"{name} to be one of {', '.join(allowed)}", f"{s[name]!r}", "Choose one of them."
            )
    for name in ("heads", "features", "noise", "embedding", "width", "knots"):
        if s[name] < 1:
            raise UserError(f"{name} of at least 1", f"{s[name]}", "Raise it.")
    keep = s["keep"]
    if keep is not None and not (keep >= 1 if isinstance(keep, int) else 0 < keep <= 1):
        raise UserError(
            "keep as a number of events from 1, or a share above 0 and up to 1.0",
            f"{keep}",
            "Choose one, or None for all.",
        )
    if s["score"] != "fourier" and (s["normalise"] == "ratio" or s["link"] == "identity"):
        raise UserError(
            "a score that is never negative with normalise='ratio' or link='identity'",
            f"score={s['score']!r}",
            "Use score='fourier'.",
        )
    if s["form"] == "scan" and (s["score"] != "fourier" or keep is not None):
        raise UserError(
            "a Fourier score and keep=None with form='scan'",
            f"score={s['score']!r}, keep={keep}",
            "Use form='auto'.",
        )
    if s["normalise"] == "ratio" and s["phase"] == "random":
        raise UserError(
            "paired phases with normalise='ratio'",
            "phase='random', whose scores can be negative",
            "Use phase='paired' or 'softmax'.",
        )
    if s["form"] == "scan" and s["normalise"] == "softmax":
        raise UserError(
            "a normalisation that a scan can carry",
            "normalise='softmax' with form='scan'",
            "Use form='dense', or normalise='none' or 'ratio'.",
        )
    if s["form"] == "scan" and s["phase"] == "random":
        raise UserError(
            "paired phases with form='scan'",
            "phase='random'",
            "Use form='dense' or phase='paired'.",
        )
    if s["link"] == "identity" and (
        s["normalise"] != "none"
        or s["values"] != "mark"
        or s["drift"] == "spline"
        or s["phase"] == "random"
    ):
        raise UserError(
            (
                "link='identity' with an unnormalised sum, values='mark', paired phases and no "
                "drift, so that the rate cannot be negative"
            ),
            (
                f"normalise={s['normalise']!r}, values={s['values']!r}, phase={s['phase']!r}, "
                f"drift={s['drift']!r}"
            ),
            "Use link='exp' or 'softplus' for those.",
        )
