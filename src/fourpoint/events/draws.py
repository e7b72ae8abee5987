"""Random numbers for some rows of a batch, as the whole batch would draw them.

Processes that share a batch take the same steps as one process only if every sequence meets the
same random numbers. Each of them draws for all B rows and keeps its own.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RowGenerator(torch.Generator):
    """A generator for the ``rows`` of a batch of ``total`` sequences."""

    rows: Tensor
    total: int

    @staticmethod
    def of(rows: Tensor, total: int) -> RowGenerator:
        """One for these rows.

        >>> whole = uniform_rows(torch.zeros(3, 2), torch.Generator().manual_seed(1))
        >>> part = RowGenerator.of(torch.tensor([2]), 3)
        >>> _ = part.manual_seed(1)
        >>> bool((uniform_rows(torch.zeros(1, 2), part) == whole[2:]).all())
        True
        """
        made = RowGenerator()
        made.rows, made.total = rows, total
        return made


def rows_of_all(like: Tensor, random: torch.Generator) -> int:
    """How many rows the whole batch has, of which ``like`` holds those of ``random``.

    >>> rows_of_all(torch.zeros(1, 2), RowGenerator.of(torch.tensor([2]), 3))
    3
    """
    return random.total if isinstance(random, RowGenerator) else len(like)


def uniform_rows(like: Tensor, random: torch.Generator) -> Tensor:
    """Draws from U[0, 1), (B, ...), made where ``random`` lives."""
    shape = like.shape
    if isinstance(random, RowGenerator):
        shape = torch.Size([random.total, *like.shape[1:]])
    drawn = torch.rand(shape, generator=random, dtype=like.dtype, device=random.device)
    if isinstance(random, RowGenerator):
        drawn = drawn[random.rows]
    return drawn.to(like.device)
