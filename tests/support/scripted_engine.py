"""An engine without a mesh: it obeys `EngineHandle` and says what it is told.

A test turns the crank with `step()`, or lets `ticking()` turn it on a thread.
The tokens of a request are a pure function of its prompt, so a test knows them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from vllm.v1.request import Request

from device_service.recording.recorder import Recording
from device_service.records import (
    AbortCause,
    Admitted,
    EngineState,
    EventKind,
    Finish,
    FinishKind,
    LaneRecord,
    LaneState,
    OverlapVerdict,
    Phase,
    PrefillReport,
    RequestHistory,
    RequestUpdate,
    RowRecord,
    RowState,
    SamplingSite,
    SamplingVerdict,
    SessionStats,
    StepRecord,
    StepUpdates,
    TokenLogprobs,
    UpdateSink,
    WaitingReason,
    WaitingState,
)
from device_service.step_log import StepRing
from ttserve.errors import Reason, TTServeError

T = TypeVar("T")


def scripted_token(prompt: Sequence[int], index: int) -> int:
    """The token that a request gets at `index` of its output."""
    return (sum(prompt) + index) % 97 + 1


@dataclass(slots=True)
class Job:
    """A request in the scripted engine."""

    admitted: Admitted
    ready: bool
    produced: int = 0

    @property
    def request(self) -> Request:
        return self.admitted.request

    @property
    def prompt(self) -> list[int]:
        return self.request.prompt_token_ids or []


@dataclass
class ScriptedEngine:
    """`EngineHandle` over a script. `rows` requests run at a time."""

    rows: int = 8
    silence: float = 0.0
    jobs: dict[str, Job] = field(default_factory=dict)
    aborts: list[tuple[str, AbortCause]] = field(default_factory=list)
    batches: list[list[str]] = field(default_factory=list)
    step_log: StepRing = field(default_factory=lambda: StepRing(4096))
    died: Future[None] = field(default_factory=Future)
    kept: Recording | None = None

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._number = 0
        self._paused = False
        self._posts: dict[int, tuple[UpdateSink, list[RequestUpdate]]] = {}

    # -- EngineHandle ------------------------------------------------------

    def silence_seconds(self) -> float:
        return self.silence

    def submit(self, batch: Sequence[Admitted]) -> None:
        with self._lock:
            self.batches.append([entry.request.request_id for entry in batch])
            for entry in batch:
                job = Job(entry, ready=not entry.awaits_grammar)
                self.jobs[entry.request.request_id] = job

    def grammar_ready(self, request_id: str, error: TTServeError | None) -> None:
        with self._lock:
            job = self.jobs.get(request_id)
            if job is not None and error is not None:
                self._end(job, Finish(FinishKind.ERROR, error=error))
            elif job is not None:
                job.ready = True

    def abort(self, request_ids: Sequence[str], cause: AbortCause) -> None:
        with self._lock:
            for request_id in request_ids:
                self.aborts.append((request_id, cause))
                job = self.jobs.get(request_id)
                if job is not None:
                    self._end(job, Finish(FinishKind.ABORT, abort_cause=cause))

    def recording(self, reason: str) -> Recording | None:
        return self.kept

    def snapshot(self) -> Future[EngineState]:
        with self._lock:
            return _answered(
                EngineState(self._number, self._paused, (self._lane(),), 0, 0)
            )

    def pause(self) -> Future[int]:
        self._paused = True
        return _answered(self._number)

    def run_steps(self, count: int) -> Future[list[StepRecord]]:
        records = []
        for _ in range(count):
            record = self._run_step()
            if record is None:
                break
            records.append(record)
        return _answered(records)

    def resume(self) -> Future[None]:
        self._paused = False
        return _answered(None)

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> Future[bool]:
        return _answered(preempt_running or not self.jobs)

    def stop(self) -> None:
        with self._lock:
            self._end_all(TTServeError(Reason.DRAINING, "the script says stop"))
            self.died.set_result(None)

    # -- the script --------------------------------------------------------

    def step(self) -> StepRecord | None:
        """One step for what is running, unless paused; flushes what ended."""
        return None if self._paused else self._run_step()

    def die(self, error: BaseException) -> None:
        """End as a poisoned mesh does: everything answered, then the reason."""
        with self._lock:
            self._end_all(TTServeError(Reason.MESH_POISONED, str(error)))
            self.died.set_exception(error)

    @contextlib.contextmanager
    def ticking(self, seconds: float = 0.002) -> Iterator[None]:
        """Step on a thread, like a real engine, while the block runs."""
        done = threading.Event()

        def tick() -> None:
            while not done.wait(seconds):
                self.step()

        thread = threading.Thread(target=tick, name="scripted engine")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    # -- inside ------------------------------------------------------------

    def _run_step(self) -> StepRecord | None:
        with self._lock:
            running = [job for job in self.jobs.values() if job.ready][: self.rows]
            if not running:
                self._flush()
                return None
            self._number += 1
            rows = tuple(self._produce(row, job) for row, job in enumerate(running))
            record = self._record(rows)
            self._flush()
            self.step_log.append(record)
            return record

    def _produce(self, row: int, job: Job) -> RowRecord:
        token = scripted_token(job.prompt, job.produced)
        position = len(job.prompt) + job.produced
        first = job.produced == 0
        job.produced += 1
        finish = self._finish(job, token)
        logprobs = None
        if job.admitted.top_logprobs is not None:
            count = job.admitted.top_logprobs
            top = [float(-index) for index in range(count)]
            logprobs = [TokenLogprobs(-0.5, 1, list(range(count)), top)]
        now = time.monotonic()
        self._post(
            job,
            RequestUpdate(
                handle=job.admitted.handle,
                token_ids=[token],
                logprobs=logprobs,
                finish=finish,
                prefill=PrefillReport(len(job.prompt), 0) if first else None,
                events=((EventKind.QUEUED, now), (EventKind.SCHEDULED, now))
                if first
                else (),
                history=None if finish is None else _history(job),
            ),
        )
        if finish is not None:
            del self.jobs[job.request.request_id]
        return RowRecord(
            row=row,
            request_id=job.request.request_id,
            external_request_id=job.admitted.external_request_id,
            start_position=0 if first else position - 1,
            tokens=len(job.prompt) if first else 1,
            intermediate_chunk=False,
            produced_tokens=1,
            finish_reason="" if finish is None else finish.kind.value,
        )

    def _finish(self, job: Job, token: int) -> Finish | None:
        params = job.request.sampling_params
        assert params is not None
        if params.eos_token_id == token:
            return Finish(FinishKind.STOP)
        if token in (params.stop_token_ids or ()):
            return Finish(FinishKind.STOP, stop_token_id=token)
        if job.produced >= job.request.max_tokens:
            return Finish(FinishKind.LENGTH)
        return None

    def _record(self, rows: tuple[RowRecord, ...]) -> StepRecord:
        first = any(row.start_position == 0 for row in rows)
        return StepRecord(
            number=self._number,
            phase=Phase.PREFILL if first else Phase.DECODE,
            phase_reason="scripted",
            lanes=(LaneRecord(0, rows, used_blocks=len(rows), free_blocks=64),),
            scheduled_tokens=sum(row.tokens for row in rows),
            produced_tokens=len(rows),
            sampling=SamplingVerdict(SamplingSite.HOST, "scripted"),
            overlap=OverlapVerdict(overlap=False, reason="sync_mode"),
            preempted=(),
            host_us=1,
            device_us=2,
            readback_us=3,
            host_gap_us=4,
            unix_seconds=time.time(),
            padded_rows=self.rows,
            waiting=max(0, len(self.jobs) - len(rows)),
        )

    def _end(self, job: Job, finish: Finish) -> None:
        del self.jobs[job.request.request_id]
        handle, history = job.admitted.handle, _history(job)
        self._post(job, RequestUpdate(handle, [], finish=finish, history=history))

    def _end_all(self, error: TTServeError) -> None:
        for job in list(self.jobs.values()):
            self._end(job, Finish(FinishKind.ERROR, error=error))
        self._flush()

    def _post(self, job: Job, update: RequestUpdate) -> None:
        sink = job.admitted.sink
        self._posts.setdefault(id(sink), (sink, []))[1].append(update)

    def _flush(self) -> None:
        posts, self._posts = self._posts, {}
        for sink, updates in posts.values():
            live = len(self.jobs)
            stats = SessionStats(
                running=min(live, self.rows),
                waiting=max(0, live - self.rows),
                kv_usage=live / 64,
                prefix_queries=10,
                prefix_hits=5,
                prefix_requests=1,
            )
            sink.deliver(StepUpdates(self._number, time.monotonic(), updates, stats))

    def _lane(self) -> LaneState:
        jobs = list(self.jobs.values())
        return LaneState(
            lane=0,
            total_rows=self.rows,
            rows=tuple(
                RowState(
                    row=row,
                    request_id=job.request.request_id,
                    external_request_id=job.admitted.external_request_id,
                    session_number=job.admitted.session_number,
                    prompt_tokens=len(job.prompt),
                    output_tokens=job.produced,
                    computed_tokens=len(job.prompt) + job.produced,
                    blocks=1,
                    preemptions=0,
                )
                for row, job in enumerate(jobs[: self.rows])
            ),
            waiting=tuple(
                WaitingState(
                    request_id=job.request.request_id,
                    session_number=job.admitted.session_number,
                    prompt_tokens=len(job.prompt),
                    reason=WaitingReason.CAPACITY,
                    waited_seconds=0.0,
                )
                for job in jobs[self.rows :]
            ),
            total_blocks=64,
            free_blocks=64 - len(jobs),
        )


def _history(job: Job) -> RequestHistory:
    now = time.monotonic()
    return RequestHistory(
        lane=0,
        steps=job.produced,
        preemptions=0,
        output_tokens=job.produced,
        queued=now,
        scheduled=now,
        first_token=now,
        ended=now,
    )


def _answered(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
