"""The engine as the event loop sees it.

Every method may be called from any thread and returns at once; what it asks
for happens on the engine thread, between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from device_service.recording.recorder import Recording
from device_service.records import AbortCause, Admitted, EngineState, StepRecord
from device_service.step_log import StepListener
from ttserve.errors import TTServeError


class StepLog(Protocol):
    """The newest steps, in a ring."""

    def newest(self, limit: int) -> list[StepRecord]:
        """Up to `limit` newest records, oldest first. Any thread."""

    def add_listener(self, listener: StepListener) -> None:
        """Call `listener` on the engine thread for every record from now on.

        Event loop, as `remove_listener`.
        """

    def remove_listener(self, listener: StepListener) -> None:
        """Call `listener` no longer."""


class EngineHandle(Protocol):
    """Crossing into the engine thread."""

    @property
    def step_log(self) -> StepLog: ...

    @property
    def died(self) -> Future[None]:
        """Done when the engine thread has ended: with None after `stop`, with
        the exception after a fatal error (everything in flight has been
        answered by then).
        """

    def silence_seconds(self) -> float:
        """How long ago a loop was completed; 0.0 while there is nothing to do."""

    def submit(self, batch: Sequence[Admitted]) -> None:
        """Queue admitted requests, in order, all in the same loop."""

    def grammar_ready(self, request_id: str, error: TTServeError | None) -> None:
        """Let a request that awaited its grammar go on, or fail it."""

    def abort(self, request_ids: Sequence[str], cause: AbortCause) -> None:
        """End requests; each still gets its final update; unknown ids are ignored."""

    def snapshot(self) -> Future[EngineState]:
        """A picture between two steps."""

    def recording(self, reason: str) -> Recording | None:
        """The newest events and steps, also while the engine hangs; None before its
        first turn.
        """

    def pause(self) -> Future[int]:
        """Stand still before the next step; answers with the newest step's number."""

    def run_steps(self, count: int) -> Future[list[StepRecord]]:
        """While paused, run up to `count` steps; fewer when work runs out."""

    def resume(self) -> Future[None]:
        """Run again."""

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> Future[bool]:
        """Forget cached prefixes; False when there are live requests, unless those
        that run are to be preempted.
        """

    def stop(self) -> None:
        """End the loop after the step in flight; what is left ends with DRAINING."""
