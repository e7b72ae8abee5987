"""Loops as machine code: none without numba, and threads that torch lends them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from fourpoint.models import attentive_loops, dapp_sweep_loops, rmtpp_loops
from fourpoint.models.machine_code import threads, threads_for_loops
from fourpoint.training_loops import compiled_adamw

COMPILED = [attentive_loops.compiled_sweep, dapp_sweep_loops.compiled_sweep, rmtpp_loops.compiled_recurrence, compiled_adamw]


@pytest.mark.parametrize("compiled", COMPILED)
def test_without_numba_there_is_no_machine_code(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled.cache_clear()
    try:
        assert compiled() is None
    finally:
        compiled.cache_clear()


def test_threads_are_lent_to_loops_and_given_back() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with threads_for_loops(False):
            assert (torch.get_num_threads(), threads()) == (2, 2)
        with pytest.raises(ZeroDivisionError), threads_for_loops(True):
            assert (torch.get_num_threads(), threads()) == (1, 2)
            with threads_for_loops(True):
                assert (torch.get_num_threads(), threads()) == (1, 2)
            raise ZeroDivisionError
        assert (torch.get_num_threads(), threads()) == (2, 2)
    finally:
        torch.set_num_threads(before)
