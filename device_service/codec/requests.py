"""Submission and GenerateRequest -> the domain's Submission."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import DecodeError
from vllm.v1.engine import EngineCoreRequest

from device_service.codec.sampling import (
    Parts,
    Stops,
    checked_max_tokens,
    checked_min_tokens,
    defaulted_scalars,
    explicit_scalars,
    explicit_stops,
    missing_field,
    repetition,
    sampling_params,
    token_list,
)
from device_service.codec.structured import reasoning_kwargs
from device_service.description import ModelDescription
from device_service.submission import Group, Submission
from ttserve.errors import invalid_field
from ttserve.trace_context import trace_headers
from ttserve.v1 import device_pb2, generation_pb2


def parse_submission(data: bytes, handle: int) -> generation_pb2.Submission:
    """Parse a submission that travelled in frames under `handle`."""
    try:
        message = generation_pb2.Submission.FromString(data)
    except DecodeError as error:
        raise invalid_field("frame", "the frames hold no Submission") from error
    if message.handle != handle:
        raise invalid_field(
            "handle", f"the frames of handle {handle} hold handle {message.handle}"
        )
    return message


def submission_from_attach(message: generation_pb2.Submission) -> Submission:
    """Decode a submission on Attach, where every value is explicit."""
    for name in ("sampling", "stop"):
        if not message.HasField(name):
            raise missing_field(name)
    parts = Parts(
        sampling=message.sampling,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        structured_output=_structured(message),
        skip_prefix_cache=message.skip_prefix_cache,
    )
    request = EngineCoreRequest(
        request_id=message.request_id,
        prompt_token_ids=token_list(message.prompt_token_ids),
        mm_features=None,
        sampling_params=sampling_params(
            explicit_scalars(message.sampling), explicit_stops(message.stop), parts
        ),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=message.cache_salt or None,
        data_parallel_rank=None,
        priority=message.priority,
        trace_headers=trace_headers(message.trace_headers.items()) or None,
        external_req_id=message.external_request_id or None,
    )
    _apply_reasoning(request, parts.structured_output)
    return Submission(
        handle=message.handle,
        request=request,
        external_request_id=message.external_request_id,
        group=_group(message),
    )


def submission_from_generate(
    message: device_pb2.GenerateRequest,
    description: ModelDescription,
    request_id: str,
    external_request_id: str,
    trace: Mapping[str, str] | None = None,
) -> Submission:
    """Decode a Generate call: what it leaves out takes the served defaults.

    `trace` is the trace context from its metadata.
    """
    parts = Parts(
        sampling=message.sampling,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        structured_output=_structured(message),
        skip_prefix_cache=False,
    )
    prompt = token_list(message.prompt_token_ids)
    scalars = defaulted_scalars(message.sampling, description.generation_defaults)
    stops = _defaulted_stops(message, description, len(prompt))
    request = EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        mm_features=None,
        sampling_params=sampling_params(scalars, stops, parts),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        priority=message.priority,
        trace_headers=trace or None,
        external_req_id=external_request_id or None,
    )
    _apply_reasoning(request, parts.structured_output)
    return Submission(0, request, external_request_id)


def _defaulted_stops(
    message: device_pb2.GenerateRequest, model: ModelDescription, prompt_tokens: int
) -> Stops:
    stop = message.stop
    if stop.HasField("max_output_tokens"):
        max_tokens = checked_max_tokens(stop.max_output_tokens)
    else:
        room = max(1, model.max_sequence_tokens - prompt_tokens)
        max_tokens = min(room, model.generation_defaults.get("max_tokens", room))
    stop_ids = token_list(stop.stop_token_ids)
    masked = {*stop.min_tokens_masked_ids, *model.eos_token_ids}
    eos: int | None = None
    if stop.HasField("eos_token_id"):
        if message.ignore_eos:
            raise invalid_field(
                "ignore_eos", "ignore_eos and stop.eos_token_id exclude each other"
            )
        eos = stop.eos_token_id
        masked.add(eos)
    elif model.eos_token_ids and not message.ignore_eos:
        eos, *others = model.eos_token_ids
        stop_ids += others
    return Stops(
        max_tokens=max_tokens,
        min_tokens=checked_min_tokens(stop, max_tokens),
        eos_token_id=eos,
        stop_token_ids=stop_ids,
        masked_ids=masked,
        repetition=repetition(stop),
    )


def _structured(
    message: generation_pb2.Submission | device_pb2.GenerateRequest,
) -> generation_pb2.StructuredOutput | None:
    return message.structured_output if message.HasField("structured_output") else None


def _apply_reasoning(
    request: EngineCoreRequest, structured: generation_pb2.StructuredOutput | None
) -> None:
    if structured is None:
        return
    if structured.HasField("reasoning_ended"):
        request.reasoning_ended = structured.reasoning_ended
    request.reasoning_parser_kwargs = reasoning_kwargs(structured)


def _group(message: generation_pb2.Submission) -> Group | None:
    if not message.HasField("group"):
        return None
    if message.group.count < 2:
        raise invalid_field("group.count", "a group has at least 2 children")
    return Group(message.group.group_id, message.group.count)
