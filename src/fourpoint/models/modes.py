r"""A learned spectrum: which modes each attention head has, and which of them are in use right now.

The generator G_k turns noise z_j into a feature omega_j and, where modes decay, a log-decay. With
the key embedding W_u x = w_t t + W_m m, mode j of head k has

    theta_kj = omega_kj' w_t,    psi_kj(m) = omega_kj' W_m m,   gamma_kj = exp(G_k(z_j)_last + c_k),

w_t being a vector of order 1 times the exponential of a learned number: time scales are learned as
logarithms, since a step that suits a fast head would throw a slow one off its scale.

Training redraws the noise for every minibatch; evaluation, sampling and streams share one fixed
set, so that what is sampled is what is evaluated.

The paper's two other scores, as parts of a model: a dot product of projected events, and a
network on them.

    dot      nu_k(x, x') = (W_u x)' (W_u x')          neural      nu_k(x, x') = net_k(W_u x, W_u x')

W_u x = w_t t + W_m m with t in windows, so that it stays of order 1; the network has the
generator's hidden layers and its activation. Both stand in for `models.modes` in DAPP: nothing is
drawn, so that there is nothing to redraw or to store.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fourpoint.ops import fourier
from fourpoint.ops.fourier import Generator
from fourpoint.ops.scores import Network, Projection

# spread of the log decays, and of frequencies in units of the decay, of a head that begins as an
# exponential
NARROW = 0.1
SLOWEST, FASTEST = (
    1.0,
    2.0,
)  # spread of the heads' first frequencies and decays: per window, per mean gap


class Modes(nn.Module):
    """K generated spectra. Arguments are those of DAPP; ``stored`` is the size of the fixed set."""

    noise: Tensor
    phase: Tensor

    def __init__(
        self,
        heads: int,
        marks: int,
        *,
        features: int,
        stored: int,
        noise: int,
        embedding: int,
        generator: Sequence[int],
        activation: str,
        decay: bool,
        random_phase: bool,
        even: bool,
        seed: int,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.features = features
        self.dimension = noise
        self.seed = seed
        self.decays = decay
        self.random_phase = random_phase
        self.even = even
        random = torch.Generator().manual_seed(seed)
        self.generator = fourier.Generator(
            heads, noise, generator, embedding + int(decay), activation=activation, seed=seed
        )
        self.time_key = nn.Parameter(torch.randn(heads, embedding, generator=random))
        shifts = torch.randn(heads, embedding, marks, generator=random) * (
            0.5 if marks > 1 else 0.0
        )
        self.mark_key = nn.Parameter(shifts, requires_grad=marks > 1)
        self.log_frequency = nn.Parameter(torch.zeros(heads))
        self.log_decay = nn.Parameter(torch.zeros(heads), requires_grad=decay)
        self._drawn: tuple[Tensor, Tensor] | None = None
        self.store(stored)

    def forward(self, *, fixed: bool = False) -> fourier.Spectrum:
        """The modes in use: those of the last :meth:`redraw` while training, else (or where
        ``fixed``) the fixed set.
        """
        noise, phase = (self.noise, self.phase) if fixed or not self.training else self._drawn_now()
        modes = self.generator(noise.to(self.time_key))
        omega = modes[..., : self.time_key.shape[1]]
        return fourier.Spectrum(
            torch.einsum("kdr,kr->kd", omega, self.time_key) * self.log_frequency.exp()[:, None],
            torch.exp(modes[..., -1] + self.log_decay[:, None]) if self.decays else None,
            torch.einsum("kdr,krm->kdm", omega, self.mark_key),
            torch.full_like(modes[..., 0], 1 / modes.shape[1]),
            phase.to(self.time_key) if self.random_phase else None,
        )

    def noise_in_use(self) -> Float[Tensor, "K D q"]:
        """What :meth:`forward` turns into modes while training."""
        return self._drawn_now()[0].to(self.time_key)

    def _drawn_now(self) -> tuple[Tensor, Tensor]:
        """Noise and phase of the last :meth:`redraw`; there is one by now."""
        if self._drawn is None:
            self.redraw(torch.Generator().manual_seed(self.seed))
        return self._drawn or (self.noise, self.phase)

    def redraw(self, random: torch.Generator) -> None:
        """Draw the noise of the next minibatch."""
        draw = fourier.even_noise if self.even else fourier.independent_noise
        noise = draw(self.heads, self.features, self.dimension, random)
        phase = (
            2
            * math.pi
            * torch.rand(self.heads, self.features, generator=random, device=random.device)
        )
        self._drawn = (noise.to(self.time_key), phase.to(self.time_key))

    def store(self, features: int) -> None:
        """Make the fixed set one of ``features`` modes per head."""
        random = torch.Generator().manual_seed(self.seed + 1)
        if self.even:
            noise = fourier.fixed_noise(features, self.dimension, self.seed).expand(
                self.heads, -1, -1
            )
        else:
            noise = fourier.independent_noise(self.heads, features, self.dimension, random)
        phase = 2 * math.pi * torch.rand(self.heads, features, generator=random)
        self.register_buffer("noise", noise.to(self.time_key).contiguous())
        self.register_buffer("phase", phase.to(self.time_key))

    @torch.no_grad()
    def exponential(self, rate: float, heads: int = 1) -> list[int]:
        """Make the ``heads`` heads whose decays are nearest to ``rate`` per mean gap exponentials
        with nearly that decay, and nearly the same for all marks; returns which heads these are.
        """
        chosen = (self.log_decay - math.log(rate)).abs().argsort()[:heads].tolist()
        for head in chosen:
            self.log_decay[head], self.log_frequency[head] = math.log(rate), math.log(NARROW * rate)
            self.mark_key[head] *= NARROW
            for last in (self.generator.weights[-1], self.generator.biases[-1]):
                last[head, ..., -1] *= NARROW
        return chosen

    @torch.no_grad()
    def spread(self, length: float) -> Float[Tensor, " K"]:
        """Let the heads cover frequencies and decays from under one per window of ``length`` mean
        gaps to one per gap.

        Returns each head's rate, per mean gap.
        """
        rates = torch.logspace(
            math.log10(SLOWEST / max(length, 2.0)), math.log10(FASTEST), self.heads
        ).to(self.time_key)
        self.time_key.div_(self.time_key.norm(dim=1, keepdim=True))
        self.log_frequency.copy_(rates.log())
        self.log_decay.copy_(rates.log())
        return rates


class PairScore(nn.Module):
    """K scores of one kind, "dot" or "neural"; other arguments are those of DAPP."""

    window: Tensor

    def __init__(
        self,
        kind: str,
        heads: int,
        marks: int,
        *,
        embedding: int,
        generator: Sequence[int],
        activation: str,
        seed: int,
    ) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.heads = heads
        self.time_key = nn.Parameter(
            torch.randn(heads, embedding, generator=random) / math.sqrt(embedding)
        )
        shifts = torch.randn(heads, embedding, marks, generator=random) / math.sqrt(embedding)
        self.mark_key = nn.Parameter(
            shifts if marks > 1 else torch.zeros_like(shifts), requires_grad=marks > 1
        )
        self.network: Generator | None = None
        if kind == "neural":
            self.network = Generator(
                heads, 2 * embedding, generator, 1, activation=activation, seed=seed
            )
        self.register_buffer("window", torch.ones((), dtype=torch.float64))

    def forward(self, *, fixed: bool = False) -> Projection | Network:
        """The score in use; ``fixed`` changes nothing here."""
        plane = Projection(self.time_key / self.window.to(self.time_key), self.mark_key)
        if self.network is None:
            return plane
        return Network(
            plane, tuple(self.network.weights), tuple(self.network.biases), self.network.activation
        )

    def redraw(self, random: torch.Generator) -> None:
        """Nothing is drawn."""

    def store(self, features: int) -> None:
        """Nothing is stored."""

    @torch.no_grad()
    def spread(self, length: float) -> Float[Tensor, " K"]:
        """Take windows of ``length`` mean gaps as the unit of time. Returns one over it: every head
        looks at all of a window.
        """
        self.window.fill_(max(length, 1.0))
        return torch.full((self.heads,), 1 / max(length, 2.0)).to(self.time_key)
