"""Optimiser steps, one after the other: the plain way, on any device.

A step takes the sequences that the run names for it, redraws what the model draws, and moves the
weights by the gradient of the sampled log-likelihood, clipped in norm. All randomness of step s
comes from (seed, s) alone. `training.cuda` does the same without host synchronisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import is_not
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events.batching import Batch
from fourpoint.events.dequantise import dequantised_batch
from fourpoint.inference.likelihood import Convention, sampled_log_likelihood
from fourpoint.kernels.compiling import threads_for_loops
from fourpoint.training.run import Recipe, Run, TrainingError
from fourpoint.training.sources import Selected
from fourpoint.training.team import unit_of

ELSEWHERE = 2**40  # steps away: what moves events about is not what draws nodes


class Steps:
    """Steps of ``run``, each seen through before the next begins."""

    def __init__(
        self, run: Run, optimiser: torch.optim.AdamW, recipe: Recipe, convention: Convention
    ) -> None:
        self.run = run
        self.optimiser = optimiser
        self.updates = AdamWSteps(optimiser)
        self.recipe = recipe
        self.convention = convention
        self.model: Any = run.model
        self.weights = [p for group in optimiser.param_groups for p in group["params"]]
        self.losses: list[float] = []
        self.looping = False  # whether the last step was done by compiled loops

    def take(self, step: int, rate: float) -> int:
        """Step number ``step`` at the learning rate ``rate``; returns the number of its scored
        events. Raises :class:`TrainingError` where the loss is not finite.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["pace"]
        chosen = self.run.source.at(step)
        with threads_for_loops(self.looping):
            self._take(step, chosen)
        return chosen.scored

    def _take(self, step: int, chosen: Selected) -> None:
        team = self.run.team
        own = team.share(chosen.lengths)
        events = self.run.mean_events * len(chosen.rows)
        value = 0.0
        gradients: list[Tensor | None] = [None] * len(self.weights)
        if len(own):
            value, gradients = self._part(step, chosen, own, events)
        else:
            self._ready(self.seeded(torch.Generator(), step))
        value, gradients = team.add(self.weights, gradients, value)
        size = _norm([one for one in gradients if one is not None])
        _set_gradients(self.weights, gradients)
        if not (math.isfinite(value) and math.isfinite(size)):
            raise self.not_finite(step, value)
        if size > self.recipe.clip:
            nn.utils.clip_grads_with_norm_(self.weights, self.recipe.clip, torch.tensor(size))
        self.updates.take()
        self.losses.append(value)

    def _part(
        self, step: int, chosen: Selected, own: NDArray[np.int64], events: float
    ) -> tuple[float, list[Tensor | None]]:
        """The loss of some of the sequences of a step, over the expected number of ``events`` of
        all, and its gradients in the weights.
        """
        team, total = self.run.team, len(chosen.rows)
        batch = chosen.batch(own).to(self.weights[0].device)
        if self.run.resolution:
            elsewhere = self.seeded(team.generator(own, total), step + ELSEWHERE)
            batch = dequantised_batch(
                batch, self.run.resolution, elsewhere, ahead=self.run.stamped_ahead
            )
        random = self.seeded(team.generator(own, total), step)
        found = self._in_loops(batch, random, events, unit_of(total))
        self.looping = found is not None
        if found is not None:
            return found
        value = self._gradients([batch], self.seeded(random, step), events)
        return value.item(), [p.grad for p in self.weights]

    def _in_loops(
        self, batch: Batch, random: torch.Generator, events: float, unit: int
    ) -> tuple[float, list[Tensor | None]] | None:
        """The loss and its gradients in float64, by compiled loops where the model has them for
        this batch; ``unit`` sequences are summed in float32.
        """
        self._ready(random)
        found = self.model.gradients(
            batch, self.recipe.nodes, random, self.convention, -1 / events, unit
        )
        if found is None:
            return None
        total, gradients = found
        by_weight = {id(p): torch.from_numpy(gradient) for p, gradient in gradients}
        return -total / events, [by_weight.get(id(p)) for p in self.weights]

    def drain(self) -> list[float]:
        """The losses since the last call, in nats per event."""
        found = self.losses
        self.losses = []
        return found

    def close(self) -> list[str]:
        """Let go of what only training needs; remarks for the user."""
        return []

    def seeded(self, random: torch.Generator, step: int) -> torch.Generator:
        """The source of all randomness of a step."""
        return random.manual_seed(self.run.seed * 1_000_003 + step)

    def _gradients(
        self, parts: Iterable[Batch], random: torch.Generator, events: float | Tensor
    ) -> Tensor:
        """The loss of a batch over the expected number of ``events``, and in the weights its
        gradient; the batch may come in ``parts``, of which one at a time has to fit into memory.
        """
        self._ready(random)
        for p in self.weights:
            p.grad = None
        total = torch.zeros((), device=self.weights[0].device)
        for part in parts:
            loss = (
                -sampled_log_likelihood(
                    self.model, part, self.recipe.nodes, random, convention=self.convention
                ).sum()
                / events
            )
            loss.backward()
            total = total + loss.detach()
        return total

    def _ready(self, random: torch.Generator) -> None:
        if not self.model.training:
            self.model.train()
        self.model.redraw(random)

    def not_finite(self, step: int, loss: float) -> TrainingError:
        """What went wrong at ``step``, with the sequences and the parameter."""
        train, rows, _ = self.run.source.at(step)
        broken = (
            n
            for n, p in self.model.named_parameters()
            if p.grad is not None and not bool(torch.isfinite(p.grad).all())
        )
        culprit = next(broken, None)
        where = (
            f"the gradient of {culprit} is not finite" if culprit else "all gradients are finite"
        )
        ids = ", ".join(train.ids[i] for i in np.asarray(rows)[:5])
        return TrainingError(
            "a finite loss",
            f"{loss} at step {step} on sequences {ids}{', ...' if len(rows) > 5 else ''}; {where}",
            (
                "Lower learning_rate, use link='softplus', or look at those sequences; the best "
                "model so far is kept."
            ),
        )


class AdamWSteps:
    """Steps of AdamW with the gradients that the parameters have, with little overhead.

    ``optimiser.step`` takes longer to prepare the call of its fused operation than that takes on a
    small model. Here the operation is called directly on the optimiser's own state: the results are
    bit for bit the same. The optimiser's own method runs the first step of a parameter, which
    creates its moments, and all steps on other devices than the CPU.

    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> optimiser = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0, fused=True)
    >>> steps = AdamWSteps(optimiser)
    >>> for _ in range(2):
    ...     weight.grad = torch.ones(3)
    ...     steps.take()
    >>> weight.detach()
    tensor([0.8000, 0.8000, 0.8000])
    """

    def __init__(self, optimiser: torch.optim.AdamW) -> None:
        self.optimiser = optimiser
        self._parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self._gradients: list[Tensor | None] = []
        self._held: list[_Held] = []

    @torch.no_grad()
    def take(self) -> None:
        """One step."""
        gradients = [p.grad for p in self._parameters]
        if not self._held or any(map(is_not, gradients, self._gradients)):
            self._held = self._hold()
            self._gradients = gradients
        if not self._held:
            self.optimiser.step()
            return
        torch._foreach_add_([count for held in self._held for count in held.counts], 1)
        for held in self._held:
            beta1, beta2 = held.group["betas"]
            torch._fused_adamw_(
                held.parameters,
                held.gradients,
                held.means,
                held.squares,
                [],
                held.counts,
                lr=held.group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=held.group["weight_decay"],
                eps=held.group["eps"],
                amsgrad=False,
                maximize=False,
            )

    def _hold(self) -> list[_Held]:
        """The parameters of each group that have a gradient, with their moments; none at all where
        one of them has no moments yet or is on another device.
        """
        found = []
        for group in self.optimiser.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            states = [self.optimiser.state[p] for p in moved]
            if not all(states) or not all(p.is_cpu for p in moved):
                return []
            if moved:
                found.append(
                    _Held(
                        group,
                        moved,
                        [p.grad for p in moved],
                        [state["exp_avg"] for state in states],
                        [state["exp_avg_sq"] for state in states],
                        [state["step"] for state in states],
                    )
                )
        return found


class _Held(NamedTuple):
    """A group of the optimiser, its parameters that have gradients, and their moments."""

    group: dict[str, Any]
    parameters: list[Tensor]
    gradients: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    counts: list[Tensor]


def _set_gradients(weights: list[nn.Parameter], gradients: list[Tensor | None]) -> None:
    """Let every weight have its gradient in its own precision, in the space of the last step's
    where there is one.
    """
    into, values = [], []
    for p, gradient in zip(weights, gradients, strict=True):
        if gradient is not None and p.grad is not None and gradient is not p.grad:
            into.append(p.grad)
            values.append(gradient)
        elif gradient is not p.grad:
            p.grad = None if gradient is None else gradient.to(p.dtype)
    if into:
        torch._foreach_copy_(into, values)


def _norm(gradients: list[Tensor]) -> float:
    """The Euclidean norm of all gradients together."""
    if gradients and all(one.is_cpu for one in gradients):
        whole = np.concatenate([one.detach().numpy().reshape(-1) for one in gradients])
        return math.sqrt(float(np.vdot(whole, whole)))
    return float(nn.utils.get_total_norm(gradients))
