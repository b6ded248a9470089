"""What was produced -> StepOutput and GenerateResponse."""

from __future__ import annotations

from device_service.merging import Delta, Piece
from device_service.records import (
    EventKind,
    Finish,
    FinishKind,
    SessionStats,
    TokenLogprobs,
)
from ttserve.status import to_status
from ttserve.v1 import device_pb2, generation_pb2, step_pb2

FINISH_REASONS = {
    FinishKind.STOP: step_pb2.FINISH_REASON_STOP,
    FinishKind.LENGTH: step_pb2.FINISH_REASON_LENGTH,
    FinishKind.ABORT: step_pb2.FINISH_REASON_ABORT,
    FinishKind.ERROR: step_pb2.FINISH_REASON_ERROR,
    FinishKind.REPETITION: step_pb2.FINISH_REASON_REPETITION,
}
EVENT_KINDS = {
    EventKind.QUEUED: step_pb2.REQUEST_EVENT_KIND_QUEUED,
    EventKind.SCHEDULED: step_pb2.REQUEST_EVENT_KIND_SCHEDULED,
    EventKind.PREEMPTED: step_pb2.REQUEST_EVENT_KIND_PREEMPTED,
}


def step_output(piece: Piece) -> step_pb2.StepOutput:
    """One message for a session, column by column."""
    token_ids: list[int] = []
    counts: list[int] = []
    extras: list[step_pb2.RequestExtra] = []
    for index, delta in enumerate(piece.deltas.values()):
        token_ids += delta.token_ids
        counts.append(len(delta.token_ids))
        if delta.logprobs or delta.finish or delta.prefill or delta.events:
            extras.append(_extra(index, delta))
    return step_pb2.StepOutput(
        step_number=piece.step_number,
        handles=piece.deltas.keys(),
        token_ids=token_ids,
        token_counts=() if all(count == 1 for count in counts) else counts,
        extras=extras,
        stats=None if piece.stats is None else _stats(piece.stats),
        monotonic_seconds=piece.monotonic_seconds,
    )


def generate_response(delta: Delta, step_number: int) -> device_pb2.GenerateResponse:
    """One message of a Generate call."""
    return device_pb2.GenerateResponse(
        token_ids=delta.token_ids,
        logprobs=map(_logprobs, delta.logprobs or ()),
        finish=None if delta.finish is None else _finish(delta.finish),
        cached_prompt_tokens=delta.prefill.cached_tokens if delta.prefill else None,
        step_number=step_number,
    )


def _extra(index: int, delta: Delta) -> step_pb2.RequestExtra:
    prefill = None
    if delta.prefill is not None:
        prefill = step_pb2.PrefillReport(
            prompt_tokens=delta.prefill.prompt_tokens,
            cached_tokens=delta.prefill.cached_tokens,
        )
    return step_pb2.RequestExtra(
        index=index,
        logprobs=map(_logprobs, delta.logprobs or ()),
        finish=None if delta.finish is None else _finish(delta.finish),
        prefill=prefill,
        events=[
            step_pb2.RequestEvent(kind=EVENT_KINDS[kind], monotonic_seconds=when)
            for kind, when in delta.events
        ],
    )


def _finish(finish: Finish) -> step_pb2.Finish:
    return step_pb2.Finish(
        reason=FINISH_REASONS[finish.kind],
        stop_token_id=finish.stop_token_id,
        error=None if finish.error is None else to_status(finish.error),
    )


def _logprobs(entry: TokenLogprobs) -> generation_pb2.TokenLogprobs:
    return generation_pb2.TokenLogprobs(
        chosen=entry.chosen,
        chosen_rank=entry.chosen_rank,
        top_token_ids=entry.top_ids,
        top_logprobs=entry.top_values,
    )


def _stats(stats: SessionStats) -> step_pb2.SchedulerStats:
    return step_pb2.SchedulerStats(
        running=stats.running,
        waiting=stats.waiting,
        kv_usage=stats.kv_usage,
        prefix_cache_queries=stats.prefix_queries,
        prefix_cache_hits=stats.prefix_hits,
        prefix_cache_requests=stats.prefix_requests,
    )
