"""Builds the input of a prefill step."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows

import numpy as np
import torch

from device_service.batch.inputs import PrefillInput, StepSampling
from device_service.records import SamplingSite, StepPlan
from device_service.scheduling.lane import Lane
from device_service.sequence import Sequence


def build_prefill(
    plan: StepPlan, live: Mapping[str, Sequence], lanes: Rows[Lane]
) -> PrefillInput:
    """Gather tokens and page tables of the planned prompts, in plan order.

    Rows carry their tokens from position 0; those before `start_pos` are there
    for adapters that floor a resume offset to their own alignment.
    """
    ends = [row.start + row.num_tokens for row in plan.rows]
    tokens = np.zeros((len(ends), max(ends)), dtype=np.int32)
    width = lanes[0].kv.table.shape[1]
    table = np.zeros((len(ends), width), dtype=np.int32)
    for i, (row, end) in enumerate(zip(plan.rows, ends, strict=True)):
        lane = lanes[row.lane]
        tokens[i, :end] = live[row.request_id].request.all_token_ids[:end]
        table[i] = lane.kv.table[row.row - row.lane * lane.limits.rows]
    return PrefillInput(
        tokens=torch.from_numpy(tokens),
        page_table=torch.from_numpy(table),
        prompt_lens=torch.tensor(ends, dtype=torch.int64),
        start_pos=torch.tensor([row.start for row in plan.rows], dtype=torch.int32),
        slots=tuple(row.row for row in plan.rows),
        emits=tuple(row.emits for row in plan.rows),
        sampling=_sampling(plan, live),
    )


def _sampling(plan: StepPlan, live: Mapping[str, Sequence]) -> StepSampling | None:
    if plan.sampling.site is not SamplingSite.DEVICE:
        return None
    return StepSampling(tuple(live[row.request_id].sampling for row in plan.rows))
