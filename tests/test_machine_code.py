"""Loops as machine code: equal results with a cold and a warm cache, threads
lent by torch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fourpoint.kernels.compiling import blas_threads, machine_code, threads, threads_for_loops


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


def scale(x: Any, by: Any) -> None:
    """A helper of :func:`scaled_sum`."""
    for i in range(len(x)):
        x[i] *= by


def scaled_sum(x: Any, by: Any) -> Any:
    """An entry."""
    scale(x, by)
    total = 0.0
    for i in range(len(x)):
        total += x[i]
    return total


def test_helpers_are_part_of_their_entry_and_leave_no_symbol() -> None:
    pytest.importorskip("numba")
    found: Any = machine_code((sys.modules[__name__],), (scaled_sum,), (scale,))
    entry = found["scaled_sum"]
    assert entry(np.arange(4.0), 2.0) == 12.0
    entry.recompile()  # code from the cache of an earlier run cannot be inspected
    (text,) = entry.inspect_llvm().values()
    defined = [line for line in text.splitlines() if line.startswith("define")]
    assert defined and not [line for line in defined if re.search(r"\W\S*\d+scale_", line)]


STREAMED = """
import numpy as np, torch
from fourpoint.models import DAPP
from fourpoint.streaming.stream import Stream

torch.manual_seed(0)
stream = Stream(DAPP(heads=2, eval_features=37).eval(), top=0)
found = [stream.observe(t) for t in np.cumsum(np.random.default_rng(0).exponential(size=40))]
print([(one.log_density.hex(), one.gap.hex(), one.rate.hex()) for one in found])
"""


def test_results_are_equal_with_a_cold_and_a_warm_cache(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", STREAMED]
    cold, warm = (
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        for _ in range(2)
    )
    assert list(tmp_path.rglob("*.nbc")), "nothing was cached"
    assert cold.stdout == warm.stdout
    assert cold.stdout.count("0x") == 120


def test_the_threads_of_blas_rest_while_loops_have_theirs() -> None:
    """Those of OpenBLAS would keep a processor busy that the loops' threads need."""
    blas = blas_threads()
    if blas is None:
        pytest.skip("numpy has no OpenBLAS here")
    before = blas.now(), torch.get_num_threads()
    try:
        blas.set(2)
        torch.set_num_threads(2)
        with threads_for_loops(True):
            assert (blas.now(), torch.get_num_threads(), threads()) == (1, 1, 2)
        assert (blas.now(), torch.get_num_threads()) == (2, 2)
    finally:
        blas.set(before[0])
        torch.set_num_threads(before[1])
