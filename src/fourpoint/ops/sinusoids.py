r"""Functions on a box as sums of sinusoids: a lattice of frequencies, shared by a kernel in space
and by smooth fields.

In coordinates u that run from 0 to 1 on every axis of the box, the frequencies are those of a
Fourier series whose period is longer than the box, so that what leaves on one side does not come
back on the other:

    omega_j = 2 pi n_j / PERIOD,   n_j whole numbers with |n_j| <= n, one of each pair +-n_j,
    f(u) = sum_j (a_j cos omega_j'u + b_j sin omega_j'u)                      a field, or a log-rate
    kappa(u, u') = sum_j w_j cos omega_j'(u - u'),  w_j >= 0, sum_j w_j = 1  a stationary kernel,
        by Bochner's theorem

A Gaussian kernel of width s (a share of the box) needs frequencies up to 4/s or so: n = 8 resolves
s of about a tenth, with no error
from drawing features at random. Axes: D frequencies, F = 2 D features (all cosines, then all
sines), k axes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from fourpoint.kernels.constants import FADED
from fourpoint.ops.quadrature import gauss_legendre

# lengths of the box: an event at one end has an image a quarter of a box beyond the other
PERIOD = 1.25
CHUNK = 64  # events whose states are formed by one product
CURVED = 2**16  # points of the grid on which a field is searched for its largest value


def lattice(dimension: int, highest: int) -> Float[Tensor, "D k"]:
    """Whole numbers n_j with norm at most ``highest``, the zero first, one of every pair of
    opposites; float64.

    >>> lattice(1, 3).flatten().tolist()
    [0.0, 1.0, 2.0, 3.0]
    >>> len(lattice(2, 8))
    99
    """
    half = []
    for n in product(range(-highest, highest + 1), repeat=dimension):
        size = sum(x * x for x in n)
        opposite = tuple(-x for x in n)
        if size <= highest**2 and n > opposite:
            half.append((size, n))
    zero = (0,) * dimension
    numbers = [zero, *(n for _, n in sorted(half))]
    return torch.tensor(numbers, dtype=torch.float64)


def features(numbers: Float[Tensor, "D k"], places: Float[Tensor, "*S k"]) -> Float[Tensor, "*S F"]:
    """Cosines and sines of omega_j'u at ``places`` u.

    >>> features(lattice(1, 1), torch.tensor([[0.3125]]).double()).round(
    ...     decimals=6
    ... ).tolist()  # a quarter of the period
    [[1.0, 0.0, 0.0, 1.0]]
    """
    frequency = numbers.T * (2 * math.pi / PERIOD)
    angle = places @ frequency
    return torch.cat([angle.cos(), angle.sin()], -1)


def amplitudes(coefficients: Float[Tensor, "*S F"]) -> Float[Tensor, "*S D"]:
    """sqrt(a_j^2 + b_j^2): the amplitude of each sinusoid."""
    a, b = coefficients.chunk(2, -1)
    return torch.hypot(a, b)


def fading_states(
    decay: Float[Tensor, " K"],
    gaps: Float[Tensor, "B N"],
    values: Float[Tensor, "B N K"],
    phi: Float[Tensor, "B N F"],
    before: Float[Tensor, "B K F"],
) -> Float[Tensor, "B K P F"]:
    """States before the first event and just after each: S_ki = exp(-decay_k gap_i) S_k,i-1 + v_ki
    phi_i; P = N + 1.

    Events go in chunks of CHUNK. Inside one, all states are a product of a triangle of fading
    values with the features, and what came before the chunk fades beside it, so that the work is in
    matrix products; no exponent is positive.

    >>> one = torch.ones(1, 3, 1)
    >>> fading_states(
    ...     torch.zeros(1), torch.ones(1, 3), one, one, torch.zeros(1, 1, 1)
    ... ).flatten().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    held = before
    parts = [before[:, :, None]]
    N = gaps.shape[1]
    for first in range(0, N, CHUNK):
        some = slice(first, min(first + CHUNK, N))
        own = values[:, some].transpose(1, 2)
        age = gaps[:, some].cumsum(1)
        apart = age[:, :, None] - age[:, None]
        triangle = torch.ones_like(apart, dtype=torch.bool).tril()
        between = torch.where(triangle, apart, 0.0)
        fade = _fade(decay[:, None, None], between[:, None])
        weights = torch.where(triangle[:, None], fade * own[:, :, None], 0.0)
        inside = torch.matmul(weights.flatten(1, 2), phi[:, some])
        inside = inside.unflatten(1, (len(decay), -1))
        carried = _fade(decay[:, None], age[:, None])
        state = torch.addcmul(inside, carried[..., None], held[:, :, None])
        parts.append(state)
        held = state[:, :, -1]
    return torch.cat(parts, 2)


def _fade(decay: Tensor, age: Tensor) -> Tensor:
    """exp(-decay age)."""
    return torch.exp((-decay * age).clamp(min=FADED))


@lru_cache(maxsize=32)
def box_rule(dimension: int, order: int) -> tuple[Float[Tensor, "S k"], Float[Tensor, " S"]]:
    """A tensor Gauss rule of ``order`` nodes per axis on [0, 1]^k: nodes and weights, which sum to
    1.

    >>> nodes, weights = box_rule(2, 3)
    >>> round(float(weights @ nodes.prod(1) ** 5), 12)  # (1 / 6)^2
    0.027777777778
    """
    x, w = gauss_legendre(order)
    nodes = _grid(x, dimension)
    weights = _grid(w, dimension).prod(-1)
    return nodes, weights


def _grid(values: Float[Tensor, " V"], dimension: int) -> Float[Tensor, "S k"]:
    """All tuples of ``values``, the last axis fastest."""
    axes = torch.meshgrid(*[values] * dimension, indexing="ij")
    return torch.stack(axes, -1).reshape(-1, dimension)


def scattered(dimension: int, cells: int, random: torch.Generator) -> Float[Tensor, "S k"]:
    """One uniform point in each of ``cells``^k equal cells of [0, 1]^k: their mean is an unbiased
    integral.
    """
    corners = list(product(range(cells), repeat=dimension))
    corner = torch.tensor(corners, dtype=torch.float64)
    inside = torch.rand(corner.shape, generator=random, dtype=torch.float64, device=random.device)
    return (corner + inside.cpu()) / cells


@torch.no_grad()
def largest(
    numbers: Float[Tensor, "D k"], coefficients: Float[Tensor, "R F"], cells: int = 1
) -> Float[Tensor, "R C"]:
    """Certain upper bounds of R fields on each of C = ``cells``^k equal cells of the box [0, 1]^k,
    the last axis fastest.

    On a grid of spacing h that holds a cell's faces and corners, the highest point of a field in
    the cell has a grid point within h/2 along each axis in the same face, along which the
    derivative is 0 there. So it is at most h^2/8 sum_j |c_j| (sum_a |omega_ja|)^2 above the largest
    value on the cell's grid.

    >>> c = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).double()
    >>> bool(1.0 <= largest(lattice(1, 1), c)[0, 0] < 1.001)
    True
    """
    k = numbers.shape[1]
    each = max(2, int(CURVED ** (1 / k)) // cells)  # steps of the grid in a cell
    grid = torch.linspace(0, 1, each * cells + 1, dtype=torch.float64)
    places = _grid(grid, k)
    coefficients = coefficients.double()
    rows = max(1, 2**22 // coefficients.shape[1])
    values = [features(numbers, some) @ coefficients.T for some in places.split(rows)]
    top = torch.cat(values).T.unflatten(1, (len(grid),) * k)
    for axis in range(1, k + 1):
        top = top.unfold(axis, each + 1, each).amax(-1)
    speed = numbers.abs().sum(1) * (2 * math.pi / PERIOD)
    bend = (amplitudes(coefficients) * speed.square()).sum(1, keepdim=True)
    return top.flatten(1) + bend / (8 * (each * cells) ** 2)
