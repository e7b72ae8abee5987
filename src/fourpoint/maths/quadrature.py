r"""Integrals over many intervals at once, by two rules with two purposes.

Training draws *stratified* nodes: interval [a, b] is cut into n equal strata with one uniform node in each,

    int_a^b f  ~  (b - a)/n sum_q f(a + (b - a)(q + u_q)/n),        u_q ~ U[0, 1],

which is unbiased, so that no model can hide its rate between fixed nodes. Evaluation uses *Gauss-Legendre* nodes,
doubled only in those intervals whose error estimate is still large, until the sum of the estimates is below a tolerance; an
interval that 64 nodes do not settle is cut, since what is narrow in one is wide in its pieces.
The estimate of an interval has three parts, each for one way to be wrong:

    move   |Q_n - Q_{n/2}|, which bounds the error of the finer rule as soon as the rule converges at all;
    tail   (b - a) times the Legendre coefficients of f where the rule ends: coarse rules may agree by chance, and then
           these, read off the same nodes, are still large;
    edges  (x_1 - a) |f(a+) - p(a)| with p the polynomial through the nodes and x_1 the first of them: a rate that an
           event has just raised may fall again before x_1, and no node would see it; and the same at b.

A floor is added for rounding, and a thousandth of the tolerance, since no more was asked for. Used by `likelihood`,
`sampling` and `evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

MOST, SPLITS = 64, 12  # nodes of an interval before it is cut, and how often that may be
ROOM = 64  # pieces for each interval that there may be at once
TIMES = 2**18  # at which rates are asked for at once, so that memory does not grow with the pieces
Rate = Callable[[Float[Tensor, "B H Q"], Int[Tensor, "B H"]], Float[Tensor, "B H Q"]]
Rates = Callable[[Float[Tensor, "B H Q"], Int[Tensor, "B H"]], Float[Tensor, "B H Q M"]]


class Unconverged(ArithmeticError):
    """An integral that did not settle: the numbers say how far it got."""


def stratified(a: Float[Tensor, "*S"], b: Float[Tensor, "*S"], nodes: int, random: torch.Generator) -> Float[Tensor, "*S Q"]:
    """One uniform node in each of ``nodes`` equal strata of every [a, b]."""
    return a[..., None] + (b - a)[..., None] * (torch.arange(nodes, device=a.device) + uniform(a, nodes, random)) / nodes


def early(
    a: Float[Tensor, "*S"], b: Float[Tensor, "*S"], draws: Float[Tensor, "*S Q"]
) -> tuple[Float[Tensor, "*S Q"], Float[Tensor, "*S Q"]]:
    r"""Nodes in every [a, b] that lie closer together soon after ``a``, where an event has been, and their weights; from :func:`uniform`.

    Half of their law is that of :func:`stratified`, half is uniform in the square root of the time since a: with x the share of b - a,
    v = (x + sqrt x) / 2 is what has one draw in each of n strata, and a node weighs dx/dv / n. Unbiased.

    >>> a, b = torch.zeros(10000, dtype=torch.float64), torch.ones(10000, dtype=torch.float64)
    >>> x, weights = early(a, b, uniform(a, 4, torch.Generator().manual_seed(0)))
    >>> round(float((weights * torch.exp(-30 * x)).sum(1).mean()), 3)
    0.033
    """
    nodes = draws.shape[-1]
    root = ((1 + 8 * (torch.arange(nodes, device=a.device) + draws) / nodes).sqrt() - 1) / 2
    return a[..., None] + (b - a)[..., None] * root**2, 4 * root / ((2 * root + 1) * nodes)


def uniform(like: Float[Tensor, "*S"], nodes: int, random: torch.Generator) -> Float[Tensor, "*S Q"]:
    """What :func:`stratified` and :func:`early` draw: u, 1 - u, u, ... with one u from U[0, 1] for every interval.

    Each node alone is uniform in its part, so that the estimate is unbiased, and what a slope does to one node it undoes at the next: the
    error is a fraction of that of independent draws.
    """
    one = torch.rand(*like.shape, 1, generator=random, dtype=like.dtype, device=random.device).to(like.device)
    return torch.where(torch.arange(nodes, device=like.device) % 2 == 0, one, 1 - one)


@lru_cache(maxsize=32)
def gauss_legendre(nodes: int) -> tuple[Float[Tensor, " Q"], Float[Tensor, " Q"]]:
    """Nodes and weights on [0, 1]; exact for polynomials of degree 2 ``nodes`` - 1.

    >>> x, w = gauss_legendre(2)
    >>> bool(abs((w * x**3).sum() - 1 / 4) < 1e-12)
    True
    """
    import numpy as np

    x, w = np.polynomial.legendre.leggauss(nodes)
    return torch.from_numpy((x + 1) / 2), torch.from_numpy(w / 2)


def integrate(
    rate: Rate,
    a: Float[Tensor, "B G"],
    b: Float[Tensor, "B G"],
    *,
    tolerance: float,
    first: int = 2,
    most: int = MOST,
    splits: int = SPLITS,
) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G"]]:
    """The integral of ``rate`` over every [a, b], and an upper estimate of the error of each.

    ``rate(times (B, H, Q), which (B, H))`` is asked for the intervals ``which`` only. ``tolerance`` bounds the sum of
    all errors. ``first`` nodes, 2 or more, are doubled up to ``most``; what is still open then is cut into four, short ones first, up to
    ``splits`` times. Raises :class:`Unconverged` with the worst interval where that does not reach the tolerance.

    >>> zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    >>> value, error = integrate(lambda t, _: t.exp(), zero, one, tolerance=1e-6)
    >>> abs(value.item() - 1.718281828) <= error.item() + 1e-6
    True
    """
    value, error = integrate_each(
        lambda t, which: rate(t, which)[..., None], a, b, tolerance=tolerance, first=first, most=most, splits=splits
    )
    return value[..., 0], error


def integrate_each(
    rates: Rates,
    a: Float[Tensor, "B G"],
    b: Float[Tensor, "B G"],
    *,
    tolerance: float,
    first: int = 2,
    most: int = MOST,
    splits: int = SPLITS,
    room: int | None = None,
) -> tuple[Float[Tensor, "B G M"], Float[Tensor, "B G"]]:
    """:func:`integrate` for M rates at once; the errors are those of all of them together. There are ``room`` pieces at most at a time."""
    room = ROOM * a.numel() if room is None else room
    which = torch.arange(a.shape[1], device=a.device).expand_as(a)
    last = torch.maximum(torch.nextafter(b, a), a)  # a rate may jump at b
    begun = _asked(rates, torch.cat([a[..., None], _places(a, b, first), last[..., None]], -1), which)
    edges, value = torch.stack([begun[:, :, 0], begun[:, :, -1]], 2).sum(-1), _sum(begun[:, :, 1:-1], a, b)
    nodes, error = 2 * first, torch.full_like(value[..., 0], torch.inf)
    while True:
        low, high = a.gather(1, which), b.gather(1, which)
        found = _asked(rates, _places(low, high, nodes), which)
        fine, all_ = _sum(found, low, high), which[..., None].expand(-1, -1, value.shape[-1])
        floor = torch.where(high > low, tolerance / (1000 * error.numel()), 0.0) + 4 * torch.finfo(fine.dtype).eps * fine.abs().sum(-1)
        doubt = _doubt(found.sum(-1), edges.gather(1, which[..., None].expand(-1, -1, 2)), low, high) + floor
        error = error.scatter(1, which, (fine - value.gather(1, all_)).abs().sum(-1) + doubt)
        value = value.scatter(1, all_, fine)
        if not bool(torch.isfinite(value).all()):
            raise _not_finite(value.sum(-1), a, b)
        open_ = error > tolerance / (2 * error.numel())
        if float(error.sum()) <= tolerance or not bool(open_.any()):
            return value, error
        which = error.argsort(1, descending=True)[:, : int(open_.sum(1).max())]
        if nodes >= most:
            break
        nodes *= 2
    doubtful = float(error.gather(1, which).sum())
    if not splits or 4 * which.numel() > room:
        raise _unsettled(error, a, b, tolerance, nodes)
    low, high = a.gather(1, which)[..., None], b.gather(1, which)[..., None]
    ends = torch.cat([low, low + (high - low) * torch.tensor([1 / 16, 1 / 2, 15 / 16], dtype=low.dtype, device=low.device), high], -1)
    parts, errors = integrate_each(
        lambda t, own: rates(t, which.gather(1, own // 4)), ends[..., :-1].flatten(1), ends[..., 1:].flatten(1),
        tolerance=tolerance - float(error.sum()) + doubtful, first=max(2, nodes // 4), most=most, splits=splits - 1, room=room,
    )  # fmt: skip
    all_ = which[..., None].expand(-1, -1, value.shape[-1])
    return value.scatter(1, all_, parts.unflatten(1, (-1, 4)).sum(2)), error.scatter(1, which, errors.unflatten(1, (-1, 4)).sum(2))


def _asked(rates: Rates, times: Float[Tensor, "B H Q"], which: Int[Tensor, "B H"]) -> Float[Tensor, "B H Q M"]:
    """``rates(times, which)``, a part of the intervals at a time."""
    some = max(1, TIMES // max(1, times.shape[0] * times.shape[2]))
    if times.shape[1] <= some:
        return rates(times, which)
    return torch.cat([rates(*part) for part in zip(times.split(some, 1), which.split(some, 1), strict=True)], 1)


def _places(a: Float[Tensor, "B H"], b: Float[Tensor, "B H"], nodes: int) -> Float[Tensor, "B H Q"]:
    return a[..., None] + (b - a)[..., None] * gauss_legendre(nodes)[0].to(a)


def _sum(values: Float[Tensor, "B H Q M"], a: Float[Tensor, "B H"], b: Float[Tensor, "B H"]) -> Float[Tensor, "B H M"]:
    return (b - a).to(values.dtype)[..., None] * (values.movedim(2, 3) @ gauss_legendre(values.shape[2])[1].to(values))


def _doubt(
    values: Float[Tensor, "B H Q"], edges: Float[Tensor, "B H 2"], a: Float[Tensor, "B H"], b: Float[Tensor, "B H"]
) -> Float[Tensor, "B H"]:
    """Tail and edges of the error estimate.

    The tail is the larger of the last two coefficients, made smaller by as much as they fell over the two before.
    """
    nodes = values.shape[-1]
    *modes, left, right = (values @ _readings(nodes).to(values)).unbind(-1)
    missed = (edges - torch.stack([left, right], -1)).abs().sum(-1)
    before, last = (torch.maximum(x.abs(), y.abs()) for x, y in (modes[:2], modes[2:]))
    falling = torch.where(last < before, last / torch.where(last < before, before, 1.0), 1.0)
    return (b - a).to(values.dtype) * (last * falling + gauss_legendre(nodes)[0][0].to(values) * missed)


@lru_cache(maxsize=32)
def _readings(nodes: int) -> Float[Tensor, "Q 6"]:
    """What maps values at four nodes or more to their last four Legendre coefficients, and to their polynomial at both ends."""
    import numpy as np

    x, w = gauss_legendre(nodes)
    order = np.arange(nodes)
    modes = w.numpy()[:, None] * (2 * order + 1) * np.polynomial.legendre.legvander(2 * x.numpy() - 1, nodes - 1)
    return torch.from_numpy(np.column_stack([modes[:, -4:], modes @ (-1.0) ** order, modes.sum(1)]))


def _not_finite(value: Tensor, a: Tensor, b: Tensor) -> Unconverged:
    row, group = (int(i) for i in torch.nonzero(~torch.isfinite(value))[0])
    return Unconverged(
        f"expected a finite integral of the intensity; received {float(value[row, group])} over "
        f"[{float(a[row, group]):g}, {float(b[row, group]):g}] of row {row}. The model's rate explodes there: "
        "train longer or with a lower learning rate, or use link='softplus'."
    )


def _unsettled(error: Tensor, a: Tensor, b: Tensor, tolerance: float, nodes: int) -> Unconverged:
    row, group = divmod(int(error.argmax()), error.shape[1])
    return Unconverged(
        f"expected integrals settled to {tolerance:.3g}; received a summed change of {float(error.sum()):.3g} at {nodes} nodes, "
        f"most of it ({float(error[row, group]):.3g}) over [{float(a[row, group]):g}, {float(b[row, group]):g}] of row {row}. "
        "Raise the tolerance, or cut long windows."
    )
