"""The outcomes of recorded steps, on the simulated mesh.

Steps run there as they would; what came out of them is taken from the recording:
who went on, who ended by itself, and which step failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.request import Request

from device_service.batch.inputs import DecodeInput, PrefillInput, StepSampling
from device_service.mesh.interface import (
    Driver,
    MeshPoisoned,
    StepHandle,
    StepResult,
)
from device_service.recording.recorder import Recording
from device_service.records import FinishKind, Phase, Sampled, SamplingRow, StepRecord
from device_service.replay.requests import ERROR_TOKEN, PLAIN_TOKEN, STOP_TOKEN
from device_service.sampling.facts import PADDING
from ttserve.errors import Reason, TTServeError

_TOKENS = {
    FinishKind.STOP.value: STOP_TOKEN,
    # Looking for repetition is part of the request's text, which is not recorded.
    FinishKind.REPETITION.value: STOP_TOKEN,
    FinishKind.ERROR.value: ERROR_TOKEN,
}


class EndOfRecording(BaseException):
    """A step is waited for that had not been applied when the recording was taken.

    No `Exception`: those that a handle raises are the step's own failure. `step`
    is its number and `rows` how many took part.
    """

    def __init__(self, step: int, rows: int) -> None:
        super().__init__(f"step {step} of {rows} rows is still running")
        self.step = step
        self.rows = rows


class RecordedStepFailed(RuntimeError):
    """A step that failed when it was recorded."""


class Outcomes:
    """What came out of each recorded step."""

    def __init__(self, recording: Recording) -> None:
        self._steps = {step.number: step for step in recording.steps}
        poisoned = recording.end is not None and recording.end.poisoned
        last = recording.steps[-1].number if recording.steps else None
        self._poisoned = last if poisoned else None

    def tokens(self, number: int, rows: Sequence[int]) -> list[int]:
        """A token for each merged row of a step; raises what the step ended with."""
        step = self._steps.get(number)
        if step is None:
            raise EndOfRecording(number, len(rows))
        if step.error:
            kind = MeshPoisoned if number == self._poisoned else RecordedStepFailed
            raise kind(step.error)
        ends = {row.row: row.finish_reason for lane in step.lanes for row in lane.rows}
        return [_TOKENS.get(ends.get(row, ""), PLAIN_TOKEN) for row in rows]

    def record(self, number: int) -> StepRecord | None:
        """The step itself."""
        return self._steps.get(number)


@dataclass(frozen=True, slots=True)
class _Handle:
    """A step on the simulated mesh whose results are those recorded."""

    inner: StepHandle
    number: int
    rows: tuple[int, ...]
    on_device: bool
    outcomes: Outcomes
    on_read: Callable[[int], None]

    def is_done(self) -> bool:
        return self.inner.is_done()

    def on_done(self, callback: Callable[[], None]) -> None:
        self.inner.on_done(callback)

    def result(self) -> StepResult:
        tokens = self.outcomes.tokens(self.number, self.rows)
        ran = self.inner.result()
        self.on_read(self.number)
        if self.on_device:
            chosen = np.array(tokens, dtype=np.int32)
            return StepResult(None, ran.began, ran.ended, chosen)
        logits = torch.tensor(tokens, dtype=torch.float32).reshape(-1, 1)
        return StepResult(logits, ran.began, ran.ended)


class ReplayDriver:
    """`interface.Driver`: a simulated model that says what was recorded.

    It has one KV group and samples greedily, whatever the recorded model did.
    Steps are counted from `last_number` on. `on_read` is told the number of a step
    whose results are taken. Engine thread.
    """

    device_grammar = False

    def __init__(
        self,
        inner: Driver,
        outcomes: Outcomes,
        last_number: int,
        *,
        resident_inputs: bool,
        on_read: Callable[[int], None],
    ) -> None:
        self._inner = inner
        self._outcomes = outcomes
        self._number = last_number
        self.resident_inputs = resident_inputs
        self._on_read = on_read

    def queues(self, phase: Phase) -> bool:
        """As the simulated mesh."""
        return self._inner.queues(phase)

    def decode_rows(self, highest_row: int) -> int:
        """As the simulated mesh."""
        return self._inner.decode_rows(highest_row)

    def prefill(self, step: PrefillInput) -> StepHandle:
        """Run a prefill step."""
        plain = replace(step, sampling=_plain(step.sampling), more_tables=None)
        handle = self._inner.prefill(plain)
        return self._handle(handle, step.slots, step.sampling)

    def decode(self, step: DecodeInput) -> StepHandle:
        """Run a decode step."""
        plain = replace(step, sampling=_plain(step.sampling), more_tables=None)
        handle = self._inner.decode(plain)
        return self._handle(handle, step.sample_rows, step.sampling)

    def sample_deferred(
        self, handle: StepHandle, bitmask: npt.NDArray[np.int32] | None
    ) -> StepHandle:
        """Nothing is left to do: tokens are chosen already."""
        return handle

    def release_row(self, row: int) -> None:
        """A request left its row."""
        self._inner.release_row(row)

    def _handle(
        self, inner: StepHandle, rows: tuple[int, ...], sampling: StepSampling | None
    ) -> StepHandle:
        self._number += 1
        return _Handle(
            inner,
            self._number,
            rows,
            sampling is not None,
            self._outcomes,
            self._on_read,
        )


def _plain(sampling: StepSampling | None) -> StepSampling | None:
    """The simulated model's choice is not used, so it need not be hard."""
    return None if sampling is None else StepSampling((PADDING,) * len(sampling.rows))


class ReplaySampler:
    """`TokenSampler`: the logits are the tokens."""

    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[SamplingRow],
        bitmask: np.ndarray | None,
    ) -> Sampled:
        """Take them as they are."""
        tokens = logits[:, 0].int().tolist()
        errors = {
            place: TTServeError(Reason.INTERNAL, "it ended with an error then, too")
            for place, token in enumerate(tokens)
            if token == ERROR_TOKEN
        }
        return Sampled(tokens, [None] * len(tokens), errors)

    def best(self, logits: torch.Tensor) -> Sampled | None:
        """Let `sample` look."""
        return None

    def release(self, request_id: str) -> None:
        """Nothing is kept."""


class ReplayGrammars:
    """`GrammarKeeper`: every grammar allows everything; the recording says when
    one is ready.
    """

    live = 0

    def start(
        self, request: Request, on_ready: Callable[[str, TTServeError | None], None]
    ) -> None:
        """Nothing is compiled."""

    def bitmask(self, requests: Sequence[Request]) -> np.ndarray | None:
        """No token is forbidden."""
        return None

    def accept(self, request: Request, token_id: int) -> bool:
        """Every token is legal."""
        return True

    def release(self, request_id: str) -> None:
        """Nothing is kept."""
