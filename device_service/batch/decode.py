"""Builds the input of a decode step."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows

import numpy as np
import torch

from device_service.batch.inputs import DecodeInput
from device_service.records import StepPlan
from device_service.scheduling.lane import Lane
from device_service.sequence import Sequence


def build_decode(
    plan: StepPlan,
    live: Mapping[str, Sequence],
    lanes: Rows[Lane],
    padded_rows: int,
) -> DecodeInput:
    """Lay the planned rows out on a fixed grid of `padded_rows`.

    A row without a share in the step has position -1 and a zero page table,
    also when a request holds it: the device must not touch its KV (contract
    2.6, sharp edge 57b).
    """
    width = lanes[0].kv.table.shape[1]
    tokens = np.zeros((padded_rows, 1), dtype=np.int32)
    positions = np.full(padded_rows, -1, dtype=np.int32)
    table = np.zeros((padded_rows, width), dtype=np.int32)
    for row in plan.rows:
        lane = lanes[row.lane]
        tokens[row.row, 0] = live[row.request_id].request.all_token_ids[row.start]
        positions[row.row] = row.start
        table[row.row] = lane.kv.table[row.row - row.lane * lane.limits.rows]
    return DecodeInput(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions),
        page_table=torch.from_numpy(table),
        sample_rows=tuple(row.row for row in plan.rows),
    )
