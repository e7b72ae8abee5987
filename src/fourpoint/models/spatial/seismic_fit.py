r"""Fitting the corrections of the seismic DAPP, one after the other, from a fitted ETAS model.

1. The spectrum. At fixed scales the rate is linear in its weights, lambda_i = mu_i + sum_c W_c
   Phi_ic, and the log-likelihood concave; it is maximised by expectation-maximisation,

       W_c <- (W_c sum_i Phi_ic / lambda_i + n pi_c) / (C_c + n pi_c / E_c),

   C_c being the integral of the column c over the scored time and the region. E_c is the spectrum
   of the ETAS kernel, and pi_c the share of E_c C_c in its sum: a gamma prior, worth n events, that
   draws the weights of a small catalogue to ETAS. The background's level is a column too.
2. Anisotropy: the map A = V^(-1/2) with V Tyler's scatter matrix of the displacements from parents
   to offspring, each pair with its probability, which depends on directions alone.
3. beta, the tilt of productivity between short and long time scales with the magnitude.
4. The attention's a, growth and inheritance, and common factors of the triggered rate and of the
   background, by the simplex method on the training likelihood. Pairs that matter are listed once,
   so that one evaluation costs a fraction of a pass over all pairs.

Each step is kept if it raises the training log-likelihood by more than one per parameter (Akaike's
criterion); `keep_best` then chooses between the stages on the dev split. The first three look at
:data:`MOST` scored events at most. A step, or the score of a stage, is left out where `fit_limits`
does not leave the time for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.events import Batch, Dataset
from fourpoint.kernels import numba_seismic, numba_seismic_groups
from fourpoint.kernels.compiling import threads
from fourpoint.models import fit_limits
from fourpoint.models.etas_fit import (
    MOST,
    Log,
    background_probabilities,
    leave_one_out,
    scored_pieces,
)
from fourpoint.models.spatial.seismic_groups import Groups, chosen, groups_of, pays
from fourpoint.ops import omori, regions

if TYPE_CHECKING:
    from fourpoint.models.spatial.seismic_dapp import Kernels, SeismicDAPP, SeismicHistory

Array = NDArray[np.float64]
TIMES_PER_DECADE = 1.8
LENGTHS_PER_DECADE = 2.7
SHORTEST_SCALE = 0.1  # in units of c
STEPS = 400  # of expectation-maximisation
PRIOR = 100.0  # events that the ETAS kernel is worth
LEAST = 1e-4  # share of the rate of pairs that are listed
SPARSE = 1e-5  # share of the triggered events below which a weight is dropped
COMPARED = 400
TILTS = (0.0, -0.15)  # per decade of time and unit of magnitude
CHUNKS = 8
OUT_OF_TIME = "the time budget ended before all corrections were tried"


class Row(NamedTuple):
    """One sequence: its kernels, magnitudes above m_c, background at every event (each training
    event left out of its own density), scored events, those of them that the spectrum is fitted to,
    and pieces of scored time with exposure.
    """

    known: Kernels
    delta: Array
    features: Array  # standardised
    background: Array
    scored: NDArray[np.int64]
    used: NDArray[np.int64]
    pieces: list[tuple[float, float, float]]

    @property
    def weight(self) -> float:
        """How many scored events each of those used counts for."""
        return len(self.scored) / max(1, len(self.used))


class Spectrum(NamedTuple):
    """Weights of a spectrum, the factor of the background and the log-likelihood."""

    weights: Array
    level: float
    value: float


@torch.no_grad()
def fit_corrections(model: SeismicDAPP, data: Dataset) -> list[str]:
    """Fit spectrum, anisotropy, tilt and attention to ``data``; what was found, in lines. The
    stages are left in ``model.stages``.
    """
    limits = fit_limits.current()
    if limits.left <= 0:
        return [OUT_OF_TIME]
    logs = [Log(model, data.batch([row])) for row in range(len(data))]
    for log in logs:
        log.look_at(max(1, MOST // len(logs)), log.tolerance)
    events = max(1, data.scored_events)
    set_scales(model, data)
    if not model.spectrum.numel():
        return ["corrections: none, since the catalogue spans less than one decade of time"]
    rows = rows_of(model, logs)
    ended = max(float(log.sources.times.max()) for log in logs if len(log.sources.times))
    weight = sum(float(background_probabilities(model, log).sum()) for log in logs)
    began = time.monotonic()
    limits.report("spectrum", 0.1)
    found = fit_spectrum(model, rows)
    cost = time.monotonic() - began
    put_spectrum(model, found)
    model.stages["spectrum"] = model.corrections()
    notes = [f"spectrum: {np.count_nonzero(found.weights)} weights, {found.value / events:.4f}"]
    if limits.left > 2 * cost:
        limits.report("anisotropy", 0.25)
        found, said = _try_directions(model, logs, rows, found, events)
        notes += said
    if limits.left > 2 * cost:
        limits.report("magnitude-dependent decay", 0.45)
        found, said = _try_tilts(model, logs, found, events)
        notes += said
    model.correct(evidence=torch.tensor([weight, ended]))
    model.stages["updated background"] = model.corrections()
    # Attention takes one pass over the pairs of all events, and evaluations that cost as much.
    looked_at = sum(len(row.used) for row in rows)
    if limits.left > 3 * cost * max(1.0, data.events / max(1, looked_at)):
        limits.report("attention", 0.6)
        notes += fit_attention(model, rows_of(model, logs), events)
    else:
        notes.append(OUT_OF_TIME)
    return notes


def set_scales(model: SeismicDAPP, data: Dataset) -> None:
    """Time scales from a tenth of c to the length of the data, and lengths from the first
    percentile of those of the power law (see `etas_spectrum`) to a third of the region's width,
    with equal ratios.
    """
    from scipy.special import gammaincinv

    s = model.strengths()
    longest = float((data.stops - data.starts).max())
    shortest = min(SHORTEST_SCALE * float(s.c), longest / 100)
    width = math.sqrt(model.area) / 3
    highest = float(gammaincinv(float(s.q) - 1, 0.99))
    distance = math.exp(float(s.log_width) / 2)
    narrow = min(distance / math.sqrt(2 * highest), width / 10)
    scales = _log_spaced(shortest, longest, TIMES_PER_DECADE)
    lengths = _log_spaced(narrow, width, LENGTHS_PER_DECADE)
    model.correct(
        spectrum=torch.zeros(len(scales), len(lengths)),
        scales=scales,
        lengths=lengths,
        tilt=torch.zeros(len(scales)),
        stretch=torch.eye(2),
    )


def _log_spaced(low: float, high: float, per_decade: float) -> torch.Tensor:
    """Numbers from ``low`` to ``high`` with equal ratios."""
    count = 1 + round(per_decade * math.log10(high / low))
    return torch.logspace(math.log10(low), math.log10(high), count).double()


def rows_of(model: SeismicDAPP, logs: list[Log]) -> list[Row]:
    """What the fit needs of every sequence, with the anisotropy and the tilt as they are now."""
    level = model.strengths().background
    density = None
    if len(model.sources):
        density = leave_one_out(model, model.sources, torch.arange(len(model.sources)))
    found = []
    offset = 0
    for log in logs:
        n = len(log.sources.times)
        assert log.sources.places is not None  # the model has a box
        background = (level[0] / model.area).expand(n)
        if density is not None:
            background = background + level[1] * density[offset : offset + n]
        offset += n
        known = model.kernels(
            log.sources.times, log.sources.places, log.sources.delta, log.sources.features
        )
        found.append(
            Row(
                known,
                log.sources.delta.numpy(),
                log.sources.features.numpy(),
                background.numpy(),
                log.scored.numpy(),
                log.used.numpy(),
                log.pieces,
            )
        )
    return found


def columns(model: SeismicDAPP, row: Row) -> tuple[Array, Array]:
    """Phi at the events that are used and the integrals C of its columns."""
    _, _, fast, variances, _ = model.laws()
    known = row.known
    count = len(row.used)
    found = np.zeros((count, len(fast) * len(variances)))
    if pays(count * len(known.times)):
        _group_columns(model, row, found)
    else:
        loops = numba_seismic.load()
        given = (known.times, known.moved, known.narrow, known.boost, fast, variances)

        def some(low: int, high: int) -> None:
            loops.features(row.used[low:high], *given, found[low:high])

        _share_out(some, count)
    passed = np.zeros((len(known.times), len(fast)))
    for a, b, exposure in row.pieces:
        before_begin = np.maximum(a - known.times, 0)[:, None]
        before_end = np.maximum(b - known.times, 0)[:, None]
        passed += exposure * (np.exp(-before_begin * fast) - np.exp(-before_end * fast))
    corners = model.corners @ model.stretch.T
    moved = torch.from_numpy(known.moved)
    width = torch.from_numpy(1 / known.narrow)
    masses = []
    for variance in variances:
        inside = regions.mass(moved, float(variance) * width, corners)
        masses.append(inside.numpy())
    triggered = known.boost * passed
    integral = triggered.T @ np.stack(masses, 1)
    return found, integral.flatten()


def _group_columns(model: SeismicDAPP, row: Row, found: Array) -> None:
    """Phi with distant events in groups."""
    _, _, fast, variances, _ = model.laws()
    groups = _groups(model, row)
    loops = numba_seismic_groups.load()
    given = (groups.times, groups.moved, groups.narrow, groups.boost, fast, variances)
    background = row.background[row.used]
    for low, high, offsets, entries, factors in chosen(model, groups, row.used, background):
        which = row.used[low:high]
        plan = (offsets, entries, factors)
        loop = partial(_some_columns, loops, which, (*plan, *given, found[low:high]))
        _share_out(loop, high - low)


def _groups(model: SeismicDAPP, row: Row) -> Groups:
    """The events of a sequence in groups."""
    delta = torch.from_numpy(row.delta)
    features = torch.from_numpy(row.features)
    return groups_of(model, row.known, delta, features)


def _some_columns(
    loops: numba_seismic_groups.Loops,
    which: NDArray[np.int64],
    given: tuple[NDArray[Any], ...],
    low: int,
    high: int,
) -> None:
    loops.group_features(which, low, high, *given)


def _share_out(loop: Callable[[int, int], None], count: int) -> None:
    """Run ``loop`` on slices of so many events, in threads."""
    workers = threads()
    edges = np.linspace(0, count, CHUNKS * workers + 1)
    slices = edges.astype(np.int64).tolist()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(loop, slices[:-1], slices[1:]))


def fit_spectrum(model: SeismicDAPP, rows: list[Row]) -> Spectrum:
    """Weights and background by expectation-maximisation."""
    parts = [columns(model, row) for row in rows]
    phi = np.concatenate([part[0] for part in parts])
    integral = sum((part[1] for part in parts), np.zeros(phi.shape[1]))
    background = np.concatenate([row.background[row.used] for row in rows])
    # what each of the events that are used counts for
    each = np.concatenate([np.full(len(row.used), row.weight) for row in rows])
    events = float(each.sum())
    quiet = quiet_events(model, rows)
    prior = etas_spectrum(model).flatten()
    expected_events = max(float(prior @ integral), 1e-300)
    pseudo = PRIOR * prior * integral / expected_events
    shrinkage = np.divide(pseudo, prior, out=np.zeros_like(prior), where=prior > 0)
    due = np.maximum(integral + shrinkage, 1e-300)
    weights = prior + 0.1 * prior.sum() / len(prior)
    level = 1.0
    for step in range(STEPS):
        rate = level * background + phi @ weights
        inverse = each / rate
        level *= float(background @ inverse) / quiet
        posterior = weights * (inverse @ phi)
        weights = (posterior + pseudo) / due
        if step == STEPS // 2:
            rare = weights * integral < SPARSE * events
            weights[rare] = 0.0
            pseudo = np.where(weights > 0, pseudo, 0.0)
    rate = level * background + phi @ weights
    logs = each @ np.log(rate)
    value = float(logs - level * quiet - weights @ integral)
    spectrum = weights.reshape(len(model.scales), -1)
    return Spectrum(spectrum, level, value)


def quiet_events(model: SeismicDAPP, rows: list[Row]) -> float:
    """The expected number of background events in the scored time."""
    time = sum(exposure * (b - a) for row in rows for a, b, exposure in row.pieces)
    return float(model.strengths().background.sum()) * time


def etas_spectrum(model: SeismicDAPP) -> Array:
    """The spectrum of the ETAS kernel on the model's scales: g is a mixture of exponentials, and
    the power law f one of normal densities of variance D / 2u, u from a gamma law of shape q - 1.
    """
    from scipy.special import gammaincc

    s = model.strengths()
    weights, decays = omori.mixture(s.p, s.c, s.taper)
    mass = (weights / decays).numpy()
    scales = model.scales.log().numpy()
    count = len(scales)
    in_time = np.zeros(count)
    if count > 1:
        log_times = -decays.log().numpy()
        place = np.interp(log_times, scales, np.arange(count))
        low = np.minimum(place.astype(np.int64), count - 2)
        np.add.at(in_time, low, mass * (low + 1 - place))
        np.add.at(in_time, low + 1, mass * (place - low))
    else:
        in_time += mass.sum()
    lengths = model.lengths.numpy()
    between = np.sqrt(lengths[1:] * lengths[:-1])
    width = math.exp(float(s.log_width))
    within = gammaincc(float(s.q) - 1, width / (2 * between**2))
    edges = np.concatenate([[0.0], within, [1.0]])
    return np.outer(in_time, np.diff(edges))


def put_spectrum(model: SeismicDAPP, found: Spectrum) -> None:
    """Use the weights in place of the ETAS kernel, without scales that have none."""
    used = found.weights > 0
    times = np.flatnonzero(used.any(1))
    sizes = np.flatnonzero(used.any(0))
    model.correct(
        spectrum=torch.from_numpy(found.weights[times][:, sizes]),
        scales=model.scales[times],
        lengths=model.lengths[sizes],
        tilt=model.tilt[times],
        kernel_weight=torch.tensor(0.0),
        log_background=model.log_background + math.log(found.level),
    )


class Pairs(NamedTuple):
    """Pairs that matter, event by event, as `numba_seismic.pairs` finds them."""

    first: int
    parents: NDArray[np.int64]
    values: Array
    dues: Array
    offsets: NDArray[np.int64]
    rest: Array


def list_pairs(model: SeismicDAPP, row: Row, first: int) -> Pairs:
    """The pairs of events from number ``first`` on with at least :data:`LEAST` of the rate."""
    events = len(row.known.times)
    room = 64 * max(1, events - first)
    known = row.known
    if pays(events * (events - first)):
        return _list_by_groups(model, row, first)
    while True:
        parents = np.zeros(room, dtype=np.int64)
        values, dues = np.zeros(room), np.zeros(room)
        offsets, rest = np.zeros(events + 1, dtype=np.int64), np.zeros(events)
        used = numba_seismic.load().pairs(
            first,
            *known,
            row.background,
            *model.laws(),
            LEAST,
            parents,
            values,
            dues,
            offsets,
            rest,
        )
        if used >= 0:
            return Pairs(first, parents[:used], values[:used], dues[:used], offsets, rest)
        room *= 4


def _list_by_groups(model: SeismicDAPP, row: Row, first: int) -> Pairs:
    """As :func:`list_pairs`, with distant events in groups."""
    known = row.known
    events = len(known.times)
    groups = _groups(model, row)
    loops = numba_seismic_groups.load()
    offsets, rest = np.zeros(events + 1, dtype=np.int64), np.zeros(events)
    parts: list[tuple[NDArray[np.int64], Array, Array]] = []
    total = 0
    which = np.arange(first, events)
    for low, high, *plan in chosen(model, groups, which, row.background[first:]):
        room = 64 * (high - low)
        used = -1
        while used < 0:
            room *= 4
            parents = np.zeros(room, dtype=np.int64)
            values, dues = np.zeros(room), np.zeros(room)
            used = loops.group_pairs(
                first + low,
                first + high,
                events,
                *plan,
                *groups.links,
                *groups.kernels,
                known.inside,
                known.ground,
                row.background,
                *model.laws(),
                LEAST,
                0,
                parents,
                values,
                dues,
                offsets,
                rest,
            )
        offsets[first + low + 1 : first + high + 1] += total
        total += used
        parts.append((parents[:used].copy(), values[:used].copy(), dues[:used].copy()))
    parents, values, dues = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Pairs(first, parents, values, dues, offsets, rest)


def _try_directions(
    model: SeismicDAPP, logs: list[Log], rows: list[Row], before: Spectrum, events: int
) -> tuple[Spectrum, list[str]]:
    """Anisotropy, if it raises the likelihood."""
    kept = model.corrections()
    shape = scatter(model, rows_of(model, logs))
    values, vectors = np.linalg.eigh(shape)
    stretch = vectors @ np.diag(values**-0.5) @ vectors.T
    return _try(model, logs, kept, before, events, "anisotropy", stretch, 0.0)


def _try_tilts(
    model: SeismicDAPP, logs: list[Log], before: Spectrum, events: int
) -> tuple[Spectrum, list[str]]:
    """Magnitude-dependent decay, if it raises the likelihood."""
    stretch = model.stretch.numpy()
    kept = model.corrections()
    return _try(model, logs, kept, before, events, "magnitude-dependent decay", stretch, TILTS[1])


def _try(
    model: SeismicDAPP,
    logs: list[Log],
    kept: dict[str, torch.Tensor],
    before: Spectrum,
    events: int,
    name: str,
    stretch: Array,
    tilt: float,
) -> tuple[Spectrum, list[str]]:
    """The spectrum again with another map or tilt; kept if the likelihood rises."""
    decades = model.scales.log10()
    model.correct(
        stretch=torch.from_numpy(np.ascontiguousarray(stretch)),
        tilt=tilt * (decades - decades.mean()),
    )
    found = fit_spectrum(model, rows_of(model, logs))
    gain = (found.value - before.value) / events
    said = [f"{name}: {gain:+.4f} on training events"]
    if found.value < before.value + 2:
        model.correct(**kept)
        return before, said
    put_spectrum(model, found)
    model.stages[name] = model.corrections()
    return found, said


def scatter(model: SeismicDAPP, rows: list[Row]) -> Array:
    """Tyler's scatter matrix of displacements from parents to offspring, of determinant 1; from the
    last third of the events, at most :data:`MOST`.
    """
    away = [np.zeros((0, 2))]
    weights = [np.zeros(0)]
    for row in rows:
        events = len(row.known.times)
        places = row.known.places
        first = max(2 * events // 3, events - MOST)
        found = list_pairs(model, row, first)
        child = np.repeat(np.arange(events), np.diff(found.offsets))
        total = row.background + found.rest
        total = total + np.bincount(child, found.values, events)
        away.append(places[child] - places[found.parents])
        weights.append(found.values / total[child])
    apart = np.concatenate(away)
    weight = np.concatenate(weights)
    used = (apart != 0).any(1)
    apart = apart[used]
    weight = weight[used]
    shape = np.eye(2)
    if weight.sum() < 10:
        return shape
    for _ in range(50):
        distance = np.einsum("na,ab,nb->n", apart, np.linalg.inv(shape), apart)
        shape = np.einsum("n,na,nb->ab", weight / distance, apart, apart)
        shape /= math.sqrt(np.linalg.det(shape))
    return shape


def fit_attention(model: SeismicDAPP, rows: list[Row], events: int) -> list[str]:
    """a, growth and inheritance by the simplex method, with common factors of the triggered rate
    and the background; kept if they raise the log-likelihood by more than one each.
    """
    from scipy.optimize import minimize

    listed = [list_pairs(model, row, 0) for row in rows]
    spans = [(row.pieces[0][0], row.pieces[-1][1]) for row in rows]
    ends = [
        [expected(model, row.known, np.maximum(x - row.known.times, 0)) for x in span]
        for row, span in zip(rows, spans, strict=True)
    ]
    quiet = quiet_events(model, rows)

    before = -quiet
    for row, pairs, (early, final) in zip(rows, listed, ends, strict=True):
        child = np.repeat(np.arange(len(row.delta)), np.diff(pairs.offsets))
        rate = row.background + pairs.rest + np.bincount(child, pairs.values, len(row.delta))
        before += float(np.log(rate[row.scored]).sum() - (final - early).sum())
    limits = fit_limits.current()

    def enough(_: Array) -> None:
        if limits.left <= 0:
            raise StopIteration

    def loss(point: Array) -> float:
        strength, scale, level = np.exp(np.clip(point[[0, 3, 4]], -20, 20))
        inherit = 1 / (1 + math.exp(-float(np.clip(point[2], -30, 30))))
        total = -level * quiet
        for row, pairs, (early, final) in zip(rows, listed, ends, strict=True):
            size = len(row.delta)
            given, counts, found = np.ones(size), np.zeros(size), np.ones(size)
            total -= numba_seismic.load().replay(
                pairs.first,
                int(row.scored[0]),
                *pairs[1:],
                row.background,
                level,
                row.delta,
                final,
                early,
                strength,
                float(point[1]),
                inherit,
                scale,
                given,
                counts,
                found,
            )
            total += np.log(found[row.scored]).sum()
        return -float(total) / events

    start = np.array([math.log(0.5), 0.7, 0.0, math.log(0.9), 0.0])
    simplex = start + np.vstack([np.zeros(5), np.diag([0.7, 0.4, 1.0, 0.1, 0.1])])
    options = {"maxfev": 160, "xatol": 0.02, "fatol": 1e-5, "initial_simplex": simplex}
    best = minimize(loss, start, method="Nelder-Mead", options=options, callback=enough)
    gain = -best.fun - before / events
    strength, scale, level = np.exp(np.clip(best.x[[0, 3, 4]], -20, 20))
    inherit = 1 / (1 + math.exp(-float(np.clip(best.x[2], -30, 30))))
    said = (
        f"attention: a {strength:.3g}, growth {best.x[1]:.3g}, inheritance {inherit:.2f}, "
        f"{gain:+.4f} on training events"
    )
    if gain * events < len(start):
        return [f"{said}, not kept"]
    model.correct(
        attention=torch.tensor([strength, best.x[1], inherit]),
        spectrum=model.spectrum * scale,
        log_background=model.log_background + math.log(level),
    )
    model.stages["attention"] = model.corrections()
    return [said]


def expected(
    model: SeismicDAPP, known: Kernels, lags: Array, index: NDArray[np.int64] | None = None
) -> Array:
    """Lambda_j at a lag of each event, or of the events at ``index``."""
    etas, tail, fast, _, _ = model.laws()
    inside = known.inside
    ground = known.ground
    if index is not None:
        inside = inside[index]
        ground = ground[index]
    column = lags[:, None]
    decays, masses = tail.T
    power = -etas[0] * inside * (np.expm1(-column * decays) @ masses)
    spectral = ground * np.expm1(-column * fast)
    return np.asarray(power - spectral.sum(1))


@torch.no_grad()
def score(model: SeismicDAPP, data: Dataset, errors: list[Array] | None = None) -> float:
    """The log-likelihood of ``data``: rates at events, and integrals by event rather than by
    gap. Differences of log rates from full sums, where there are groups, are added to ``errors``.
    """
    total = 0.0
    for row in range(len(data)):
        total += _score_row(model, data.batch([row]), errors)
    return total


def _score_row(model: SeismicDAPP, batch: Batch, errors: list[Array] | None) -> float:
    from fourpoint.models.spatial.seismic_dapp import SeismicHistory

    if not model.corrected:
        return _score_etas(model, batch)
    background = float(model.strengths().background.sum())
    scored = batch.scored[0]
    first = 0
    if bool(scored.any()):
        first = int(torch.nonzero(scored)[0, 0])
    history = model.encode_from(batch, first)
    assert isinstance(history, SeismicHistory) and history.places is not None
    n = int(history.lengths[0])
    if errors is not None and pays((n - first) * n):
        errors.append(_errors(model, history, first))
    known = model.kernels(
        history.when[0, :n],
        history.places[0, :n],
        history.delta[0, :n],
        history.features[0, :n],
    )
    total = float(history.rates[0, scored].log().sum())
    shape = model.shapes(history.delta[0, :n])
    given = history.given[0, :n].numpy()
    owner = history.owner[0, :n].numpy()
    share = history.share[0, :n].numpy()
    child, place = np.nonzero(owner >= 0)
    parent = owner[child, place]
    weight = share[child, place]
    for a, b, exposure in scored_pieces(batch):
        total -= exposure * (b - a) * background
        early = expected(model, known, np.maximum(a - known.times, 0))
        final = expected(model, known, np.maximum(b - known.times, 0))
        if not np.isfinite(shape).all():
            total -= exposure * float((final - early).sum())
            continue
        growth = np.log1p((final - early) / (shape + early))
        prior = shape * given * growth
        began = np.clip(known.times[child], a, b) - known.times[parent]
        due = expected(model, known, np.maximum(began, 0), parent)
        ratio = (shape[parent] + final[parent]) / (shape[parent] + due)
        paid = weight * np.log(ratio)
        total -= exposure * float(prior.sum() + paid.sum())
    return total


def _score_etas(model: SeismicDAPP, batch: Batch) -> float:
    """The log-likelihood of one sequence without corrections."""
    s = model.strengths()
    log = Log(model, batch)
    assert log.queries.places is not None  # the model has a box
    if len(model.sources):
        log.density = model.kernel_density(log.queries.places)
    log.make_plan(model)
    rate = log.background(model) @ s.background + log.triggered(s)
    return float(rate.log().sum() - log.integral(model, s))


def _errors(model: SeismicDAPP, history: SeismicHistory, first: int) -> Array:
    """Differences of log rates from sums over all pairs, at :data:`COMPARED` events from number
    ``first`` on.
    """
    assert history.places is not None  # the model has a box
    last = int(history.lengths[0]) - 1
    some = torch.linspace(first, last, COMPARED).long().unique()
    times = history.when[:, some, None]
    places = history.places[:, some, None]
    found = model.log_intensity_at(history, times, places, some[None])
    exact = found[0, :, 0, 0]
    nearly = history.rates[0, some].log()
    return (nearly - exact).numpy()


def keep_best(model: SeismicDAPP, dev: Dataset) -> list[str]:
    """Put the stage with the highest log-likelihood on ``dev`` into the model. ETAS comes first,
    then the last stage and those before it, as long as there is time.
    """
    limits = fit_limits.current()
    events = max(1, dev.scored_events)
    names = list(model.stages)
    order = names[:1] + names[:0:-1]
    values: dict[str, float] = {}
    errors: dict[str, Array] = {}
    cost = 0.0
    for count, name in enumerate(order):
        if values and limits.left < 1.5 * cost:
            break
        limits.report("scoring on dev", count / len(order))
        began = time.monotonic()
        model.correct(**model.stages[name])
        found: list[Array] = []
        values[name] = score(model, dev, found) / events
        errors[name] = np.concatenate([np.zeros(0), *found])
        cost = max(cost, time.monotonic() - began)
    best = max(values, key=lambda name: values[name])
    model.correct(**model.stages[best])
    model.stage_values = {name: values[name] for name in names if name in values}
    said = ", ".join(f"{name} {value:.4f}" for name, value in model.stage_values.items())
    notes = [f"log-likelihood per event on dev: {said}; kept: {best}"]
    if len(errors[best]):
        bias, size = errors[best].mean(), np.abs(errors[best]).mean()
        notes.append(
            "distant events are summed in groups: log rates of the seismic DAPP differ from full "
            f"sums by {bias:.1e} on average, {size:.1e} in size"
        )
    if len(values) < len(names):
        notes.append("the time budget ended before all stages were scored on dev")
    return notes
