r"""A linear DAPP stepped in plain numpy: states in, states out, with the integral of the rate in
between.

Tensors of one row cost more in calls than in arithmetic; here a step of one stream takes tens of
microseconds, and rows of many streams are stepped together. With S the states of all modes at some
moment and a_j = -gamma_j + i theta_j,

    S(t + h) = exp(a h) S(t),        z_m = sum_j Re[r_km w_j exp(i psi_j(m)) S_j],        lambda_m = mu_m + g(b_m + drift_m + z_m),

exactly as in `dapp`. The integral of the rate over a stretch is read at equal steps, so that the
states at all nodes follow from one exponential by multiplication. Every eight steps are a panel,
integrated by the polynomial through its nine nodes (Newton and Cotes' rule); there are 1 to 8
panels, as many as the stretch's length and the modes' speed suggest. The last Legendre coefficients
of each polynomial, made smaller by as much as they fell, estimate the error, and a stretch that
misses the tolerance is cut in two, at a knot of the splines if there is one inside. Nothing is
interpolated in time. `dapp_loops` does the same one row after the other, compiled. Used by
`streaming` and `streaming.bank`. Axes: R rows, J = K D modes, M marks, Q nodes, C curves (splines).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.kernels.numba_dapp_stream import (
    DEEPEST,
    GROUP,
    LINKS,
    PANEL,
    Care,
    Loops,
    Series,
    Shape,
    compiled_loops,
    waves,
)
from fourpoint.models.base import PointProcess
from fourpoint.models.dapp import DAPP
from fourpoint.models.following import LARGEST, Events, Numbers, Scored, Stop, not_finite
from fourpoint.ops.quadrature import Unconverged
from fourpoint.ops.spline import cubics

Floats = NDArray[Any]
Complexes = NDArray[Any]
PANELS = 8  # of a stretch, at most
TURN, LOOSE_TURN = (
    2.0,
    2.7,
)  # how far the modes of the fastest head turn, in the mean, in one panel; the same in float32
EDGE = 1.1  # error of a panel whose first rate alone is off, in units of its last coefficient
TOLERANCE = 2.5e-7  # absolute, of a stretch
RELATIVE = 1e-6
CACHE = 2**20  # bytes of states held at once
FIRST_PIECE = 2.0  # panels that the first piece of a series takes the place of, at most
MOST_PIECES, MOST_TERMS = 6, 32  # pieces of a series, and coefficients of a head in one
WIDER = 2.0  # how much longer a piece may be than all before it
SERIES_ERROR = 3e-8  # of a mode of size 1, in the mean over a head: half a rounding of float32
SERIES_BYTES = 2**19  # of all coefficients
KEPT_PIECES = 3  # pieces whose coefficients a table of rows keeps
CHEBYSHEV = 64  # nodes from which they are formed


def supports(model: PointProcess) -> bool:
    """Whether ``model`` can be stepped here: a DAPP in linear form whose weights are not
    normalised.

    >>> supports(DAPP()), supports(DAPP(normalise="softmax"))
    (True, False)
    """
    return isinstance(model, DAPP) and model.scanned and model.settings()["normalise"] == "none"


class Reached(NamedTuple):
    """Rows moved on in time: their states, log lambda per mark and time unit there, and the
    integral of the rate until there.
    """

    state: Complexes  # (R, J)
    logs: Floats  # (R, M), float64
    integral: Floats  # (R,), float64


class Kept(NamedTuple):
    """Coefficients of series of the rows of a table, kept from call to call by compiled loops."""

    ready: NDArray[np.int64]  # (R,): pieces of a row that hold for its present state
    series: Floats  # (R, M, pieces, terms)


class Before(NamedTuple):
    """States of rows as they were before events, by which :meth:`Steps.follow` can be undone."""

    place: NDArray[np.int64]  # per event: the place for a copy of the states before it; -1: no copy
    copied: NDArray[np.bool_]  # by place: whether there is a copy
    state: Complexes  # by place


class Steps:
    """The numbers of a DAPP in evaluation mode, copied, in precision ``kind`` (float32 or float64).

    ``compiled`` loops are used where numba is installed; loading them takes about a second.

    Later changes of the model are not seen. Times are in the user's unit, those ``since`` counted
    from a row's window's start.

    >>> steps = Steps(DAPP(heads=1, eval_features=16, base="constant", drift="none"))
    >>> found = steps.reach(
    ...     steps.blank(1), np.zeros(1), np.ones(1)
    ... )  # no event yet: mu + g(b), here 1 + log 2
    >>> round(float(found.integral[0]), 6)
    1.693147
    """

    @torch.no_grad()
    def __init__(
        self, model: DAPP, kind: type[np.floating[Any]] = np.float64, *, compiled: bool = False
    ) -> None:
        def copied(x: torch.Tensor) -> Floats:
            return np.ascontiguousarray(x.detach().cpu().double().numpy())

        self.kind, self.marks = np.dtype(kind), model.marks.count
        self.heads = model.spectrum(fixed=True).weight.shape[0]
        self.whirl = np.dtype(np.complex64 if self.kind == np.float32 else np.complex128)
        spectrum, rate, s = model.spectrum(fixed=True), model.rate, model.settings()
        self.scale = float(model.time_scale)
        self.frequency = copied(spectrum.frequency).ravel().astype(kind)
        self.decay = (
            None if spectrum.decay is None else -copied(spectrum.decay).ravel().astype(kind)
        )
        turn = np.exp(1j * copied(spectrum.shift))  # (K, D, M)
        read = copied(spectrum.weight)[..., None] * turn * copied(model.readout_weights())[:, None]
        self.read = _interleaved(read.reshape(-1, self.marks)).astype(kind)
        marks = torch.arange(self.marks)[None]
        constant = copied(model.event_values(torch.zeros_like(marks, dtype=torch.float64), marks))[
            0
        ]  # (M, K)
        slope = (
            copied(model.event_values(torch.ones_like(marks, dtype=torch.float64), marks))[0]
            - constant
        )
        self.constant, self.slope = (self._driven(turn, v) for v in (constant, slope))
        self.value, self.value_slope = constant, slope
        self.sloping = s["values"] != "mark"
        self.link = rate.link
        self.log_base = (
            None
            if rate.baseline.splined_base
            else copied(rate.baseline.log_base)[:, 0].astype(kind)
        )
        log_scale = copied(rate.log_scale) if self.link == "softplus" else np.zeros(self.marks)
        self.log_scale, self.size, self.log_unit = (
            log_scale,
            np.exp(log_scale).astype(kind),
            math.log(self.scale),
        )
        self.bias = ((copied(rate.bias) if self.link != "identity" else 0.0) - log_scale).astype(
            kind
        )
        self.splined_drift = rate.baseline.splined_drift and self.link != "identity"
        curves = rate.baseline.curves()
        self.length, self.cell, self._end = 0.0, math.inf, np.zeros((1, 1, 0), dtype=kind)
        if curves is not None:
            table = copied(cubics(curves.coefficients.double())).transpose(
                2, 1, 0
            )  # (4, C, intervals)
            end = np.zeros_like(table[..., :1])
            end[0] = table[..., -1:].sum(0)  # past the last knot a curve is constant
            self.length, self.cell, self.intervals = (
                float(rate.baseline.length),
                float(rate.baseline.length) / table.shape[2],
                table.shape[2],
            )
            self.cubics = np.ascontiguousarray(np.concatenate([table, end], 2).astype(kind))
            self._end = self.cubics[0, :, -1][None, None]
        self.loose = max(RELATIVE, 32 * float(np.finfo(kind).eps))
        speed = np.sqrt((copied(spectrum.rate.abs()) ** 2).mean(1).max())
        self.speed = float(speed) / (TURN if kind == np.float64 else LOOSE_TURN) / self.scale
        self._rules = {panels: _rule(panels, kind) for panels in range(1, PANELS + 1)}
        self.rows = max(1, CACHE // (PANEL * len(self.frequency) * self.whirl.itemsize))
        self._scratch: tuple[Complexes, Floats] | None = None
        self._loops = compiled_loops() if compiled else None
        self._loop_numbers = self._for_loops()

    def _driven(self, turn: Complexes, values: Floats) -> Complexes:
        """What an event of each mark adds to the states, (M, J): exp(-i psi_j(m)) v_k(m)."""
        return np.ascontiguousarray(
            (turn.conj().transpose(2, 0, 1) * values[..., None])
            .reshape(self.marks, -1)
            .astype(self.whirl)
        )

    def blank(self, rows: int) -> Complexes:
        """States before any event."""
        return np.zeros((rows, len(self.frequency)), dtype=self.whirl)

    def added(self, since: float, mark: int) -> Complexes:
        """What an event at ``since`` of type ``mark`` adds to the states, (J,)."""
        own = self.constant[mark]
        return own + self.kind.type(since / self.scale) * self.slope[mark] if self.sloping else own

    def kick(self, since: Floats, mark: NDArray[np.int64]) -> Complexes:
        """The same of many events, (R, J)."""
        own = self.constant[mark]
        return (
            own + (since / self.scale).astype(self.kind)[:, None] * self.slope[mark]
            if self.sloping
            else own
        )

    def absorb(
        self,
        state: Complexes,
        rows: NDArray[np.int64],
        ahead: Complexes,
        since: Floats,
        mark: NDArray[np.int64],
    ) -> None:
        """``rows`` of ``state`` become ``ahead``, with events at ``since`` of type ``mark``."""
        if self._loops is None:
            state[rows] = ahead + self.kick(since, mark)
        else:
            self._loops.absorb(
                state, rows, ahead, since / self.scale, mark, self.constant, self.slope
            )

    def kept(self, rows: int) -> Kept:
        """Room for coefficients of rows, none of which is known yet."""
        series = self._loop_numbers[3]
        pieces = min(KEPT_PIECES, len(series.terms))
        terms = int(series.terms.max(initial=0))
        return Kept(
            np.zeros(rows, dtype=np.int64),
            np.zeros((rows, self.marks, pieces, terms), dtype=self.kind),
        )

    def follow(
        self,
        state: Complexes,
        rows: NDArray[np.int64],
        numbers: Numbers,
        start: float,
        events: Events,
        into: Scored,
        kept: Kept | None = None,
        before: Before | None = None,
    ) -> Stop | None:
        """Score ``events`` of ``rows`` one after the other and absorb each; None, or where that
        stopped. Needs compiled loops.

        ``kept`` must be forgotten for rows whose state changes otherwise. ``before`` takes copies
        of states.
        """
        if self._loops is None:
            raise RuntimeError("follow() needs numba")
        logs, fault = np.empty(self.marks), np.empty(4)
        kept = kept or self.kept(len(state))
        before = before or Before(np.full(len(rows), -1), np.zeros(0, dtype=bool), self.blank(0))
        given = (start, *events, *self._loop_numbers, self.constant, self.slope, LARGEST)
        done = self._loops.follow(state, rows, *numbers, *given, *kept, *before, *into, logs, fault)
        if done < 0:
            return None
        if fault[3] == 0.0:
            return Stop(done, _unconverged(*fault[:3].tolist()))
        return Stop(done, not_finite(logs.tolist(), float(fault[0]), float(events.times[done])))

    def values(self, since: Floats, mark: NDArray[np.int64]) -> Floats:
        """v_k of events at ``since`` of type ``mark``, (R, K)."""
        return np.asarray(self.value[mark] + (since / self.scale)[:, None] * self.value_slope[mark])

    @property
    def looped(self) -> bool:
        """Whether compiled loops are used."""
        return self._loops is not None

    @property
    def fading(self) -> Floats:
        """-gamma, or 0 where modes do not decay; (J,)."""
        return np.zeros_like(self.frequency) if self.decay is None else self.decay

    def moved(self, state: Complexes, gap: Floats) -> Complexes:
        """States ``gap`` later."""
        return state * self._turns(gap / self.scale)

    def logs(self, state: Complexes, since: Floats) -> Floats:
        """log lambda per mark and time unit where the rows are, (R, M)."""
        return self._log_rates(
            _real(state) @ self.read,
            self._curves(since, np.zeros_like(since), np.zeros((1, 1), dtype=self.kind))[0],
        )

    def reach(
        self, state: Complexes, since: Floats, gap: Floats, rows: NDArray[np.int64] | None = None
    ) -> Reached:
        """Rows at ``since`` moved on by ``gap``, with the integral of their rates: all of
        ``state``, or ``rows`` of it.

        Raises `ops.quadrature.Unconverged` where a rate explodes or cannot be integrated.
        """
        if self._loops is not None:
            return self._looped(
                self._loops, state, np.arange(len(since)) if rows is None else rows, since, gap
            )
        state = state if rows is None else state[rows]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return self._stretches(state, since, gap, np.full(len(since), TOLERANCE), 0)

    def integral(
        self,
        state: Complexes,
        since: Floats,
        gap: Floats,
        rows: NDArray[np.int64],
        kept: Kept | None = None,
    ) -> Floats:
        """The integral of :meth:`reach` alone, (R,)."""
        if self._loops is None:
            return self.reach(state, since, gap, rows).integral
        at = np.zeros(len(state))
        at[rows] = since
        numbers = Numbers(at, np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))
        found = Scored.empty(len(rows))
        stop = self.follow(
            state, rows, numbers, 0.0, Events(since + gap, np.full(len(rows), -1)), found, kept
        )
        if stop is not None:
            raise stop.error
        return found.gap

    def _stretches(
        self, state: Complexes, left: Floats, width: Floats, allowed: Floats, depth: int
    ) -> Reached:
        """The same, rows that need as many panels together, and no more of them at a time than stay
        in the processor's cache.
        """
        if len(left) == 1:
            panels = math.ceil(min(max(float(width[0]) * self.speed * 2**depth, 1.0), PANELS))
            return self._stretch(state, left, width, allowed, depth, panels)
        needed = np.ceil(np.clip(width * self.speed * 2**depth, 1.0, PANELS)).astype(np.int64)
        order = np.argsort(needed, kind="stable")
        ends = np.cumsum(np.bincount(needed, minlength=PANELS + 1)).tolist()
        found = Reached(
            np.empty_like(state), np.empty((len(left), self.marks)), np.empty(len(left))
        )
        for panels in range(1, PANELS + 1):
            rows = max(1, self.rows // panels)
            for i in range(ends[panels - 1], ends[panels], rows):
                some = order[i : min(i + rows, ends[panels])]
                part = self._stretch(
                    state[some], left[some], width[some], allowed[some], depth, panels
                )
                for whole, own in zip(found, part, strict=True):
                    whole[some] = own
        return found

    def _stretch(
        self,
        state: Complexes,
        left: Floats,
        width: Floats,
        allowed: Floats,
        depth: int,
        panels: int,
    ) -> Reached:
        """The same with a number of panels; stretches whose error is not ``allowed`` are cut in
        two.
        """
        lag = width / self.scale
        z, after = self._nodes(state, lag, PANEL * panels)
        places, readings = self._rules[panels]
        curves = self._curves(left, width, places)
        each = self._rates(z, curves)
        total = each[..., 0] if self.marks == 1 else each.sum(-1)
        found = readings @ total
        value = lag * found[0]
        missed = ~(lag * _doubt(found[1:], panels) <= allowed + self.loose * value)
        logs = np.log(each[-1].astype(np.float64)) - self.log_unit
        if not np.isfinite(logs).all():
            logs = self._log_rates(z[-1], curves[-1])
        if missed.any():
            some = np.flatnonzero(missed)
            self._check(total[:, some], left[some], width[some], depth)
            value[some] = self._halves(
                state[some], left[some], width[some], allowed[some], depth + 1
            )
        return Reached(after, logs, value)

    def _halves(
        self, state: Complexes, left: Floats, width: Floats, allowed: Floats, depth: int
    ) -> Floats:
        """Integrals in two parts, cut at the first knot of a spline inside, else in the middle."""
        first = width / 2
        if self.length > 0:
            knot = (np.floor(left / self.cell) + 1) * self.cell - left
            first = np.where(
                (knot < width) & (left + knot <= self.length * (1 + 1e-12)) & (knot > 1e-9 * width),
                knot,
                first,
            )
        share = allowed * first / width
        later = self.moved(state, first)
        states, lefts, widths = (
            np.concatenate(x)
            for x in ((state, later), (left, left + first), (first, width - first))
        )
        parts = self._stretches(
            states, lefts, widths, np.concatenate([share, allowed - share]), depth
        ).integral
        return np.asarray(parts[: len(left)] + parts[len(left) :])

    def _nodes(self, state: Complexes, lag: Floats, steps: int) -> tuple[Floats, Complexes]:
        """z at the nodes, (Q, R, M), and the states at the last of them."""
        if self.kind == np.float64:
            once, after = self._turns(lag / steps), None
        else:  # powers lose digits, which the next events would inherit
            once, whole = np.split(self._turns(np.concatenate([lag / steps, lag])), 2)
            after = state * whole
        x, z = self._room(len(state), steps + 1)
        x[0], power, filled = state, once, 1
        while filled <= steps:
            more = min(filled, steps + 1 - filled)
            np.multiply(x[:more], power, out=x[filled : filled + more])
            power, filled = power * power, filled + more
        if after is not None:
            x[steps] = after
        np.matmul(_real(x).reshape(len(z), -1), self.read, out=z)
        return z.reshape(steps + 1, -1, self.marks), x[steps].copy() if after is None else after

    def _room(self, rows: int, nodes: int) -> tuple[Complexes, Floats]:
        """Scratch space, kept from call to call: fresh pages would cost more than the
        arithmetic.
        """
        J, size = len(self.frequency), nodes * rows
        if self._scratch is None or len(self._scratch[1]) < size * self.marks:
            self._scratch = (
                np.empty(size * J, dtype=self.whirl),
                np.empty(size * self.marks, dtype=self.kind),
            )
        x, z = self._scratch
        return x[: size * J].reshape(nodes, rows, J), z[: size * self.marks].reshape(
            size, self.marks
        )

    def _turns(self, lag: Floats) -> Complexes:
        """exp(a lag), (R, J)."""
        d = lag.astype(self.kind)[:, None]
        angle = d * self.frequency
        turn = np.empty(angle.shape, dtype=self.whirl)
        fade = 1.0 if self.decay is None else np.exp(d * self.decay)
        np.multiply(np.cos(angle), fade, out=turn.real)
        np.multiply(np.sin(angle), fade, out=turn.imag)
        return turn

    def _curves(self, left: Floats, width: Floats, places: Floats) -> Floats:
        """The splines' values at ``places`` (Q, 1) of each stretch, (Q, R, C)."""
        if left.min() >= self.length:
            return self._end
        at, wide = left / self.cell, width / self.cell
        cell = np.minimum(at, self.intervals).astype(np.int64)
        values = self._cubic(cell, (at - cell).astype(self.kind) + places * wide.astype(self.kind))
        crossing = np.flatnonzero(np.minimum(at + wide, self.intervals).astype(np.int64) != cell)
        if len(crossing):
            every = at[crossing] + places * wide[crossing]
            cells = np.minimum(every, self.intervals).astype(np.int64)
            values[:, :, crossing] = self._cubic(cells, (every - cells).astype(self.kind))
        return np.moveaxis(values, 0, -1)

    def _cubic(self, cell: NDArray[np.int64], place: Floats) -> Floats:
        """The curves at ``place`` (Q, R) of intervals, (C, Q, R)."""
        shape = (4, -1, 1, len(cell)) if cell.ndim == 1 else (4, -1, *cell.shape)
        a0, a1, a2, a3 = self.cubics.take(cell, axis=-1).reshape(shape)
        return np.asarray(a0 + place * (a1 + place * (a2 + place * a3)))

    def _parts(self, z: Floats, curves: Floats) -> tuple[Floats, Floats]:
        """log mu, and the link's argument less log s."""
        base = curves[..., : self.marks] if self.log_base is None else self.log_base
        x = z + self.bias
        return base, x + curves[..., -self.marks :] if self.splined_drift else x

    def _rates(self, z: Floats, curves: Floats) -> Floats:
        """Intensities per unit of the model's time, (..., R, M)."""
        base, x = self._parts(z, curves)
        if self.link == "exp":
            x = np.exp(x)
        elif self.link == "softplus":
            x = self.size * (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))
        return np.asarray(np.exp(base) + x)

    def _log_rates(self, z: Floats, curves: Floats) -> Floats:
        """log lambda per mark and unit of the user's time, formed before anything can overflow;
        float64.
        """
        base, x = (np.asarray(part, dtype=np.float64) for part in self._parts(z, curves))
        if self.link == "identity":
            logs = np.log(np.exp(base) + x)
        elif self.link == "exp":
            logs = np.logaddexp(base, x)
        else:
            low = x < -36  # where the logarithm of softplus is its argument
            logs = np.where(low, x, np.log(np.logaddexp(0.0, np.where(low, 0.0, x))))
            logs = np.logaddexp(base, self.log_scale + logs)
        return logs - self.log_unit

    def _check(self, rates: Floats, left: Floats, width: Floats, depth: int) -> None:
        """Refuse to cut for ever."""
        lost = np.flatnonzero(~np.isfinite(rates).all(0))
        i = lost[0] if len(lost) else 0
        if len(lost) or depth >= DEEPEST:
            raise _unconverged(left[i], width[i], rates[:, i].max())

    def _looped(
        self, loops: Loops, state: Complexes, rows: NDArray[np.int64], since: Floats, gap: Floats
    ) -> Reached:
        """:meth:`reach` by `dapp_loops`."""
        R, fault = len(rows), np.empty(3)
        found = Reached(
            np.empty((R, state.shape[1]), dtype=self.whirl), np.empty((R, self.marks)), np.empty(R)
        )
        if loops.reach(state, rows, since, gap, *self._loop_numbers, *found, fault) >= 0:
            raise _unconverged(*fault.tolist())
        return found

    def _for_loops(self) -> tuple[Any, ...]:
        """What `dapp_loops.reach` must know of the model."""
        M = self.marks
        curves = np.zeros((4, 0, 1)) if self.length == 0 else self.cubics
        table = np.zeros((curves.shape[2], 2 * M, 4))
        if self.log_base is None:
            table[:, :M] = curves[:, :M].transpose(2, 1, 0)
        else:
            table[:, :M, 0] = self.log_base
        if self.splined_drift:
            table[:, M:] = curves[:, -M:].transpose(2, 1, 0)
        level, size, bias = (
            np.exp(table[0, :M, 0]),
            self.size.astype(np.float64),
            self.bias.astype(np.float64),
        )
        shape = Shape(
            table,
            self.cell,
            self.length,
            self.log_base is None,
            level,
            bias,
            size,
            LINKS.index(self.link),
            self.log_unit,
        )
        care = Care(_rule(1, np.float64)[1], self.speed, PANELS, EDGE, TOLERANCE, self.loose)
        read = np.ascontiguousarray(self.read.reshape(-1, 2, M).transpose(2, 1, 0))
        return (
            self.scale,
            waves(self.frequency, -self.fading, self.kind),
            read,
            self._series(),
            shape,
            care,
        )

    def _series(self) -> Series:
        """Read-outs as Chebyshev series, in float32; the first piece takes the place of
        ``FIRST_PIECE`` panels or fewer.

        A piece is halved until no head takes more than ``MOST_TERMS``. The next may be much longer
        than all before it, since what faded fast is gone.
        """
        none = np.zeros((0, self.heads), dtype=np.int64)
        size = len(self.frequency) // self.heads
        found = Series(
            np.zeros(1), none, none, np.zeros((0, 2, size), dtype=self.kind), SERIES_ERROR
        )
        if self.kind != np.float32 or self.speed == 0:
            return found
        power = self.fading.astype(np.float64) + 1j * self.frequency.astype(np.float64)
        read = self.read.astype(np.float64).reshape(-1, 2, self.marks)
        weights = (read[:, 0] - 1j * read[:, 1]).reshape(self.heads, -1, self.marks)
        width = FIRST_PIECE / (self.speed * self.scale)
        while len(found.terms) < MOST_PIECES:
            begin = float(found.ends[-1])
            terms, rows, width = _piece(power.reshape(self.heads, -1), weights, begin, width)
            table = np.concatenate([found.table, rows.astype(self.kind)])
            if table.nbytes > SERIES_BYTES:
                break
            first = len(found.table) + self.marks * (np.cumsum(terms) - terms)
            ends = np.append(found.ends, begin + width)
            found = Series(
                ends,
                np.vstack([found.terms, terms]),
                np.vstack([found.first, first]),
                table,
                SERIES_ERROR,
            )
            width = WIDER * (begin + width)
        return found


def _piece(
    power: Complexes, weights: Complexes, begin: float, width: float
) -> tuple[NDArray[np.int64], Floats, float]:
    """Chebyshev coefficients of exp(power t) in a piece of time from ``begin`` on, of ``width`` or
    as often halved as is needed.

    (K, D) power; (K, D, M) weights. What comes back: the terms of each head, all coefficients by
    head, mark and term, (rows, 2, D), and the width.
    """
    theta = (np.arange(CHEBYSHEV) + 0.5) * math.pi / CHEBYSHEV
    to_coefficients = np.cos(np.arange(CHEBYSHEV)[:, None] * theta) * 2 / CHEBYSHEV
    to_coefficients[0] /= 2
    sizes = np.abs(weights).sum(-1) + np.finfo(np.float64).tiny
    while True:
        times = begin + width * (np.cos(theta) + 1) / 2
        each = np.exp(power[..., None] * times) @ to_coefficients.T  # (K, D, CHEBYSHEV)
        tails = np.cumsum(np.abs(each[..., ::-1]), -1)[..., ::-1]
        lost = (sizes[..., None] * tails).sum(1) / sizes.sum(1, keepdims=True)  # (K, CHEBYSHEV)
        needed = (lost > SERIES_ERROR).sum(-1)
        if needed.max() <= MOST_TERMS:
            break
        width /= 2
    terms = np.maximum(1, -(-needed // GROUP)) * GROUP
    rows = []
    for head, count in enumerate(terms.tolist()):
        own = np.einsum("dn,dm->mnd", each[head, :, :count], weights[head]).reshape(
            -1, power.shape[1]
        )
        rows.append(np.stack([own.real, -own.imag], 1))
    return terms, np.concatenate(rows), width


def _unconverged(left: float, width: float, rate: float) -> Unconverged:
    where = f"between {left:g} and {left + width:g} after the start"
    if not math.isfinite(rate):
        return Unconverged(
            f"expected a finite rate; received {rate} {where}. The model explodes there: fit "
            "it again."
        )
    return Unconverged(
        f"expected a rate that can be integrated; received one that jumps {where}. Fit the "
        "model again."
    )


def _interleaved(read: Complexes) -> Floats:
    """Re[read_j S_j] as a real product with the parts of S side by side, (2 J, M)."""
    return np.stack([read.real, -read.imag], 1).reshape(-1, read.shape[1])


def _real(state: Complexes) -> Floats:
    """Real and imaginary parts side by side, (..., 2 J), without a copy."""
    return state.view(np.float32 if state.dtype == np.complex64 else np.float64)


def _rule(panels: int, kind: Any) -> tuple[Floats, Floats]:
    """Where the nodes of a stretch are, from 0 to 1, (Q, 1); and what maps rates there to their
    mean over the stretch, and to the last four Legendre coefficients of every panel, each counting
    for its part of the stretch, (1 + 4 panels, Q).
    """
    inverse = (
        np.linalg.inv(np.polynomial.legendre.legvander(np.linspace(-1, 1, PANEL + 1), PANEL))
        / panels
    )
    rows = np.zeros((1 + 4 * panels, PANEL * panels + 1))
    for p in range(panels):
        nodes = slice(PANEL * p, PANEL * (p + 1) + 1)
        rows[0, nodes] += inverse[0]
        rows[1 + 4 * p : 5 + 4 * p, nodes] = inverse[-4:]
    return np.linspace(0, 1, PANEL * panels + 1)[:, None].astype(kind), rows.astype(kind)


def _doubt(last: Floats, panels: int) -> Floats:
    """An error estimate from the panels' last Legendre coefficients: the larger of two, made
    smaller by as much as they fell.

    Not so in the first panel: a rate that an event has just moved may be back before the second
    node, and the first alone would
    show it, as a last coefficient that is as large as the error.
    """
    size = np.abs(last).reshape(panels, 2, 2, -1).max(2)
    before, end = size[:, 0], size[:, 1]
    falling = np.minimum(1.0, end / np.maximum(before, np.finfo(last.dtype).tiny))
    falling[0] = EDGE
    return np.asarray((end * falling).sum(0))
