"""A recording as the messages of its file, each preceded by its length."""

from __future__ import annotations

import heapq
import io
from collections.abc import Iterable, Iterator
from operator import attrgetter

from google.protobuf.proto import serialize_length_prefixed

from device_service.codec.inspection import step_record
from device_service.codec.recording_entries import FORMAT
from device_service.kv.pool_picture import HeldBlocks
from device_service.recording import events
from device_service.recording.events import Recorded, RecordedRequest
from device_service.recording.picture import (
    EnginePicture,
    LanePicture,
    SequencePicture,
)
from device_service.recording.recorder import Recording, Seen
from device_service.recording.setup import EngineSetup
from device_service.records import StepRecord
from device_service.sampling.facts import NO_LOGPROBS, SamplingFacts
from device_service.sampling.site import SitePolicy
from ttserve import __version__
from ttserve.v1 import recording_pb2 as pb

_GROUP_BYTES = 4
"""How much of a cached block's key names its KV group."""


def encode(recording: Recording) -> bytes:
    """The whole file. Any thread."""
    file = io.BytesIO()
    for entry in _Writer().entries(recording):
        serialize_length_prefixed(entry, file)
    return file.getvalue()


class _Writer:
    """Writes one recording. Block hashes become numbers that mean nothing outside
    of it: a hash would tell who knows a prompt that it was served.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def entries(self, recording: Recording) -> Iterator[pb.RecordingEntry]:
        """Its messages, in order."""
        header = pb.RecordingHeader(
            format=FORMAT,
            ttserve_version=__version__,
            reason=recording.reason,
            unix_seconds=recording.unix_seconds,
            setup=_setup(recording.setup),
        )
        yield pb.RecordingEntry(header=header)
        picture = self._picture(recording.picture, recording.first_look)
        yield pb.RecordingEntry(picture=picture)
        kept: tuple[Iterable[Seen | StepRecord], ...] = (
            recording.events,
            recording.steps,
        )
        for item in heapq.merge(*kept, key=attrgetter("unix_seconds")):
            if isinstance(item, Seen):
                yield pb.RecordingEntry(event=self._event(item))
            else:
                yield pb.RecordingEntry(step=step_record(item))
        end = pb.RecordingEnd(look=recording.last_look)
        if recording.end is not None:
            end.error = " ".join(recording.end.error.split())
            end.poisoned = recording.end.poisoned
        yield pb.RecordingEntry(end=end)

    def _number(self, block_hash: bytes) -> int:
        return self._numbers.setdefault(block_hash, len(self._numbers))

    def _request(self, request: RecordedRequest) -> pb.RecordedRequest:
        return pb.RecordedRequest(
            request_id=request.request_id,
            external_request_id=request.external_request_id,
            session_number=request.session_number,
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            priority=request.priority,
            awaits_grammar=request.awaits_grammar,
            skip_prefix_cache=request.skip_prefix_cache,
            blocks=map(self._number, request.block_hashes.copy()),
            sampling=_sampling(request.sampling),
        )

    def _event(self, seen: Seen) -> pb.RecordedEvent:
        message = pb.RecordedEvent(look=seen.look, unix_seconds=seen.unix_seconds)
        self._tell(seen.event, message)
        return message

    def _tell(self, event: Recorded, message: pb.RecordedEvent) -> None:
        match event:
            case events.Arrivals(requests):
                message.arrivals.requests.extend(map(self._request, requests))
            case events.GrammarReady(request_id, failed):
                message.grammar.request_id = request_id
                message.grammar.failed = failed
            case events.Aborted(request_ids, cause):
                message.abort.request_ids.extend(request_ids)
                message.abort.cause = cause.value
            case events.Paused():
                message.pause.SetInParent()
            case events.StepsAsked(count):
                message.steps.count = count
            case events.Resumed():
                message.resume.SetInParent()
            case events.ResetAsked(preempt_running):
                message.reset.preempt_running = preempt_running
            case events.Stopped():
                message.stop.SetInParent()

    def _picture(self, picture: EnginePicture, look: int) -> pb.EnginePicture:
        prefill_run, decode_run = picture.interleave_runs
        return pb.EnginePicture(
            look=look,
            step_number=picture.last_number,
            arrivals=picture.arrivals,
            prefill_run=prefill_run,
            decode_run=decode_run,
            paused=picture.paused,
            steps_allowed=picture.steps_allowed,
            failed_in_a_row=picture.failed_in_a_row,
            sequences=map(self._sequence, picture.sequences),
            lanes=map(self._lane, picture.lanes),
        )

    def _sequence(self, picture: SequencePicture) -> pb.SequencePicture:
        priority, arrival = picture.order
        return pb.SequencePicture(
            request=self._request(picture.request),
            lane=picture.lane,
            row=picture.row,
            priority=priority,
            arrival=arrival,
            output_tokens=picture.output_tokens,
            computed_tokens=picture.computed_tokens,
            prefilling=picture.prefilling,
            preempted=picture.preempted,
            preemptions=picture.preemptions,
            shared_prefix_boundary=picture.shared_prefix_boundary,
            published_blocks=picture.published_blocks,
        )

    def _lane(self, picture: LanePicture) -> pb.LanePicture:
        pool = picture.pool
        keys = pool.cached_keys
        return pb.LanePicture(
            free=pool.free,
            cached_contents=[self._number(key[:-_GROUP_BYTES]) for key in keys],
            cached_groups=[int.from_bytes(key[-_GROUP_BYTES:], "big") for key in keys],
            cached_blocks=pool.cached_blocks,
            held=[_held(request_id, held) for request_id, held in pool.held.items()],
            preempted_request_ids=picture.untold,
        )


def _held(request_id: str, held: HeldBlocks) -> pb.HeldBlocks:
    groups = zip(held.block_ids, held.published, strict=True)
    return pb.HeldBlocks(
        request_id=request_id,
        groups=[
            pb.HeldGroup(blocks=ids, published=published) for ids, published in groups
        ],
    )


def _sampling(facts: SamplingFacts) -> pb.RecordedSampling:
    none = facts.num_logprobs == NO_LOGPROBS
    return pb.RecordedSampling(
        greedy=facts.greedy,
        top_k=facts.top_k,
        seeded=facts.seed is not None,
        num_logprobs=None if none else facts.num_logprobs,
        host_only=facts.host_only,
        min_tokens=facts.min_tokens,
        penalised=facts.penalised,
        structured=facts.structured,
    )


def _setup(setup: EngineSetup) -> pb.RecordedSetup:
    return pb.RecordedSetup(
        lanes=setup.lanes,
        rows_per_lane=setup.rows,
        num_blocks=setup.num_blocks,
        groups=[
            pb.RecordedKvGroup(
                block_size=group.block_size,
                window=group.window,
                other_kind=not group.known,
            )
            for group in setup.groups
        ],
        block_size=setup.block_size,
        max_model_len=setup.max_model_len,
        max_batched_tokens=setup.max_batched_tokens,
        long_prefill_threshold=setup.long_prefill_threshold,
        chunked_prefill=setup.chunked_prefill,
        by_priority=setup.by_priority,
        asynchronous=setup.asynchronous,
        resident_inputs=setup.resident_inputs,
        prefix_cache=setup.prefix_cache,
        reserve_full_prompt=setup.reserve_full_prompt,
        watermark=setup.watermark,
        interleave_enabled=setup.interleave.enabled,
        interleave_prefill_steps=setup.interleave.prefill_steps,
        interleave_decode_steps=setup.interleave.decode_steps,
        site=_site(setup.site),
    )


def _site(site: SitePolicy) -> pb.RecordedSitePolicy:
    return pb.RecordedSitePolicy(
        vocab_size=site.vocab_size,
        mode=site.mode or "",
        max_device_top_k=site.max_device_top_k,
        device_penalties=site.device_penalties,
        device_grammar=site.device_grammar,
        top_logprobs=site.top_logprobs,
        raw_logprobs=site.raw_logprobs,
        devices=site.devices,
        custom_processors=site.custom_processors,
        seeded_on_host=site.seeded_on_host,
    )
