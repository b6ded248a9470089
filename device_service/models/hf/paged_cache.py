"""A transformers cache whose keys and values lie in blocks.

`update` is the only place that sees what a model wants remembered (compressed
latents, where it has them), so it is where blocks are written and gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from device_service.models.hf.step import current_step


class _StepSized(CacheLayerMixin):
    """A layer that looks as long as the step in progress says.

    Its length is zero to the model, which would otherwise count positions from
    it; ours are given explicitly. Layers with a window are as long as others:
    the mask shortens them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Nothing is lazy here."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys, offset of the first)."""
        return current_step().context, 0

    def get_seq_length(self) -> int:
        """Nothing has been seen."""
        return 0

    def get_max_length(self) -> int:
        """No limit, in transformers' own word for it."""
        return -1


class ProbeLayer(_StepSized):
    """Keeps nothing; remembers what it was asked to keep."""

    seen: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hand back what came."""
        self.seen = (key_states, value_states)
        return key_states, value_states


class PagedLayer(_StepSized):
    """One layer's blocks: keys [num_blocks, block_size, heads * size], and values.

    Zero-filled, never merely allocated: masked keys are multiplied by zero,
    and zero times a stray NaN is NaN.
    """

    def __init__(self, key_store: torch.Tensor, value_store: torch.Tensor) -> None:
        super().__init__()
        self._key_slots = key_store.view(-1, key_store.shape[-1])
        self._value_slots = value_store.view(-1, value_store.shape[-1])
        self._key_blocks = key_store.view(key_store.shape[0], -1)
        self._value_blocks = value_store.view(value_store.shape[0], -1)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new tokens, [B, H, S, D], and return each row's whole context."""
        step = current_step()
        _write(self._key_slots, step.slots, key_states)
        _write(self._value_slots, step.slots, value_states)
        if step.table is None:
            return key_states, value_states
        return (
            _gather(self._key_blocks, step.table, key_states, step.context),
            _gather(self._value_blocks, step.table, value_states, step.context),
        )


def paged_cache(layers: Sequence[PagedLayer | ProbeLayer]) -> Cache:
    """The cache object that a model's forward takes."""
    return Cache(layers=list(layers))


def _write(store: torch.Tensor, slots: torch.Tensor, states: torch.Tensor) -> None:
    store.index_copy_(0, slots, states.transpose(1, 2).reshape(len(slots), -1))


def _gather(
    blocks: torch.Tensor, table: torch.Tensor, like: torch.Tensor, context: int
) -> torch.Tensor:
    """Copy whole blocks, then look at them as [B, H, context, D]."""
    batch, heads, _, size = like.shape
    found = blocks.index_select(0, table)
    return found.view(batch, context, heads, size).transpose(1, 2)
