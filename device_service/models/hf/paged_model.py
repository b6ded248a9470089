"""A decoder with a paged cache: prefill one prompt's chunk, decode many rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from device_service.models.contract import KVLayer
from device_service.models.hf.paged_cache import PagedLayer, ProbeLayer, paged_cache
from device_service.models.hf.step import (
    PagedStep,
    decode_step,
    prefill_step,
    running,
)


class PagedKV:
    """The pool of all lanes; a layer that keeps nothing is None.

    Lane l owns blocks [l * num_blocks, (l + 1) * num_blocks), the first of which
    is its null block.
    """

    def __init__(
        self,
        layers: Sequence[KVLayer | None],
        *,
        lanes: int,
        num_blocks: int,
        block_size: int,
    ) -> None:
        self.lanes = lanes
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.cache = paged_cache(
            [
                ProbeLayer()
                if layer is None
                else _allocate(layer, lanes * num_blocks, block_size)
                for layer in layers
            ]
        )


def _allocate(layer: KVLayer, blocks: int, block_size: int) -> PagedLayer:
    keys, values = (
        _zeros((blocks, block_size, layer.num_kv_heads * size), layer.dtype)
        for size in (layer.key_size, layer.value_size)
    )
    return PagedLayer(keys, values)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that cost memory and time only where they are written.

    numpy asks for zeroed pages; torch.zeros writes them, several seconds for a
    pool of gigabytes.
    """
    bytes_wanted = math.prod(shape) * dtype.itemsize
    raw = torch.from_numpy(np.zeros(bytes_wanted, dtype=np.uint8))
    return raw.view(dtype).view(shape)


class PagedModel:
    """Runs on the mesh's worker; logits come back as float32 of their own.

    The worker is in inference mode, whose tensors may not be written to
    outside it, so results are copied into ordinary ones.
    """

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.vocab_size = int(decoder.config.get_text_config().vocab_size)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        dtype: torch.dtype = self._decoder.dtype
        return dtype

    def prefill(
        self, kv: PagedKV, tokens: torch.Tensor, table: torch.Tensor, start: int
    ) -> torch.Tensor:
        """Tokens int64 [S] at positions from `start`; the last one's logits [V]."""
        end = start + len(tokens)
        step = prefill_step(table, start, end, kv.block_size)
        return self._forward(kv, tokens[None], step)[0]

    def decode(
        self,
        kv: PagedKV,
        tokens: torch.Tensor,
        table: torch.Tensor,
        positions: torch.Tensor,
        width: int,
    ) -> torch.Tensor:
        """One token per row, all int64: tokens and positions [B], table [B, W].

        The context is the first `width` blocks of each row. Logits [B, V].
        """
        step = decode_step(table, positions, width, kv.block_size)
        return self._forward(kv, tokens[:, None], step)

    def _forward(
        self, kv: PagedKV, token_ids: torch.Tensor, step: PagedStep
    ) -> torch.Tensor:
        with running(step):
            output = self._decoder(
                input_ids=token_ids,
                position_ids=step.positions,
                cache=kv.cache,
                use_cache=True,
                logits_to_keep=1,
            )
        with torch.inference_mode(mode=False):
            logits = torch.empty(len(token_ids), self.vocab_size)
        logits.copy_(output.logits[:, -1, : self.vocab_size])
        return logits
