r"""Newton's method for a likelihood that is concave in many non-negative numbers and has a few more
inside bounds.

theta, one row per type, must not be negative; u, the same for all rows, stays in [low, high]. The
curvature is block diagonal in the rows of theta, H_m, with a border B_m towards u and C of u alone,
so that a step costs one small solve per row:

    theta_m + H_m^-1 (gradient_m + B_m du),  S du = gradient_u + sum_m B_m' H_m^-1 gradient_m,
        S = C - sum_m B_m' H_m^-1 B_m,

with signs such that H_m, C and S are the negative curvature (S is made positive where it is not,
which keeps du uphill). Where that makes a number negative, the row's step is the best that does
not. Each row has its own step length, since rows know nothing of each other. The inverse of the
same matrix at the top holds the variances of the estimates. Source:
Nocedal and Wright, "Numerical optimization" (2006), chapters 3 and 16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from fourpoint.ops.excitation import Derivatives

# added to a curvature of unit diagonal, so that directions without any can be solved for
RIDGE = 1e-11
FLAT = 1e-8  # a number whose curvature is less than that share of a fall in it goes to 0
LONGEST = 1.0  # step of u
HALVINGS, PATIENT, EXCHANGES = 20, 3, 6
EPS = float(np.finfo(np.float64).eps)  # one rounding, as a share of a value
NOISE = 1e-12  # more than the roundings of a long sum, as a share of its value

# Arrays by their axes: M rows of W numbers each, and J numbers that all rows share.
Theta = Float[ndarray, "M W"]
Which = Bool[ndarray, "M W"]
Blocks = Float[ndarray, "M W W"]
Row = Float[ndarray, " W"]
PerRow = Float[ndarray, " M"]
Shared = Float[ndarray, " J"]
Likelihood = Callable[[ndarray, ndarray], Derivatives]


@dataclass(frozen=True)
class Point:
    """A place, and the likelihood there with its gradient and curvature."""

    theta: Theta
    u: Shared
    here: Derivatives


def climb(
    likelihood: Likelihood,
    theta: Theta,
    u: Shared,
    low: float,
    high: float,
    *,
    enough: float = 0.0,
    steps: int = 200,
) -> Point:
    """Climb from (theta, u) until the next step promises no more than ``enough`` nats, or what
    rounding hides.

    The likelihood must be finite at the start. It ends where no step of any length climbs, or after
    ``steps``, and does not
    fail: ``here.gradient`` tells how flat the end is.
    """
    at = Point(theta, u, likelihood(theta, u))
    for _ in range(steps):
        move, turn, gains = _step(at, low, high)
        gain = gains.sum()
        size = 1 + np.abs(at.here.values).sum()
        if gain <= max(enough, 4 * EPS * size):
            break
        # A last step whose gain drowns in rounding is taken on trust: it still brings the gradient
        # to 0.
        last = gain < NOISE * size
        noise = NOISE * size if last else 0.0
        ahead = _ahead(likelihood, at, move, turn, gains, low, high, noise)
        if ahead is None and turn.any():
            move, turn, gains = _step(at, low, high, still=True)
            ahead = _ahead(likelihood, at, move, turn, gains, low, high, 0.0)
        if ahead is None:
            break
        at = ahead
        if last:
            break
    return at


@dataclass(frozen=True)
class Information:
    """The inverse of the negative curvature at a point, in the parts that its structure allows for.

    With P_m = ``rows[m]`` (M, W, W), R_m = ``reach[m]`` (M, W, J) and S^-1 = ``joint`` (J, J), the
    covariance of theta_m is P_m + R_m S^-1 R_m', that of theta_m with theta_n is R_m S^-1 R_n',
    that of theta_m with u is R_m S^-1, and that of u is S^-1. ``known`` (M, W) and ``inside`` (J,)
    tell what lies on no bound and is determined by the data; the rest is taken as it is, with
    entries of 0.
    """

    rows: Blocks
    reach: Float[ndarray, "M W J"]
    joint: Float[ndarray, "J J"]
    known: Which
    inside: Bool[ndarray, " J"]

    def variances(self) -> tuple[Theta, Shared]:
        """Of theta and of u, NaN for what is not known."""
        through = np.einsum("mwj,jk,mwk->mw", self.reach, self.joint, self.reach)
        variance = _diagonals(self.rows) + through
        determined = self.known & (variance > 0)
        of_theta = np.where(determined, variance, np.nan)
        of_u = np.where(self.inside, self.joint.diagonal(), np.nan)
        return of_theta, of_u


def information(at: Point, low: float, high: float, *, beyond: bool = False) -> Information | None:
    """The inverse of the negative curvature at a maximum; None without curvature.

    Numbers of 0 are taken as known, or with ``beyond`` as free, as if they could be negative.
    """
    if not at.here.curvature.size:
        return None
    parts = _parts(at)
    border = parts.border
    free = at.theta > 0
    if beyond:
        free = np.ones_like(free)
    between = (at.u > low) & (at.u < high)
    inside = between & _matters(at)
    inverse, known = _inverses(parts.negative, free)
    reach = inverse @ border
    schur = parts.own - np.einsum("mwj,mwk->jk", border, reach)
    block = np.ix_(inside, inside)
    joint = np.zeros_like(schur)
    if inside.any():
        some = schur[block]
        smallest = np.linalg.eigvalsh(some).min()
        if smallest > RIDGE * np.abs(some).max():
            joint[block] = np.linalg.inv(some)
        else:
            inside = np.zeros_like(inside)
    return Information(inverse, reach, joint, known, inside)


def standard_errors(at: Point, low: float, high: float) -> tuple[Theta, Shared]:
    """Standard errors of theta and of u: roots of the diagonal of the inverse of the negative
    curvature.

    NaN for what lies on a bound and what the data do not determine (the others are then given
    that), and without curvature.
    """
    found = information(at, low, high)
    if found is None:
        unknown = np.full_like(at.theta, np.nan)
        return unknown, np.full_like(at.u, np.nan)
    variance, of_u = found.variances()
    return np.sqrt(variance), np.sqrt(of_u)


@dataclass(frozen=True)
class Directions:
    """The maximum if numbers could be negative, to first order, and how all parameters follow one
    of them along its profile there.

    ``theta`` (M, W) and ``u`` (J,) are the maximum. Of theta_mw, ``rows`` (M, W, W + J) is the
    change of theta_m and u, and ``curvature`` (M, W) the negative curvature of its profile; of u_j,
    ``joint`` (J, M, W + J) is the change of theta and u, and ``joint_curvature`` (J,) that of its
    profile. NaN if not determined.
    """

    theta: Theta
    u: Shared
    rows: Float[ndarray, "M W V"]
    curvature: Theta
    joint: Float[ndarray, "J M V"]
    joint_curvature: Shared


def profile_directions(at: Point, found: Information) -> Directions:
    """Directions of the profiles of all parameters at a maximum; ``found`` is beyond the edges."""
    parts = _parts(at)
    M = len(at.theta)
    J = len(at.u)
    pull = np.where(found.known, parts.gradient, 0.0)
    pull_u = parts.gradient_u + np.einsum("mwj,mw->j", found.reach, pull)
    turn = found.joint @ pull_u
    alone = np.einsum("mwv,mv->mw", found.rows, pull)
    move = alone + found.reach @ turn
    # Of each number: its column of the covariance matrix, over its variance.
    through = found.reach @ found.joint
    back = found.reach.transpose(0, 2, 1)
    own = found.rows + through @ back
    columns = np.concatenate([own, through], 2)
    variance, of_u = found.variances()
    turns = found.joint / of_u[:, None]
    moves = np.einsum("mwk,jk->jmw", found.reach, turns)
    turned = np.broadcast_to(turns[:, None], (J, M, J))
    return Directions(
        theta=at.theta + move,
        u=at.u + turn,
        rows=columns / variance[..., None],
        curvature=1 / variance,
        joint=np.concatenate([moves, turned], 2),
        joint_curvature=1 / of_u,
    )


def _step(
    at: Point, low: float, high: float, *, still: bool = False
) -> tuple[Theta, Shared, PerRow]:
    """How far to go in theta and in u (or not, where ``still``), and what the quadratic model
    promises each row for it.
    """
    parts = _parts(at)
    negative = parts.negative
    border = parts.border
    falling = parts.gradient <= 0
    at_zero = falling & (at.theta <= 0)
    move, held = _top(at.theta, negative, parts.gradient, at_zero)
    gains = _promised(at, move, np.zeros_like(at.u))
    turn = np.zeros_like(at.u)
    gradient_u = parts.gradient_u
    at_low = (at.u <= low) & (gradient_u < 0)
    at_high = (at.u >= high) & (gradient_u > 0)
    stuck = at_low | at_high | ~_matters(at)
    if still or stuck.all():
        return move, turn, gains
    free = ~stuck
    reach = _solved(negative, border, ~held)
    schur = parts.own - np.einsum("mwj,mwk->jk", border, reach)
    pull = parts.gradient_u + np.einsum("mwj,mw->j", border, move)
    some = schur[np.ix_(free, free)]
    values, vectors = np.linalg.eigh(some)
    sizes = np.abs(values)
    tiny = np.finfo(np.float64).tiny
    positive = np.maximum(sizes, RIDGE * sizes.max() + tiny)
    along = vectors.T @ pull[free] / positive
    turn[free] = vectors @ along
    length = np.abs(turn).max()
    turn *= LONGEST / max(LONGEST, length)
    gradient = parts.gradient + border @ turn
    both, _ = _top(at.theta, negative, gradient, held)
    together = _promised(at, both, turn)
    if together.sum() > gains.sum():
        return both, turn, together
    return move, np.zeros_like(turn), gains


def _top(
    theta: Theta,
    negative: Blocks,
    pull: Theta,
    held: Which,
) -> tuple[Theta, Which]:
    """The step d that maximises pull d - d' H d / 2 in each row with theta + d >= 0, and what is
    held at 0 there.

    Numbers that would cross 0 are held and those that would rise let go, all at once, which rarely
    takes more than a few rounds; rows that have not settled by then are solved one by one.
    """
    falling = np.maximum(-pull, 0.0)
    flat = _diagonals(negative) <= FLAT * falling
    held = held | flat
    move = np.zeros_like(theta)
    rows = np.arange(len(theta))
    for _ in range(EXCHANGES):
        own = negative[rows]
        at = theta[rows]
        wanted = pull[rows]
        holding = held[rows]
        fixed = np.where(holding, -at, 0.0)[..., None]
        rest = wanted[..., None] - own @ fixed
        step = fixed + _solved(own, rest, ~holding)
        rising = wanted - (own @ step)[..., 0]
        step = step[..., 0]
        join = ~holding & (at + step < 0)
        noise = 1e-9 * (1 + np.abs(wanted))
        releasable = holding & ~flat[rows]
        leave = releasable & (rising > noise)
        move[rows] = step
        held[rows] = (holding | join) & ~leave
        rows = rows[(join | leave).any(1)]
        if not len(rows):
            return move, held
    for m in rows:
        step = _least_squares(theta[m], negative[m], pull[m], flat[m])
        move[m] = step
        held[m] = theta[m] + step <= 0
    return move, held


def _least_squares(
    theta: Row,
    negative: Float[ndarray, "W W"],
    pull: Row,
    flat: Bool[ndarray, " W"],
) -> Row:
    """The same of one row as non-negative least squares; the row waits for the next step should
    that not end.
    """
    from scipy.optimize import nnls

    some = np.flatnonzero(~flat)
    part = negative[np.ix_(some, some)]
    scale = 1 / np.sqrt(part.diagonal())
    scaled = scale[:, None] * part * scale
    ridge = RIDGE * np.eye(len(some))
    root = np.linalg.cholesky(scaled + ridge)
    side = part @ theta[some] + pull[some]
    target = np.linalg.solve(root, scale * side)
    try:
        rounds = 30 * len(some)
        found, _ = nnls(root.T, target, maxiter=rounds)
    except RuntimeError:
        return np.zeros_like(theta)
    move = -theta
    move[some] += scale * found
    return move


def _solved(
    negative: Blocks,
    sides: Float[ndarray, "M W S"],
    free: Which,
) -> Float[ndarray, "M W S"]:
    """H^-1 of each right-hand side over the free numbers, 0 elsewhere."""
    scale = _scale(_diagonals(negative), free)
    matrix = _scaled(negative, scale)
    diagonals = _diagonals(matrix)
    diagonals += np.where(free, RIDGE, 1.0)
    column = scale[..., None]
    return column * np.linalg.solve(matrix, column * sides)


def _diagonals(blocks: Blocks) -> Theta:
    """The diagonals of matrices, as a view."""
    return np.einsum("mww->mw", blocks)


def _scale(diagonal: Theta, free: Which) -> Theta:
    """What makes the diagonal of a matrix 1 where numbers are free, and 0 elsewhere."""
    safe = np.where(free, diagonal, 1.0)
    return np.where(free, 1 / np.sqrt(safe), 0.0)


def _scaled(matrix: Blocks, scale: Theta) -> Blocks:
    """Matrices with rows and columns times ``scale``."""
    column = scale[:, :, None]
    row = scale[:, None]
    return column * matrix * row


def _promised(at: Point, move: Theta, turn: Shared) -> PerRow:
    """What the quadratic model of each row gains."""
    turns = np.broadcast_to(turn, (len(move), len(turn)))
    step = np.concatenate([move, turns], 1)
    linear = (at.here.gradient * step).sum(1)
    bent = step[:, None] @ at.here.curvature
    quadratic = bent @ step[..., None]
    return linear + quadratic[:, 0, 0] / 2


def _ahead(
    likelihood: Likelihood,
    at: Point,
    move: Theta,
    turn: Shared,
    gains: PerRow,
    low: float,
    high: float,
    noise: float,
) -> Point | None:
    """The first point that is higher but for ``noise``; None where there is none.

    Rows that fall, and more than the model said, have their steps halved; after PATIENT tries it is
    enough that the sum rises, and where no row is to blame all steps are halved.
    """
    shares = np.ones(len(move))
    whole = 1.0
    for attempt in range(HALVINGS):
        moved = at.theta + shares[:, None] * move
        theta = np.maximum(moved, 0.0)
        turned = at.u + whole * turn
        u = np.clip(turned, low, high)
        here = likelihood(theta, u)
        rise = here.values - at.here.values
        promised = 4 * np.minimum(gains, 0.0)
        fallen = rise < promised - noise
        any_fallen = bool(fallen.any())
        higher = rise.sum() > -noise
        if higher and (attempt >= PATIENT or not any_fallen):
            return Point(theta, u, here)
        halved = fallen if any_fallen else np.ones_like(fallen)
        shares = np.where(halved, shares / 2, shares)
        whole = whole if higher else whole / 2
    return None


@dataclass(frozen=True)
class _Parts:
    """Negative curvature of theta, its border towards u, that of u alone, and both gradients."""

    negative: Blocks
    border: Float[ndarray, "M W J"]
    own: Float[ndarray, "J J"]
    gradient: Theta
    gradient_u: Shared


def _parts(at: Point) -> _Parts:
    W = at.theta.shape[1]
    curvature = at.here.curvature
    gradient = at.here.gradient
    of_u = curvature[:, W:, W:]
    return _Parts(
        negative=-curvature[:, :W, :W],
        border=curvature[:, :W, W:],
        own=-of_u.sum(0),
        gradient=gradient[:, :W],
        gradient_u=gradient[:, W:].sum(0),
    )


def _matters(at: Point) -> Bool[ndarray, " J"]:
    """Whether a decay multiplies anything: without excitation it does not."""
    M = len(at.theta)
    J = len(at.u)
    if J == 0:
        return np.zeros(0, dtype=bool)
    excitation = at.theta[:, 1:]
    alpha = excitation.reshape(M, J, -1)
    return np.any(alpha > 0, axis=(0, 2))


def _inverses(negative: Blocks, free: Which) -> tuple[Blocks, Which]:
    """Inverses over the free numbers, 0 elsewhere, and whether the curvature determines each of
    them.
    """
    diagonal = _diagonals(negative)
    free = free & (diagonal > 0)
    scale = _scale(diagonal, free)
    values, vectors = np.linalg.eigh(_scaled(negative, scale))
    flat = values < 1e3 * RIDGE
    # An eigenvector of a number that is not free is that number alone: it has no part in the
    # others.
    positive = np.maximum(values, 0.0) + RIDGE
    scaled = vectors / positive[:, None, :]
    inverse = scaled @ vectors.transpose(0, 2, 1)
    squares = vectors**2
    shares = np.where(flat[:, None], squares, 0.0)
    in_flat = shares.sum(2)
    unknown = (in_flat > 1e-6) | ~free
    return _scaled(inverse, scale), ~unknown
