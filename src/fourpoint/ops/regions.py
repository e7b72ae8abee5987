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
from typing import Literal, TypeVar

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

Numbers = NDArray[np.float64]
Degrees = TypeVar("Degrees", float, Numbers)
Point = tuple[float, float]
Pair = Point | Numbers
Corners = Float[Tensor, "V 2"]  # of a polygon
Places = Float[Tensor, "N 2"]
PerPlace = Float[Tensor, " N"]


def rectangle(low: Pair, high: Pair) -> Float[Tensor, "4 2"]:
    """The corners of a box, counterclockwise.

    >>> rectangle((0.0, 0.0), (2.0, 1.0)).tolist()
    [[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [0.0, 1.0]]
    """
    left, bottom = low
    right, top = high
    corners = [(left, bottom), (right, bottom), (right, top), (left, top)]
    return torch.tensor(corners, dtype=torch.float64)


def polygon(corners: Numbers) -> Corners:
    """A simple polygon (V, 2) with its corners counterclockwise, the closing one left out.

    Raises :class:`UserError` unless there are three corners that enclose an area.

    >>> polygon(np.array([[0, 0], [0, 1], [1, 1], [0, 0.0]])).tolist()
    [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
    """
    corners = np.asarray(corners, dtype=np.float64)
    if corners.ndim == 2 and len(corners) > 1:
        closed = np.array_equal(corners[0], corners[-1])
        corners = corners[:-1] if closed else corners
    enclosed = 0.0
    planar = corners.shape[1:] == (2,) and len(corners) >= CORNERS
    if planar and np.isfinite(corners).all():
        enclosed = area(torch.from_numpy(corners))
    if enclosed == 0:
        raise UserError(
            "a polygon of three or more corners (x, y) that enclose an area",
            f"an array of shape {corners.shape}",
            "Pass its corners in order, in km.",
        )
    found = torch.from_numpy(np.ascontiguousarray(corners))
    return found if enclosed > 0 else found.flip(0)


def area(corners: Corners) -> float:
    """The area of a polygon, positive if its corners run counterclockwise.

    >>> area(rectangle((0.0, 0.0), (2.0, 3.0)))
    6.0
    """
    x, y = corners.T
    next_x = x.roll(-1)
    next_y = y.roll(-1)
    twice = x * next_y - next_x * y
    return float(twice.sum() / 2)


def inside(places: Places, corners: Corners, *, margin: float = 0.0) -> Tensor:
    """Which places lie in a polygon (N,), or within ``margin`` of its boundary.

    >>> square = rectangle((0.0, 0.0), (2.0, 2.0))
    >>> inside(torch.tensor([[1.0, 1.0], [3.0, 1.0]]).double(), square).tolist()
    [True, False]
    """
    a = corners
    b = corners.roll(-1, 0)
    along = b - a
    ax, ay = a.T
    by = b[:, 1]
    x = places[:, :1]
    y = places[:, 1:]
    crosses = (ay > y) != (by > y)
    run, rise = along.T
    level = by == ay
    rise = torch.where(level, 1.0, rise)
    height = y - ay
    crossing = ax + height * run / rise
    left_of = x < crossing
    crossings = (crosses & left_of).sum(1)
    within = crossings % 2 == 1
    point = places[:, None]
    offset = point - a
    projected = (offset * along).sum(-1)
    share = projected / along.square().sum(-1)
    bounded = share.clamp(0, 1)
    nearest = a + bounded[..., None] * along
    distance = (point - nearest).norm(dim=-1)
    near = distance.amin(1) <= margin
    return within | near


def mass(
    places: Places,
    width: PerPlace,
    corners: Corners,
    q: Float[Tensor, ""] | None = None,
    nodes: int = NODES,
) -> PerPlace:
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
    unit_x, unit_y = unit.T
    offset_x, offset_y = offset.unbind(-1)
    h = unit_x * offset_y - unit_y * offset_x
    squared_height = h.square()
    squared_scale = width[:, None] + squared_height
    scale = squared_scale.sqrt().detach()
    low = torch.asinh(first / scale)
    high = torch.asinh((first + length) / scale)
    range_u = high - low
    x, weight = (part.to(places) for part in gauss_legendre(nodes))
    shift = range_u[..., None] * x
    u = low[..., None] + shift
    s = scale[..., None] * torch.sinh(u)
    square = squared_height[..., None] + s.square()
    ratio = square / width[:, None, None]
    if q is None:
        within = -torch.expm1(-ratio / 2)
    else:
        log_beyond = (1 - q) * torch.log1p(ratio)
        within = -torch.expm1(log_beyond)
    tiny = torch.finfo(places.dtype).tiny
    positive = square.clamp(min=tiny)
    height = h[..., None]
    density = height * within / positive
    stretch = torch.cosh(u)
    each = density * scale[..., None] * stretch
    by_edge = (each @ weight) * range_u
    return by_edge.sum(1) / (2 * math.pi)


@torch.no_grad()
def mass_error(
    places: Places,
    width: PerPlace,
    corners: Corners,
    q: Float[Tensor, ""] | None = None,
) -> float:
    """The largest change of :func:`mass` from :data:`COARSE` to :data:`NODES` nodes, an upper
    estimate of its error.
    """
    if not len(places):
        return 0.0
    fine = mass(places, width, corners, q, NODES)
    coarse = mass(places, width, corners, q, COARSE)
    return float((fine - coarse).abs().max())


def project(longitude: Numbers, latitude: Numbers, centre: Point) -> Numbers:
    """x (east) and y (north) in km, (N, 2), by the azimuthal equidistant projection about
    ``centre`` (longitude, latitude in degrees). Longitudes may wrap.

    >>> project(np.array([0.0, 181.0]), np.array([1.0, 0.0]), (-179.0, 0.0))[1].round(6).tolist()
    [0.0, 0.0]
    >>> round(float(project(np.array([10.0]), np.array([1.0]), (10.0, 0.0))[0, 1]), 3)
    111.195
    """
    longitude_0, latitude_0 = centre
    east = np.asarray(longitude) - longitude_0
    lam = np.radians(_wrapped(east))
    phi = np.radians(np.asarray(latitude))
    phi0 = math.radians(latitude_0)
    sine_0 = math.sin(phi0)
    cosine_0 = math.cos(phi0)
    sin_phi = np.sin(phi)
    cos_phi = np.cos(phi)
    cos_lam = np.cos(lam)
    across = cos_phi * np.sin(lam)
    up = cosine_0 * sin_phi - sine_0 * cos_phi * cos_lam
    ahead = sine_0 * sin_phi + cosine_0 * cos_phi * cos_lam
    sine = np.hypot(across, up)
    angle = np.arctan2(sine, ahead)
    moved = sine > 0
    divisor = np.where(moved, sine, 1.0)
    factor = np.where(moved, angle / divisor, 1.0)
    x = factor * across
    y = factor * up
    return EARTH * np.column_stack([x, y])


def _wrapped(degrees: Degrees) -> Degrees:
    """Degrees from -180 to below 180."""
    return (degrees + 180.0) % 360.0 - 180.0


def unproject(places: Numbers, centre: Point) -> tuple[Numbers, Numbers]:
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
    cosine = np.cos(angle)
    moved = distance > 0
    divisor = np.where(moved, distance, 1.0)
    sinc = np.sin(angle) / divisor
    share = np.where(moved, sinc, 1 / EARTH)
    east = x * share
    north = y * share
    longitude_0, latitude_0 = centre
    phi0 = math.radians(latitude_0)
    sine_0 = math.sin(phi0)
    cosine_0 = math.cos(phi0)
    sine = cosine * sine_0 + north * cosine_0
    phi = np.arcsin(np.clip(sine, -1.0, 1.0))
    ahead = cosine * cosine_0 - north * sine_0
    turn = np.degrees(np.arctan2(east, ahead))
    longitude = _wrapped(turn + longitude_0)
    return longitude, np.degrees(phi)


def middle(longitude: Numbers, latitude: Numbers) -> Point:
    """The centre of places on the globe: the direction of their mean on the sphere, which does not
    depend on where longitudes wrap.

    >>> tuple(round(x, 6) for x in middle(np.array([179.0, -179.0]), np.array([0.0, 0.0])))
    (-180.0, 0.0)
    """
    lam = np.radians(longitude)
    phi = np.radians(latitude)
    cos_phi = np.cos(phi)
    x = float((cos_phi * np.cos(lam)).mean())
    y = float((cos_phi * np.sin(lam)).mean())
    z = float(np.sin(phi).mean())
    longitude_0 = math.degrees(math.atan2(y, x))
    equatorial = math.hypot(x, y)
    latitude_0 = math.degrees(math.atan2(z, equatorial))
    return _wrapped(longitude_0), latitude_0
