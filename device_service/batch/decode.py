"""Builds the input of decode steps."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows

import numpy as np
import torch

from device_service.batch.inputs import DecodeInput
from device_service.batch.sampling import DecodeSampling
from device_service.records import SamplingSite, StepPlan
from device_service.scheduling.lane import Lane
from device_service.sequence import Sequence


class DecodeBuilder:
    """Lays planned rows out on a fixed grid. Engine thread.

    Remembers whose rows the last step had, so that a step with the same ones
    says so and need not lay out its sampling again.
    """

    def __init__(self, live: Mapping[str, Sequence], lanes: Rows[Lane]) -> None:
        self._live = live
        self._lanes = lanes
        total_rows = len(lanes) * lanes[0].limits.rows
        self._sampling = DecodeSampling(live, total_rows)
        self._request_ids: list[str] = []
        self._rows: tuple[int, ...] = ()
        self._padded_rows = 0
        self._laid_out = False

    def build(self, plan: StepPlan, padded_rows: int) -> DecodeInput:
        """The input of a step on `padded_rows` rows.

        A row without a share in the step has position -1 and a zero page table,
        also when a request holds it: the device must not touch its KV (contract
        2.6, sharp edge 57b).
        """
        width = self._lanes[0].kv.table.shape[1]
        tokens = np.zeros((padded_rows, 1), dtype=np.int32)
        positions = np.full(padded_rows, -1, dtype=np.int32)
        table = np.zeros((padded_rows, width), dtype=np.int32)
        for row in plan.rows:
            lane = self._lanes[row.lane]
            known = self._live[row.request_id].request.all_token_ids
            tokens[row.row, 0] = known[row.start]
            positions[row.row] = row.start
            table[row.row] = lane.kv.table[row.row - row.lane * lane.limits.rows]
        sample_rows = tuple(row.row for row in plan.rows)
        changed = self._note_layout(plan, sample_rows, padded_rows)
        sampling = None
        if plan.sampling.site is SamplingSite.DEVICE:
            if not self._laid_out:
                self._sampling.lay_out(plan.rows, padded_rows)
                self._laid_out = True
            sampling = self._sampling.of_step()
        return DecodeInput(
            tokens=torch.from_numpy(tokens),
            positions=torch.from_numpy(positions),
            page_table=torch.from_numpy(table),
            sample_rows=sample_rows,
            sampling=sampling,
            layout_changed=changed,
        )

    def _note_layout(
        self, plan: StepPlan, rows: tuple[int, ...], padded_rows: int
    ) -> bool:
        request_ids = [row.request_id for row in plan.rows]
        if (
            request_ids == self._request_ids
            and rows == self._rows
            and padded_rows == self._padded_rows
        ):
            return False
        self._request_ids, self._rows = request_ids, rows
        self._padded_rows = padded_rows
        self._laid_out = False
        return True
