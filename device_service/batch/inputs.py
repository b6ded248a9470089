"""What a step hands to the mesh: one record for prefill, one for decode.

Shapes: `B` rows of a decode batch (a bucket, contract 1.2), `n` rows of a
prefill, `W` columns of a page table = min(ceil(max_model_len / block_size),
num_blocks). Unused page-table cells are 0, the null block; rows without a
request have position -1, token 0 and a zero page table (contract 1.8).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from device_service.sampling.facts import SamplingFacts


@dataclass(frozen=True, slots=True)
class StepSampling:
    """How the device is to choose a step's tokens.

    rows: one entry per row handed to the model, padding included; the same
    object for as long as nothing in it changes. prompt_tokens, output_tokens:
    int32 [all rows of the mesh, L], padded with -1, only when some row has a
    penalty, and then of those rows only. deferred: the forward comes first and
    the choice when the grammar masks are there (contract 1.11).
    """

    rows: tuple[SamplingFacts, ...]
    prompt_tokens: torch.Tensor | None = None
    output_tokens: torch.Tensor | None = None
    deferred: bool = False

    @property
    def wants_logprobs(self) -> bool:
        """Whether any row asks for log probabilities."""
        return any(row.num_logprobs >= 0 for row in self.rows)


@dataclass(frozen=True, slots=True)
class PrefillInput:
    """A prefill step: `n` prompts or chunks, in the order of the plan's rows.

    tokens int32 [n, max(prompt_lens)]: only [start_pos, prompt_lens) of a row
    is this step's work. page_table int32 [n, W]. prompt_lens int64 [n]: end of
    the chunk. start_pos int32 [n]: tokens computed before. slots: the device
    row of each prompt. emits: whether the row completes its prompt. sampling:
    None when the host samples. more_tables int32 [groups - 1, n, W]: page tables
    of further KV groups, if there are any.
    """

    tokens: torch.Tensor
    page_table: torch.Tensor
    prompt_lens: torch.Tensor
    start_pos: torch.Tensor
    slots: tuple[int, ...]
    emits: tuple[bool, ...]
    sampling: StepSampling | None = None
    more_tables: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecodeInput:
    """A decode step at a fixed shape.

    tokens int32 [B, 1], positions int32 [B], page_table int32 [B, W].
    sample_rows: merged rows whose results are wanted, in plan order. sampling:
    None when the host samples. layout_changed: other rows or other requests than
    in the decode step that was built before. more_tables int32 [groups - 1, B, W]:
    page tables of further KV groups, if there are any. overlapping: the tokens are
    not known yet, and zero here; they are on the device.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    page_table: torch.Tensor
    sample_rows: tuple[int, ...]
    sampling: StepSampling | None = None
    layout_changed: bool = True
    more_tables: torch.Tensor | None = None
    overlapping: bool = False
