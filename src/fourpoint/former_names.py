"""Names of version 0.1 and what they are called now, from the table ``former_names.json``.

Former public names, models and settings are accepted with a notice; models and states of streams
that version 0.1 saved are read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TABLE: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
FORMER_PUBLIC: dict[str, str] = _TABLE["public"]
FORMER_MODELS: dict[str, str] = _TABLE["models"]
FORMER_SETTINGS: dict[str, dict[str, str]] = _TABLE["settings"]  # by model
FORMER_VALUES: dict[str, dict[str, dict[str, str]]] = _TABLE["values"]  # by model and setting
FORMER_CONSTANT_RATES: dict[str, str] = _TABLE["constant_rates"]  # weights of a constant, by model
FORMER_TENSORS: dict[str, dict[str, str]] = _TABLE["tensors"]  # other weights, by model
# numbers that models have since, and what they were before, by model
ADDED_TENSORS: dict[str, dict[str, float]] = _TABLE["added"]
FORMER_STREAM_FIELDS: dict[str, str] = _TABLE["stream_fields"]
