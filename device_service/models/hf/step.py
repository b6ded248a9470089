"""What one forward pass works on: which positions, which blocks.

A model is called through transformers, which hands its attention neither the
block table nor our positions. So the step in progress is a context variable,
set for the length of one forward on the thread that runs it; the paged cache
and the mask function read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PagedStep:
    """`B` rows of `S` tokens, with a context of `nb` blocks per row.

    positions int64 [B, S]. slots int64 [B * S]: block * block_size + offset of
    every new token. table int64 [B * nb]: the blocks to gather, row by row;
    None when there is nothing before the new tokens, which then are their own
    context. context: keys per row, nb * block_size or S.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    table: torch.Tensor | None
    context: int


def prefill_step(
    table: torch.Tensor, start: int, end: int, block_size: int
) -> PagedStep:
    """Positions [start, end) of one prompt whose blocks are `table` (int64 [W])."""
    positions = torch.arange(start, end)
    blocks = -(-end // block_size)
    slots = table[positions // block_size] * block_size + positions % block_size
    if start == 0:
        return PagedStep(positions[None], slots, None, end)
    return PagedStep(positions[None], slots, table[:blocks], blocks * block_size)


def decode_step(
    table: torch.Tensor, positions: torch.Tensor, width: int, block_size: int
) -> PagedStep:
    """One token per row; `table` int64 [B, W] is used up to column `width`.

    Rows without a request must come as position 0 with a table of zeros: they
    write into block 0 and read it back.
    """
    blocks = table.gather(1, (positions // block_size)[:, None])[:, 0]
    slots = blocks * block_size + positions % block_size
    used = table[:, :width].reshape(-1)
    return PagedStep(positions[:, None], slots, used, width * block_size)


_CURRENT: ContextVar[PagedStep] = ContextVar("paged_step")


def current_step() -> PagedStep:
    """The step whose forward is running on this thread."""
    return _CURRENT.get()


@contextmanager
def running(step: PagedStep) -> Iterator[None]:
    """Make `step` the current one."""
    token = _CURRENT.set(step)
    try:
        yield
    finally:
        _CURRENT.reset(token)
