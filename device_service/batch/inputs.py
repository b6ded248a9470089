"""What a step hands to the mesh: one record for prefill, one for decode.

Shapes: `B` rows of a decode batch (a bucket, contract 1.2), `n` rows of a
prefill, `W` columns of a page table = min(ceil(max_model_len / block_size),
num_blocks). Unused page-table cells are 0, the null block; rows without a
request have position -1, token 0 and a zero page table (contract 1.8).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PrefillInput:
    """A prefill step: `n` prompts or chunks, in the order of the plan's rows.

    tokens int32 [n, max(prompt_lens)]: only [start_pos, prompt_lens) of a row
    is this step's work. page_table int32 [n, W]. prompt_lens int64 [n]: end of
    the chunk. start_pos int32 [n]: tokens computed before. slots: the device
    row of each prompt. emits: whether the row completes its prompt.
    """

    tokens: torch.Tensor
    page_table: torch.Tensor
    prompt_lens: torch.Tensor
    start_pos: torch.Tensor
    slots: tuple[int, ...]
    emits: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class DecodeInput:
    """A decode step at a fixed shape.

    tokens int32 [B, 1], positions int32 [B], page_table int32 [B, W].
    sample_rows: merged rows whose logits are wanted, in plan order.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    page_table: torch.Tensor
    sample_rows: tuple[int, ...]
