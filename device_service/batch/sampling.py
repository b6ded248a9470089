"""What the device's sampler gets with a step: facts per row, and histories.

Rows are laid out once for as long as the same requests decode; a steady step
takes what is there.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import numpy.typing as npt
import torch

from device_service.batch.inputs import StepSampling
from device_service.sampling.facts import PADDING, SamplingFacts
from device_service.sampling.processors import live_output
from device_service.sequence import Sequence

_PAD = -1


class DecodeSampling:
    """Lays out the sampling of decode steps. Engine thread.

    `total_rows` counts the rows of all lanes.
    """

    def __init__(self, total_rows: int) -> None:
        self._prompts = _History(total_rows)
        self._outputs = _History(total_rows)
        self._facts: tuple[SamplingFacts, ...] = ()
        self._penalised: list[tuple[int, Sequence]] = []
        self._structured = False

    def lay_out(
        self, rows: Rows[int], sequences: Rows[Sequence], padded_rows: int
    ) -> None:
        """Other rows, or other requests in them, than in the step before."""
        facts = [PADDING] * padded_rows
        for row, sequence in zip(rows, sequences, strict=True):
            facts[row] = sequence.sampling
        self._facts = tuple(facts)
        self._penalised = [
            (row, sequence)
            for row, sequence in zip(rows, sequences, strict=True)
            if sequence.sampling.penalised
        ]
        self._structured = any(fact.structured for fact in facts)

    def of_step(self) -> StepSampling:
        """The sampling of a step with the rows laid out last."""
        prompts = outputs = None
        if self._penalised:
            requests = [sequence.request for _, sequence in self._penalised]
            owners = [(row, sequence.request_id) for row, sequence in self._penalised]
            prompts = self._prompts.of(
                owners, [request.prompt_token_ids or [] for request in requests]
            )
            outputs = self._outputs.of(owners, [live_output(r) for r in requests])
        return StepSampling(self._facts, prompts, outputs, self._structured)


class _History:
    """Tokens of some rows, kept from step to step: only new ones are copied in."""

    def __init__(self, total_rows: int) -> None:
        self._cells: npt.NDArray[np.int32] = _padding(total_rows, 64)
        self._held: dict[int, tuple[str, int]] = {}

    def of(self, owners: Rows[tuple[int, str]], lists: Rows[list[int]]) -> torch.Tensor:
        """int32 [total rows, longest list], in memory of its own.

        `owners` are (row, request id), parallel to the lists; other rows are
        padding.
        """
        present = {row for row, _ in owners}
        for row in [row for row in self._held if row not in present]:
            self._clear(row)
        longest = max(1, *(len(tokens) for tokens in lists))
        self._grow(longest)
        for (row, request_id), tokens in zip(owners, lists, strict=True):
            owner, known = self._held.get(row, (request_id, 0))
            if owner != request_id:
                self._clear(row)
                known = 0
            self._cells[row, known : len(tokens)] = tokens[known:]
            self._held[row] = (request_id, len(tokens))
        return torch.from_numpy(self._cells[:, :longest].copy())

    def _clear(self, row: int) -> None:
        self._cells[row] = _PAD
        del self._held[row]

    def _grow(self, width: int) -> None:
        rows, columns = self._cells.shape
        if width > columns:
            wider = _padding(rows, 2 * width)
            wider[:, :columns] = self._cells
            self._cells = wider


def _padding(rows: int, columns: int) -> npt.NDArray[np.int32]:
    return np.full((rows, columns), _PAD, dtype=np.int32)
