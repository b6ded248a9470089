"""StepOutput -> vLLM's outputs, one per token.

Steps that piled up on the way come merged. They are taken apart again, or the
number of tokens that a stop string cuts off would depend on who read slowly.
All times are the device service's monotonic clock; vLLM subtracts them only
from each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from vllm.v1.engine import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
)
from vllm.v1.metrics.stats import PrefillStats, PrefixCacheStats, SchedulerStats
from vllm.v1.outputs import LogprobsLists

from ttserve.errors import Reason, TTServeError
from ttserve.status import from_status
from ttserve.v1 import step_pb2
from ttserve.v1.generation_pb2 import TokenLogprobs

_FINISH_REASONS = {
    step_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    step_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    step_pb2.FINISH_REASON_REPETITION: FinishReason.REPETITION,
}
_EVENT_TYPES = {
    step_pb2.REQUEST_EVENT_KIND_QUEUED: EngineCoreEventType.QUEUED,
    step_pb2.REQUEST_EVENT_KIND_SCHEDULED: EngineCoreEventType.SCHEDULED,
    step_pb2.REQUEST_EVENT_KIND_PREEMPTED: EngineCoreEventType.PREEMPTED,
}


@dataclass(slots=True)
class Decoding:
    """What one request's outputs need to know of the ones before.

    vLLM takes the first output of a request for its first token, so what comes
    ahead of that (events, the prefill report) waits here. `begun` is set by then.
    """

    request_id: str
    events: list[EngineCoreEvent] = field(default_factory=list)
    prefill: PrefillStats | None = None
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that the device service could not go on with."""

    request_id: str
    error: TTServeError


@dataclass(frozen=True, slots=True)
class DecodedStep:
    """One message's worth: outputs in order, and what ended.

    A failed request is in `failures`, and in `outputs` with FinishReason.ERROR,
    so that vLLM counts it and forgets its state. One that failed before its first
    token is in `stillborn` only: it may yet run elsewhere.
    """

    outputs: EngineCoreOutputs
    failures: list[Failure]
    begun_handles: list[int] = field(default_factory=list)
    finished_handles: list[int] = field(default_factory=list)
    stillborn: list[tuple[int, TTServeError]] = field(default_factory=list)


def decode_step(
    step: step_pb2.StepOutput, find: Callable[[int], Decoding | None]
) -> DecodedStep:
    """Take a step apart; `find` knows the live requests by handle.

    What comes for a handle that is not live (any more) is skipped.
    """
    outputs: list[EngineCoreOutput] = []
    failures: list[Failure] = []
    begun: list[int] = []
    finished: list[int] = []
    stillborn: list[tuple[int, TTServeError]] = []
    for handle, token_ids, extra in _per_request(step):
        decoding = find(handle)
        if decoding is None:
            continue
        error = None if extra is None else _error(extra)
        if not decoding.begun:
            if error is not None and not token_ids:
                stillborn.append((handle, error))
                continue
            if token_ids:
                decoding.begun = True
                begun.append(handle)
        if extra is None:
            outputs += _plain(decoding, token_ids)
            continue
        outputs += _with_extra(decoding, token_ids, extra, error)
        if extra.HasField("finish"):
            finished.append(handle)
        if error is not None:
            failures.append(Failure(decoding.request_id, error))
    return DecodedStep(
        EngineCoreOutputs(
            outputs=outputs,
            scheduler_stats=decode_stats(step.stats)
            if step.HasField("stats")
            else None,
            timestamp=step.monotonic_seconds,
        ),
        failures,
        begun,
        finished,
        stillborn,
    )


def decode_stats(stats: step_pb2.SchedulerStats) -> SchedulerStats:
    """State of the scheduler for vLLM's gauges; the prefix numbers are deltas."""
    return SchedulerStats(
        num_running_reqs=stats.running,
        num_waiting_reqs=stats.waiting,
        kv_cache_usage=stats.kv_usage,
        prefix_cache_stats=PrefixCacheStats(
            requests=stats.prefix_cache_requests,
            queries=stats.prefix_cache_queries,
            hits=stats.prefix_cache_hits,
        ),
    )


def _per_request(
    step: step_pb2.StepOutput,
) -> Iterator[tuple[int, list[int], step_pb2.RequestExtra | None]]:
    """Cut the columns: tokens of request i are [start_i, start_i + count_i)."""
    extras = {extra.index: extra for extra in step.extras}
    token_ids = list(step.token_ids)
    counts: Sequence[int] = step.token_counts or [1] * len(step.handles)
    if len(counts) != len(step.handles) or sum(counts) != len(token_ids):
        raise TTServeError(Reason.INTERNAL, "a step's columns do not fit together")
    start = 0
    for index, (handle, count) in enumerate(zip(step.handles, counts, strict=True)):
        yield handle, token_ids[start : start + count], extras.get(index)
        start += count


def _plain(decoding: Decoding, token_ids: list[int]) -> list[EngineCoreOutput]:
    name = decoding.request_id
    outputs = [EngineCoreOutput(name, [token_id]) for token_id in token_ids]
    if outputs:
        _add_what_waited(decoding, outputs[0])
    return outputs


def _with_extra(
    decoding: Decoding,
    token_ids: list[int],
    extra: step_pb2.RequestExtra,
    error: TTServeError | None,
) -> list[EngineCoreOutput]:
    decoding.events += _events(extra)
    if extra.HasField("prefill"):
        decoding.prefill = _prefill(extra.prefill)
    name = decoding.request_id
    outputs = [EngineCoreOutput(name, [token_id]) for token_id in token_ids]
    for output, entry in zip(outputs, extra.logprobs, strict=False):
        output.new_logprobs = decode_logprobs(output.new_token_ids[0], entry)
    if extra.HasField("finish"):
        if not outputs:
            outputs.append(EngineCoreOutput(name, []))
        _finish(outputs[-1], extra.finish, error)
    if outputs:
        _add_what_waited(decoding, outputs[0])
    return outputs


def _add_what_waited(decoding: Decoding, output: EngineCoreOutput) -> None:
    if decoding.events:
        output.events, decoding.events = decoding.events, []
    if decoding.prefill is not None:
        output.prefill_stats, decoding.prefill = decoding.prefill, None


def _finish(
    output: EngineCoreOutput, finish: step_pb2.Finish, error: TTServeError | None
) -> None:
    if error is not None:
        output.finish_reason = FinishReason.ERROR
        return
    output.finish_reason = _FINISH_REASONS[finish.reason]
    if finish.HasField("stop_token_id"):
        output.stop_reason = finish.stop_token_id


def _error(extra: step_pb2.RequestExtra) -> TTServeError | None:
    """Why a request failed; None if it goes on or ended as it should.

    An end that we did not ask for is a failure too: a client must not take half
    an answer for a whole one. So is an end of a kind that we do not know.
    """
    if not extra.HasField("finish") or extra.finish.reason in _FINISH_REASONS:
        return None
    if extra.finish.reason == step_pb2.FINISH_REASON_ERROR:
        return from_status(extra.finish.error)
    if extra.finish.reason == step_pb2.FINISH_REASON_ABORT:
        message = "the request was aborted in the device service"
    else:
        message = f"the request ended for an unknown reason ({extra.finish.reason})"
    return TTServeError(Reason.INTERNAL, message)


def _events(extra: step_pb2.RequestExtra) -> list[EngineCoreEvent]:
    return [
        EngineCoreEvent(_EVENT_TYPES[event.kind], event.monotonic_seconds)
        for event in extra.events
        if event.kind in _EVENT_TYPES
    ]


def _prefill(report: step_pb2.PrefillReport) -> PrefillStats:
    stats = PrefillStats()
    stats.set(report.prompt_tokens, report.cached_tokens, 0)
    return stats


def decode_logprobs(token_id: int, entry: TokenLogprobs) -> LogprobsLists:
    """One position: the chosen token first, then the most likely ones."""
    ids = [token_id, *entry.top_token_ids]
    values = [entry.chosen, *entry.top_logprobs]
    # A NaN would make the whole response unprintable; nothing is less likely.
    values = [-math.inf if math.isnan(value) else value for value in values]
    return LogprobsLists(
        logprob_token_ids=np.array([ids], dtype=np.int64),
        logprobs=np.array([values], dtype=np.float32),
        sampled_token_ranks=np.array([entry.chosen_rank], dtype=np.int64),
    )
