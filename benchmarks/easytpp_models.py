"""EasyTPP's models (version 0.3.0) behind Fourpoint's verbs, and a training loop for them; used by
`leaderboard.py`.

A :class:`Peer` answers `encode` and `log_intensity` with the states and rates of an EasyTPP model,
so that one likelihood, one integral and one set of scores serve all models. Event i is seen from
the state just after event i - 1, moved to its time: the left limit. What a model says before the
first event does not exist in EasyTPP; a constant rate stands there, which the `gaps` convention
never counts. Rates have EasyTPP's own 1.2e-7 added, as its loss has.

Peers are trained by the likelihood that they are scored by: stratified random nodes in every gap,
since a fixed grid such as EasyTPP's can be gamed and costs honest nats. They see time in mean gaps
and begin near the data's mean rates, as Fourpoint's models do. The loop is :func:`train`: AdamW,
warm-up, cosine decay over a budget of seconds, clipped gradients, a running mean of the weights,
the best of about 30 validations; no early end. A batch whose gradient is not finite is left out.

| name | settings |
|---|---|
| easytpp-s2p2 | width 64, 64 modes, 4 layers, full GLU, dropout .1, rate .01 |
| easytpp-s2p2-small | the same with width 32, 32 modes, 2 layers |
| easytpp-s2p2-dependent | as the first, input-dependent dynamics, inputs integrated, rate .003 |
| easytpp-nhp | 64 units, rate .003 |
| easytpp-attnhp | width 32, 2 layers, 2 heads, time embedding 16, dropout .1, rate .001 |

``name@rate=0.003`` changes the learning rate. For all: batches of 64, weight decay .01 of matrices,
8 nodes per gap. Where times are a few ticks of a clock apart, events are moved about inside their
ticks while training, as Deep DAPP's are; ``name@dequantise=false`` leaves them where they are.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fourpoint.events import Batch, Dataset
from fourpoint.inference.likelihood import quick_log_likelihood, sampled_log_likelihood
from fourpoint.models import base
from fourpoint.models.narrow import NarrowPeaks
from fourpoint.models.neural_start import time_scale_of
from fourpoint.models.poisson import mean_rates
from fourpoint.ops.periodogram import coarse_resolution

BATCH, NODES, DECAY, CLIP, AVERAGE, WARMUP = 64, 8, 1e-2, 1.0, 0.995, 100
VALIDATIONS, VALIDATION_EVENTS = 30, 20_000
VALIDATION_SHARE = 0.2  # of the budget that validations may take at most, roughly
PAIRS = 2**26  # pairs of tokens that AttNHP holds at once


@dataclass(frozen=True)
class Setting:
    """An EasyTPP model with its sizes and learning rate."""

    model: str
    hidden: int
    layers: int = 1
    heads: int = 1
    dropout: float = 0.1
    rate: float = 1e-3
    specs: dict[str, Any] = field(default_factory=dict)


_GLU = dict(act_func="full_glu", dropout_rate=0.1)
PEERS: dict[str, Setting] = {
    "easytpp-s2p2": Setting("S2P2", 64, layers=4, rate=1e-2, specs=dict(P=64, **_GLU)),
    "easytpp-s2p2-small": Setting("S2P2", 32, layers=2, rate=1e-2, specs=dict(P=32, **_GLU)),
    "easytpp-s2p2-dependent": Setting(
        "S2P2",
        64,
        layers=4,
        rate=3e-3,
        specs=dict(P=64, relative_time=True, int_backward_variant=True, **_GLU),
    ),
    "easytpp-nhp": Setting("NHP", 64, rate=3e-3),
    "easytpp-attnhp": Setting("AttNHP", 32, layers=2, heads=2, rate=1e-3),
}


def build(name: str, data: Dataset, seed: int) -> tuple[Peer, float]:
    """The peer of that name for ``data``, and its learning rate. Raises ImportError where easy-tpp
    is not installed.
    """
    plain, _, changes = name.partition("@")
    setting, of = PEERS[plain], dict(change.split("=") for change in changes.split(",") if change)
    torch.manual_seed(seed)
    return Peer(setting, data, dequantise=of.get("dequantise") != "false"), float(
        of.get("rate", setting.rate)
    )


@dataclass(frozen=True, eq=False)
class PeerHistory(base.History):
    """What an EasyTPP model remembers just after each event: ``memory`` has one row per event,
    ``times`` begins with the start.
    """

    memory: Any


class Peer(NarrowPeaks[PeerHistory]):
    """An EasyTPP model of ``setting`` for the marks and the time scale of ``data``."""

    dequantises_gaps = True
    time_scale: Tensor
    log_first: Tensor

    def __init__(self, setting: Setting, data: Dataset, *, dequantise: bool = True) -> None:
        super().__init__()
        self.marks = data.marks
        self.net = _net(setting, data.marks.count)
        self._remember, self._rates = _FORMS[setting.model]
        self.register_buffer("time_scale", torch.tensor(time_scale_of(data), dtype=torch.float64))
        rates = mean_rates(data, data.marks)
        self.register_buffer("log_first", rates.log().float())
        gaps = data.gaps[data.gaps > 0]
        self.register_buffer("narrow", torch.zeros((), dtype=torch.bool))
        self.register_buffer("tick", torch.tensor(coarse_resolution(gaps), dtype=torch.float64))
        self._resolution = float(self.tick) if dequantise else 0.0
        self._extent = (
            float(np.quantile(gaps, 0.02)),
            16 * float(np.mean(data.durations)),
        )  # as Deep DAPP takes them
        with torch.no_grad():
            _last_layer(self.net).bias.copy_(torch.log(torch.expm1(rates * self.time_scale)))

    def gap_resolution(self) -> float:
        """The tick inside which events are moved about while training, as Deep DAPP's are."""
        return self._resolution if self.training else 0.0

    def encode(self, batch: Batch, before: None = None) -> PeerHistory:
        """The states after all events; an event more stands behind short batches, since EasyTPP
        needs two.
        """
        times = torch.cat([batch.start[:, None], batch.times], 1)
        short = max(0, 2 - batch.times.shape[1])
        inner = nn.functional.pad(
            (batch.times - batch.start[:, None]) / self.time_scale, (0, short)
        ).float()
        valid = nn.functional.pad(batch.valid, (0, short))
        gaps = torch.where(
            valid, torch.cat([torch.zeros_like(inner[:, :1]), self._gaps(batch, short)], 1), 0.0
        )
        marks = torch.where(valid, nn.functional.pad(batch.marks, (0, short)), self.marks.count)
        self.net.device = batch.times.device  # EasyTPP's models put what they create there
        return PeerHistory(
            times, batch.start, batch.lengths, self._remember(self.net, inner, gaps, marks, valid)
        )

    def log_intensity(
        self, history: PeerHistory, times: Tensor, seen: Tensor | None = None
    ) -> Tensor:
        """log lambda per mark, in the user's unit; ``times`` (B, G, Q) seen from positions ``seen``
        (B, G).
        """
        B, G, _ = times.shape
        position = torch.arange(G, device=times.device).expand(B, G) if seen is None else seen
        lag = ((times - history.times.gather(1, position)[..., None]) / self.time_scale).float()
        at = ((times - history.start[:, None, None]) / self.time_scale).float()
        found = (self._rates(self.net, history.memory, lag, at, position) + self.net.eps).log()
        return torch.where(
            (position > 0)[..., None, None], found - self.time_scale.log().float(), self.log_first
        )

    def extent(self) -> tuple[float, float]:
        """The shortest and the longest time that matter (`fourpoint.models.narrow`)."""
        return self._extent

    def _gaps(self, batch: Batch, short: int) -> Tensor:
        return nn.functional.pad(
            batch.times.diff(dim=1) / self.time_scale, (0, min(short, 1))
        ).float()


def train(
    peer: Peer, data: Dataset, dev: Dataset, *, rate: float, budget: float, seed: int
) -> dict[str, float]:
    """Train for ``budget`` seconds and keep the weights that are best on ``dev``; steps, events per
    second and validations come back.
    """
    place = peer.time_scale.device
    optimiser = torch.optim.AdamW(_groups(peer), lr=rate, betas=(0.9, 0.99), weight_decay=DECAY)
    mean, held = copy.deepcopy(peer), dev.some(VALIDATION_EVENTS, seed)
    best, kept = -math.inf, copy.deepcopy(peer.state_dict())
    step = seen = bad = checks = 0
    due, idle, began = 1 / VALIDATIONS, 0.0, time.monotonic()
    per_event = max(1.0, data.events / max(1, len(data)))
    while True:
        for rows in data.batches(BATCH, seed=seed * 1_000_003 + step, mixed=True):
            share = (time.monotonic() - began) / budget
            if step and (share >= due or share >= 1):
                clock = time.monotonic()
                score = dev_score(mean, held)
                if score > best:
                    best, kept = score, copy.deepcopy(mean.state_dict())
                checks, took = checks + 1, time.monotonic() - clock
                idle += took
                due = (time.monotonic() - began) / budget + max(
                    1 / VALIDATIONS, took / budget / VALIDATION_SHARE
                )
            if step and share >= 1:
                peer.load_state_dict(kept)
                peer.eval()
                return dict(
                    steps=step,
                    skipped=bad,
                    validations=checks,
                    events_per_second=seen / (time.monotonic() - began - idle),
                )
            pace = min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
            for group in optimiser.param_groups:
                group["lr"] = rate * pace
            bad += not _step(
                peer,
                optimiser,
                data.batch(rows).to(place),
                per_event * len(rows),
                seed * 1_000_003 + step,
            )
            kept_share = 1 - min(AVERAGE, (step + 1) / (step + 10))
            with torch.no_grad():
                for was, now in zip(mean.parameters(), peer.parameters(), strict=True):
                    was.add_(now - was, alpha=kept_share)
            seen, step = seen + int(data.lengths[rows].sum()), step + 1


@torch.no_grad()
def dev_score(model: Any, data: Dataset) -> float:
    """Nats per event in the `gaps` convention by one rule of 12 nodes per gap: for validations."""
    place = next(model.parameters()).device
    model.eval()
    parts = [
        quick_log_likelihood(model, data.batch(rows).to(place), convention="gaps").double().sum()
        for rows in data.batches(128)
    ]
    return float(sum(parts)) / max(1, int((data.lengths - 1).clip(min=0).sum()))


def _step(
    peer: Peer, optimiser: torch.optim.Optimizer, batch: Batch, events: float, seed: int
) -> bool:
    """One step on the mean over the expected number of ``events``; False where the gradient is not
    finite, and nothing was moved.
    """
    peer.train()
    random = torch.Generator().manual_seed(seed)
    loss = -sampled_log_likelihood(peer, batch, NODES, random, convention="gaps").sum() / events
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(
        peer.parameters(), CLIP, foreach=False
    )  # some gradients are complex
    fine = math.isfinite(float(norm)) and math.isfinite(loss.item())
    if fine:
        optimiser.step()
    return fine


def _groups(peer: Peer) -> list[dict[str, Any]]:
    moving = [p for p in peer.parameters() if p.requires_grad]
    return [
        dict(params=[p for p in moving if p.ndim > 1]),
        dict(params=[p for p in moving if p.ndim < 2], weight_decay=0.0),
    ]


def _net(setting: Setting, marks: int) -> Any:
    """The EasyTPP model itself. Only its model classes are imported, and they read a configuration
    as plain attributes.
    """
    from easy_tpp.model import NHP, S2P2, AttNHP

    classes = dict(NHP=NHP, S2P2=S2P2, AttNHP=AttNHP)
    config = SimpleNamespace(
        hidden_size=setting.hidden,
        num_layers=setting.layers,
        num_heads=setting.heads,
        time_emb_size=16,
        use_ln=False,
        dropout_rate=setting.dropout,
        loss_integral_num_sample_per_step=NODES,
        use_mc_samples=True,
        thinning=None,
        gpu=-1,
        num_event_types=marks,
        num_event_types_pad=marks + 1,
        pad_token_id=marks,
        model_specs=setting.specs,
    )
    return classes[setting.model](config)


def _last_layer(net: Any) -> nn.Linear:
    """The layer before the softplus that ends in rates."""
    return next(
        part
        for name, part in net.named_modules()
        if name in ("layer_intensity.0", "intensity_net.intensity_net", "inten_linear")
    )


# ---------------------------------------------------------------------- states after events, and
# rates at lags from them


def _nhp_states(net: Any, times: Tensor, gaps: Tensor, marks: Tensor, valid: Tensor) -> Tensor:
    return net.forward((times, gaps, marks, None, None))[1]


def _nhp_rates(net: Any, memory: Tensor, lag: Tensor, at: Tensor, position: Tensor) -> Tensor:
    return net.layer_intensity(net.get_states(_rows(memory, position), lag))


def _s2p2_states(
    net: Any, times: Tensor, gaps: Tensor, marks: Tensor, valid: Tensor
) -> tuple[Tensor, list[Tensor | None]]:
    found = net.forward((times, gaps, marks, valid, None))
    return found["right_xs_BNLP"], found["right_us_BNH"]


def _s2p2_rates(
    net: Any, memory: tuple[Tensor, list[Tensor | None]], lag: Tensor, at: Tensor, position: Tensor
) -> Tensor:
    inputs = [None if u is None else _rows(u, position) for u in memory[1]]
    return net._evolve_and_get_intensity_at_sampled_dts(_rows(memory[0], position), lag, inputs)


def _attnhp_states(
    net: Any, times: Tensor, gaps: Tensor, marks: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return times, marks, valid


def _attnhp_rates(
    net: Any, memory: tuple[Tensor, Tensor, Tensor], lag: Tensor, at: Tensor, position: Tensor
) -> Tensor:
    """Every query time looks at the events before its position and at itself; a few times of a few
    groups at once.
    """
    (B, G, _), N = at.shape, memory[0].shape[1]
    groups = max(32, N)
    some = max(1, PAIRS // (B * (N + min(G, groups)) ** 2))
    parts = zip(at.split(groups, 1), position.split(groups, 1), strict=True)
    return torch.cat(
        [
            torch.cat([_attended(net, memory, few, own) for few in part.split(some, 2)], 2)
            for part, own in parts
        ],
        1,
    )


def _attended(
    net: Any, memory: tuple[Tensor, Tensor, Tensor], at: Tensor, position: Tensor
) -> Tensor:
    """EasyTPP's own pass, with hidden = True in the mask: events see earlier ones, queries theirs
    and themselves.
    """
    times, marks, valid = memory
    (B, G, Q), N = at.shape, times.shape[1]
    order = torch.arange(N, device=at.device)
    among = (order > order[:, None]) | ~valid[:, None]
    before = (order >= position[..., None]) | ~valid[:, None]
    alone = ~torch.eye(G, dtype=torch.bool, device=at.device).expand(B, G, G)
    never = torch.ones(B, N, G, dtype=torch.bool, device=at.device)
    hidden = torch.cat([torch.cat([among, never], 2), torch.cat([before, alone], 2)], 1)
    events, when, kinds = (x.repeat_interleave(Q, 0) for x in net.seq_encoding(times, marks))
    asked = net.compute_temporal_embedding(at.permute(0, 2, 1).reshape(B * Q, G))
    blank = kinds.new_zeros(B * Q, G, kinds.shape[-1])
    found = net.forward_pass(blank, when, asked, events, hidden.repeat_interleave(Q, 0))
    return net.layer_intensity(found).reshape(B, Q, G, -1).permute(0, 2, 1, 3)


def _rows(memory: Tensor, position: Tensor) -> Tensor:
    """The row of the last event of each position; the first event's for position 0, whose rates are
    not used.
    """
    return memory[
        torch.arange(len(position), device=position.device)[:, None], (position - 1).clamp(min=0)
    ]


_FORMS: dict[str, tuple[Callable[..., Any], Callable[..., Tensor]]] = {
    "NHP": (_nhp_states, _nhp_rates),
    "S2P2": (_s2p2_states, _s2p2_rates),
    "AttNHP": (_attnhp_states, _attnhp_rates),
}
