"""Which cases each kernel supports: None, or the reason why the plain function has to run.

The functions look at shapes, settings and devices, and import nothing: neither torch nor a
compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Numbers in the states of a batch from which DAPP's loss is compiled: that takes seconds, once.
DAPP_WORK = 2**15
SCORE_WORK = 2**15  # the same for its evaluation
RATE_WORK = 2**8  # times at which the rate of Deep DAPP is asked for from which it is compiled
DAPP_MEMORY = 2**26  # numbers held for one sequence at most
MOST_MARKS = 16  # of kernels that keep all marks of a sequence in memory or in registers
MOST_FEATURES = 128  # per head in registers
LONGEST = 2048  # events of a sequence; longer ones come in pieces, which need states in between
# Moments n J M from which the sums over events of a Hawkes process are compiled: loading numba
# takes a second, once.
EXCITATION_WORK = 2**19
SMALLEST_TILE = 16  # rows and columns of a matrix product in Triton
DEEP_FEATURES = 16  # of an elapsed time, one of them a 1 for the bias
TRIGGER_WORK = 2**16  # pairs of a query and an event from which their sums are compiled
CHAIN_WORK = 2**11  # numbers of the filter of a hidden Markov chain from which it is compiled
TREE_WORK = 2**24  # pairs from which distant events are summed in groups
LARGEST_INDEX = 2**31
PATH_NUMBERS = 2**26  # in the tables of the sampler of DAPP's paths


def always() -> str | None:
    """All cases are supported."""
    return None


def dapp_loss(
    parameter: Tensor,
    times: Tensor,
    *,
    modes: int,
    nodes: int,
    marks: int,
    training: bool,
    scanned: bool,
    normalise: str,
    values: str,
    sequences: int | None = None,
) -> str | None:
    """(B, N) ``times``; ``modes`` of all heads together, ``nodes`` per gap; ``sequences`` of the
    whole batch, of which processes take parts: all of them decide alike.
    """
    B, N = times.shape
    B = sequences or B
    if not training:
        return "the model is not training"
    if not scanned:
        return "attention is not a scan over generated Fourier features"
    if normalise != "none":
        return f"weights are normalised: {normalise}"
    if values != "mark":
        return f"values are not one number per mark: {values}"
    if marks > MOST_MARKS:
        return f"{marks} marks, at most {MOST_MARKS}"
    if N > LONGEST:
        return f"sequences of {N} events, at most {LONGEST}"
    if (reason := _elsewhere(parameter, "cpu")) or (reason := _elsewhere(times, "cpu")):
        return reason
    if not _is(parameter, "float32"):
        return f"parameters of type {parameter.dtype}, not float32"
    if B * (N + 1) * modes < DAPP_WORK:
        return "too little work to repay compiling"
    if 2 * (N + 1) * (nodes + 1) * modes > DAPP_MEMORY:
        return "one sequence needs too much memory"
    return None


def dapp_score(
    parameter: Tensor, times: Tensor, *, scanned: bool, normalise: str, modes: int
) -> str | None:
    """(B, N) ``times``; ``modes`` of all heads together."""
    if not scanned:
        return "attention is not a scan over generated Fourier features"
    if normalise != "none":
        return f"weights are normalised: {normalise}"
    if (reason := _elsewhere(parameter, "cpu")) or (reason := _elsewhere(times, "cpu")):
        return reason
    if times.shape[0] * (times.shape[1] + 1) * modes < SCORE_WORK:
        return "too little work to repay compiling"
    return None


def dapp_stream(*, linear: bool, normalise: str) -> str | None:
    """``linear`` if attention is a sum over the states of Fourier modes."""
    if not linear:
        return "attention is not a sum over the states of Fourier modes"
    if normalise != "none":
        return f"weights are normalised: {normalise}"
    return None


def dapp_paths(*, numbers: int) -> str | None:
    """``numbers`` in the tables of attention up to the horizon."""
    if numbers > PATH_NUMBERS:
        return f"tables of {numbers:,} numbers, at most {PATH_NUMBERS:,}"
    return None


def excitation(work: int) -> str | None:
    """``work`` is the number of moments, n J M."""
    return "too little work to repay compiling" if work < EXCITATION_WORK else None


def attention(
    parameter: Tensor,
    times: Tensor,
    *,
    heads: int,
    features: int,
    marks: int,
    differentiated: bool,
    normalise: str,
) -> str | None:
    """(B, N) ``times``; ``features`` per head; ``differentiated`` if a training step needs
    gradients.
    """
    if reason := _elsewhere(times, "cuda"):
        return reason
    if not differentiated:
        return "no gradient is needed"
    if not _is(parameter, "float32"):
        return f"parameters of type {parameter.dtype}, not float32"
    if normalise != "none":
        return f"weights are normalised: {normalise}"
    if not 0 < heads or features > MOST_FEATURES or marks > MOST_MARKS:
        limits = f"1 head, at most {MOST_FEATURES} features and {MOST_MARKS} marks"
        return f"{heads} heads, {features} features and {marks} marks, at least {limits}"
    if times.shape[1] >= LONGEST:
        return f"sequences of {times.shape[1]} events, fewer than {LONGEST}"
    return None


def recurrence(factor: Tensor, driven: Tensor) -> str | None:
    """Factors and inputs of the recursion."""
    if reason := _elsewhere(driven, "cuda"):
        return reason
    if not (_is(factor, "complex64") and _is(driven, "complex64")):
        return f"numbers of type {factor.dtype} and {driven.dtype}, not complex64"
    return None


def deep_dapp_rate(
    parameter: Tensor, times: Tensor, *, differentiated: bool, training: bool
) -> str | None:
    """(B, G, Q) ``times``; ``differentiated`` if gradients are kept."""
    if training or differentiated:
        return "the model is training or a gradient is needed"
    if (reason := _elsewhere(parameter, "cpu")) or (reason := _elsewhere(times, "cpu")):
        return reason
    if not _is(parameter, "float32"):
        return f"parameters of type {parameter.dtype}, not float32"
    if times.numel() < RATE_WORK:
        return "too little work to repay compiling"
    return None


def deep_dapp_loss(
    parameter: Tensor,
    times: Tensor,
    *,
    width: int,
    modes: int,
    features: int,
    nodes: int,
    gated: bool,
    form: str,
    spatial: bool,
) -> str | None:
    """(B, N) ``times``; ``width`` of tokens, ``modes`` per layer, ``features`` of an elapsed time,
    ``nodes`` per gap.
    """
    B, N = times.shape
    if reason := _elsewhere(times, "cuda"):
        return reason
    if not _is(parameter, "float32"):
        return f"parameters of type {parameter.dtype}, not float32"
    if spatial:
        return "events have places"
    if not gated or form != "scan":
        return "layers are not gated scans"
    for size in (width, modes):
        if size < SMALLEST_TILE or size & (size - 1):
            return f"width and modes have to be powers of 2 from {SMALLEST_TILE}, not {size}"
    if not 0 < N <= LONGEST:
        return f"sequences of {N} events, 1 to {LONGEST}"
    if features >= DEEP_FEATURES:
        return f"{features} features of elapsed times, fewer than {DEEP_FEATURES}"
    if B * (N + 1) * (nodes + 1) * max(width, modes) >= LARGEST_INDEX:
        return "a batch whose elements need more than 32 bits to count"
    return None


def _elsewhere(tensor: Tensor, device: str) -> str | None:
    """The reason if ``tensor`` is on another kind of device."""
    found = tensor.device.type
    return None if found == device else f"tensors on {found}, not {device}"


def _is(tensor: Tensor, kind: str) -> bool:
    return str(tensor.dtype) == f"torch.{kind}"


def triggering(pairs: int, device: str) -> str | None:
    """`TRIGGERING`: many pairs, on the CPU."""
    if device != "cpu":
        return f"tensors on {device}, not cpu"
    if pairs < TRIGGER_WORK:
        return f"{pairs:,} pairs, fewer than {TRIGGER_WORK:,}"
    return None


def chain(numbers: int, device: str, dtype: str, *, differentiated: bool) -> str | None:
    """`CHAIN`: many numbers in float64 on the CPU, of which no gradient is wanted."""
    if differentiated:
        return "gradients are wanted"
    if device != "cpu":
        return f"tensors on {device}, not cpu"
    if dtype != "torch.float64":
        return f"numbers of type {dtype}, not float64"
    if numbers < CHAIN_WORK:
        return f"{numbers:,} numbers, fewer than {CHAIN_WORK:,}"
    return None


def trigger_tree(pairs: int, device: str) -> str | None:
    """`TRIGGER_TREE`: very many pairs, on the CPU."""
    if device != "cpu":
        return f"tensors on {device}, not cpu"
    if pairs < TREE_WORK:
        return f"{pairs:,} pairs, fewer than {TREE_WORK:,}"
    return None
