"""vLLM's logits processors, driven for rows that come and go.

A processor keeps state per row of a batch and is told what changed. Two kinds
need two ways:

- vLLM's own (`min_tokens`, `logit_bias`) derive their state from a request's
  parameters and its live output alone. They are told the whole batch anew at
  every step, at compact places: nothing can go stale, and only rows that use
  them are handed over. (`min_p`, the third of vLLM's own, is one of the cuts.)
- A configured one may remember anything, so it sees a grid in which a request
  keeps its place: its row in the merged batch, for as long as it lives. Rows
  that do not emit are zero there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm.config import VllmConfig
from vllm.v1.request import Request
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitBiasLogitsProcessor,
    LogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
    build_logitsprocs,
)
from vllm.v1.sample.logits_processor.interface import AddedRequest

from device_service.records import SamplingRow
from device_service.sampling.batch import DrawnRow

_VLLMS_OWN = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)


def build_processors(
    config: VllmConfig,
) -> tuple[list[LogitsProcessor], list[LogitsProcessor]]:
    """Processors of this process: vLLM's own without min_p, and configured ones."""
    built = build_logitsprocs(
        config,
        torch.device("cpu"),
        is_pin_memory=False,
        is_pooling_model=False,
        custom_logitsprocs=config.model_config.logits_processors or (),
    )
    own: list[LogitsProcessor] = [p for p in built.all if isinstance(p, _VLLMS_OWN[:2])]
    configured = [p for p in built.all if not isinstance(p, _VLLMS_OWN)]
    return own, configured


def live_output(request: Request) -> list[int]:
    """The list to which a request's tokens are appended.

    Not the read-only view: processors compare slices of it with lists.
    """
    return request._output_token_ids  # noqa: SLF001


class CompactBatch:
    """Feeds processors whose state follows from parameters and output."""

    def __init__(self, processors: Sequence[LogitsProcessor]) -> None:
        self._processors = processors
        self._size = 0

    def update(self, requests: Sequence[Request]) -> None:
        """Make the given requests rows 0, 1, … of the processors' batch."""
        size = len(requests)
        update = BatchUpdate(
            batch_size=size,
            removed=range(size, self._size),
            added=[_added(place, request) for place, request in enumerate(requests)],
            moved=(),
        )
        self._size = size
        for processor in self._processors:
            processor.update_state(update)


class RowGrid:
    """Feeds processors that may keep a state of their own. Engine thread."""

    def __init__(
        self, processors: Sequence[LogitsProcessor], total_rows: int, vocab_size: int
    ) -> None:
        self._always = [p for p in processors if not p.is_argmax_invariant()]
        self._random_only = [p for p in processors if p.is_argmax_invariant()]
        self._shape = (total_rows, vocab_size)
        self._occupants: dict[int, Request] = {}
        self._vacated: set[int] = set()

    @property
    def active(self) -> bool:
        """Whether there is any processor to feed."""
        return bool(self._always or self._random_only)

    @property
    def changes_draws(self) -> bool:
        """Whether a processor wants the scaled logits of rows that draw."""
        return bool(self._random_only)

    @property
    def occupied(self) -> int:
        """Rows that a processor may hold state for."""
        return len(self._occupants)

    def forget(self, request_id: str) -> None:
        """Vacate a request's row; unknown ids are ignored."""
        for row, occupant in list(self._occupants.items()):
            if occupant.request_id == request_id:
                del self._occupants[row]
                self._vacated.add(row)

    def update(self, rows: Sequence[SamplingRow]) -> None:
        """Tell the processors who came and who left since the step before.

        A row that was vacated and is taken again in one step is only added: vLLM
        reads additions as replacing, but some processors remove last.
        """
        added = []
        for row in rows:
            if self._occupants.get(row.row) is row.request:
                continue
            self.forget(row.request.request_id)
            self._occupants[row.row] = row.request
            added.append(_added(row.row, row.request))
        removed = sorted(self._vacated - self._occupants.keys(), reverse=True)
        self._vacated.clear()
        update = None
        if added or removed:
            update = BatchUpdate(
                batch_size=self._shape[0], removed=removed, added=added, moved=()
            )
        for processor in (*self._random_only, *self._always):
            processor.update_state(update)

    def apply_always(
        self, logits: torch.Tensor, rows: Sequence[DrawnRow]
    ) -> torch.Tensor:
        """Apply the processors that change greedy choices too."""
        return self._apply(self._always, logits, rows)

    def apply_random_only(
        self, scaled: torch.Tensor, rows: Sequence[DrawnRow]
    ) -> torch.Tensor:
        """Apply the processors that leave the best token the best."""
        return self._apply(self._random_only, scaled, rows)

    def _apply(
        self,
        processors: Sequence[LogitsProcessor],
        logits: torch.Tensor,
        rows: Sequence[DrawnRow],
    ) -> torch.Tensor:
        if not processors:
            return logits
        places = torch.tensor([row.row for row in rows])
        grid = torch.zeros(self._shape)
        grid[places] = logits
        for processor in processors:
            grid = processor.apply(grid)
        return grid[places]


def _added(place: int, request: Request) -> AddedRequest:
    params = request.sampling_params
    assert params is not None
    return place, params, request.prompt_token_ids, live_output(request)
