"""Plots of which type of event leads to which: a heat map, and a graph.

Colours are told apart by colour-blind readers: blue for more events, orange for fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.errors import UserError
from fourpoint.plots.charts import COLOURS, INK, SOFT, axes_or_new, look
from fourpoint.sanitising import plot_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMES = 40  # on an axis
WIDEST = 4.0  # points of an arrow
LABEL = "expected events that one event leads to"


def influence_map(
    matrix: ArrayLike,
    names: Sequence[str],
    *,
    edges: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A heat map of expected events (M, M), the exciting type last; frames mark ``edges``.

    >>> ax = influence_map(
    ...     [[0.3, 0.0], [0.1, 0.2]], ["fire", "medical"], edges=np.eye(2, dtype=bool)
    ... )
    >>> ax.get_xlabel(), len(ax.patches)
    ('one event of this type', 2)
    """
    table, chosen = _checked(matrix, names, edges)
    M = len(names)
    shown = np.nan_to_num(table)
    signed = bool((shown < 0).any())
    limit = float(np.abs(shown).max()) or 1.0
    with look():
        from matplotlib.patches import Rectangle

        size = min(3.2 + 0.28 * M, 11.0)
        ax = axes_or_new(ax, size + 1.2, size)
        ax.grid(False)
        colours = "PuOr" if signed else "Blues"
        lowest = -limit if signed else 0.0
        image = ax.imshow(table, cmap=colours, vmin=lowest, vmax=limit, interpolation="nearest")
        for b, a in np.argwhere(chosen):
            frame = Rectangle((a - 0.5, b - 0.5), 1, 1, fill=False, edgecolor=INK, linewidth=1.4)
            ax.add_patch(frame)
        if M <= MOST_NAMES:
            text = [plot_name(name) for name in names]
            turned = 90 if max(map(len, text)) > 3 and M > 6 else 0
            ax.set_xticks(range(M), text, rotation=turned)
            ax.set_yticks(range(M), text)
        ax.set_xlabel("one event of this type")
        ax.set_ylabel("leads to events of this type")
        scale = ax.figure.colorbar(image, ax=ax, shrink=0.8, pad=0.02)
        scale.outline.set_visible(False)
        scale.set_label(LABEL)
    return ax


def influence_graph(
    matrix: ArrayLike,
    names: Sequence[str],
    *,
    edges: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The ``edges`` (all pairs that are not 0 where None) as arrows between types on a circle.

    The width of an arrow grows with the expected events; blue arrows lead to more events and orange
    ones to fewer. A ring around a type is its influence on itself.

    >>> ax = influence_graph([[0.3, 0.0], [0.1, 0.2]], ["fire", "medical"])
    >>> sorted(text.get_text() for text in ax.texts if text.get_text())
    ['fire', 'medical']
    """
    table, chosen = _checked(matrix, names, edges)
    M = len(names)
    strength = np.abs(np.nan_to_num(table))
    top = float(strength[chosen].max(initial=0.0)) or 1.0
    angle = np.pi / 2 - 2 * np.pi * np.arange(M) / M
    spots = np.stack([np.cos(angle), np.sin(angle)], 1)
    with look():
        size = min(3.6 + 0.16 * M, 9.0)
        ax = axes_or_new(ax, size, size)
        ax.grid(False)
        for b, a in np.argwhere(chosen):
            shade = COLOURS[0] if table[b, a] > 0 else COLOURS[1]
            width = 0.4 + (WIDEST - 0.4) * strength[b, a] / top
            if a == b:
                ring = spots[a] * 1.07
                ax.plot(*ring, "o", ms=15, mfc="none", mec=shade, mew=width, alpha=0.85, zorder=2)
                continue
            ax.annotate(
                "",
                spots[b],
                spots[a],
                arrowprops=dict(
                    arrowstyle="-|>",
                    color=shade,
                    lw=width,
                    alpha=0.75,
                    shrinkA=7,
                    shrinkB=7,
                    connectionstyle="arc3,rad=0.15",
                ),
            )
        ax.plot(*spots.T, "o", ms=8, color=SOFT, zorder=3)
        for m, name in enumerate(names):
            x, y = 1.28 * spots[m]
            sides = {-1: "right", 0: "center", 1: "left"}
            side = sides[int(np.sign(np.round(x, 2)))]
            ax.text(x, y, plot_name(name), ha=side, va="center", color=INK)
        ax.set_xlim(-1.7, 1.7)
        ax.set_ylim(-1.45, 1.45)
        ax.set_aspect("equal")
        ax.set_xticks([])
        ax.set_yticks([])
        for spine in ax.spines.values():
            spine.set_visible(False)
        ax.set_xlabel(f"width of an arrow: {LABEL}\n(the widest is {top:.3g})")
    return ax


def _checked(
    matrix: ArrayLike, names: Sequence[str], edges: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    table = np.asarray(matrix, dtype=np.float64)
    chosen = np.nan_to_num(table) != 0 if edges is None else np.asarray(edges, dtype=bool)
    expected = (len(names), len(names))
    if table.shape != expected or chosen.shape != expected:
        raise UserError(
            f"a matrix and edges with the shape {expected}",
            f"{table.shape} and {chosen.shape}",
            "Pass one name for each type.",
        )
    return table, chosen
