"""What a completed step means: tokens, stop rules, failures, the step's record."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from vllm.v1.core.sched.utils import check_stop
from vllm.v1.request import Request, RequestStatus

from device_service.decode.pipeline import Completed, InFlight
from device_service.live import LiveRequests
from device_service.mesh.interface import MeshPoisoned, StepResult
from device_service.records import (
    Finish,
    FinishKind,
    LaneRecord,
    PlannedRow,
    RowRecord,
    Sampled,
    SamplingRow,
    StepRecord,
)
from device_service.sampling.from_device import sampled_on_device
from device_service.sampling.interface import HostSampling
from device_service.scheduling.lane import Lane
from device_service.sequence import Sequence
from device_service.updates import UpdateBoard
from ttserve.errors import Reason, TTServeError

_KIND_OF = {
    RequestStatus.FINISHED_STOPPED: FinishKind.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishKind.LENGTH,
    RequestStatus.FINISHED_REPETITION: FinishKind.REPETITION,
}


def stop_verdict(request: Request, max_model_len: int) -> Finish | None:
    """Whether the newest token ends the request, by vLLM's own rules."""
    if not check_stop(request, max_model_len):
        return None
    stop_token = request.stop_reason
    return Finish(
        _KIND_OF[request.status],
        stop_token_id=stop_token if isinstance(stop_token, int) else None,
    )


@dataclass(frozen=True, slots=True)
class Applied:
    """A step that has been applied and is not recorded yet.

    Recording waits until the next step is submitted, so that the mesh does not.
    `produced` are the planned rows that got a token and `finishes` the ends, both
    by their place in `step.plan.rows`. `result` is None and `error` says why when
    the step failed.
    """

    step: InFlight
    produced: Rows[int]
    finishes: dict[int, Finish]
    result: StepResult | None
    applied: float
    error: str = ""


class Outcomes:
    """Applies completed steps. Engine thread only."""

    def __init__(
        self,
        lanes: Rows[Lane],
        live: LiveRequests,
        board: UpdateBoard,
        sampling: HostSampling,
        *,
        max_model_len: int,
        clock: Callable[[], float],
    ) -> None:
        self._lanes = lanes
        self._live = live
        self._board = board
        self._sampling = sampling
        self._max_model_len = max_model_len
        self._clock = clock
        self._mesh_free_since: float | None = None
        self.failed_in_a_row = 0

    def apply(self, completed: Completed) -> Applied:
        """Sample, append, stop, publish blocks; raises what the step raised."""
        if completed.error is not None:
            raise completed.error
        step, result = completed.step, completed.result
        assert result is not None
        producing, sampled = self._sample(step, result)
        for row, sequence in zip(step.plan.rows, step.sequences, strict=True):
            if not sequence.is_finished:
                self._lanes[row.lane].settle(sequence, row)
        finishes = {}
        for place, i in enumerate(producing):
            finish = self._take_token(step.sequences[i], sampled, place)
            if finish is not None:
                finishes[i] = finish
        self.failed_in_a_row = 0
        return Applied(step, producing, finishes, result, self._clock())

    def fail(self, step: InFlight, error: BaseException) -> Applied:
        """End the requests of a failed step with its reason.

        `failed_in_a_row` counts such steps since the last one that succeeded.
        """
        self.failed_in_a_row += 1
        number = step.plan.number
        poisoned = isinstance(error, MeshPoisoned)
        # What an exception says may be about anything: the step's record and the
        # log have it, clients do not.
        failure = TTServeError(
            Reason.MESH_POISONED if poisoned else Reason.STEP_FAILED,
            f"device step {number} failed",
            metadata={"stepNumber": str(number)},
        )
        finish = Finish(FinishKind.ERROR, error=failure)
        for sequence in step.sequences:
            if not sequence.is_finished:
                self._live.fail_step(sequence, failure)
        finishes = dict.fromkeys(range(len(step.sequences)), finish)
        return Applied(step, (), finishes, None, self._clock(), one_line(error))

    # -- tokens ------------------------------------------------------------

    def _sample(self, step: InFlight, result: StepResult) -> tuple[list[int], Sampled]:
        """Choose tokens for the rows that emit and still live, by their places."""
        wanted = [
            i
            for i, row in enumerate(step.plan.rows)
            if row.emits and not step.sequences[i].is_finished
        ]
        if not wanted:
            return wanted, Sampled([], [])
        if result.tokens is not None:
            return wanted, self._take_over(step, result, wanted)
        assert result.logits is not None
        logits, bitmask = result.logits, step.bitmask
        if len(wanted) < len(step.plan.rows):
            logits = logits[wanted]
            bitmask = None if bitmask is None else bitmask[wanted]
        sampler, sampled = self._sampling.sampler, None
        if bitmask is None and all(step.sequences[i].sampling.plain for i in wanted):
            sampled = sampler.best(logits)
        if sampled is None:
            rows = [_sampling_row(step.plan.rows[i], step.sequences[i]) for i in wanted]
            sampled = sampler.sample(logits, rows, bitmask)
        return wanted, sampled

    def _take_over(
        self, step: InFlight, result: StepResult, wanted: list[int]
    ) -> Sampled:
        """What the device has sampled for these rows of the plan."""
        assert result.tokens is not None
        tokens, logprobs = result.tokens, result.logprobs
        if len(wanted) < len(step.plan.rows):
            tokens = tokens[wanted]
            logprobs = None if logprobs is None else logprobs.part(wanted)
        return sampled_on_device(
            tokens,
            logprobs,
            [step.sequences[i].top_logprobs for i in wanted],
            self._sampling.site.vocab_size,
        )

    def _take_token(
        self, sequence: Sequence, sampled: Sampled, place: int
    ) -> Finish | None:
        """Append one token and say whether it ends the request."""
        error = sampled.errors.get(place)
        if error is not None:
            failed = Finish(FinishKind.ERROR, error=error)
            self._live.end(sequence, failed)
            return failed
        token = sampled.token_ids[place]
        request = sequence.request
        request.append_output_token_ids(token)
        finish = None
        if sequence.may_end_with(token):
            finish = stop_verdict(request, self._max_model_len)
        if finish is None and request.use_structured_output:
            finish = self._advance_grammar(request, token)
        logprobs = sampled.logprobs[place]
        self._board.post(
            sequence, [token], None if logprobs is None else [logprobs], finish
        )
        if finish is not None:
            self._live.release(sequence, finish)
        return finish

    def _advance_grammar(self, request: Request, token: int) -> Finish | None:
        if self._sampling.grammars.accept(request, token):
            return None
        message = f"the grammar does not accept token {token}, which was sampled"
        return Finish(FinishKind.ERROR, error=TTServeError(Reason.INTERNAL, message))

    # -- the record --------------------------------------------------------

    def record(self, applied: Applied) -> StepRecord:
        """Everything about an applied step, in the order in which they came."""
        step, result, now = applied.step, applied.result, applied.applied
        plan = step.plan
        rows = _rows_by_lane(applied, len(self._lanes))
        began = step.submitted if result is None else result.began
        ended = now if result is None else result.ended
        idle_since = began if self._mesh_free_since is None else self._mesh_free_since
        self._mesh_free_since = ended
        return StepRecord(
            number=plan.number,
            phase=plan.phase,
            phase_reason=plan.intent.phase_reason,
            lanes=tuple(map(_lane_record, self._lanes, rows)),
            scheduled_tokens=sum(row.num_tokens for row in plan.rows),
            produced_tokens=len(applied.produced),
            sampling=plan.sampling,
            overlap=plan.intent.overlap,
            preempted=plan.preempted,
            # A prefill is computed inside its submission, so its host time ends
            # when the mesh begins.
            host_us=_us(min(step.submitted, began) - step.planning_began),
            device_us=_us(ended - began),
            readback_us=_us(now - ended),
            host_gap_us=_us(began - idle_since),
            unix_seconds=time.time(),
            padded_rows=step.padded_rows,
            waiting=plan.waiting,
            error=applied.error,
        )


def one_line(error: BaseException) -> str:
    """An exception as one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _sampling_row(row: PlannedRow, sequence: Sequence) -> SamplingRow:
    position = row.start + row.num_tokens
    return SamplingRow(sequence.request, row.row, position, sequence.top_logprobs)


def _rows_by_lane(applied: Applied, lanes: int) -> list[list[RowRecord]]:
    step, finishes = applied.step, applied.finishes
    producing = set(applied.produced)
    records: list[list[RowRecord]] = [[] for _ in range(lanes)]
    shares = zip(step.plan.rows, step.sequences, strict=True)
    for i, ((request_id, lane, row, start, tokens, emits), sequence) in enumerate(
        shares
    ):
        finish = finishes[i].kind.value if i in finishes else ""
        external_id, produced = sequence.external_request_id, int(i in producing)
        records[lane].append(
            RowRecord(
                row, request_id, external_id, start, tokens, not emits, produced, finish
            )
        )
    return records


def _lane_record(lane: Lane, rows: list[RowRecord]) -> LaneRecord:
    free = lane.kv.free_blocks
    used = lane.kv.total_blocks - free
    return LaneRecord(lane.number, tuple(rows), used, free)
