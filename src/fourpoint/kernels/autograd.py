"""The type of the context that torch hands to the two halves of an autograd function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.autograd.function import FunctionCtx

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor

    class Context(FunctionCtx):
        """A context on which a forward pass may set any attribute for the backward pass."""

        saved_tensors: tuple[Tensor, ...]
        needs_input_grad: tuple[bool, ...]

        def save_for_backward(self, *tensors: Tensor | None) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: object) -> None: ...

else:
    Context = FunctionCtx
