"""What the `cpu` and the `sim` mesh keep on the device between decode steps.

Token, position and page table of every row, and the sampling parameters, are
taken from the host when the reload commands say so and otherwise stay (contract
1.10): a step consumes the token that the step before it sampled, whether or not
the host has read it. Commands are made on the engine thread; everything else
here happens on the mesh's worker, in order of submission.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from device_service.models.contract import TTSamplingParams
from device_service.models.device_sampler import (
    DeviceSampler,
    History,
    Program,
    SampledTokens,
)

Integers = npt.NDArray[np.int32] | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Decode inputs: tokens [B], positions [B] with -1 for no request, page tables
    [B, W] as the adapter's forward reads them.
    """

    tokens: Integers
    positions: Integers
    tables: Integers


@dataclass(frozen=True, slots=True)
class DecodeOrder:
    """One decode step as it was submitted.

    params: None when the host samples or the choice is deferred. on_device:
    whether the device samples, deferred or not.
    """

    inputs: Inputs
    reload_inputs: bool
    reload_page_table: bool
    reload_sampling_params: bool
    on_device: bool
    params: TTSamplingParams | None = None
    history: History | None = None


Forward = Callable[[Inputs], torch.Tensor]
"""Computes one step on the worker: logits float32 [B, V], the caller's to keep."""


class DeferredDecode:
    """A forward whose tokens are still to be chosen; good for one use."""

    def __init__(self, logits: Callable[[], torch.Tensor], order: DecodeOrder) -> None:
        self._logits: Callable[[], torch.Tensor] | None = logits
        self.order = order

    def take(self) -> Callable[[], torch.Tensor]:
        """What waits for the logits; raises when it was taken before."""
        logits, self._logits = self._logits, None
        if logits is None:
            raise RuntimeError("a deferred decode is sampled once")
        return logits


class ResidentDecode:
    """The device's side of decode steps. The mesh's worker only."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.sampler = DeviceSampler(vocab_size)
        self._inputs: Inputs | None = None
        self._params: TTSamplingParams | None = None
        self._program: Program | None = None

    def step(
        self, order: DecodeOrder, forward: Forward
    ) -> torch.Tensor | SampledTokens:
        """Compute one step: logits for the host, or tokens that were sampled here."""
        logits = self.forward(order, forward)
        if not order.on_device:
            return logits
        if order.params is not None and order.reload_sampling_params:
            self.load(order.params)
        return self.choose(logits, order)

    def forward(self, order: DecodeOrder, forward: Forward) -> torch.Tensor:
        """Take what the commands say, compute, and leave the rest where it is.

        Until the step's tokens are chosen there is nothing that could stay.
        """
        inputs = self._take(order)
        self._inputs = None
        logits = forward(inputs)
        if order.on_device:
            self._inputs = inputs
        return logits

    def load(self, params: TTSamplingParams) -> None:
        """Take sampling parameters over from the host."""
        if self._params is not params:
            self._params, self._program = params, Program(params, self._vocab_size)

    def choose(
        self,
        logits: torch.Tensor,
        order: DecodeOrder,
        bitmask: torch.Tensor | None = None,
    ) -> SampledTokens:
        """Choose the step's tokens and leave them for the next one to consume."""
        inputs, program = self._inputs, self._program
        if inputs is None or program is None:
            raise RuntimeError("no sampling parameters are on the device")
        occupied = inputs.positions >= 0
        positions = np.where(occupied, inputs.positions + 1, -1)
        sampled = self.sampler.sample(
            logits, program, positions, order.history, bitmask
        )
        tokens = np.maximum(sampled.tokens, 0)
        self._inputs = Inputs(tokens, positions, inputs.tables)
        return sampled

    def _take(self, order: DecodeOrder) -> Inputs:
        if order.reload_inputs:
            return order.inputs
        held = self._inputs
        if held is None or held.tables.shape != order.inputs.tables.shape:
            raise RuntimeError("the inputs that were to be kept are not on the device")
        tables = order.inputs.tables if order.reload_page_table else held.tables
        return Inputs(held.tokens, held.positions, tables)
