"""HoTPP's own metrics, without the rest of HoTPP.

`hotpp-benchmark` asks for versions of typer and omegaconf that contradict ours, and importing it
loads training frameworks. Its metrics need torch and three small packages, and are installed beside
ours by

    pip install --no-deps hotpp-benchmark==0.7.0 torch-linear-assignment==0.1.0 \
        torchmetrics==1.9.0 lightning-utilities==0.15.3

:func:`load` imports these files alone, as they are.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

PACKAGE = "hotpp_own_metrics"  # under which the files are imported
METRICS = {"otd": "OTDMetric", "tmap": "TMAPMetric", "next_item": "NextItemMetric"}


def load() -> SimpleNamespace:
    """HoTPP's OTDMetric, TMAPMetric and NextItemMetric. Raises ImportError where it is missing."""
    found = find_spec("hotpp")
    if found is None or found.origin is None or find_spec("torchmetrics") is None:
        raise ImportError("hotpp-benchmark is not installed (see benchmarks/hotpp_metrics.py)")
    package = ModuleType(PACKAGE)
    package.__path__ = [str(Path(found.origin).parent / "metrics")]
    sys.modules[PACKAGE] = package
    own = {
        name: getattr(import_module(f"{PACKAGE}.{file}"), name) for file, name in METRICS.items()
    }
    return SimpleNamespace(version=version("hotpp-benchmark"), **own)
