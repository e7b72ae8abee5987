"""Point process models, one paper, one file. ``MODELS`` maps the names of the command line to
constructors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fourpoint.models.base import PointProcess
from fourpoint.models.dapp import DAPP
from fourpoint.models.deep_dapp import DeepDAPP
from fourpoint.models.etas import ETAS
from fourpoint.models.frailty import Frailty
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.markov_modulated import MarkovModulated
from fourpoint.models.modulated_hawkes import ModulatedHawkes
from fourpoint.models.nhp import NHP
from fourpoint.models.poisson import Poisson, SplinePoisson
from fourpoint.models.power_law_hawkes import PowerLawHawkes
from fourpoint.models.rmtpp import RMTPP
from fourpoint.models.sahp import SAHP
from fourpoint.models.self_correcting import SelfCorrecting
from fourpoint.models.spatial.dapp import SpatialDAPP
from fourpoint.models.spatial.hawkes import SpatialHawkes
from fourpoint.models.spatial.seismic_dapp import SeismicDAPP
from fourpoint.models.thp import THP

MODELS: dict[str, Callable[..., PointProcess]] = {
    "dapp": DAPP,
    "dapp-paper": DAPP.paper,
    "dapp-paper-dot": partial(DAPP.paper, score="dot"),
    "dapp-paper-nn": partial(DAPP.paper, score="neural"),
    "odapp": partial(DAPP, keep=0.5),
    "odapp-paper": partial(DAPP.paper, keep=0.5),
    "odapp-paper-dot": partial(DAPP.paper, score="dot", keep=0.5),
    "odapp-paper-nn": partial(DAPP.paper, score="neural", keep=0.5),
    "spatial-dapp": SpatialDAPP,
    "seismic-dapp": SeismicDAPP,
    "deep-dapp": DeepDAPP,
    "etas": ETAS,
    "frailty": Frailty,
    "hawkes": Hawkes,
    "modulated-hawkes": ModulatedHawkes,
    "power-law-hawkes": PowerLawHawkes,
    "markov-modulated": MarkovModulated,
    "spatial-hawkes": SpatialHawkes,
    "nhp": NHP,
    "poisson": Poisson,
    "spline-poisson": SplinePoisson,
    "rmtpp": RMTPP,
    "sahp": SAHP,
    "self-correcting": SelfCorrecting,
    "thp": THP,
}
"""The constructor of every model by its name on the command line.

>>> import fourpoint as fp
>>> model = fp.MODELS["hawkes"](marks=2)
>>> type(model).__name__
'Hawkes'
"""

CATALOGUE = (
    "etas",
    "seismic-dapp",
)  # models of earthquake catalogues, whose columns are known by name
