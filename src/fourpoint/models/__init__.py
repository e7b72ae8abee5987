"""Point process models, one paper, one file. ``MODELS`` maps the names of the command line to constructors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fourpoint.models.dapp import DAPP
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.poisson import Poisson, SplinePoisson
from fourpoint.models.self_correcting import SelfCorrecting

MODELS: dict[str, Callable[..., Any]] = {
    "dapp": DAPP,
    "dapp-paper": DAPP.paper,
    "hawkes": Hawkes,
    "poisson": Poisson,
    "spline-poisson": SplinePoisson,
    "self-correcting": SelfCorrecting,
}
