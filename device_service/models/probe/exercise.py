"""Requests by hand, over the driver that serves: prompts, chunks, decode steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from device_service.batch.inputs import DecodeInput, PrefillInput, StepSampling
from device_service.mesh.driver import AdapterDriver
from device_service.mesh.interface import StepHandle, StepResult
from device_service.models.capabilities import Capabilities
from device_service.sampling.facts import PADDING, SamplingFacts


@dataclass
class Walk:
    """A request whose tokens are known beforehand, on its row.

    tokens: prompt and what follows it. blocks: of its lane, in order of position.
    done: tokens whose KV is written. logits: float32 [V] after each step that
    ended at or behind the prompt. sampled: what the device chose instead.
    """

    tokens: list[int]
    prompt: int
    row: int
    blocks: list[int]
    done: int = 0
    facts: SamplingFacts | None = None
    logits: list[torch.Tensor] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)


GREEDY = replace(PADDING, top_p=0.0)
"""Greedy sampling on the device, as a request asks for it."""


class Exercise:
    """Puts walks through an adapter. One thread."""

    def __init__(  # noqa: PLR0913 - the sizes of one placement
        self,
        driver: AdapterDriver,
        *,
        rows: int,
        rows_per_lane: int,
        block_size: int,
        num_blocks: int,
        vocabulary: int,
        capabilities: Capabilities,
    ) -> None:
        self.driver = driver
        self.capabilities = capabilities
        self.rows = rows
        self.rows_per_lane = rows_per_lane
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.vocabulary = vocabulary
        self._on_rows: dict[int, Walk] = {}
        self._entered = 0

    # ----------------------------------------------------------------- requests

    def walk(self, seed: int, prompt: int, steps: int, row: int = 0) -> Walk:
        """A request of random tokens on `row`, with blocks of its own, scattered."""
        generator = np.random.default_rng(seed)
        tokens = generator.integers(3, self.vocabulary, size=prompt + steps).tolist()
        return self._enter(Walk(tokens, prompt, row, []))

    def again(self, walk: Walk, row: int) -> Walk:
        """The same tokens on a row, in other blocks, with nothing written yet."""
        return self._enter(Walk(list(walk.tokens), walk.prompt, row, []))

    def _enter(self, walk: Walk) -> Walk:
        lane = walk.row // self.rows_per_lane
        taken = {
            block
            for other in self._on_rows.values()
            if other.row // self.rows_per_lane == lane
            for block in other.blocks
        }
        free = [block for block in range(1, self.num_blocks) if block not in taken]
        self._entered += 1
        order = np.random.default_rng(self._entered).permutation(free).tolist()
        walk.blocks = order[: -(-len(walk.tokens) // self.block_size)]
        self._on_rows[walk.row] = walk
        return walk

    def leave(self, *walks: Walk) -> None:
        """The requests finished or were preempted."""
        for walk in walks:
            del self._on_rows[walk.row]
            self.driver.release_row(walk.row)

    def leave_all(self) -> None:
        """Whoever is left, after a check that broke off, whatever comes of it."""
        for walk in list(self._on_rows.values()):
            with suppress(Exception):
                self.leave(walk)

    # -------------------------------------------------------------------- steps

    def prefill(self, walks: Sequence[Walk], *, until: int | None = None) -> None:
        """One prefill step: each walk from where it is to its prompt or `until`."""
        ends = [walk.prompt if until is None else until for walk in walks]
        tokens = torch.zeros(len(walks), max(ends), dtype=torch.int32)
        for index, (walk, end) in enumerate(zip(walks, ends, strict=True)):
            tokens[index, :end] = torch.tensor(walk.tokens[:end])
        emits = tuple(end >= walk.prompt for walk, end in zip(walks, ends, strict=True))
        result = self.driver.prefill(
            PrefillInput(
                tokens=tokens,
                page_table=torch.stack([self._table(walk) for walk in walks]),
                prompt_lens=torch.tensor(ends, dtype=torch.int64),
                start_pos=torch.tensor(
                    [walk.done for walk in walks], dtype=torch.int32
                ),
                slots=tuple(walk.row for walk in walks),
                emits=emits,
            )
        ).result()
        for index, (walk, end) in enumerate(zip(walks, ends, strict=True)):
            walk.done = end
            if emits[index]:
                _take(walk, result, index)

    def decode(self, walks: Sequence[Walk]) -> None:
        """One decode step; the order of `walks` is that of the rows read back."""
        result = self.driver.decode(self.decode_input(walks)).result()
        for index, walk in enumerate(walks):
            _take(walk, result, index)

    def decode_ahead(self, walk: Walk, steps: int) -> None:
        """Decode steps, each submitted before the last one is read if it may be."""
        waiting: list[StepHandle] = []
        for _ in range(steps):
            if waiting and not self._stays_on_device(self._tables([walk])):
                _take(walk, waiting.pop().result(), 0)
            waiting.append(self.driver.decode(self.decode_input([walk])))
            if len(waiting) > 1:
                _take(walk, waiting.pop(0).result(), 0)
        _take(walk, waiting.pop().result(), 0)

    def decode_input(
        self, walks: Sequence[Walk], *, deferred: bool = False
    ) -> DecodeInput:
        """A decode step of these walks, whose rows move on by one token."""
        table = self._tables(walks)
        count = len(table)
        tokens = torch.zeros(count, 1, dtype=torch.int32)
        positions = torch.full((count,), -1, dtype=torch.int32)
        facts = [PADDING] * count
        for walk in walks:
            tokens[walk.row] = walk.tokens[walk.done]
            positions[walk.row] = walk.done
            walk.done += 1
            facts[walk.row] = walk.facts or PADDING
        sampling = None
        if walks[0].facts is not None:
            sampling = StepSampling(tuple(facts), deferred=deferred)
            if self._stays_on_device(table):
                # The host does not know what was sampled: nobody may look at it.
                tokens.zero_()
        return DecodeInput(
            tokens=tokens,
            positions=positions,
            page_table=table,
            sample_rows=tuple(walk.row for walk in walks),
            sampling=sampling,
            # Before a walk's first decode its prefill has broken the chain.
            layout_changed=False,
        )

    def _stays_on_device(self, table: torch.Tensor) -> bool:
        commands = self.driver.reload.plan(
            device_sampling=True, layout_changed=False, page_table=table.numpy()
        )
        return not commands.reload_inputs

    def run(self, walks: Sequence[Walk]) -> None:
        """Prefill and decode to the end."""
        self.prefill(walks)
        while all(walk.done < len(walk.tokens) for walk in walks):
            self.decode(walks)

    def _tables(self, walks: Sequence[Walk]) -> torch.Tensor:
        count = self.driver.decode_rows(max(walk.row for walk in walks))
        table = torch.zeros(count, self.driver.page_table_width, dtype=torch.int32)
        for walk in walks:
            table[walk.row] = self._table(walk)
        return table

    def _table(self, walk: Walk) -> torch.Tensor:
        row = torch.zeros(self.driver.page_table_width, dtype=torch.int32)
        row[: len(walk.blocks)] = torch.tensor(walk.blocks, dtype=torch.int32)
        return row


def _take(walk: Walk, result: StepResult, index: int) -> None:
    """Keep what a step gave; a device's token becomes the walk's next one."""
    if result.logits is not None:
        walk.logits.append(result.logits[index])
    elif result.tokens is not None:
        walk.sampled.append(int(result.tokens[index]))
        behind = walk.prompt + len(walk.sampled)
        if behind < len(walk.tokens):
            walk.tokens[behind] = walk.sampled[-1]
