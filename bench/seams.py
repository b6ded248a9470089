"""What the engine thread spends between the steps of the mesh, seen from outside.

Timers stand at the seams that the engine is built with (clock, driver, sampler,
session), so nothing in the engine knows of them:

    |<- wait ->|<- inbox ->|<- sample ->|<- apply ->|<- deliver ->|<- log ->|
    result  result     sample      sampled     deliver     delivered    planning
    asked   there                                                       begins

    |<- plan ->|<- build ->|<- submit ->|<- tail ->|
    planning   rows        step         step       result
    begins     asked       handed over  queued     asked
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch

from bench.engine import Recorder, Seams
from device_service.batch.inputs import DecodeInput, PrefillInput
from device_service.mesh.interface import Driver, StepHandle, StepResult
from device_service.records import Sampled, SamplingRow, StepUpdates
from device_service.sampling.interface import TokenSampler

CYCLE = (
    ("result_there", "inbox"),
    ("sample", "sample"),
    ("sampled", "apply"),
    ("deliver", "deliver"),
    ("delivered", "log"),
    ("clock", "plan"),
    ("rows", "build"),
    ("decode", "submit"),
    ("queued", "tail"),
    ("result", "wait"),
)
"""Marks of a decode turn in order, and what happens until the next one."""

PARTS = tuple(part for _, part in CYCLE if part != "wait")

Spent = dict[str, tuple[float, float]]
"""Per part: wall and CPU time of the engine thread, in microseconds."""


class Marks:
    """Moments on the engine thread: name, wall and CPU seconds."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, float, float]] = []

    def mark(self, name: str) -> None:
        """Note a moment."""
        self._marks.append((name, time.perf_counter(), time.thread_time()))

    def clock(self) -> float:
        """The engine's clock; that it is read is a moment too."""
        self.mark("clock")
        return time.monotonic()

    def take(self) -> list[Spent]:
        """The decode turns since the last call that have all marks in order."""
        marks, self._marks = _without_other_clocks(self._marks), []
        names = [name for name, _ in CYCLE]
        turns = []
        for at in range(len(marks) - len(names)):
            turn = marks[at : at + len(names) + 1]
            if [mark[0] for mark in turn] == [*names, names[0]]:
                turns.append(_spent(turn))
        return turns

    def seams(self) -> Seams:
        """What an engine has to be built with."""
        return Seams(
            driver=lambda driver: _Driver(driver, self.mark),
            sampler=lambda sampler: _Sampler(sampler, self.mark),
            recorder=lambda handles: _Recorder(handles, self.mark),
            clock=self.clock,
        )


def _without_other_clocks(
    marks: list[tuple[str, float, float]],
) -> list[tuple[str, float, float]]:
    """Of the clock's marks only those that follow a delivery: planning begins."""
    kept: list[tuple[str, float, float]] = []
    for mark in marks:
        if mark[0] != "clock" or (kept and kept[-1][0] == "delivered"):
            kept.append(mark)
    return kept


def _spent(turn: list[tuple[str, float, float]]) -> Spent:
    return {
        part: ((after[1] - before[1]) * 1e6, (after[2] - before[2]) * 1e6)
        for (_, part), (before, after) in zip(CYCLE, pairwise(turn), strict=True)
    }


class _Handle:
    def __init__(self, handle: StepHandle, mark: Callable[[str], None]) -> None:
        self._handle = handle
        self._mark = mark

    def is_done(self) -> bool:
        return self._handle.is_done()

    def on_done(self, callback: Callable[[], None]) -> None:
        self._handle.on_done(callback)

    def result(self) -> StepResult:
        self._mark("result")
        try:
            return self._handle.result()
        finally:
            self._mark("result_there")


class _Driver:
    def __init__(self, driver: Driver, mark: Callable[[str], None]) -> None:
        self._driver = driver
        self._mark = mark

    def decode_rows(self, highest_row: int) -> int:
        self._mark("rows")
        return self._driver.decode_rows(highest_row)

    def prefill(self, step: PrefillInput) -> StepHandle:
        return self._driver.prefill(step)

    def decode(self, step: DecodeInput) -> StepHandle:
        self._mark("decode")
        handle = self._driver.decode(step)
        self._mark("queued")
        return _Handle(handle, self._mark)

    def release_row(self, row: int) -> None:
        self._driver.release_row(row)


class _Sampler:
    def __init__(self, sampler: TokenSampler, mark: Callable[[str], None]) -> None:
        self._sampler = sampler
        self._mark = mark

    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[SamplingRow],
        bitmask: np.ndarray | None,
    ) -> Sampled:
        self._mark("sample")
        sampled = self._sampler.sample(logits, rows, bitmask)
        self._mark("sampled")
        return sampled

    def release(self, request_id: str) -> None:
        self._sampler.release(request_id)


class _Recorder(Recorder):
    def __init__(self, handles: Sequence[int], mark: Callable[[str], None]) -> None:
        super().__init__(handles)
        self._mark = mark

    def deliver(self, updates: StepUpdates) -> None:
        self._mark("deliver")
        super().deliver(updates)
        self._mark("delivered")
