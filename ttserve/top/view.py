"""What is known of the device service, ready to be drawn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ttserve.v1 import inspector_pb2
from ttserve.watching import HISTORY

RATE_SECONDS = 3.0
KEPT_STEPS = 4 * HISTORY


@dataclass(frozen=True, slots=True)
class Rates:
    """Steps and produced tokens per second; shares of 0 to 1, None without steps."""

    steps: float
    tokens: float
    decode: float | None
    overlapped: float | None
    device_sampled: float | None


class View:
    """An `Observer` that keeps the newest of everything."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest_at = 0.0
        self._doing: dict[str, str] = {}
        self.state = inspector_pb2.GetStateResponse()
        self.steps: deque[inspector_pb2.StepRecord] = deque(maxlen=KEPT_STEPS)
        self.trouble = "connecting"
        self.lost = 0

    def on_link(self, trouble: str) -> None:
        """Remember whether there is news."""
        self.trouble = trouble

    def on_state(self, state: inspector_pb2.GetStateResponse) -> None:
        """Take a picture; steps of another instance are forgotten."""
        if state.instance_id != self.state.instance_id:
            self.steps.clear()
            self._doing.clear()
            self.lost = 0
        self.state = state
        live = {row.request_id for lane in state.lanes for row in lane.rows}
        self._doing = {key: self._doing[key] for key in self._doing.keys() & live}

    def on_steps(self, steps: Sequence[inspector_pb2.StepRecord]) -> None:
        """Take steps, oldest first."""
        self.steps.extend(steps)
        self._newest_at = self._clock()
        for step in steps:
            for lane in step.lanes:
                for row in lane.rows:
                    self._doing[row.request_id] = _doing(step, row)

    def on_lost(self, steps: int) -> None:
        """Count what cannot be shown."""
        self.lost += steps

    def doing(self, request_id: str) -> str:
        """What a request did in its newest step; empty when that is not known."""
        return self._doing.get(request_id, "")

    def rates(self) -> Rates:
        """Over the last `RATE_SECONDS`, by the clock of the device service."""
        if not self.steps:
            return Rates(0.0, 0.0, None, None, None)
        now = self.steps[-1].unix_seconds + self._clock() - self._newest_at
        recent = [s for s in self.steps if s.unix_seconds > now - RATE_SECONDS]

        def share(count: int) -> float | None:
            return count / len(recent) if recent else None

        on_device = inspector_pb2.SAMPLING_SITE_DEVICE
        return Rates(
            steps=len(recent) / RATE_SECONDS,
            tokens=sum(s.produced_tokens for s in recent) / RATE_SECONDS,
            decode=share(sum(s.phase == inspector_pb2.PHASE_DECODE for s in recent)),
            overlapped=share(sum(s.overlapped for s in recent)),
            device_sampled=share(sum(s.sampling_site == on_device for s in recent)),
        )


def _doing(step: inspector_pb2.StepRecord, row: inspector_pb2.StepRow) -> str:
    if step.phase == inspector_pb2.PHASE_DECODE:
        return "decode"
    chunk = " chunk" if row.intermediate_chunk else ""
    return f"prefill{chunk} {row.start_position}–{row.start_position + row.tokens}"
