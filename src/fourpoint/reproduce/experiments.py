r"""The paper's propositions and claims as small experiments, with the code that the models use.

*Proposition 1*: the estimate of the score is unbiased, with paired phases and with the random
phases of (7). For spectra whose kernel is known exactly, the mean over many draws of D = 20
features is compared with it, in units of its own standard error.

    gaussian    theta = omega' W_u, omega ~ N(0, I_2):  kappa(d) = exp(-|W_u|^2 d^2 / 2)
    cauchy      kappa(d) = exp(-b d)

*Proposition 2*: the largest error over a grid, against D, with the bound of `ops.feature_error`
beside it. It is stated for paired phases and a finite sigma_p^2 = E|W_u' omega|^2, hence for the
Gaussian spectrum; the random phases are measured too, over pairs (t, t').

*features*: D = 20 features suffice for each minibatch, 10,000 recover the intensity. The trained
model is scored with D from 20 to 10,000, several draws each: the variation between draws is the
cost of a small D.

*memory*: "recent memory will override the long-term memory" in recurrent networks. The first event
is of type A or B; then come n events of type C, whatever it was; and from t = .6 on events of type
D, at a high rate after an A and a low one after a B. What a model remembers is the ratio of its two
rates of D at .61, before any D, against the true one, in logs.

*thinning*: Algorithm 2 as printed accepts where it should reject and bounds the rate by its present
value. Its mean count is compared with the law's, and with the mean count when the test is reversed.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.data.synthetic import process
from fourpoint.events import Dataset, MarkSpace, Sequence, UserError
from fourpoint.inference.evaluation import BATCH, device_of, evaluate
from fourpoint.inference.sampling import eval_mode, last_rates
from fourpoint.models import DAPP
from fourpoint.models.base import PointProcess
from fourpoint.models.modes import Modes
from fourpoint.ops.feature_error import error_bound, features_needed
from fourpoint.ops.fourier import Spectrum, fourier_scores, kernel
from fourpoint.reproduce.cells import Record
from fourpoint.reproduce.fitting import build, ready, scores
from fourpoint.reproduce.plan import SYNTHETIC, Cell, Setting
from fourpoint.reproduce.sets import parts_of
from fourpoint.reproduce.tabled import tabled
from fourpoint.storage.checkpoints import restore
from fourpoint.training.fitting import fit

D_TRAINED = 20
WINDOW = 1.0
KEY = (6.0, 8.0)  # W_u: frequencies of standard deviation 10 per window
DECAY = 5.0
ERRORS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
REPEATS = 100  # of the largest error, at most


def proposition1(setting: Setting) -> Record:
    """Mean over draws less the exact kernel, in standard errors, per spectrum and phase."""
    draws = setting.draws * 10
    lags = torch.linspace(0, WINDOW, 21, dtype=torch.float64)
    now = torch.ones(1, 1, dtype=torch.float64)
    past = (WINDOW - lags)[None]
    unmarked = torch.zeros_like(past, dtype=torch.int64)
    variance = KEY[0] ** 2 + KEY[1] ** 2
    kernels = {
        "gaussian": torch.exp(-0.5 * variance * lags**2),
        "cauchy": torch.exp(-DECAY * lags),
    }
    arrays: dict[str, Any] = {"lag": lags.tolist()}
    metrics: dict[str, Any] = {"draws": draws, "features": D_TRAINED}
    for spectrum, exact in kernels.items():
        arrays[f"{spectrum}_exact"] = exact.tolist()
        for phase in ("paired", "random"):
            modes = draw_spectra(spectrum, draws, D_TRAINED, phase, seed=1)
            found = fourier_scores(modes, now, past, unmarked)[0, :, 0, 0]
            mean = found.mean(0)
            deviation = found.std(0)
            error = deviation / math.sqrt(len(found))
            bias = mean - exact
            # At lag 0 the paired estimate is 1 in every draw, so that there is no error to
            # divide by.
            z = torch.where(error > 1e-9, bias / error.clamp(min=1e-12), 0.0)
            name = f"{spectrum}_{phase}"
            arrays[f"{name}_mean"] = mean.tolist()
            arrays[f"{name}_standard_error"] = error.tolist()
            metrics[f"{name}_largest_z"] = float(z.abs().max())
            metrics[f"{name}_largest_bias"] = float(bias.abs().max())
            metrics[f"{name}_standard_deviation"] = float(deviation.square().mean().sqrt())
    settings = dict(key=KEY, decay=DECAY, window=WINDOW)
    return dict(metrics=metrics, settings=settings, arrays=arrays)


def proposition2(setting: Setting, output: Path) -> Record:
    """The largest error against D: its mean, its 95% quantile and the bound; and the features
    needed for an error.
    """
    repeats = min(REPEATS, setting.draws)
    sigma = math.hypot(*KEY)
    radius = WINDOW / 2
    lags = torch.linspace(0, WINDOW, 201, dtype=torch.float64)
    grid = torch.linspace(0, WINDOW, 21, dtype=torch.float64)[None]
    exact = torch.exp(-0.5 * sigma**2 * lags**2)
    pairs = torch.exp(-0.5 * sigma**2 * (grid[0][:, None] - grid[0]) ** 2)
    rows = []
    for D in setting.features:
        paired = torch.cat(
            [(kernel(modes, lags) - exact).abs().amax(1) for modes in _draws(D, repeats, "paired")]
        )
        none = torch.zeros_like(grid, dtype=torch.int64)
        random = torch.cat(
            [
                (fourier_scores(m, grid, grid, none)[0, :, :, 0] - pairs).abs().amax((1, 2))
                for m in _draws(D, repeats, "random")
            ]
        )
        bound = error_bound(D, radius=radius, sigma=sigma)
        rows.append(
            dict(
                features=D,
                **_quantiles("paired", paired),
                **_quantiles("random", random),
                bound=None if math.isinf(bound) else bound,
            )
        )
    needed = [
        dict(
            error=e,
            bound=features_needed(e, radius=radius, sigma=sigma),
            measured=_measured(e, rows),
        )
        for e in ERRORS
    ]
    metrics = dict(
        sigma=sigma,
        radius=radius,
        repeats=repeats,
        rows=rows,
        needed=needed,
        violations=_violations(rows),
    )
    settings = dict(key=KEY, window=WINDOW, probability=0.05)
    return dict(metrics=metrics, settings=settings, arrays=dict(learned=_learned(output)))


def draw_spectra(spectrum: str, heads: int, features: int, phase: str, seed: int) -> Spectrum:
    """``heads`` independent draws of ``features`` modes: each head of a spectrum is one draw."""
    random = torch.Generator().manual_seed(seed)
    uniform = partial(torch.rand, heads, features, generator=random, dtype=torch.float64)
    if spectrum == "gaussian":
        omega = torch.randn(heads, features, 2, generator=random, dtype=torch.float64)
        theta = omega @ torch.tensor(KEY, dtype=torch.float64)
    else:
        theta = DECAY * torch.tan(math.pi * (uniform() - 0.5))
    phase_offsets = None
    if phase == "random":
        phase_offsets = 2 * math.pi * uniform()
    shift = torch.zeros(heads, features, 1, dtype=torch.float64)
    weight = torch.full_like(theta, 1 / features)
    return Spectrum(theta, None, shift, weight, phase_offsets)


def _draws(features: int, repeats: int, phase: str) -> list[Spectrum]:
    """Repeats in pieces that fit into memory."""
    size = max(1, 50_000 // features)
    found = []
    for first in range(0, repeats, size):
        count = min(size, repeats - first)
        found.append(draw_spectra("gaussian", count, features, phase, seed=1000 + first))
    return found


def _quantiles(name: str, found: Tensor) -> dict[str, float]:
    mean = float(found.mean())
    quantile = float(found.quantile(0.95))
    return {f"{name}_mean": mean, f"{name}_95": quantile}


def _violations(rows: list[dict[str, Any]]) -> int:
    """How often the measured 95% quantile is above the bound, which must not be."""
    bounded = [row for row in rows if row["bound"] is not None]
    return sum(row["paired_95"] > row["bound"] for row in bounded)


def _measured(error: float, rows: list[dict[str, Any]]) -> float:
    """The D at which the 95% quantile of the largest error falls below ``error``: it falls as
    1/sqrt(D).
    """
    scales = [row["paired_95"] * math.sqrt(row["features"]) for row in rows]
    scale = float(np.mean(scales))
    return math.ceil((scale / error) ** 2)


def paper_form(output: Path) -> DAPP | None:
    """The paper's form fitted to hawkes with the first seed, or None if it was not fitted."""
    folder = output / "models" / Cell("fit", "dapp-paper", "hawkes", 0).id
    if not (folder / "model.json").is_file():
        return None
    model = restore(folder)
    if not isinstance(model, DAPP):
        raise TypeError(f"expected a DAPP in {folder}; received {type(model).__name__}")
    return model


def _learned(output: Path) -> list[dict[str, Any]]:
    """sigma_p of each head of the trained paper form, and what the bound asks of it."""
    model = paper_form(output)
    if model is None:
        return []
    with torch.no_grad():
        square = model.spectrum(fixed=True).frequency.square().mean(1)
        sigmas = square.sqrt() / model.time_scale
    radius = float(model.rate.baseline.length) / 2
    rows = []
    for head, sigma in enumerate(sigmas.tolist(), 1):
        needed = features_needed(0.1, radius=radius, sigma=sigma)
        rows.append(dict(head=head, sigma=sigma, needed=needed))
    return rows


FEATURES = (20, 100, 1000, 10_000)
SWITCH, ASKED = 0.6, 0.61  # when the first event begins to matter, and when a model is asked
FIRST = 0.05  # the first event comes before this
HIGH, LOW = 40.0, 8.0  # rates of D from the switch on, after an A and after a B
KINDS = MarkSpace(("A", "B", "C", "D"))
LONGEST_WALK = 100_000  # candidates of one sequence; Algorithm 2 is not known to end


def features(setting: Setting, output: Path) -> Record:
    """Likelihood and intensity error of the trained paper form on hawkes, for several D and draws
    of each.
    """
    model = paper_form(output)
    if model is None:
        raise UserError(
            "the paper's form fitted to hawkes",
            f"no model of it in {output / 'models'}",
            "Run that cell first; it may have failed.",
        )
    modes = model.modes
    if not isinstance(modes, Modes):
        raise TypeError(f"expected a spectrum of the paper's form; received {type(modes).__name__}")
    test = parts_of("hawkes", setting, 0, None).test[: min(setting.test, 100)]
    draws = min(5, setting.draws)
    rows: list[dict[str, float]] = []
    for D in (D for D in FEATURES if D in setting.features):
        found = []
        for seed in range(draws):
            modes.seed = seed
            model.fix_features(D)
            scored = tabled(model, 1.0)
            report = evaluate(scored, test, truth="hawkes", tolerance=setting.tolerance)
            found.append(report.to_dict("window"))
        likelihood, error = (
            np.array([one[key] for one in found])
            for key in ("log_likelihood_per_event", "intensity_mse")
        )
        row = dict(
            features=D,
            log_likelihood_per_event=float(likelihood.mean()),
            log_likelihood_spread=_spread(likelihood),
            intensity_mse=float(error.mean()),
            intensity_mse_spread=_spread(error),
        )
        rows.append(row)
    metrics = dict(rows=rows, draws=draws, test_sequences=len(test))
    return dict(metrics=metrics, settings=dict(model=model.settings()))


def memory(cell: Cell, setting: Setting, device: str) -> Record:
    """What a model remembers of the first event after n events of another type: 1 is all of it, 0
    nothing.
    """
    n = int(cell.data.removeprefix("memory-"))
    size = min(setting.sequences, 2000)
    data = first_matters(size + size // 10 + setting.test, n, seed=0)
    train = data[:size]
    dev = data[size : size + size // 10]
    test = data[size + size // 10 :]
    model = build(cell, setting, KINDS)
    found = fit(
        model,
        train,
        dev,
        seed=0,
        progress=False,
        baselines=False,
        device=device,
        **setting.train(cell.model, "hawkes"),
    )
    scored = ready(model, device, 1.0)
    logs = np.log(np.maximum(late_rates(scored, test), 1e-300))
    first = np.array([one.marks[0] for one in test])
    contrast = float(logs[first == 0].mean() - logs[first == 1].mean())
    score = scores(scored, test, None, setting.tolerance)
    truth = float(np.mean([true_log_likelihood(one, n) for one in test]))
    regret = truth - score["log_likelihood_per_sequence"]
    remembered = contrast / math.log(HIGH / LOW)
    metrics = dict(
        events=n,
        remembered=remembered,
        contrast=contrast,
        regret_per_sequence=regret,
        best_step=found.best_step,
    )
    metrics |= {key: score[key] for key in ("integral_error", "integral_tolerance")}
    training = setting.train(cell.model, "hawkes")
    settings = dict(model=model.settings(), training=training, sequences=size)
    return dict(metrics=metrics, settings=settings)


def first_matters(sequences: int, n: int, seed: int) -> Dataset:
    """Sequences on [0, 1): an A or a B, about ``n`` C's before the switch, and after it D's at a
    rate that only the first event tells.
    """
    rng = np.random.default_rng(seed)
    sequences_of = []
    for i in range(sequences):
        kind = int(rng.integers(2))
        rate = (HIGH, LOW)[kind]
        noises = rng.poisson(_noise(n) * (1 - FIRST))
        noise = rng.uniform(FIRST, 1.0, noises)
        lates = rng.poisson(rate * (1 - SWITCH))
        late = rng.uniform(SWITCH, 1.0, lates)
        first = rng.uniform(0, FIRST, 1)
        times = np.concatenate([first, noise, late])
        marks = np.repeat([kind, 2, 3], [1, noises, lates])
        order = np.argsort(times, kind="stable")
        sequence = Sequence(
            times[order],
            marks[order],
            start=0.0,
            stop=1.0,
            space=KINDS,
            id=str(i),
        )
        sequences_of.append(sequence)
    return Dataset.from_sequences(sequences_of, name=f"memory-{n}")


def true_log_likelihood(one: Sequence, n: int) -> float:
    """Of a sequence of :func:`first_matters`: a first event uniform on [0, .05) of either type,
    then two Poisson processes.
    """
    late = (HIGH, LOW)[int(one.marks[0])]
    noise = _noise(n)
    _, _, noises, lates = np.bincount(one.marks, minlength=KINDS.count)
    first = -math.log(2 * FIRST)
    return float(
        first
        + noises * math.log(noise)
        - noise * (1 - FIRST)
        + lates * math.log(late)
        - late * (1 - SWITCH)
    )


def _noise(n: int) -> float:
    """The rate of C that gives ``n`` of them, on average, up to the switch."""
    return n / (SWITCH - FIRST)


def late_rates(model: PointProcess, data: Dataset) -> NDArray[np.float64]:
    """The rate of D that a model gives at the time asked about, from what happened before the
    switch, (B,).
    """
    longer = []
    for one in data:
        s = one.before(SWITCH)
        longer.append(Sequence(s.times, s.marks, start=s.start, stop=1.0, space=s.space, id=s.id))
    known = Dataset.from_sequences(longer)
    found = np.zeros(len(known))
    with eval_mode(model):
        for rows in known.batches(BATCH):
            batch = known.batch(rows).to(device_of(model))
            asked = torch.full_like(batch.start, ASKED)[:, None]
            rates = model.intensity(model.encode(batch), asked)
            late = rates[:, 0, 3].double()
            found[rows] = late.cpu().numpy()
    return found


def thinning(setting: Setting) -> Record:
    """Mean counts of Algorithm 2 as printed, of the same with its test reversed, and of the
    law.
    """
    rows = []
    for name in SYNTHETIC:
        known = process(name)
        exact = known.simulate(setting.walks, seed=5).lengths
        row: dict[str, Any] = dict(
            data=name,
            law=known.mean_count,
            exact=float(exact.mean()),
            exact_error=_standard_error(exact),
        )
        for label, turned in (("printed", False), ("turned", True)):
            counts = literal_counts(known.truth(), setting.walks, seed=7, turned=turned)
            row[label] = float(counts.mean())
            row[f"{label}_error"] = _standard_error(counts)
        rows.append(row)
    return dict(metrics=dict(rows=rows, walks=setting.walks), settings={})


@torch.no_grad()
def literal_counts(
    model: PointProcess, sequences: int, seed: int, *, turned: bool, stop: float = 1.0
) -> NDArray[np.int64]:
    """Events before ``stop`` by Algorithm 2, line by line; ``turned`` accepts where D lambda_bar <=
    lambda~ instead of above it.
    """
    random = torch.Generator().manual_seed(seed)
    empty = Dataset(
        times=np.zeros(0),
        mark_ids=np.zeros(0, np.int64),
        offsets=np.zeros(sequences + 1, np.int64),
        starts=np.zeros(sequences),
        stops=np.full(sequences, stop),
    )
    history = model.encode(empty.batch())
    t = torch.zeros(sequences, dtype=torch.float64)
    count = torch.zeros(sequences, dtype=torch.int64)
    none = torch.zeros(sequences, dtype=torch.int64)
    for _ in range(LONGEST_WALK):
        if bool((t >= stop).all()):
            return np.asarray(count.numpy())
        u, d = torch.rand(2, sequences, generator=random, dtype=torch.float64)
        bound = last_rates(model, history, t[:, None]).sum((1, 2)).double()
        t = torch.where(t < stop, t - u.log() / bound, t)
        rate = last_rates(model, history, t[:, None]).sum((1, 2)).double()
        below = d * bound <= rate
        accepted = below if turned else ~below
        accepted = accepted & (t < stop)
        history = model.extend(history, t, none, accepted)
        count = count + accepted
    raise UserError(
        f"walks that end within {LONGEST_WALK:,} candidates",
        "some that do not",
        "Lower the number of walks.",
    )


def _standard_error(counts: NDArray[np.int64]) -> float:
    deviation = counts.std(ddof=1)
    return float(deviation / math.sqrt(len(counts)))


def _spread(values: NDArray[np.float64]) -> float:
    """Standard deviation from draw to draw; 0 of a single one."""
    if len(values) < 2:
        return 0.0
    return float(values.std(ddof=1))
