"""Builds the input of a prefill step."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import torch

from device_service.batch.inputs import PrefillInput, StepSampling
from device_service.kv.layers import PageTables
from device_service.records import SamplingSite, StepPlan
from device_service.sequence import Sequence


def build_prefill(
    plan: StepPlan, sequences: Rows[Sequence], page_tables: PageTables
) -> PrefillInput:
    """Gather tokens and page tables of the planned prompts, in plan order.

    Rows carry their tokens from position 0; those before `start_pos` are there
    for adapters that floor a resume offset to their own alignment.
    """
    ends = [row.start + row.num_tokens for row in plan.rows]
    tokens = np.zeros((len(ends), max(ends)), dtype=np.int32)
    for i, (sequence, end) in enumerate(zip(sequences, ends, strict=True)):
        tokens[i, :end] = sequence.request.all_token_ids[:end]
    rows = [row.row for row in plan.rows]
    more = page_tables.more
    return PrefillInput(
        tokens=torch.from_numpy(tokens),
        page_table=torch.from_numpy(page_tables.first[rows]),
        more_tables=torch.from_numpy(more[:, rows]) if len(more) else None,
        prompt_lens=torch.tensor(ends, dtype=torch.int64),
        start_pos=torch.tensor([row.start for row in plan.rows], dtype=torch.int32),
        slots=tuple(rows),
        emits=tuple(row.emits for row in plan.rows),
        sampling=_sampling(plan, sequences),
    )


def _sampling(plan: StepPlan, sequences: Rows[Sequence]) -> StepSampling | None:
    if plan.sampling.site is not SamplingSite.DEVICE:
        return None
    return StepSampling(tuple(sequence.sampling for sequence in sequences))
