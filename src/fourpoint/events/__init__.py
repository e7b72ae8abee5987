"""Events: sequences, data sets, batches, marks, and the errors of bad event data."""

from fourpoint.errors import EventDataError, UserError
from fourpoint.events.batching import Batch, known_at
from fourpoint.events.context import BatchContext, BatchSteps, Context, Steps
from fourpoint.events.marks import Box, MarkSpace, check_marks
from fourpoint.events.sequences import (
    Dataset,
    Sequence,
    all_sequences,
    inferred_window,
    only_sequence,
)
from fourpoint.events.ties import Ties
from fourpoint.events.validation import SPLITS

__all__ = [
    "SPLITS",
    "Batch",
    "BatchContext",
    "BatchSteps",
    "Box",
    "Context",
    "Dataset",
    "EventDataError",
    "MarkSpace",
    "Sequence",
    "Steps",
    "Ties",
    "UserError",
    "all_sequences",
    "check_marks",
    "inferred_window",
    "known_at",
    "only_sequence",
]
