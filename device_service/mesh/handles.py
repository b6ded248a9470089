"""Submitted steps: what the engine waits on and reads, exactly once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from device_service.batch.inputs import DecodeInput
from device_service.mesh.interface import Mesh, StepResult
from device_service.mesh.readback import Results


class RunningStep:
    """A step on the mesh's queue. `result` belongs to the engine thread.

    Made right after the submission: its events are watched from then on.

    `on_error` turns what went wrong into what is raised for it. `began` is when
    the step began, if that was before the work behind the events.
    """

    def __init__(
        self,
        mesh: Mesh,
        events: Sequence[Any],
        read: Callable[[], Results],
        on_error: Callable[[Exception], Exception],
        began: float | None = None,
    ) -> None:
        self._mesh = mesh
        self._events = [mesh.watch(event) for event in events]
        self._read: Callable[[], Results] | None = read
        self._on_error = on_error
        self._began = began
        self._result: StepResult | None = None
        self._error: Exception | None = None

    def is_done(self) -> bool:
        """Whether `result` would return at once."""
        return all(self._mesh.is_done(event) for event in self._events)

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back once, when the last event has happened."""
        if not self._events:
            callback()
        last = _LastOf(len(self._events), callback)
        for event in self._events:
            self._mesh.on_done(event, last.arrived)

    def result(self) -> StepResult:
        """Wait and read back once; later calls repeat the answer or the error."""
        read, self._read = self._read, None
        if read is not None:
            try:
                self._result = self._run(read)
            except Exception as error:  # noqa: BLE001 - raised below, every time
                self._error = self._on_error(error)
        if self._result is None:
            raise self._error or RuntimeError("a step was read from two threads")
        return self._result

    def _run(self, read: Callable[[], Results]) -> StepResult:
        for event in self._events:
            self._mesh.synchronize(event)
        now = time.monotonic()
        spans = [self._mesh.span(event) for event in self._events] or [(now, now)]
        results = read()
        began = self._began or min(began for began, _ in spans)
        return results.of_step(began, max(ended for _, ended in spans))


class SettledStep:
    """A step that was over when its submission returned."""

    def __init__(self, outcome: StepResult | Exception) -> None:
        self._outcome = outcome

    def is_done(self) -> bool:
        """It is."""
        return True

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back here and now."""
        callback()

    def result(self) -> StepResult:
        """The answer, or the error that the submission ended with."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class DeferredStep:
    """A forward whose tokens are chosen when its grammar masks are there.

    `payload` is the adapter's, good for one use. `began` is when the forward was
    submitted, `time.monotonic()`.
    """

    def __init__(self, payload: Any, step: DecodeInput, began: float) -> None:
        self.payload = payload
        self.step = step
        self.began = began

    def is_done(self) -> bool:
        """Never, as long as it is not sampled."""
        return False

    def on_done(self, callback: Callable[[], None]) -> None:
        """Nothing will happen to call back for."""
        raise RuntimeError("a deferred step must be sampled before it is waited for")

    def result(self) -> StepResult:
        """There is none."""
        raise RuntimeError("a deferred step must be sampled before it is read")


class _LastOf:
    """Calls on when the last of several events has happened; any thread."""

    def __init__(self, count: int, callback: Callable[[], None]) -> None:
        self._left = count
        self._callback = callback
        self._lock = threading.Lock()

    def arrived(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._callback()
