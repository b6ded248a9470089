"""What the engine thread spends between the steps of the mesh, seen from outside.

Timers stand at the seams that the engine is built with (clock, driver, sampler,
session), so nothing in the engine knows of them. A part is named after the mark
at which it begins, and lasts until the next one:

    |<- inbox ->|<- sample ->|<- apply ->|<- plan ->|<- build ->|<- submit ->| ...
    result      sample       sampled     planning   rows        decode
    there                                begins     asked

    ... |<- tail ->|<- outputs ->|<- log ->|<- wait ->|
        queued     deliver       delivered result     result
                                           asked      there

Where the device samples there is no `sample`, and `inbox` reaches to where the
tokens are applied. Where steps overlap the parts come in another order. `host`
is all of them but the wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from bench.engine import Recorder, Seams
from device_service.batch.inputs import DecodeInput, PrefillInput
from device_service.codec.outputs import step_output
from device_service.merging import PendingSteps
from device_service.mesh.interface import Driver, StepHandle, StepResult
from device_service.records import Phase, Sampled, SamplingRow, StepUpdates
from device_service.sampling.interface import TokenSampler

PART_AT = {
    "result_there": "inbox",
    "sample": "sample",
    "sampled": "apply",
    "deliver": "outputs",
    "delivered": "log",
    "clock": "plan",
    "rows": "build",
    "decode": "submit",
    "queued": "tail",
    "result": "wait",
}
PARTS = tuple(part for part in PART_AT.values() if part != "wait")

Mark = tuple[str, float, float]
"""Name, wall and CPU seconds of the engine thread."""

Spent = dict[str, tuple[float, float]]
"""Per part, and for "host", all of them: wall and CPU microseconds."""


class Marks:
    """Moments on the engine thread."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self.delivered: StepUpdates | None = None

    def mark(self, name: str) -> None:
        """Note a moment."""
        self._marks.append((name, time.perf_counter(), time.thread_time()))

    def clock(self) -> float:
        """The engine's clock; that it is read is a moment too."""
        self.mark("clock")
        return time.monotonic()

    def take(self) -> list[Spent]:
        """The decode turns since the last call, those that have all marks once."""
        marks, self._marks = _without_other_clocks(self._marks), []
        begins = [i for i, mark in enumerate(marks) if mark[0] == "result_there"]
        turns = [marks[begin : end + 1] for begin, end in pairwise(begins)]
        return [_spent(turn) for turn in turns if _is_whole(turn)]

    def seams(self) -> Seams:
        """What an engine has to be built with."""
        return Seams(
            driver=lambda driver: _Driver(driver, self.mark),
            sampler=lambda sampler: _Sampler(sampler, self.mark),
            recorder=lambda handles: _Recorder(handles, self),
            clock=self.clock,
        )


def _without_other_clocks(marks: list[Mark]) -> list[Mark]:
    """Of the clock's marks only the one at which planning begins."""
    following = [mark[0] for mark in marks[1:]] + [""]
    return [
        mark
        for mark, after in zip(marks, following, strict=True)
        if mark[0] != "clock" or after == "rows"
    ]


def _is_whole(turn: list[Mark]) -> bool:
    names = [mark[0] for mark in turn[:-1]]
    always = PART_AT.keys() - {"sample", "sampled"}
    return len(names) == len(set(names)) and always <= set(names)


def _spent(turn: list[Mark]) -> Spent:
    spent = {
        PART_AT[before[0]]: ((after[1] - before[1]) * 1e6, (after[2] - before[2]) * 1e6)
        for before, after in pairwise(turn)
    }
    work = [times for part, times in spent.items() if part != "wait"]
    spent["host"] = (sum(wall for wall, _ in work), sum(cpu for _, cpu in work))
    return spent


class _Handle:
    def __init__(self, handle: StepHandle, mark: Callable[[str], None]) -> None:
        self.inner = handle
        self._mark = mark

    def is_done(self) -> bool:
        return self.inner.is_done()

    def on_done(self, callback: Callable[[], None]) -> None:
        self.inner.on_done(callback)

    def result(self) -> StepResult:
        self._mark("result")
        try:
            return self.inner.result()
        finally:
            self._mark("result_there")


class _Driver:
    def __init__(self, driver: Driver, mark: Callable[[str], None]) -> None:
        self._driver = driver
        self._mark = mark

    @property
    def resident_inputs(self) -> bool:
        return self._driver.resident_inputs

    def queues(self, phase: Phase) -> bool:
        return self._driver.queues(phase)

    @property
    def device_grammar(self) -> bool:
        return self._driver.device_grammar

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

    def sample_deferred(
        self, handle: StepHandle, bitmask: npt.NDArray[np.int32] | None
    ) -> StepHandle:
        assert isinstance(handle, _Handle)
        sampled = self._driver.sample_deferred(handle.inner, bitmask)
        return _Handle(sampled, self._mark)

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

    def best(self, logits: torch.Tensor) -> Sampled | None:
        self._mark("sample")
        sampled = self._sampler.best(logits)
        self._mark("sampled")
        return sampled

    def release(self, request_id: str) -> None:
        self._sampler.release(request_id)


class _Recorder(Recorder):
    def __init__(self, handles: Sequence[int], marks: Marks) -> None:
        super().__init__(handles)
        self._marks = marks

    def deliver(self, updates: StepUpdates) -> None:
        self._marks.mark("deliver")
        super().deliver(updates)
        if not any(update.finish for update in updates.updates):
            self._marks.delivered = updates
        self._marks.mark("delivered")


def wire_us(updates: StepUpdates, times: int = 200) -> float:
    """CPU microseconds of the event loop for the message of one step."""
    began = time.thread_time()
    for _ in range(times):
        pending = PendingSteps()
        pending.add(updates, updates.updates)
        step_output(pending.take()).SerializeToString()
    return (time.thread_time() - began) / times * 1e6
