"""The step engine: one thread that owns scheduler, KV, rows and adapter.

Other threads reach it through its inbox only (`device_service.handle`). A
failed step fails its requests and the engine goes on; a poisoned mesh, or a
second failed step with no success between, ends it after everything in flight
has been answered (DETAILS 21).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence as Rows
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from device_service.control import StepControl
from device_service.decode.overlap import PAUSED, RESETTING, OverlapRule
from device_service.decode.pipeline import Completed, Pipeline
from device_service.inbox import Inbox
from device_service.kv.lane_kv import BlockHasher
from device_service.live import LiveRequests
from device_service.mesh.interface import MeshPoisoned
from device_service.outcome import Applied, Outcomes, one_line
from device_service.prefix_reset import PrefixReset
from device_service.recording import events
from device_service.recording.recorder import RECORDING, Recorder, Recording
from device_service.records import (
    AbortCause,
    Admitted,
    EngineState,
    Finish,
    FinishKind,
    OverlapVerdict,
    StepRecord,
)
from device_service.sampling.interface import GrammarKeeper
from device_service.scheduling.lane import Lane
from device_service.scheduling.planner import Planner
from device_service.state import engine_state
from device_service.step_log import StepRing
from device_service.updates import UpdateBoard
from ttserve.errors import Reason, TTServeError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of; `device_service.assembly` puts it together."""

    inbox: Inbox
    control: StepControl
    lanes: list[Lane]
    live: LiveRequests
    board: UpdateBoard
    planner: Planner
    pipeline: Pipeline
    overlap: OverlapRule
    outcomes: Outcomes
    grammars: GrammarKeeper
    steps: StepRing
    recorder: Recorder
    block_hasher: BlockHasher | None
    clock: Callable[[], float]


class Engine:
    """Runs steps on a thread of its own; implements `EngineHandle`."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._inbox = parts.inbox
        self._control = parts.control
        self._resets = PrefixReset(parts.lanes, parts.live)
        self._stopping = False
        self._last_beat = parts.clock()
        self._idle = True
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.died: Future[None] = Future()

    # -- the loop ----------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping:
                busy = self.step()
                if not busy and not self._stopping:
                    self._sleep()
            self._end_all(Reason.DRAINING, "the device service is shutting down")
        except BaseException as error:
            logger.error("engine ends: %s", one_line(error), exc_info=error)
            message = "the device service cannot go on"  # the log says why
            self._end_all(Reason.MESH_POISONED, message)
            self._parts.recorder.ended(error)
            self.died.set_exception(error)
        else:
            self.died.set_result(None)

    def step(self) -> bool:
        """One turn: plan a step, submit it, finish the oldest one.

        False when there was nothing to do. Unless the new step may overlap the
        one in flight, that one is finished before. If it may, two are in flight
        until the older one is finished; more there never are. Sessions are told
        of a step when the next one is on its way, so that the mesh does not wait
        for that; but not if to submit it means to wait for its end.
        """
        parts, pipeline = self._parts, self._parts.pipeline
        self._inbox.run()
        verdict = self._verdict()
        drained = None
        if len(pipeline) and not verdict.overlap:
            drained = self._finish_oldest()
        if not len(pipeline):
            self._resets.run()
            parts.recorder.standing()
        began = parts.clock()
        plan = parts.planner.plan(verdict) if self._control.may_plan else None
        queued = plan is not None and pipeline.queues(plan.phase)
        if not queued:
            self._tell(drained)
        if plan is not None:
            pipeline.submit(plan, began)
            self._control.planned()
        elif drained is None:
            self._control.nothing_to_do()
        if queued:
            self._tell(drained)
        if len(pipeline) > 1:
            oldest = self._finish_oldest()
            self._tell(oldest)
            if oldest.error:
                self._discard_in_flight(oldest.step.plan.number)
        self._last_beat = parts.clock()
        return plan is not None or drained is not None

    def _verdict(self) -> OverlapVerdict:
        """Whether the next step may be submitted before the newest is finished."""
        if not self._control.may_plan:
            return PAUSED
        if self._resets.pending:
            return RESETTING
        verdict = self._parts.overlap(self._parts.pipeline.newest)
        due = verdict.overlap and self._parts.recorder.overdue
        return RECORDING if due else verdict

    def _finish_oldest(self) -> Applied:
        """Wait for the oldest step and apply it.

        Aborts that came while the mesh worked are taken before, so that their
        late tokens go nowhere.
        """
        completed = self._parts.pipeline.wait()
        self._inbox.run()
        return self._settle(completed)

    def _settle(self, completed: Completed) -> Applied:
        """Apply a step; on failure end its requests and decide whether to go on."""
        parts = self._parts
        try:
            applied = parts.outcomes.apply(completed)
        except Exception as error:
            number = completed.step.plan.number
            logger.error("step %d failed: %s", number, one_line(error), exc_info=error)
            applied = parts.outcomes.fail(completed.step, error)
            if isinstance(error, MeshPoisoned) or parts.outcomes.failed_in_a_row > 1:
                self._record(applied)
                raise
        return applied

    def _discard_in_flight(self, failed: int) -> None:
        """Give up what was submitted behind a step that failed.

        It has that step's requests and no others, so its outcome concerns nobody;
        but a poisoned mesh ends the engine, whichever step finds it out.
        """
        error = RuntimeError(f"it went on from step {failed}, which failed")
        while len(self._parts.pipeline):
            completed = self._parts.pipeline.wait()
            self._record(self._parts.outcomes.fail(completed.step, error))
            if isinstance(completed.error, MeshPoisoned):
                raise completed.error

    def _tell(self, applied: Applied | None) -> None:
        """Deliver what was posted, and record the step that it came from."""
        parts, newest = self._parts, self._parts.planner.last_number
        number = newest if applied is None else applied.step.plan.number
        parts.board.flush(number, parts.live)
        if applied is not None:
            self._record(applied)

    def _record(self, applied: Applied) -> None:
        record = self._parts.outcomes.record(applied)
        self._parts.steps.append(record)
        self._control.applied(record)

    def _sleep(self) -> None:
        self._idle = True
        self._inbox.wait()
        self._last_beat = self._parts.clock()
        self._idle = False

    def _end_all(self, reason: Reason, message: str) -> None:
        self._inbox.run()
        for sequence in list(self._parts.live):
            error = TTServeError(reason, message)
            self._parts.live.end(sequence, Finish(FinishKind.ERROR, error=error))
        self._resets.run()
        self._tell(None)

    # -- EngineHandle: any thread ------------------------------------------

    @property
    def step_log(self) -> StepRing:
        """The newest steps."""
        return self._parts.steps

    @property
    def block_hasher(self) -> BlockHasher | None:
        """Hashes the full blocks of a request; None without a prefix cache."""
        return self._parts.block_hasher

    def silence_seconds(self) -> float:
        """How long ago a turn ended; 0.0 while there is nothing to do."""
        return 0.0 if self._idle else self._parts.clock() - self._last_beat

    def submit(self, batch: Rows[Admitted]) -> None:
        """Queue admitted requests, in order, all in the same turn."""
        event = events.Arrived(tuple(batch))
        self._inbox.put(partial(self._parts.live.admit_all, event.batch), event)

    def grammar_ready(self, request_id: str, error: TTServeError | None) -> None:
        """Let a request that awaited its grammar go on, or fail it."""
        event = events.GrammarReady(request_id, failed=error is not None)
        ready = self._parts.live.grammar_ready
        self._inbox.put(partial(ready, request_id, error), event)

    def abort(self, request_ids: Rows[str], cause: AbortCause) -> None:
        """End requests; each still gets its one final update."""
        event = events.Aborted(tuple(request_ids), cause)
        abort = self._parts.live.abort
        self._inbox.put(partial(abort, event.request_ids, cause), event)

    def snapshot(self) -> Future[EngineState]:
        """A picture between two steps."""
        return self._inbox.ask(partial(engine_state, self._parts))

    def recording(self, reason: str) -> Recording | None:
        """The newest events and steps; None before the first turn."""
        return self._parts.recorder.recording(reason)

    def pause(self) -> Future[int]:
        """Stand still before the next step."""
        return self._inbox.ask(self._pause, events.Paused())

    def run_steps(self, count: int) -> Future[list[StepRecord]]:
        """While paused, run up to `count` steps."""
        answer: Future[list[StepRecord]] = Future()
        run = partial(self._control.run, count, answer)
        self._inbox.put(run, events.StepsAsked(count))
        return answer

    def resume(self) -> Future[None]:
        """Run again."""
        return self._inbox.ask(self._control.resume, events.Resumed())

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> Future[bool]:
        """Forget cached prefixes; False when there are live requests.

        With `preempt_running` those that run are preempted, and it is True.
        """
        answer: Future[bool] = Future()
        ask = partial(self._resets.ask, answer, preempt_running=preempt_running)
        self._inbox.put(ask, events.ResetAsked(preempt_running))
        return answer

    def stop(self) -> None:
        """End the loop after the step in flight."""
        self._inbox.put(self._stop, events.Stopped())

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread to end; False when it has not."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- what the inbox runs: engine thread ---------------------------------

    def _pause(self) -> int:
        self._control.pause()
        return self._parts.planner.last_number

    def _stop(self) -> None:
        self._stopping = True
