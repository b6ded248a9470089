"""Builds the input of decode steps."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import numpy.typing as npt
import torch

from device_service.batch.inputs import DecodeInput
from device_service.batch.sampling import DecodeSampling
from device_service.kv.layers import PageTables
from device_service.records import SamplingSite, StepPlan
from device_service.sequence import Sequence


class DecodeBuilder:
    """Lays planned rows out on a fixed grid. Engine thread.

    Remembers whose rows the last step had, so that a step with the same ones
    says so and need not lay out its sampling again.
    """

    def __init__(self, page_tables: PageTables) -> None:
        """`page_tables` are those of all rows as they are now."""
        self._page_tables = page_tables
        self._sampling = DecodeSampling(len(page_tables))
        self._sequences: Rows[Sequence] = ()
        self._rows: list[int] = []
        self._padded_rows = 0
        self._laid_out = False

    def build(
        self, plan: StepPlan, sequences: tuple[Sequence, ...], padded_rows: int
    ) -> DecodeInput:
        """The input of a step on `padded_rows` rows; `sequences` are the plan's.

        A row without a share in the step has position -1 and a zero page table,
        also when a request holds it: the device must not touch its KV (contract
        2.6, sharp edge 57b).
        """
        rows = [row.row for row in plan.rows]
        tokens = np.zeros((padded_rows, 1), dtype=np.int32)
        overlapping = plan.intent.overlap.overlap
        if not overlapping:
            tokens[rows, 0] = [
                sequence.request.all_token_ids[row.start]
                for row, sequence in zip(plan.rows, sequences, strict=True)
            ]
        positions = np.full(padded_rows, -1, dtype=np.int32)
        positions[rows] = [row.start for row in plan.rows]
        table = self._page_tables.first[:padded_rows].copy()
        table[positions < 0] = 0
        changed = self._note_layout(sequences, rows, padded_rows)
        sampling = None
        if plan.sampling.site is SamplingSite.DEVICE:
            if not self._laid_out:
                self._sampling.lay_out(rows, sequences, padded_rows)
                self._laid_out = True
            sampling = self._sampling.of_step()
        return DecodeInput(
            tokens=torch.from_numpy(tokens),
            positions=torch.from_numpy(positions),
            page_table=torch.from_numpy(table),
            more_tables=self._more_tables(positions),
            sample_rows=tuple(rows),
            sampling=sampling,
            layout_changed=changed,
            overlapping=overlapping,
        )

    def _more_tables(self, positions: npt.NDArray[np.int32]) -> torch.Tensor | None:
        more = self._page_tables.more
        if not len(more):
            return None
        tables = more[:, : len(positions)].copy()
        tables[:, positions < 0] = 0
        return torch.from_numpy(tables)

    def _note_layout(
        self, sequences: tuple[Sequence, ...], rows: list[int], padded_rows: int
    ) -> bool:
        if (
            sequences == self._sequences
            and rows == self._rows
            and padded_rows == self._padded_rows
        ):
            return False
        self._sequences, self._rows = sequences, rows
        self._padded_rows = padded_rows
        self._laid_out = False
        return True
