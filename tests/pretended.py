"""A second device for machines that have none: tensors say that they are on it, and their numbers
lie in ordinary memory.

Inside :func:`second_device` a tensor moved to that device, or made there, keeps its numbers on the
CPU but answers with the device's name when asked. Every operation checks that its tensors are on
one device, as CUDA does: numbers without a dimension and indices may come from the CPU, and
anything else is an error. So code that forgets ``device=`` or ``.cpu()`` fails here as it would on
a GPU; what a GPU computes is not tested. The name is that of torch's own device without memory,
which needs no driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

SECOND = torch.device("meta")
INDEXED = (
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
)


class Elsewhere(torch.Tensor):
    """A tensor that says it is on the second device."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Elsewhere:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=SECOND,
            requires_grad=False,
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:
        return f"Elsewhere({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def second_device() -> Iterator[str]:
    """The name of a device that is not the CPU."""
    with _Mode():
        yield SECOND.type


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """``func`` on the numbers themselves; what comes out is where the tensors were, or where it was
    asked for.
    """
    given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    there = any(isinstance(x, Elsewhere) for x in given)
    name = func._schema.name
    asked = kwargs.get("device")
    if asked is not None:
        there = torch.device(asked).type == SECOND.type
        kwargs = {**kwargs, "device": torch.device("cpu")}
    elif there and name not in ("aten::_to_copy", "aten::copy_", "aten::_copy_from"):
        _check(name, given)
    outcome = func(*tree_map(_plain, args), **tree_map(_plain, kwargs))
    written = {id(_plain(x)): x for x in given if isinstance(x, Elsewhere)}
    return tree_map(
        lambda x: (
            written.get(id(x), Elsewhere(x) if there else x) if isinstance(x, torch.Tensor) else x
        ),
        outcome,
    )


def _check(name: str, given: list[torch.Tensor]) -> None:
    indices = name in INDEXED and isinstance(given[0], Elsewhere)
    for x in given[1:] if indices else given:
        if (
            not isinstance(x, Elsewhere)
            and x.ndim > 0
            and not (indices and x.dtype in (torch.int64, torch.bool))
        ):
            raise RuntimeError(
                f"{name}: a tensor of shape {tuple(x.shape)} is on the CPU and another one "
                f"on {SECOND}"
            )


def _plain(x: Any) -> Any:
    return x.inner if isinstance(x, Elsewhere) else x
