"""What is run: the models and data sets of both tables, and how large the quick and the full
setting are.

A cell is one model on one data set with one seed, or one small experiment. Tables 1 and 2 and the
figures share cells, so that one fit serves all of them. The quick setting counts steps, not
seconds, so that it gives the same numbers on a slow machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

Kind = Literal["fit", "curve", "theory", "claim"]

# Names of the command line, and labels of the tables. The paper's forms first, in the order of its
# Table 1.
LABELS: Mapping[str, str] = {
    "hawkes": "HP",
    "sahp": "SAHP",
    "nhp": "NHP",
    "rmtpp": "RMTPP",
    "dapp-paper-dot": "DAPP+dot (paper)",
    "odapp-paper-dot": "ODAPP+dot (paper)",
    "dapp-paper-nn": "DAPP+NN (paper)",
    "odapp-paper-nn": "ODAPP+NN (paper)",
    "dapp-paper": "DAPP (paper)",
    "odapp-paper": "ODAPP (paper)",
    "dapp": "DAPP (ours)",
    "odapp": "ODAPP (ours)",
    "poisson": "Poisson",
    "spline-poisson": "spline Poisson",
}
BASELINES = ("hawkes", "sahp", "nhp", "rmtpp")
SYNTHETIC = ("hawkes", "self_correcting", "nonhomogeneous1", "nonhomogeneous2")
# The open stand-ins, and the set of the paper that each stands in for.
STANDS_FOR: Mapping[str, str] = {
    "bookorder_w50": "stock",
    "memetracker": "meme",
    "pems_congestion": "traffic",
    "nyc_delays": "traffic",
    "readmission": "mimic-iii",
}
# Table 2 of the paper has no ablations; the two Poisson models are references, which cost nothing.
REAL_MODELS = (
    *BASELINES,
    "dapp-paper",
    "odapp-paper",
    "dapp",
    "odapp",
    "poisson",
    "spline-poisson",
)
NEURAL = tuple(name for name in LABELS if name not in ("hawkes", "poisson", "spline-poisson"))
CURVES = tuple(
    name for name in REAL_MODELS if name in NEURAL
)  # models that are trained step by step
TRANSFORMED = "calls911_208"  # data of the figure of spectra
THEORY = ("proposition1", "proposition2")
CLAIMS = ("features", "thinning")
REMEMBERING = (
    "rmtpp",
    "nhp",
    "sahp",
    "dapp-paper",
    "dapp",
)  # models of the experiment on a far event
FIGURES = ("score-transformation", "score-visualization", "intensity", "learning-curves")


@dataclass(frozen=True)
class Cell:
    """One unit of work: ``model`` and ``data`` are empty where an experiment has none."""

    kind: Kind
    model: str
    data: str
    seed: int

    @property
    def id(self) -> str:
        """Its name as a file."""
        return "__".join((self.kind, self.model or "none", self.data or "none", str(self.seed)))

    def matches(self, patterns: list[str]) -> bool:
        """Whether it is asked for: a pattern is a name of a model or of data, or MODEL/DATA, with *
        and ?; with ! in front it leaves out.

        >>> (
        ...     Cell("fit", "dapp", "hawkes", 0).matches(["dapp*"]),
        ...     Cell("fit", "dapp", "hawkes", 0).matches(["!*/hawkes"]),
        ... )
        (True, False)
        """
        names = (self.model, self.data, f"{self.model}/{self.data}")
        hit = [any(fnmatchcase(name, p.removeprefix("!")) for name in names) for p in patterns]
        wanted = [h for h, p in zip(hit, patterns, strict=True) if not p.startswith("!")]
        unwanted = [h for h, p in zip(hit, patterns, strict=True) if p.startswith("!")]
        return not any(unwanted) and (not wanted or any(wanted))


@dataclass(frozen=True)
class Setting:
    """How large everything is.

    ``sequences`` of each synthetic set, a tenth of them for early stopping, and ``test`` fresh
    ones; real sets are cut to ``real_train`` and ``real_test`` sequences (0: all) of ``longest``
    events each. ``building`` are arguments of the models, by model; ``training`` those of `fit`, by
    "*" (all), "real", data, model, MODEL/real or MODEL/DATA, of which the later win. ``draws`` is
    the number of repetitions of the experiments, ``features`` the numbers of features that they
    compare, ``events`` the numbers of events that the far event of the experiment on memory has to
    outlast, ``walks`` the sequences by which the literal Algorithm 2 is judged.
    """

    name: str
    sequences: int
    test: int
    real_train: int
    real_test: int
    longest: int
    tolerance: float
    draws: int
    features: tuple[int, ...]
    events: tuple[int, ...]
    walks: int
    building: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    training: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def build(self, model: str) -> dict[str, Any]:
        """Arguments of the model's constructor."""
        return dict(self.building.get(model, {}))

    def train(self, model: str, data: str) -> dict[str, Any]:
        """Arguments of `fit`: those for all, for all real sets, for these data, for this model, and
        for both.

        DAPP has the settings of the committed report, whatever the defaults of `fit` are by now.
        """
        keys = [
            "*",
            *["real"] * (data not in SYNTHETIC),
            data,
            model,
            *[f"{model}/real"] * (data not in SYNTHETIC),
            f"{model}/{data}",
        ]
        found = {name: value for key in keys for name, value in self.training.get(key, {}).items()}
        return DAPP_RECIPE | found if model.removeprefix("o").startswith("dapp") else found


DAPP_RECIPE: dict[str, Any] = dict(learning_rate=2e-2, batch_size=64, epochs=0.0)
_LADDER = (20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
_SMALL: Mapping[str, Any] = dict(features=8, eval_features=128)
QUICK = Setting(
    name="quick",
    sequences=500,
    test=100,
    real_train=160,
    real_test=24,
    longest=64,
    tolerance=1e-3,
    draws=200,
    features=_LADDER,
    events=(5, 20, 60),
    walks=2000,
    building={
        "dapp": _SMALL,
        "odapp": dict(heads=2, features=8, eval_features=32),
        "odapp-paper": dict(
            eval_features=1000
        ),  # which events stay is scored pair by pair, with all features
        "dapp-paper-nn": dict(generator=(32, 32)),
        "odapp-paper-nn": dict(generator=(32, 32)),
    },
    training={
        "*": dict(steps=200, batch_size=32, validate_every=50, nodes=3),
        "real": dict(steps=120, batch_size=16, validate_every=40),
        **dict.fromkeys(
            ("nyc_delays", "nyc_times"), dict(steps=60, batch_size=8, validate_every=30)
        ),
        "odapp/real": dict(steps=60, batch_size=8, validate_every=30),
        "dapp-paper-nn": dict(steps=80, batch_size=16, validate_every=40),
        "odapp-paper-nn": dict(steps=80, batch_size=16, validate_every=40),
    },
)
FULL = Setting(
    name="full",
    sequences=5000,
    test=500,
    real_train=0,
    real_test=250,
    longest=200,
    tolerance=1e-4,
    draws=2000,
    features=_LADDER,
    events=(5, 20, 60),
    walks=20_000,
    building={"odapp": dict(eval_features=128)},
    training={
        "odapp": dict(steps=1500),
        # A network on every pair of events costs a hundred times as much as the other scores.
        **dict.fromkeys(("dapp-paper-nn", "odapp-paper-nn"), dict(steps=1500, batch_size=32)),
        "real": dict(steps=1500, batch_size=32, patience=8),
        **dict.fromkeys(
            ("nyc_delays", "nyc_times", "pems_congestion", "readmission"), dict(batch_size=16)
        ),
    },
)
SETTINGS: dict[str, Setting] = {"quick": QUICK, "full": FULL}


def cells_of(what: str, figure: str, seeds: int, real: bool, setting: Setting) -> list[Cell]:
    """The cells that a command needs: ``what`` is table1, table2, figure, theory or all; ``real``
    whether real files are given.
    """
    wanted: list[Cell] = []
    if what in ("table1", "table2", "all"):
        wanted += [
            Cell("fit", model, data, seed)
            for seed in range(seeds)
            for data in SYNTHETIC
            for model in LABELS
        ]
    if what in ("table2", "all"):
        wanted += [
            Cell("fit", model, data, seed)
            for seed in range(seeds)
            for data in STANDS_FOR
            for model in REAL_MODELS
        ]
    if what == "table2":
        ablations = {name for name in LABELS if name.endswith(("-dot", "-nn"))}
        wanted = [cell for cell in wanted if cell.model not in ablations]
    if what == "all":
        for name in FIGURES:
            wanted += _of_figure(name, real)
    if what == "figure":
        wanted += _of_figure(figure, real)
    if what in ("theory", "all"):
        wanted += [Cell("fit", "dapp-paper", "hawkes", 0)]
        wanted += [Cell("theory", "", name, 0) for name in THEORY]
        wanted += [Cell("claim", "", name, 0) for name in CLAIMS]
        wanted += [
            Cell("claim", model, f"memory-{n}", 0) for n in setting.events for model in REMEMBERING
        ]
    return list(dict.fromkeys(wanted))


def _of_figure(name: str, real: bool) -> list[Cell]:
    if name == "intensity":
        return [Cell("fit", model, data, 0) for data in SYNTHETIC for model in LABELS]
    if name == "score-visualization":
        return [
            Cell("fit", model, "hawkes", 0) for model in ("dapp-paper", "dapp-paper-dot", "dapp")
        ]
    if name == "score-transformation":
        return [Cell("fit", "dapp-paper", TRANSFORMED if real else "nyc_times", 0)]
    return [Cell("curve", model, data, 0) for data in STANDS_FOR for model in CURVES]
