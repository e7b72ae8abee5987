"""Fast counterparts of plain functions, compiled with numba or Triton.

The plain function is the definition; a kernel computes the same values, and where it has any the
same gradients, within the stated tolerance. :data:`TABLE` lists all kernels. Callers ask an entry
with :meth:`Kernel.choose` and run the plain function if the answer is None:

    sweep = kernels.DAPP_LOSS.choose(parameters, batch.times, ...)
    if sweep is None:
        ...the plain function...

The package imports nothing of Fourpoint but itself, and neither torch, numba nor Triton until a
kernel is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, Literal, ParamSpec

from fourpoint.kernels import conditions

P = ParamSpec("P")
Compiler = Literal["numba", "triton"]
Loop = Callable[..., Any]  # a loaded kernel


class MissingCompiler(UserWarning):
    """A compiler is not installed, and plain functions run in place of its kernels."""


@dataclass(frozen=True)
class Kernel(Generic[P]):
    """One kernel: where it is, what it is compared with, and why it is worth having."""

    name: str
    compiler: Compiler
    module: str  # below `fourpoint.kernels`; its function ``load`` returns the kernel
    plain: str  # dotted name of the plain counterpart
    supports: Callable[P, str | None]  # None, or the reason why the kernel does not apply
    values: float  # largest difference of values, relative to the largest value
    gradients: float | None  # the same for gradients; None if the kernel has none
    benchmark: str  # the row that justifies it
    factor: float  # plain time over the kernel's time there, measured with ``measured``
    measured: str

    def choose(self, *given: P.args, **named: P.kwargs) -> Any:
        """The loaded kernel, or None if the plain counterpart has to run.

        If only the compiler is missing, a warning says so once in the life of the process.
        """
        if self.supports(*given, **named) is not None:
            return None
        if not installed(self.compiler):
            report_missing(self.compiler)
            return None
        return self.load()

    def load(self) -> Any:
        """The kernel itself; raises :class:`ImportError` if its compiler is not installed."""
        return import_module(f"fourpoint.kernels.{self.module}").load()


@cache
def installed(compiler: Compiler) -> bool:
    """Whether the package is there. It is not imported."""
    return find_spec(compiler) is not None


@cache
def report_missing(compiler: Compiler) -> None:
    """Warn that plain functions run instead; once."""
    warnings.warn(
        f"{compiler} is not installed: plain functions run in place of its kernels, with the same "
        f"results, and are slower. To install it: pip install {compiler}",
        MissingCompiler,
        stacklevel=4,
    )


DAPP_LOSS = Kernel(
    name="dapp_loss",
    compiler="numba",
    module="numba_dapp_loss",
    plain="fourpoint.inference.likelihood.sampled_log_likelihood",
    supports=conditions.dapp_loss,
    values=1e-4,
    gradients=1e-4,
    benchmark="benchmarks/training.py, default settings, 1 thread: Fourpoint dapp",
    factor=9.8,
    measured="fp.fit of that row with and without the kernel, medians of 5 rounds",
)
DAPP_SCORE = Kernel(
    name="dapp_score",
    compiler="numba",
    module="numba_dapp_score",
    plain="fourpoint.inference.likelihood.log_likelihoods",
    supports=conditions.dapp_score,
    values=1e-9,
    gradients=None,
    benchmark="benchmarks/costs.py, evaluation: Fourpoint dapp",
    factor=16,
    measured="processor time of that row with and without the kernel, median of 5 rounds",
)
DAPP_STREAM = Kernel(
    name="dapp_stream",
    compiler="numba",
    module="numba_dapp_stream",
    plain="fourpoint.streaming.steppers.ByHistory.score",
    supports=conditions.dapp_stream,
    values=2e-6,
    gradients=None,
    benchmark="benchmarks/streaming.py, fourpoint stream: DAPP, one stream",
    factor=190,
    measured="processor time of 400 events followed by the kernel and by the model itself",
)
DAPP_PATHS = Kernel(
    name="dapp_paths",
    compiler="numba",
    module="numba_dapp_paths",
    plain="fourpoint.inference.sampling.advance",
    supports=conditions.dapp_paths,
    values=1e-8,
    gradients=None,
    benchmark="benchmarks/forecast_all.py, 200 paths of every sequence: DAPP",
    factor=38,
    measured="sequences per minute of that row with and without the kernel",
)
HAWKES_PATHS = Kernel(
    name="hawkes_paths",
    compiler="numba",
    module="numba_hawkes_paths",
    plain="fourpoint.inference.sampling.advance",
    supports=conditions.always,
    values=1e-12,
    gradients=None,
    benchmark="benchmarks/forecast_all.py, 200 paths of every sequence: Hawkes",
    factor=5.5,
    measured="sequences per minute of that row with and without the kernel",
)
SCORE_TABLE = Kernel(
    name="score_table",
    compiler="numba",
    module="score_table",
    plain="fourpoint.models.dapp.DAPP.kernel",
    supports=conditions.always,
    values=2e-6,
    gradients=None,
    benchmark="benchmarks/streaming.py, observe: 128 features per head",
    factor=5.3,
    measured="derived: observe takes 107 us, 7 us of it the table; the sum over modes takes 464 us",
)
EXCITATION = Kernel(
    name="excitation",
    compiler="numba",
    module="numba_excitation",
    plain="fourpoint.ops.excitation.scan_events",
    supports=conditions.excitation,
    values=1e-10,
    gradients=1e-8,
    benchmark="benchmarks/hawkes.py, 998,578 events: Fourpoint",
    factor=3.0,
    measured="processor time of Hawkes.maximum_likelihood of that row, with and without",
)
HAWKES_STREAM = Kernel(
    name="hawkes_stream",
    compiler="numba",
    module="numba_hawkes_stream",
    plain="fourpoint.streaming.steppers.follow_by_steps",
    supports=conditions.always,
    values=1e-12,
    gradients=None,
    benchmark="benchmarks/streaming.py, fourpoint stream: Hawkes, one stream",
    factor=315,
    measured="processor time of 20,000 events followed by the kernel and step by step",
)
HAWKES_EFFECTS = Kernel(
    name="hawkes_effects",
    compiler="numba",
    module="numba_hawkes_effects",
    plain="fourpoint.kernels.numba_hawkes_effects.sweep",
    supports=conditions.always,
    values=1e-10,
    gradients=1e-8,
    benchmark="benchmarks/hawkes.py, calendar baseline, 19,887 events: Fourpoint",
    factor=250,
    measured="that row: processor time of one sweep, compiled and as plain Python",
)
MONITOR = Kernel(
    name="monitor",
    compiler="numba",
    module="numba_monitor",
    plain="fourpoint.streaming.monitor_table.MonitorTable.observe_one_by_one",
    supports=conditions.always,
    values=0.0,
    gradients=None,
    benchmark="benchmarks/streaming.py, fourpoint stream: DAPP, --by, 1,000 entities",
    factor=25,
    measured="processor time of MonitorTable.observe, 40,000 gaps of 1,000 rows",
)
DECODING = Kernel(
    name="decoding",
    compiler="numba",
    module="numba_decoding",
    plain="fourpoint.kernels.numba_decoding.transport",
    supports=conditions.always,
    values=1e-12,
    gradients=None,
    benchmark="benchmarks/horizon.py, --decoding: transport of one forecast",
    factor=248,
    measured="processor time of one forecast of 500 paths, compiled and as plain Python",
)
TRIGGERING = Kernel(
    name="triggering",
    compiler="numba",
    module="numba_triggering",
    plain="fourpoint.ops.triggering.plain_trigger_sums",
    supports=conditions.triggering,
    values=1e-10,
    gradients=1e-8,
    benchmark="benchmarks/etas.py, one gradient of the likelihood, 3,994 events",
    factor=2.9,
    measured="processor time of that row with and without the kernel",
)
TRIGGER_TREE = Kernel(
    name="trigger_tree",
    compiler="numba",
    module="numba_trigger_tree",
    plain="fourpoint.ops.triggering.plain_trigger_sums",
    supports=conditions.trigger_tree,
    values=1e-3,
    gradients=1e-3,
    benchmark="benchmarks/etas.py, one gradient of the likelihood by groups, 3,994 events",
    factor=17,
    measured="processor time of that row with and without the kernel",
)
SMOOTHING = Kernel(
    name="smoothing",
    compiler="numba",
    module="numba_smoothing",
    plain="fourpoint.ops.smoothing.plain_smoothed",
    supports=conditions.triggering,
    values=1e-10,
    gradients=None,
    benchmark="benchmarks/etas.py, background density at, 3,994 events",
    factor=159,
    measured="processor time of that row with and without the kernel",
)
CHAIN = Kernel(
    name="chain",
    compiler="numba",
    module="numba_chain",
    plain="fourpoint.ops.chain.plain_filtered",
    supports=conditions.chain,
    values=1e-10,
    gradients=None,
    benchmark="benchmarks/counts.py, Markov-modulated Poisson",
    factor=217,
    measured="processor time of one filter of its 7,300 hours with and without the kernel",
)
ATTENTION = Kernel(
    name="attention",
    compiler="triton",
    module="triton_attention",
    plain="fourpoint.ops.attention.read",
    supports=conditions.attention,
    values=1e-5,
    gradients=1e-4,
    benchmark="benchmarks/gpu.py, DAPP, 2 heads, 20 features, 8 nodes per gap",
    factor=2.1,
    measured="fp.fit of that row with and without the kernel, H200",
)
RECURRENCE = Kernel(
    name="recurrence",
    compiler="triton",
    module="triton_recurrence",
    plain="fourpoint.ops.recurrence.running",
    supports=conditions.recurrence,
    values=1e-5,
    gradients=1e-5,
    benchmark="benchmarks/gpu.py, one scan: 256 sequences, 40 events, 64 modes",
    factor=15,
    measured="that row with and without the kernel, H200",
)
DEEP_DAPP_RATE = Kernel(
    name="deep_dapp_rate",
    compiler="numba",
    module="numba_deep_dapp_rate",
    plain="fourpoint.models.deep_dapp.DeepDAPP.log_total",
    supports=conditions.deep_dapp_rate,
    values=1e-5,
    gradients=None,
    benchmark="benchmarks/costs.py, evaluation: Fourpoint deep-dapp",
    factor=1.7,
    measured="processor time of that row with and without the kernel, median of 5 rounds",
)
DEEP_DAPP_LOSS = Kernel(
    name="deep_dapp_loss",
    compiler="triton",
    module="triton_deep_dapp.loss",
    plain="fourpoint.inference.likelihood.sampled_log_likelihood",
    supports=conditions.deep_dapp_loss,
    values=1e-4,
    gradients=2e-3,
    benchmark="benchmarks/gpu.py, Deep DAPP and S2P2, taxi: Fourpoint deep-dapp",
    factor=7.3,
    measured="fp.fit of 2,000 Hawkes sequences with and without the kernel, H200",
)

TABLE: dict[str, Kernel[Any]] = {
    kernel.name: kernel
    for kernel in (
        DAPP_LOSS,
        DAPP_SCORE,
        DAPP_STREAM,
        DAPP_PATHS,
        HAWKES_PATHS,
        SCORE_TABLE,
        EXCITATION,
        HAWKES_STREAM,
        HAWKES_EFFECTS,
        MONITOR,
        DECODING,
        TRIGGERING,
        TRIGGER_TREE,
        SMOOTHING,
        CHAIN,
        ATTENTION,
        RECURRENCE,
        DEEP_DAPP_RATE,
        DEEP_DAPP_LOSS,
    )
}
