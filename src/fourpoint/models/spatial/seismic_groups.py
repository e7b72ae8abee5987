"""Groups of distant events for the seismic DAPP: the arrays that `kernels.numba_seismic_groups`
takes.

Which events and groups a query sums over is chosen with the ETAS kernel of the model
(`kernels.numba_trigger_tree`), from which the spectrum was fitted. A group has the weight

    omega_j = kappa_j D_j^(q-1)

of its events, what is left of an ETAS kernel far away, at their centroid and with their mean D. An
event that is drawn from a group enters with its own kernel over the probability of the draw, which
has no bias whatever the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourpoint import kernels
from fourpoint.kernels import numba_trigger_tree

if TYPE_CHECKING:
    from fourpoint.models.spatial.seismic_dapp import Kernels, SeismicDAPP

Array = NDArray[np.float64]
TOLERANCE = 1e-7  # as that of `ops.triggering`; the spectrum is rougher than the power law
SHARE = 1e-3  # as that of `kernels.numba_trigger_tree`: that of attention weights that are kept
QUERIES = 8192  # whose groups are held at once


class Groups(NamedTuple):
    """A tree of N events, and what the loops need to know of events and of groups after them."""

    grouped: numba_trigger_tree.Grouped
    times: Array  # (N + G,), as all down to boost
    places: Array
    moved: Array
    kappa: Array
    spread: Array
    narrow: Array
    boost: Array
    omega: Array  # (N,)

    @property
    def links(self) -> tuple[NDArray[np.int64], ...]:
        """The tree, as the loops take it."""
        return self.grouped.tree[:5]

    @property
    def kernels(self) -> tuple[Array, ...]:
        """Of events and groups, as the loops take them."""
        return self[1:8]


def pays(pairs: int) -> bool:
    """Whether there are so many pairs of events that groups of them are quicker."""
    return kernels.TRIGGER_TREE.choose(pairs, "cpu") is not None


@torch.no_grad()
def groups_of(model: SeismicDAPP, known: Kernels, delta: Tensor, features: Tensor) -> Groups:
    """Groups of the events ``known``, with these magnitudes above m_c and standardised features."""
    loops = kernels.TRIGGER_TREE.load()
    theta = model.strengths().theta().numpy()
    events = numba_trigger_tree.Events(
        known.times,
        known.places,
        np.ascontiguousarray(delta.numpy()),
        np.ascontiguousarray(features.numpy()),
    )
    grouped = numba_trigger_tree.group(loops, events, theta)
    power = float(theta[5]) - 1
    omega = known.kappa * known.spread**power
    count = len(grouped.delta)
    weight, mean = np.zeros(count), np.zeros((count, known.boost.shape[1]))
    columns = np.ascontiguousarray(known.boost / known.kappa[:, None])
    loops.group_sums(*grouped.tree[:5], omega, columns, weight, mean)
    spread = np.exp(theta[3] + theta[4] * grouped.delta)
    kappa = weight / spread**power
    places = grouped.moments.place
    own = (
        grouped.moments.time,
        places,
        places @ model.stretch.numpy().T,
        kappa,
        spread,
        np.exp(-theta[4] * grouped.delta),
        kappa[:, None] * mean,
    )
    times, *rest = (
        np.ascontiguousarray(np.concatenate(pair)) for pair in zip(known[:7], own, strict=True)
    )
    places, moved, kappa, spread, narrow, boost = rest
    return Groups(grouped, times, places, moved, kappa, spread, narrow, boost, omega)


def chosen(
    model: SeismicDAPP,
    groups: Groups,
    which: NDArray[np.int64],
    background: Array,
    tolerance: float = TOLERANCE,
) -> Iterator[tuple[int, int, NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]]:
    """What the events ``which``, with this rate of the ``background``, sum over: for some of them
    after the other, their slice of ``which``, offsets, entries and factors.
    """
    loops = kernels.TRIGGER_TREE.load()
    factor = float(model.strengths().log_factor(spatial=True).detach().exp())
    times, places = groups.times, groups.places
    for low in range(0, len(which), QUERIES):
        some = which[low : low + QUERIES]
        asked = numba_trigger_tree.Asked(
            times[some], places[some], some, background[low : low + QUERIES] / factor
        )
        found = numba_trigger_tree.choose(loops, groups.grouped, asked, tolerance, SHARE)
        yield low, low + len(some), *found
