r"""How surely the parameters of a fitted model are known: a Laplace approximation, or a bootstrap.

**Laplace.** Near the maximum the parameters phi are taken as normal around their estimates, with
the inverse of

    sum_i grad log lambda(t_i) grad log lambda(t_i)' + I

as covariance: the information of a point process, summed over events, and that of a standard normal
prior, which bounds the variance where the data say nothing. phi are the parameters near the
output (`PointProcess.laplace_parameters`): values, decays, scale and level of DAPP, the head of
Deep DAPP, all of a Hawkes process. The rest is taken as known, so that this is cheap, and bands are
narrower than they would be with all. Source: Daxberger et al., "Laplace Redux" (2021); Ogata, "The
asymptotic behaviour of maximum likelihood estimators for stationary point processes" (1978).

**Bootstrap.** The model is fitted again, from its first guess, to sequences drawn with replacement,
or to blocks of time where sequences are few, each with as much time before it as history. It takes
in all parameters and the choices of the fit, and as many fits as there are draws.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fourpoint.events import Context, Dataset, Sequence, UserError, check_marks
from fourpoint.inference.sampling import eval_mode
from fourpoint.inference.uncertainties import Uncertainty
from fourpoint.models.base import PointProcess
from fourpoint.report.printing import bar
from fourpoint.training.fitting import fit

METHODS: tuple[Literal["laplace", "bootstrap"], ...] = ("laplace", "bootstrap")
DRAWS, REFITS = 200, 20
MOST_EVENTS = 20_000  # whose gradients are computed; the information is scaled to all
MOST_PARAMETERS = 2_000
STEP = 1e-4  # of a difference of two rates, in double precision
FEW_SEQUENCES, BLOCKS = 30, 40
STEPS = 200  # optimiser steps of a refit


def uncertainty(
    model: PointProcess,
    data: Dataset,
    method: Literal["laplace", "bootstrap"] = "laplace",
    *,
    draws: int | None = None,
    seed: int = 0,
    progress: bool = False,
    **refit: Any,
) -> Uncertainty:
    """Draw the parameters of a fitted ``model`` from their approximate distribution, for bands and
    for forecasts that include parameter uncertainty.

    Args:
        data: the data that the model was fitted to.
        method: "laplace" (a normal approximation of the parameters near the output; seconds;
            Hawkes, DAPP and Deep DAPP) or "bootstrap" (fits to resampled data; every model).
        draws: how many; 200 for "laplace", 20 for "bootstrap".
        seed: of the draws.
        progress: shows a bar on stderr.
        refit: settings of `fp.fit` for each fit of the bootstrap, such as ``steps`` (200) and
            ``time_budget`` in seconds.

    Returns an object whose methods ``intensity``, ``kernel``, ``calendar`` and ``band`` give bands,
    which `fp.forecast(..., uncertainty=...)` takes, and which ``save`` writes beside a saved model.
    Raises :class:`UserError` if the marks are not the model's, the method is unknown, or the model
    has no Laplace approximation.

    >>> from fourpoint.data.synthetic import simulate
    >>> from fourpoint.models.hawkes import Hawkes
    >>> data = simulate("hawkes", 50, seed=1)
    >>> model = Hawkes()
    >>> notes = model.maximum_likelihood(data)
    >>> found = uncertainty(model, data, draws=100)
    >>> band = found.intensity(model, data[0], [0.5], level=0.9)
    >>> bool(band.low < band.mean < band.high)
    True
    """
    check_marks(model.marks, data.marks)
    if not data.scored_events:
        raise UserError("data with events", "none", "Pass the data that the model was fitted to.")
    if draws is not None and draws < 2:
        raise UserError("at least two draws", f"{draws}", "Leave draws out, or pass draws=100.")
    if method == "laplace":
        if refit:
            raise UserError(
                "settings of a refit with method='bootstrap' only",
                f"{', '.join(refit)}",
                "Leave them out.",
            )
        return _laplace(model, data, DRAWS if draws is None else draws, seed, progress)
    if method == "bootstrap":
        return _bootstrap(model, data, REFITS if draws is None else draws, seed, progress, refit)
    raise UserError("method 'laplace' or 'bootstrap'", f"{method!r}", "Choose one of the two.")


# ---------------------------------------------------------------------- Laplace


def _laplace(
    model: PointProcess, data: Dataset, draws: int, seed: int, progress: bool
) -> Uncertainty:
    names = list(model.laplace_parameters)
    own = dict(model.named_parameters())
    size = sum(own[name].numel() for name in names)
    if not names:
        raise UserError(
            "a model with a Laplace approximation: hawkes, dapp, odapp or deep-dapp",
            type(model).__name__,
            "Pass method='bootstrap'.",
        )
    if size > MOST_PARAMETERS:
        raise UserError(
            f"at most {MOST_PARAMETERS:,} parameters for a Laplace approximation",
            f"{size:,}",
            "Pass method='bootstrap', or merge rare types.",
        )
    some = data.some(MOST_EVENTS, seed=seed)
    jacobian = _jacobian(model, some, names, progress)
    scale = data.scored_events / max(1, some.scored_events)
    information = scale * (jacobian.T @ jacobian) + torch.eye(size, dtype=torch.float64)
    root = torch.linalg.cholesky(information)
    random = torch.Generator().manual_seed(seed)
    noise = torch.randn(size, draws, generator=random, dtype=torch.float64)
    moved = torch.linalg.solve_triangular(root.T, noise, upper=True).T
    found = {}
    first = 0
    for name in names:
        value = own[name].detach().cpu()
        count = value.numel()
        step = moved[:, first : first + count].reshape(draws, *value.shape)
        found[name] = (value.double() + step).to(value.dtype)
        first += count
    notes = (f"{size:,} parameters near the output are uncertain; the others are treated as known",)
    return Uncertainty("laplace", found, notes)


def _jacobian(
    model: PointProcess, data: Dataset, names: list[str], progress: bool
) -> Float[Tensor, "N P"]:
    """Derivatives of log lambda at every scored event, by differences in double precision."""
    exact = copy.deepcopy(model).double().cpu()
    own = dict(exact.named_parameters())
    groups = [data.batch(rows) for rows in data.batches(64)]

    def logs() -> Float[Tensor, " N"]:
        parts = [
            exact.log_rates_at_events(exact.encode(batch), batch)[batch.scored] for batch in groups
        ]
        return torch.cat(parts).double()

    size = sum(own[name].numel() for name in names)
    columns = []
    with eval_mode(exact), bar("derivatives", size, show=progress) as step:
        here = logs()
        for name in names:
            flat = own[name].data.view(-1)
            for k in range(len(flat)):
                value = float(flat[k])
                flat[k] = value + STEP
                columns.append((logs() - here) / STEP)
                flat[k] = value
                step(len(columns))
    found = torch.stack(columns, 1)
    return torch.where(found.isfinite(), found, 0.0)


# ---------------------------------------------------------------------- bootstrap


def _bootstrap(
    model: PointProcess,
    data: Dataset,
    draws: int,
    seed: int,
    progress: bool,
    refit: dict[str, Any],
) -> Uncertainty:
    units = data if len(data) >= FEW_SEQUENCES else blocks(data, BLOCKS)
    rng = np.random.default_rng(seed)
    kept: dict[str, list[Tensor]] = {}
    with bar("fitting to resampled data", draws, show=progress) as step:
        for k in range(draws):
            chosen = np.sort(rng.integers(len(units), size=len(units)))
            member = _refitted(model, units.select(chosen), seed + k, refit)
            for name, value in member.state_dict().items():
                if value.is_floating_point():
                    kept.setdefault(name, []).append(value.detach().cpu().clone())
            step(k + 1)
    what = "sequences" if units is data else f"{len(units)} blocks of time"
    notes = (f"{draws} fits to {what} drawn with replacement",)
    return Uncertainty("bootstrap", {name: torch.stack(x) for name, x in kept.items()}, notes)


def _refitted(model: PointProcess, data: Dataset, seed: int, refit: dict[str, Any]) -> PointProcess:
    """A model of the same settings, fitted to ``data``."""
    if model.fits_in_closed_form:
        again = copy.deepcopy(model)
        again.maximum_likelihood(data)
        return again
    build: Any = type(model)
    fresh = build(model.marks, **model.settings())
    calendar: Any = "none"
    if model.effects is not None and model.effects.spec.calendar:
        calendar = list(model.effects.spec.calendar)
    chosen: dict[str, Any] = {"steps": STEPS, **refit}
    fit(fresh, data, seed=seed, baselines=False, calendar=calendar, progress=False, **chosen)
    return fresh.eval()


def blocks(data: Dataset, count: int) -> Dataset:
    """About ``count`` blocks of time of all sequences as sequences of their own, each with as much
    time before it as history.

    >>> one = Sequence([1.0, 3.0, 5.0, 7.0], start=0.0, stop=8.0)
    >>> parts = blocks(Dataset.from_sequences([one]), 4)
    >>> len(parts), parts.scored_events, parts.events
    (4, 4, 7)
    """
    if data.context is not None:
        raise UserError(
            f"{FEW_SEQUENCES} sequences or more, or data without calendar, covariates and exposure",
            f"{len(data)} sequences with them",
            "Pass method='laplace'.",
        )
    per_sequence = -(-count // max(1, len(data)))
    found = []
    scored_from = []
    for one in data:
        edges = np.linspace(one.start, one.stop, per_sequence + 1)
        for a, b in zip(edges[:-1], edges[1:], strict=True):
            begin = max(one.start, a - (b - a))
            last = b == edges[-1]
            inside = (one.times >= begin) & ((one.times < b) | (last & (one.times <= b)))
            part = Sequence(
                one.times[inside],
                one.marks[inside],
                start=float(begin),
                stop=float(b),
                space=one.space,
                places=None if one.places is None else one.places[inside],
            )
            found.append(part)
            scored_from.append(float(a))
    units = Dataset.from_sequences(found, unit=data.unit)
    return replace(units, context=Context(scored_from=np.array(scored_from)))
