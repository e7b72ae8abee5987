"""What Deep DAPP's kernels are given: the model as named tensors and a few numbers, and a batch of
sequences as tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Model:
    """Parameters and buffers by name, as ``named_parameters`` and ``named_buffers`` list them, and
    the settings that decide what is drawn at random in a step.
    """

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    layers: int
    width: int
    marks: int
    training: bool
    dropout: float  # probability that an activation is dropped
    event_dropout: float  # that an event has no effect on later ones
    mark_dropout: float  # that an event's mark is not seen
    resolution: float  # of timestamps, in the user's unit: events are dequantised in it; 0 for none
    # log of the shares of marks, plain torch; used if there are too many marks for the kernels
    log_shares: Callable[[Tensor, Tensor], Tensor]

    def __getitem__(self, name: str) -> Tensor:
        """A parameter or a buffer."""
        found = self.parameters.get(name)
        return self.buffers[name] if found is None else found


class Events(NamedTuple):
    """B sequences padded to N events."""

    times: Tensor  # (B, N) float64, the user's unit
    marks: Tensor  # (B, N) int64
    start: Tensor  # (B,) float64
    stop: Tensor  # (B,) float64
    lengths: Tensor  # (B,)
