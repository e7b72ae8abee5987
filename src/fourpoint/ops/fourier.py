r"""Deep Fourier kernels: noise -> spectrum -> kernel.

Bochner's theorem says that a shift-invariant kernel with kappa(0) = 1 is the mean of cosines under
some distribution of frequencies. Here that distribution is learned: a network :class:`Generator`
turns noise z into modes, and the kernel between x = (t, m) and a past event x' = (t', m') at lag d
= t - t' >= 0 is their average,

    kappa(x, x') = sum_j w_j exp(-gamma_j d) cos(theta_j d + psi_j(m) - psi_j(m')),   sum_j w_j = 1.

theta_j = omega_j' w_t is a frequency, psi_j(m) = omega_j' W_m m a shift per mark, omega_j = G(z_j)
the generated feature. gamma_j >= 0 is an optional decay: exp(-gamma |d|) cos(theta d) is again
positive definite, its spectrum being a Cauchy line at theta; gamma = 0 is the paper. Cosine and
sine are paired (phase None), which makes the estimate shift invariant with kappa(0) = 1 exactly;
the paper's (7) uses one cosine with a random phase b instead,

    phi_j(x) = sqrt(2) cos(theta_j t + psi_j(m) + b_j),        kappa ~ sum_j w_j phi_j(x) phi_j(x'),

whose expectation over b is the same kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor, nn

LARGEST = 2**24  # numbers held at once while scores are summed over features without gradient


class Modes(NamedTuple):
    """D modes for each of K heads. Times are in the model's own unit."""

    frequency: Float[Tensor, "K D"]  # theta, radians per unit of time
    decay: Float[Tensor, "K D"] | None  # gamma >= 0, or None for none at all
    shift: Float[Tensor, "K D M"]  # psi, radians
    weight: Float[Tensor, "K D"]  # w, sums to 1 over D
    phase: Float[Tensor, "K D"] | None  # b of the random-phase form, None where paired


class Spectrum(Modes):
    """Modes, and what every query needs of them, formed once."""

    @cached_property
    def rate(self) -> Complex[Tensor, "K D"]:
        """a = -gamma + i theta: a mode's state turns and shrinks by exp(a d) over a lag d."""
        decay = torch.zeros_like(self.frequency) if self.decay is None else self.decay
        return torch.complex(-decay, self.frequency)

    @cached_property
    def turn(self) -> Complex[Tensor, "K D M"]:
        """w exp(i psi): what a state is multiplied by where it is read."""
        return torch.polar(self.weight[..., None].expand_as(self.shift), self.shift)

    @cached_property
    def readers(self) -> Float[Tensor, "K D2 M2"]:
        """Re[w exp(i psi) S] and its derivative Re[a w exp(i psi) S] for each mark, as products
        with S = (real, imaginary, ...).
        """
        both = torch.cat([self.turn, self.rate[..., None] * self.turn], -1)
        return torch.stack([both.real, -both.imag], 2).flatten(1, 2)

    @cached_property
    def moments(self) -> Float[Tensor, "K D 3"]:
        """w |a|^n for n = 0, 1, 2: they bound the kernel and its derivatives."""
        speed = self.rate.abs()
        powers = [torch.ones_like(speed), speed, speed.square()]
        return self.weight[..., None] * torch.stack(powers, -1)


def kernel(
    spectrum: Spectrum, lag: Float[Tensor, " L"], mark: int = 0, past_mark: int = 0
) -> Float[Tensor, "K L"]:
    """kappa at lags d >= 0 between an event of type ``mark`` and a past one of type ``past_mark``,
    per head.

    For random phases this is the expectation over them, which is the paired kernel of the same
    modes.

    >>> one = torch.ones(1, 1)
    >>> hawkes = Spectrum(0 * one, one, torch.zeros(1, 1, 1), one, None)
    >>> kernel(hawkes, torch.tensor([0.0, 1.0]))
    tensor([[1.0000, 0.3679]])
    """
    d = lag.to(spectrum.frequency.dtype)[:, None, None]
    shift = spectrum.shift[..., mark] - spectrum.shift[..., past_mark]
    angle = spectrum.frequency * d + shift
    fade = 1.0 if spectrum.decay is None else torch.exp(-spectrum.decay * d)
    each = spectrum.weight * fade * torch.cos(angle)
    return each.sum(-1).T


def fourier_scores(
    spectrum: Spectrum,
    query: Float[Tensor, "B Q"],
    events: Float[Tensor, "B N *H"],
    marks: Int[Tensor, "B N *H"],
    kinds: Int[Tensor, "B Q"] | None = None,
) -> Float[Tensor, "B K Q L N"]:
    """The estimate of nu_k((t, m), x_i) for every query time, every mark and every event; future
    events are to be masked.

    ``events`` and ``marks`` are shared by all heads, or each head has its own. With ``kinds`` each
    query has one mark (L = 1), without it all of them (L = M). Without decay it is Phi(x)' Phi(x'),
    equation (8), one product of feature matrices; with decay each pair has its own exponential.
    Summed over features in pieces where no gradient is kept, so that 10,000 fit.
    """
    B, Q = query.shape
    N = events.shape[1]
    K, D, M = spectrum.shift.shape
    if spectrum.decay is None:
        estimate = _by_features
        per_mode = B * K * (Q * M + N)
    else:
        estimate = _by_pairs
        per_mode = B * K * Q * N
    most = LARGEST if query.device.type == "cpu" else 8 * LARGEST
    piece = D if torch.is_grad_enabled() else max(1, most // max(1, per_mode))
    if events.ndim == 2:
        events = events[..., None]
        marks = marks[..., None]
    total = estimate(_modes(spectrum, 0, piece), query, events, marks, kinds)
    for j in range(piece, D, piece):
        some = _modes(spectrum, j, j + piece)
        total = total + estimate(some, query, events, marks, kinds)
    return total


def with_constant(spectrum: Spectrum) -> Spectrum:
    """(1 + kappa) / 2: half of the spectrum moved to frequency 0. Never negative where phases are
    paired.
    """
    zero = torch.zeros_like(spectrum.weight[:, :1])
    no_shift = torch.zeros_like(spectrum.shift[:, :1])
    decay = spectrum.decay
    return Spectrum(
        frequency=torch.cat([spectrum.frequency, zero], 1),
        decay=None if decay is None else torch.cat([decay, zero], 1),
        shift=torch.cat([spectrum.shift, no_shift], 1),
        weight=torch.cat([0.5 * spectrum.weight, zero + 0.5], 1),
        phase=None,
    )


def non_negative(spectrum: Spectrum) -> Spectrum:
    """sum_j w_j exp(-gamma_j d) (1 + cos(theta_j d + ...)) / 2: every mode is non-negative and
    keeps its own decay.

    With theta = psi = 0 it is the plain mixture of exponentials, so an exponential Hawkes kernel
    stays in the family.
    """
    frequency = spectrum.frequency
    decay = spectrum.decay
    shift = spectrum.shift
    weight = spectrum.weight
    return Spectrum(
        frequency=torch.cat([frequency, torch.zeros_like(frequency)], 1),
        decay=None if decay is None else torch.cat([decay, decay], 1),
        shift=torch.cat([shift, torch.zeros_like(shift)], 1),
        weight=0.5 * torch.cat([weight, weight], 1),
        phase=None,
    )


class Generator(nn.Module):
    """K networks G_k: R^q -> R^r, evaluated together; their law on Gaussian noise is the learned
    spectrum.

    The last layer is scaled so that at the start every output has mean 0 and standard deviation 1.
    """

    def __init__(
        self,
        heads: int,
        noise: int,
        widths: Sequence[int],
        outputs: int,
        *,
        activation: str = "tanh",
        seed: int = 0,
    ) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        sizes = [noise, *widths, outputs]
        weights = []
        biases = []
        for a, b in pairwise(sizes):
            weights.append(torch.randn(heads, a, b, generator=random) / math.sqrt(a))
        for b in sizes[1:]:
            scale = 0.1 if b != outputs else 0.0
            biases.append(scale * torch.randn(heads, 1, b, generator=random))
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList(biases)
        self.activation = ACTIVATIONS[activation]
        with torch.no_grad():
            out = self(torch.randn(heads, 1024, noise, generator=random))
            deviation = out.std(1, keepdim=True)
            self.weights[-1] /= deviation
            self.biases[-1] -= out.mean(1, keepdim=True) / deviation

    def forward(self, z: Float[Tensor, "K D q"]) -> Float[Tensor, "K D o"]:
        layers = zip(self.weights, self.biases, strict=True)
        for i, (weight, bias) in enumerate(layers):
            entering = self.activation(z) if i else z
            z = torch.baddbmm(bias, entering, weight)
        return z


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "softplus": nn.functional.softplus,
    "relu": torch.relu,
}


def independent_noise(
    heads: int, features: int, dimension: int, random: torch.Generator
) -> Float[Tensor, "K D q"]:
    """z_j ~ N(0, I), independent, as in the paper."""
    return torch.randn(heads, features, dimension, generator=random, device=random.device)


def even_noise(
    heads: int, features: int, dimension: int, random: torch.Generator
) -> Float[Tensor, "K D q"]:
    """z_j ~ N(0, I) each, together spread evenly: a Sobol set shifted at random (modulo 1) and
    mapped to normals.

    Every point alone is exactly normal, so the kernel's estimate is unbiased; its error falls
    nearly as 1/D.
    """
    points = _sobol(dimension, features, str(random.device))
    shift = torch.rand(
        heads, 1, dimension, generator=random, dtype=torch.float64, device=random.device
    )
    return _normals((points + shift) % 1.0)


def _normals(points: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """Standard normals from points of [0, 1)."""
    inside = points * (1 - 2e-9) + 1e-9
    return torch.special.ndtri(inside).to(torch.get_default_dtype())


@lru_cache(maxsize=32)
def _sobol(dimension: int, features: int, device: str) -> Float[Tensor, "D q"]:
    engine = torch.quasirandom.SobolEngine(dimension)
    return engine.draw(features, dtype=torch.float64).to(device)


def fixed_noise(features: int, dimension: int, seed: int) -> Float[Tensor, "D q"]:
    """One even set of normals for evaluation: midpoints in one dimension, a scrambled Sobol set in
    more.
    """
    if dimension == 1:
        middle = torch.arange(features, dtype=torch.float64) + 0.5
        points = (middle / features)[:, None]
        return torch.special.ndtri(points).to(torch.get_default_dtype())
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
    return _normals(engine.draw(features, dtype=torch.float64))


def _modes(s: Spectrum, first: int, stop: int) -> Spectrum:
    """The modes from ``first`` up to ``stop`` of every head."""
    some = slice(first, stop)
    return Spectrum(
        frequency=s.frequency[:, some],
        decay=None if s.decay is None else s.decay[:, some],
        shift=s.shift[:, some],
        weight=s.weight[:, some],
        phase=None if s.phase is None else s.phase[:, some],
    )


def _by_features(
    s: Spectrum,
    query: Float[Tensor, "B Q"],
    events: Float[Tensor, "B N H"],
    marks: Int[Tensor, "B N H"],
    kinds: Tensor | None = None,
) -> Float[Tensor, "B K Q L N"]:
    phase = 0.0 if s.phase is None else s.phase
    past = _angle(events, s.frequency) + _shifts(s, marks) + phase
    now = _angle(query[..., None], s.frequency) + phase
    turned = torch.polar(torch.ones_like(now), now)
    left = torch.view_as_real(turned[..., None] * _query_turns(s, kinds))
    right = s.weight[..., None] * torch.stack([past.cos(), past.sin()], -1)
    if s.phase is not None:
        left = left[..., :1]
        right = 2 * right[..., :1]
    return torch.einsum("bqkdmc,bnkdc->bkqmn", left, right)


def _shifts(s: Spectrum, marks: Int[Tensor, "B N H"]) -> Float[Tensor, "B N K D"]:
    """psi of each event, per head."""
    heads = torch.arange(len(s.shift), device=marks.device)
    return s.shift.transpose(1, 2)[heads, marks]


def _query_turns(s: Spectrum, kinds: Int[Tensor, "B Q"] | None) -> Complex[Tensor, "*S K D L"]:
    """exp(i psi) of all marks, or of each query's own."""
    turn = torch.polar(torch.ones_like(s.shift), s.shift)
    if kinds is None:
        return turn
    return turn.permute(2, 0, 1)[kinds][..., None]


def _angle(
    times: Float[Tensor, "B N H"], frequency: Float[Tensor, "K D"]
) -> Float[Tensor, "B N K D"]:
    """theta t, in the times' precision until whole turns are taken off: far from the start a cosine
    keeps its digits.
    """
    angle = times[..., None] * frequency.to(times.dtype)
    turns = (angle.detach() / (2 * math.pi)).round()
    return (angle - 2 * math.pi * turns).to(frequency.dtype)


def _by_pairs(
    s: Spectrum,
    query: Float[Tensor, "B Q"],
    events: Float[Tensor, "B N H"],
    marks: Int[Tensor, "B N H"],
    kinds: Tensor | None = None,
) -> Float[Tensor, "B K Q L N"]:
    kind = s.frequency.dtype
    now = query[:, :, None, None]
    then = events[:, None]
    past = _shifts(s, marks)[:, None]
    lag = (now - then).to(kind).clamp(min=0)[..., None]
    fade = s.weight * (1.0 if s.decay is None else torch.exp(-s.decay * lag))
    turn = _query_turns(s, kinds)
    form = "bqnkd,kdm->bkqmn" if kinds is None else "bqnkd,bqkdm->bkqmn"
    differences = torch.polar(fade, s.frequency * lag - past)
    total = torch.einsum(form, differences, turn).real
    if s.phase is None:
        return total
    both = (now + then).to(kind)[..., None]
    sums = torch.polar(fade, s.frequency * both + past + 2 * s.phase)
    return total + torch.einsum(form, sums, turn).real
