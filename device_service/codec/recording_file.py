"""The file of a recording, read back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

from vllm.v1.core.kv_cache_utils import BlockHash

from device_service.codec.inspection import PHASES, SITES
from device_service.codec.recording_entries import NotARecording, entries
from device_service.kv.pool_picture import HeldBlocks, PoolPicture
from device_service.recording import events
from device_service.recording.events import Recorded, RecordedRequest
from device_service.recording.picture import (
    EnginePicture,
    LanePicture,
    SequencePicture,
)
from device_service.recording.recorder import End, Recording, Seen
from device_service.recording.setup import EngineSetup, KVGroup
from device_service.records import (
    AbortCause,
    LaneRecord,
    OverlapVerdict,
    RowRecord,
    SamplingVerdict,
    StepRecord,
)
from device_service.sampling.facts import NO_LOGPROBS, SamplingFacts
from device_service.sampling.site import SitePolicy
from device_service.scheduling.interleave import InterleaveConfig
from ttserve.v1 import inspector_pb2
from ttserve.v1 import recording_pb2 as pb

_HASH_BYTES = 8


def decode(data: bytes) -> Recording:
    """The recording in a file. Raises NotARecording."""
    parts: dict[str, list[Any]] = {}
    for entry in entries(data):
        kind = entry.WhichOneof("entry")
        if kind is not None:  # else it is a part that a newer version has added
            parts.setdefault(kind, []).append(getattr(entry, kind))
    missing = [name for name in ("header", "picture", "end") if name not in parts]
    if missing:
        raise NotARecording(f"the recording is cut short: it has no {missing[0]}")
    header, picture, end = parts["header"][0], parts["picture"][0], parts["end"][0]
    return Recording(
        setup=_setup(header.setup),
        picture=_picture(picture),
        first_look=picture.look,
        last_look=end.look,
        events=tuple(map(_seen, parts.get("event", []))),
        steps=tuple(map(_step, parts.get("step", []))),
        unix_seconds=header.unix_seconds,
        reason=header.reason,
        end=End(end.error, end.poisoned) if end.error else None,
    )


def _hash(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(_HASH_BYTES, "big"))


def _optional(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def _request(message: pb.RecordedRequest) -> RecordedRequest:
    return RecordedRequest(
        request_id=message.request_id,
        external_request_id=message.external_request_id,
        session_number=message.session_number,
        prompt_tokens=message.prompt_tokens,
        max_tokens=message.max_tokens,
        priority=message.priority,
        awaits_grammar=message.awaits_grammar,
        skip_prefix_cache=message.skip_prefix_cache,
        sampling=_sampling(message.sampling, message.prompt_tokens),
        block_hashes=[_hash(number) for number in message.blocks],
    )


def _sampling(message: pb.RecordedSampling, prompt_tokens: int) -> SamplingFacts:
    """Values that were not recorded decide nothing; some that fits stands for them."""
    logprobs = _optional(message, "num_logprobs")
    return SamplingFacts(
        temperature=0.0 if message.greedy else 1.0,
        top_k=message.top_k,
        top_p=0.0 if message.top_k == 1 else 1.0,
        presence_penalty=1.0 if message.penalised else 0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        seed=0 if message.seeded else None,
        num_logprobs=NO_LOGPROBS if logprobs is None else logprobs,
        host_only=message.host_only,
        min_tokens=message.min_tokens,
        prompt_tokens=prompt_tokens,
        penalised=message.penalised,
        structured=message.structured,
        plain=False,
    )


def _seen(message: pb.RecordedEvent) -> Seen:
    return Seen(message.look, message.unix_seconds, _event(message))


def _event(message: pb.RecordedEvent) -> Recorded:
    kind = message.WhichOneof("event")
    match kind:
        case "arrivals":
            return events.Arrivals(tuple(map(_request, message.arrivals.requests)))
        case "grammar":
            grammar = message.grammar
            return events.GrammarReady(grammar.request_id, grammar.failed)
        case "abort":
            abort = message.abort
            return events.Aborted(tuple(abort.request_ids), AbortCause(abort.cause))
        case "steps":
            return events.StepsAsked(message.steps.count)
        case "reset":
            return events.ResetAsked(message.reset.preempt_running)
        case "pause":
            return events.Paused()
        case "resume":
            return events.Resumed()
        case "stop":
            return events.Stopped()
    raise NotARecording("the recording holds an event of a newer version")


def _picture(message: pb.EnginePicture) -> EnginePicture:
    return EnginePicture(
        last_number=message.step_number,
        arrivals=message.arrivals,
        interleave_runs=(message.prefill_run, message.decode_run),
        paused=message.paused,
        steps_allowed=_optional(message, "steps_allowed"),
        failed_in_a_row=message.failed_in_a_row,
        sequences=tuple(map(_sequence, message.sequences)),
        lanes=tuple(map(_lane, message.lanes)),
    )


def _sequence(message: pb.SequencePicture) -> SequencePicture:
    return SequencePicture(
        request=_request(message.request),
        lane=message.lane,
        row=_optional(message, "row"),
        order=(message.priority, message.arrival),
        output_tokens=message.output_tokens,
        computed_tokens=message.computed_tokens,
        prefilling=message.prefilling,
        preempted=message.preempted,
        preemptions=message.preemptions,
        shared_prefix_boundary=message.shared_prefix_boundary,
        published_blocks=message.published_blocks,
    )


def _lane(message: pb.LanePicture) -> LanePicture:
    keys = [
        _hash(number) + group.to_bytes(4, "big")
        for number, group in zip(
            message.cached_contents, message.cached_groups, strict=True
        )
    ]
    held = {
        it.request_id: HeldBlocks(
            tuple(tuple(group.blocks) for group in it.groups),
            tuple(_optional(group, "published") for group in it.groups),
        )
        for it in message.held
    }
    pool = PoolPicture(list(message.free), keys, list(message.cached_blocks), held)
    return LanePicture(pool, tuple(message.preempted_request_ids))


def _setup(message: pb.RecordedSetup) -> EngineSetup:
    return EngineSetup(
        lanes=message.lanes,
        rows=message.rows_per_lane,
        num_blocks=message.num_blocks,
        groups=tuple(
            KVGroup(it.block_size, _optional(it, "window"), not it.other_kind)
            for it in message.groups
        ),
        block_size=message.block_size,
        max_model_len=message.max_model_len,
        max_batched_tokens=message.max_batched_tokens,
        long_prefill_threshold=message.long_prefill_threshold,
        chunked_prefill=message.chunked_prefill,
        by_priority=message.by_priority,
        asynchronous=message.asynchronous,
        resident_inputs=message.resident_inputs,
        prefix_cache=message.prefix_cache,
        reserve_full_prompt=message.reserve_full_prompt,
        watermark=message.watermark,
        interleave=InterleaveConfig(
            message.interleave_enabled,
            message.interleave_prefill_steps,
            message.interleave_decode_steps,
        ),
        site=_site(message.site),
    )


def _site(message: pb.RecordedSitePolicy) -> SitePolicy:
    return SitePolicy(
        vocab_size=message.vocab_size,
        mode=cast(Literal["all", "decode_only"] | None, message.mode or None),
        max_device_top_k=_optional(message, "max_device_top_k"),
        device_penalties=message.device_penalties,
        device_grammar=message.device_grammar,
        top_logprobs=message.top_logprobs,
        raw_logprobs=message.raw_logprobs,
        devices=message.devices,
        custom_processors=message.custom_processors,
        seeded_on_host=message.seeded_on_host,
    )


_PHASES = {number: phase for phase, number in PHASES.items()}
_SITES = {number: site for site, number in SITES.items()}


def _step(message: inspector_pb2.StepRecord) -> StepRecord:
    return StepRecord(
        number=message.number,
        phase=_PHASES[message.phase],
        phase_reason=message.phase_reason,
        lanes=tuple(
            LaneRecord(it.lane, _rows(it.rows), it.used_blocks, it.free_blocks)
            for it in message.lanes
        ),
        scheduled_tokens=message.scheduled_tokens,
        produced_tokens=message.produced_tokens,
        sampling=SamplingVerdict(
            _SITES[message.sampling_site], message.sampling_reason
        ),
        overlap=OverlapVerdict(message.overlapped, message.overlap_reason),
        preempted=tuple(message.preempted_request_ids),
        host_us=message.host_us,
        device_us=message.device_us,
        readback_us=message.readback_us,
        host_gap_us=message.host_gap_us,
        unix_seconds=message.unix_seconds,
        padded_rows=message.padded_rows,
        waiting=message.waiting_requests,
        error=message.error,
    )


def _rows(messages: Iterable[inspector_pb2.StepRow]) -> tuple[RowRecord, ...]:
    return tuple(
        RowRecord(
            it.row,
            it.request_id,
            it.external_request_id,
            it.start_position,
            it.tokens,
            it.intermediate_chunk,
            it.produced_tokens,
            it.finish_reason,
        )
        for it in messages
    )
