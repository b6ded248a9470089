"""ModelDescription -> Model."""

from __future__ import annotations

import json

from device_service.description import ModelDescription, SharedSettings
from ttserve.v1 import model_pb2


def model_message(model: ModelDescription) -> model_pb2.Model:
    """What GetModel and SessionOpened say."""
    return model_pb2.Model(
        served_names=model.served_names,
        architecture=model.architecture,
        max_sequence_tokens=model.max_sequence_tokens,
        vocab_size=model.vocab_size,
        dtype=model.dtype,
        limits=_limits(model),
        scheduling=_scheduling(model),
        kv_cache=model_pb2.KvCacheInfo(
            num_blocks=model.kv_cache.num_blocks,
            block_size=model.kv_cache.block_size,
            prefix_caching=model.kv_cache.prefix_caching,
        ),
        capabilities=_capabilities(model),
        settings=_settings(model.settings),
        generation_defaults_json=json.dumps(
            dict(model.generation_defaults), sort_keys=True
        ),
        fingerprint=model.fingerprint,
        mesh=model_pb2.MeshInfo(
            kind=model.mesh.kind, rows=model.mesh.rows, columns=model.mesh.columns
        ),
        vllm_version=model.vllm_version,
        eos_token_ids=model.eos_token_ids,
    )


def _limits(model: ModelDescription) -> model_pb2.RequestLimits:
    limits = model.limits
    return model_pb2.RequestLimits(
        max_logprobs=limits.max_logprobs,
        max_queued_requests=limits.max_queued_requests,
        max_submission_bytes=limits.max_submission_bytes,
        max_grammar_bytes=limits.max_grammar_bytes,
    )


def _scheduling(model: ModelDescription) -> model_pb2.SchedulingInfo:
    scheduling = model.scheduling
    return model_pb2.SchedulingInfo(
        lanes=scheduling.lanes,
        rows_per_lane=scheduling.rows_per_lane,
        max_batched_tokens=scheduling.max_batched_tokens,
        policy=scheduling.policy,
        chunked_prefill=scheduling.chunked_prefill,
        async_decode=scheduling.async_decode,
    )


def _capabilities(model: ModelDescription) -> model_pb2.Capabilities:
    capabilities = model.capabilities
    return model_pb2.Capabilities(
        chunked_prefill=capabilities.chunked_prefill,
        prefix_caching=capabilities.prefix_caching,
        sample_on_device=capabilities.sample_on_device,
        async_decode=capabilities.async_decode,
        device_grammar=capabilities.device_grammar,
        device_penalties=capabilities.device_penalties,
        max_device_top_k=capabilities.max_device_top_k,
        output_tokens_per_step=capabilities.output_tokens_per_step,
    )


def _settings(settings: SharedSettings) -> model_pb2.SharedSettings:
    return model_pb2.SharedSettings(
        structured_output_backend=settings.structured_output_backend,
        disable_any_whitespace=settings.disable_any_whitespace,
        disable_additional_properties=settings.disable_additional_properties,
        reasoning_parser=settings.reasoning_parser,
        logprobs_mode=settings.logprobs_mode,
        tokenizer_mode=settings.tokenizer_mode,
        trust_remote_code=settings.trust_remote_code,
        structured_output_in_reasoning=settings.structured_output_in_reasoning,
        mm_limits_json=json.dumps(dict(settings.mm_limits or {}), sort_keys=True),
    )
