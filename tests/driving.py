"""Drives an `AdapterDriver` by hand: prompts in chunks, decode steps, greedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from device_service.batch.inputs import DecodeInput, PrefillInput
from device_service.mesh.driver import AdapterDriver


@dataclass
class Run:
    """A request on its row; `blocks` are scattered on purpose."""

    prompt: Sequence[int]
    row: int
    blocks: Sequence[int]
    tokens: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)

    def take(self, logits: torch.Tensor) -> None:
        self.logits.append(logits)
        self.tokens.append(int(logits.argmax()))


def page_table(driver: AdapterDriver, blocks: Sequence[int]) -> torch.Tensor:
    """One row's page table, unused columns zero."""
    row = torch.zeros(driver.page_table_width, dtype=torch.int32)
    row[: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    return row


def prefill(driver: AdapterDriver, chunks: list[tuple[Run, int, int]]) -> None:
    """One prefill step of several rows; rows that reach their end take a token."""
    longest = max(end for _, _, end in chunks)
    tokens = torch.full((len(chunks), longest), 255, dtype=torch.int32)
    for index, (run, start, end) in enumerate(chunks):
        tokens[index, start:end] = torch.tensor(run.prompt[start:end])
    emits = tuple(end == len(run.prompt) for run, _, end in chunks)
    result = driver.prefill(
        PrefillInput(
            tokens=tokens,
            page_table=torch.stack(
                [page_table(driver, run.blocks) for run, _, _ in chunks]
            ),
            prompt_lens=torch.tensor([end for _, _, end in chunks]),
            start_pos=torch.tensor([s for _, s, _ in chunks], dtype=torch.int32),
            slots=tuple(run.row for run, _, _ in chunks),
            emits=emits,
        )
    ).result()
    assert result.logits is not None
    for (run, _, _), logits, emit in zip(chunks, result.logits, emits, strict=True):
        if emit:
            run.take(logits)


def decode(driver: AdapterDriver, runs: list[Run]) -> None:
    """One decode step; rows in between stay empty."""
    rows = driver.decode_rows(max(run.row for run in runs))
    tokens = torch.zeros(rows, 1, dtype=torch.int32)
    positions = torch.full((rows,), -1, dtype=torch.int32)
    tables = torch.zeros(rows, driver.page_table_width, dtype=torch.int32)
    for run in runs:
        tokens[run.row] = run.tokens[-1]
        positions[run.row] = run.length - 1
        tables[run.row] = page_table(driver, run.blocks)
    sample_rows = tuple(run.row for run in runs)
    result = driver.decode(DecodeInput(tokens, positions, tables, sample_rows)).result()
    assert result.logits is not None
    for run, logits in zip(runs, result.logits, strict=True):
        run.take(logits)
