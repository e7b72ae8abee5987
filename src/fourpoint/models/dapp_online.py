"""DAPP with bounded memory (ODAPP): which events each head keeps, over a batch and event by event.

The choice is `ops.selection`'s. In a batch every position sees its own active sets: a mask over
the events for dense forms, and for linear ones states from which each dropped event is taken out at
the moment it is dropped, so that training costs no more than DAPP's. A stream holds the active sets
alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from fourpoint.events import Batch
from fourpoint.models.dapp_history import DAPPHistory, require, spectrum_of
from fourpoint.models.past import Memory, Past, blank, joined, memory_of
from fourpoint.ops import attention, selection
from fourpoint.ops.scores import scores

if TYPE_CHECKING:
    from fourpoint.models.dapp import DAPP


def select(model: DAPP, history: DAPPHistory, batch: Batch, before: Memory | None) -> DAPPHistory:
    """The history with what each head has let go of masked, and the active sets at its end.

    Where the score has a linear form, states are scanned all the same: what is dropped is taken out
    of them.
    """
    new = require(history.past)
    memory = (
        blank(batch.times, len(model.readout), new.values) if before is None else before.by_age()
    )
    past = new if before is None else joined(memory, new)
    active, gone = _chosen(model, past, history, batch, memory)
    dropped = selection.dropped_at(gone, past.times.shape[1])
    if before is not None:
        dropped = torch.cat(
            [
                torch.where(memory.active.valid, dropped[:, : memory.times.shape[1]], 0),
                dropped[:, memory.times.shape[1] :],
            ],
            1,
        )
    history = replace(history, past=replace(past, dropped=dropped), memory=memory_of(past, active))
    return _scan_without(model, history, batch, memory, past, gone) if model._scannable else history


@torch.no_grad()
def admit(
    model: DAPP, h: DAPPHistory, time: Tensor, mark: Tensor, value: Tensor, happened: Tensor
) -> Memory:
    """The active sets with one event more."""
    memory = require(h.memory).widened(model._kept())
    now, events = model._elapsed(time[:, None], h.start), model._elapsed(memory.times, h.start)
    nu = scores(h.parts.score, now, events, memory.marks, mark[:, None])[:, :, 0, 0].transpose(1, 2)
    weights = selection.shares(nu, memory.active.valid, model._settings["normalise"])
    index = memory.active.index.amax((1, 2)) + 1
    active, slot, _ = selection.admit(memory.active, weights, index, happened)
    return memory.admitted(active, slot, time, mark, value, happened)


@torch.no_grad()
def _chosen(
    model: DAPP, past: Past, history: DAPPHistory, batch: Batch, memory: Memory
) -> tuple[selection.Active, Int[Tensor, "B N K"]]:
    """Run the selection over the batch's events: the active sets at its end, and what was dropped
    for each event.
    """
    first, keep = memory.times.shape[1], model._kept()
    now, events = (
        model._elapsed(batch.times, history.start),
        model._elapsed(past.times, history.start),
    )
    nu = scores(history.parts.score, now, events, past.marks, batch.marks)[:, :, :, 0]
    active, slots = memory.active, min(keep, first + batch.times.shape[1])
    if slots > first:
        extra = selection.empty(len(now), slots - first, nu.shape[1], nu)
        active = selection.Active(
            *(torch.cat(pair, 1) for pair in zip(active.tensors(), extra.tensors(), strict=True))
        )
    return selection.run(active, nu, batch.valid, model._settings["normalise"], first)


def _scan_without(
    model: DAPP,
    history: DAPPHistory,
    batch: Batch,
    memory: Memory,
    past: Past,
    gone: Int[Tensor, "B N K"],
) -> DAPPHistory:
    spectrum = spectrum_of(history.parts)
    K, first = len(model.readout), memory.times.shape[1]
    driven = attention.drive(
        spectrum, batch.marks, model._channels(past.values[:, first:]), batch.valid
    )
    if gone.is_cuda or bool(
        (gone >= 0).any()
    ):  # a device is not asked: that would cost more than what it might save
        old = gone.clamp(min=0)
        times, marks, values = (
            x.expand(-1, -1, K).gather(1, old) for x in (past.times, past.marks, past.values)
        )
        lag = ((batch.times[..., None] - times) / model.time_scale).to(model.readout)
        lost = attention.drive(spectrum, marks, model._channels(values), gone >= 0)
        driven = driven - attention.faded(spectrum.rate, torch.where(gone >= 0, lag, 0.0), lost)
    if not first:
        return model._scan(history, driven, None)
    lag = ((history.times[:, :1, None] - memory.times) / model.time_scale).to(model.readout)
    held = attention.drive(
        spectrum, memory.marks, model._channels(memory.values), memory.active.valid
    )
    return model._scan(
        history,
        driven,
        attention.faded(spectrum.rate, torch.where(memory.active.valid, lag, 0.0), held).sum(1),
    )
