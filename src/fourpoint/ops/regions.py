r"""Regions of a map: polygons in km, integrals of isotropic densities over them, and the projection
of longitude and latitude.

The share of an isotropic density around x that falls into a polygon is a sum over its edges. With
F(r) the share within the distance r, h the distance from x to the line of the edge (positive if x
is on the inner side) and s the position along it,

    share = 1 / (2 pi) sum over edges of int h F(sqrt(h^2 + s^2)) / (h^2 + s^2) ds.

For a power law F(r) = 1 - (1 + r^2 / D)^(1-q), and for a normal density F(r) = 1 - exp(-r^2 / 2D).
Both integrands are analytic in s but for points at distance sqrt(D + h^2) from the real axis, so
that the Gauss-Legendre rule in u = asinh(s / sqrt(D + h^2)) converges geometrically; the change
from :data:`COARSE` to :data:`NODES` nodes states its error.

Longitude and latitude are projected to km by the azimuthal equidistant projection about a centre:
distances from the centre are exact on a sphere of radius :data:`EARTH`.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.errors import UserError
from fourpoint.ops.quadrature import gauss_legendre

EARTH = 6371.0088  # km, the mean radius
NODES, COARSE = 24, 16  # of the rule on every edge
CORNERS = 3  # of a polygon, at least

Law = Literal["power", "normal"]


def rectangle(
    low: tuple[float, float] | NDArray[np.float64], high: tuple[float, float] | NDArray[np.float64]
) -> Float[Tensor, "4 2"]:
    """The corners of a box, counterclockwise.

    >>> rectangle((0.0, 0.0), (2.0, 1.0)).tolist()
    [[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [0.0, 1.0]]
    """
    corners = [(low[0], low[1]), (high[0], low[1]), (high[0], high[1]), (low[0], high[1])]
    return torch.tensor(corners, dtype=torch.float64)


def polygon(corners: NDArray[np.float64]) -> Float[Tensor, "V 2"]:
    """A simple polygon (V, 2) with its corners counterclockwise, the closing one left out.

    Raises :class:`UserError` unless there are three corners that enclose an area.

    >>> polygon(np.array([[0, 0], [0, 1], [1, 1], [0, 0.0]])).tolist()
    [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
    """
    corners = np.asarray(corners, dtype=np.float64)
    if corners.ndim == 2 and len(corners) > 1 and bool((corners[0] == corners[-1]).all()):
        corners = corners[:-1]
    good = corners.ndim == 2 and corners.shape[1] == 2 and len(corners) >= CORNERS
    if not good or not np.isfinite(corners).all() or not area(torch.from_numpy(corners)):
        raise UserError(
            "a polygon of three or more corners (x, y) that enclose an area",
            f"an array of shape {corners.shape}",
            "Pass its corners in order, in km.",
        )
    found = torch.from_numpy(np.ascontiguousarray(corners))
    return found if area(found) > 0 else found.flip(0)


def area(corners: Float[Tensor, "V 2"]) -> float:
    """The area of a polygon, positive if its corners run counterclockwise.

    >>> area(rectangle((0.0, 0.0), (2.0, 3.0)))
    6.0
    """
    x, y = corners.T
    return float((x * y.roll(-1) - x.roll(-1) * y).sum() / 2)


def inside(
    places: Float[Tensor, "N 2"], corners: Float[Tensor, "V 2"], *, margin: float = 0.0
) -> Tensor:
    """Which places lie in a polygon (N,), or within ``margin`` of its boundary.

    >>> square = rectangle((0.0, 0.0), (2.0, 2.0))
    >>> inside(torch.tensor([[1.0, 1.0], [3.0, 1.0]]).double(), square).tolist()
    [True, False]
    """
    a = corners
    b = corners.roll(-1, 0)
    x, y = places[:, :1], places[:, 1:]
    crosses = (a[:, 1] > y) != (b[:, 1] > y)
    rise = torch.where(b[:, 1] == a[:, 1], torch.ones_like(a[:, 1]), b[:, 1] - a[:, 1])
    left_of = x < a[:, 0] + (y - a[:, 1]) * (b[:, 0] - a[:, 0]) / rise
    within = (crosses & left_of).sum(1) % 2 == 1
    along = b - a
    share = ((places[:, None] - a) * along).sum(-1) / along.square().sum(-1)
    nearest = a + share.clamp(0, 1)[..., None] * along
    near = (places[:, None] - nearest).norm(dim=-1).min(1).values <= margin
    return within | near


def mass(
    places: Float[Tensor, "N 2"],
    width: Float[Tensor, " N"],
    corners: Float[Tensor, "V 2"],
    q: Float[Tensor, ""] | None = None,
    nodes: int = NODES,
) -> Float[Tensor, " N"]:
    """The share of an isotropic density around each of ``places`` that falls into a polygon.

    Arguments
        width: D of each density, in km^2.
        q: the exponent of the power law; None for a normal density with the variance D per axis.
        nodes: of the rule on every edge.

    >>> square = rectangle((-1.0, -1.0), (1.0, 1.0))
    >>> centre, d = torch.zeros(1, 2).double(), torch.ones(1).double()
    >>> exact = torch.special.ndtr(torch.tensor([-1.0, 1.0]).double()).diff() ** 2
    >>> bool(torch.isclose(mass(centre, d, square), exact, atol=1e-9))
    True
    """
    a = corners.to(places)
    along = a.roll(-1, 0) - a
    length = along.norm(dim=1)
    unit = along / length[:, None]
    offset = places[:, None] - a
    first = -(offset * unit).sum(-1)
    h = unit[:, 0] * offset[..., 1] - unit[:, 1] * offset[..., 0]
    scale = (width[:, None] + h.square()).sqrt().detach()
    low = torch.asinh(first / scale)
    high = torch.asinh((first + length) / scale)
    x, weight = (part.to(places) for part in gauss_legendre(nodes))
    u = low[..., None] + (high - low)[..., None] * x
    s = scale[..., None] * torch.sinh(u)
    square = h.square()[..., None] + s.square()
    ratio = square / width[:, None, None]
    if q is None:
        within = -torch.expm1(-ratio / 2)
    else:
        within = -torch.expm1((1 - q) * torch.log1p(ratio))
    tiny = torch.finfo(places.dtype).tiny
    each = h[..., None] * within / square.clamp(min=tiny) * scale[..., None] * torch.cosh(u)
    return ((each @ weight) * (high - low)).sum(1) / (2 * math.pi)


@torch.no_grad()
def mass_error(
    places: Float[Tensor, "N 2"],
    width: Float[Tensor, " N"],
    corners: Float[Tensor, "V 2"],
    q: Float[Tensor, ""] | None = None,
) -> float:
    """The largest change of :func:`mass` from :data:`COARSE` to :data:`NODES` nodes, an upper
    estimate of its error.
    """
    if not len(places):
        return 0.0
    fine, coarse = (mass(places, width, corners, q, n) for n in (NODES, COARSE))
    return float((fine - coarse).abs().max())


def project(
    longitude: NDArray[np.float64], latitude: NDArray[np.float64], centre: tuple[float, float]
) -> NDArray[np.float64]:
    """x (east) and y (north) in km, (N, 2), by the azimuthal equidistant projection about
    ``centre`` (longitude, latitude in degrees). Longitudes may wrap.

    >>> project(np.array([0.0, 181.0]), np.array([1.0, 0.0]), (-179.0, 0.0))[1].round(6).tolist()
    [0.0, 0.0]
    >>> round(float(project(np.array([10.0]), np.array([1.0]), (10.0, 0.0))[0, 1]), 3)
    111.195
    """
    lam = np.radians((np.asarray(longitude) - centre[0] + 180.0) % 360.0 - 180.0)
    phi = np.radians(np.asarray(latitude))
    phi0 = math.radians(centre[1])
    across = np.cos(phi) * np.sin(lam)
    up = math.cos(phi0) * np.sin(phi) - math.sin(phi0) * np.cos(phi) * np.cos(lam)
    ahead = math.sin(phi0) * np.sin(phi) + math.cos(phi0) * np.cos(phi) * np.cos(lam)
    sine = np.hypot(across, up)
    angle = np.arctan2(sine, ahead)
    factor = np.where(sine > 0, angle / np.where(sine > 0, sine, 1.0), 1.0)
    return EARTH * np.column_stack([factor * across, factor * up])


def unproject(
    places: NDArray[np.float64], centre: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Longitude from -180 to below 180 and latitude of places in km: the inverse of
    :func:`project`.

    >>> centre = (170.0, -40.0)
    >>> lon, lat = unproject(project(np.array([-175.0]), np.array([-45.0]), centre), centre)
    >>> lon.round(9).tolist(), lat.round(9).tolist()
    ([-175.0], [-45.0])
    """
    x, y = np.asarray(places, dtype=np.float64).T
    distance = np.hypot(x, y)
    angle = distance / EARTH
    share = np.where(distance > 0, np.sin(angle) / np.where(distance > 0, distance, 1.0), 1 / EARTH)
    phi0 = math.radians(centre[1])
    sine = np.cos(angle) * math.sin(phi0) + y * share * math.cos(phi0)
    latitude = np.degrees(np.arcsin(np.clip(sine, -1.0, 1.0)))
    turn = np.arctan2(x * share, np.cos(angle) * math.cos(phi0) - y * share * math.sin(phi0))
    longitude = (np.degrees(turn) + centre[0] + 180.0) % 360.0 - 180.0
    return longitude, latitude


def middle(longitude: NDArray[np.float64], latitude: NDArray[np.float64]) -> tuple[float, float]:
    """The centre of places on the globe: the direction of their mean on the sphere, which does not
    depend on where longitudes wrap.

    >>> tuple(round(x, 6) for x in middle(np.array([179.0, -179.0]), np.array([0.0, 0.0])))
    (-180.0, 0.0)
    """
    lam = np.radians(longitude)
    phi = np.radians(latitude)
    x = float((np.cos(phi) * np.cos(lam)).mean())
    y = float((np.cos(phi) * np.sin(lam)).mean())
    z = float(np.sin(phi).mean())
    turn = (math.degrees(math.atan2(y, x)) + 180.0) % 360.0 - 180.0
    return turn, math.degrees(math.atan2(z, math.hypot(x, y)))
