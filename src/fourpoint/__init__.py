"""Fourpoint: Fourier kernels for point processes.

Models of event data in continuous time. The usual path, with a data set of the package::

    import fourpoint as fp

    data = fp.load("nyc_delays")
    train, dev, test = data.split()
    model = fp.DAPP(marks=data.marks)
    fp.fit(model, train, dev)
    print(fp.evaluate(model, test))
    print(fp.forecast(model, test[0], horizon=2.0, at=12.0))
    fp.save(model, "model/")

Each name is imported when it is first used, so that ``import fourpoint`` is instant and brings no
torch.

>>> import fourpoint as fp
>>> fp.MarkSpace.categorical(["fire", "medical"]).count
2
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
"""The version of Fourpoint.

>>> import fourpoint as fp
>>> fp.__version__.count(".")
2
"""

if TYPE_CHECKING:
    from fourpoint.data.as_of import covariates_as_of
    from fourpoint.data.datasets import available, load
    from fourpoint.data.event_files import scan
    from fourpoint.data.readers import read, write
    from fourpoint.data.synthetic import PROCESSES, simulate
    from fourpoint.events import Batch, Box, Dataset, EventDataError, MarkSpace, Sequence, UserError
    from fourpoint.inference.anomalies import anomalies
    from fourpoint.inference.calibration import calibrate, coverage
    from fourpoint.inference.differences import difference
    from fourpoint.inference.evaluation import evaluate, intensity
    from fourpoint.inference.explaining import explain
    from fourpoint.inference.forecasting import forecast
    from fourpoint.inference.forecasts import forecasts
    from fourpoint.inference.goodness import goodness_of_fit
    from fourpoint.inference.imputation import impute, marginal_log_likelihood
    from fourpoint.inference.influences import influence
    from fourpoint.inference.likelihood import log_likelihood
    from fourpoint.inference.maps import expected_map, intensity_map, plot_map
    from fourpoint.inference.predicting import predict
    from fourpoint.inference.predictions import prediction_scores
    from fourpoint.inference.resolution import resolution_score
    from fourpoint.inference.sampling import sample, sample_paths
    from fourpoint.models import (
        DAPP,
        ETAS,
        MODELS,
        NHP,
        RMTPP,
        SAHP,
        THP,
        DeepDAPP,
        Frailty,
        Hawkes,
        Poisson,
        SeismicDAPP,
        SelfCorrecting,
        SpatialDAPP,
        SpatialHawkes,
        SplinePoisson,
    )
    from fourpoint.ops.feature_error import features_needed
    from fourpoint.plots.charts import plot_style
    from fourpoint.storage.checkpoints import restore, save
    from fourpoint.streaming import Stream, StreamBank
    from fourpoint.training.comparing import compare
    from fourpoint.training.fitting import fit
    from fourpoint.training.tuning import tune
    from fourpoint.training.uncertainty import uncertainty

__all__ = [
    "DAPP",
    "ETAS",
    "MODELS",
    "NHP",
    "PROCESSES",
    "RMTPP",
    "SAHP",
    "THP",
    "Batch",
    "Box",
    "Dataset",
    "DeepDAPP",
    "EventDataError",
    "Frailty",
    "Hawkes",
    "MarkSpace",
    "SpatialDAPP",
    "SpatialHawkes",
    "Poisson",
    "SeismicDAPP",
    "SelfCorrecting",
    "Sequence",
    "SplinePoisson",
    "Stream",
    "StreamBank",
    "UserError",
    "__version__",
    "anomalies",
    "available",
    "calibrate",
    "compare",
    "covariates_as_of",
    "coverage",
    "difference",
    "evaluate",
    "expected_map",
    "explain",
    "features_needed",
    "fit",
    "forecast",
    "forecasts",
    "goodness_of_fit",
    "impute",
    "influence",
    "intensity",
    "intensity_map",
    "load",
    "log_likelihood",
    "marginal_log_likelihood",
    "plot_map",
    "plot_style",
    "predict",
    "prediction_scores",
    "read",
    "restore",
    "sample",
    "sample_paths",
    "save",
    "scan",
    "simulate",
    "resolution_score",
    "tune",
    "uncertainty",
    "write",
]

# The module in which each public name lives.
_HOME = {
    **dict.fromkeys(
        ("Batch", "Box", "Dataset", "EventDataError", "MarkSpace", "Sequence", "UserError"),
        "events",
    ),
    **dict.fromkeys(("read", "write"), "data.readers"),
    "covariates_as_of": "data.as_of",
    "scan": "data.event_files",
    **dict.fromkeys(("available", "load"), "data.datasets"),
    **dict.fromkeys(("PROCESSES", "simulate"), "data.synthetic"),
    **dict.fromkeys(
        (
            "DAPP",
            "ETAS",
            "MODELS",
            "NHP",
            "RMTPP",
            "SAHP",
            "THP",
            "DeepDAPP",
            "Frailty",
            "Hawkes",
            "SpatialDAPP",
            "SpatialHawkes",
            "Poisson",
            "SeismicDAPP",
            "SelfCorrecting",
            "SplinePoisson",
        ),
        "models",
    ),
    **dict.fromkeys(("Stream", "StreamBank"), "streaming"),
    "log_likelihood": "inference.likelihood",
    "features_needed": "ops.feature_error",
    **dict.fromkeys(("expected_map", "intensity_map", "plot_map"), "inference.maps"),
    "plot_style": "plots.charts",
    "compare": "training.comparing",
    "fit": "training.fitting",
    "tune": "training.tuning",
    "uncertainty": "training.uncertainty",
    **dict.fromkeys(("sample", "sample_paths"), "inference.sampling"),
    "anomalies": "inference.anomalies",
    **dict.fromkeys(("calibrate", "coverage"), "inference.calibration"),
    "difference": "inference.differences",
    "forecast": "inference.forecasting",
    "forecasts": "inference.forecasts",
    "explain": "inference.explaining",
    "goodness_of_fit": "inference.goodness",
    **dict.fromkeys(("impute", "marginal_log_likelihood"), "inference.imputation"),
    "influence": "inference.influences",
    "predict": "inference.predicting",
    "prediction_scores": "inference.predictions",
    **dict.fromkeys(("resolution_score", "tick_score"), "inference.resolution"),
    **dict.fromkeys(("evaluate", "intensity"), "inference.evaluation"),
    **dict.fromkeys(("restore", "save"), "storage.checkpoints"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        return _former(name)
    from importlib import import_module

    value = getattr(import_module(f"fourpoint.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def _former(name: str) -> Any:
    """What the public name ``name`` of version 0.1 stands for."""
    from fourpoint.former_names import FORMER_PUBLIC

    if name not in FORMER_PUBLIC:
        raise AttributeError(
            f"module 'fourpoint' has no attribute {name!r}; its public names are "
            f"{', '.join(sorted(_HOME))}"
        )
    import warnings

    now = FORMER_PUBLIC[name]
    text = f"fourpoint.{name} is now called fourpoint.{now}; the old name will be removed"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return __getattr__(now)


def __dir__() -> list[str]:
    """The public names, and what every module has."""
    special = {name for name in globals() if name.startswith("__")}
    return sorted(special | set(__all__))
