"""The description of what is served, as frontends get it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vllm.config import ModelConfig, VllmConfig
from vllm.tokenizers import TokenizerLike, cached_tokenizer_from_config

from device_service.bundle import Bundle, build_bundle
from device_service.description import (
    Capabilities,
    KvCacheInfo,
    MeshInfo,
    ModelDescription,
    RequestLimits,
    SchedulingInfo,
    SharedSettings,
)
from device_service.mesh.interface import Mesh
from device_service.resolve import Resolved
from device_service.wording import one_line
from ttserve.errors import StartupError
from ttserve.model_info import MODEL_INFO_FILE, collect_model_info

_LEAST_SUBMISSION_BYTES = 8 << 20
_BYTES_PER_TOKEN_ID = 4
_REST_OF_SUBMISSION = 1 << 20
_MODALITIES = ("image", "audio", "video")
_NOT_OF_TOKENIZER = ("config.json", "generation_config.json")


def load_tokenizer(model: ModelConfig) -> TokenizerLike:
    """The tokenizer as vLLM loads it, once. Raises StartupError."""
    try:
        tokenizer: TokenizerLike = cached_tokenizer_from_config(model)
    except Exception as error:  # transformers raises whatever it meets
        raise StartupError(
            f"the tokenizer of {model.tokenizer} cannot be loaded; are its files "
            f"complete? {one_line(error)}"
        ) from error
    return tokenizer


def bundle_of(resolved: Resolved) -> Bundle:
    """The files that frontends get.

    A tokenizer from elsewhere replaces the model's own, and overrides of the
    configuration are written into it: a frontend has these files only.
    """
    model = resolved.vllm_config.model_config
    trusted = model.trust_remote_code
    extra = {MODEL_INFO_FILE: collect_model_info(model.architectures)}
    tokenizer = Path(model.tokenizer)
    if tokenizer.is_dir() and tokenizer != resolved.source.directory:
        other = build_bundle(tokenizer, {}, trust_remote_code=trusted)
        extra |= {file.name: file.data for file in other.files}
        for name in _NOT_OF_TOKENIZER:
            extra.pop(name, None)
    if resolved.config.is_explicit("hf_overrides"):
        extra["config.json"] = model.hf_config.to_json_string().encode()
    return build_bundle(resolved.source.directory, extra, trust_remote_code=trusted)


def describe(resolved: Resolved, mesh: Mesh, files_sha256: str) -> ModelDescription:
    """Everything that `GetModel` answers.

    `files_sha256` is the bundle's: it and the description itself make the
    fingerprint.
    """
    vllm_config = resolved.vllm_config
    model = vllm_config.model_config
    rows, columns = mesh.grid
    description = ModelDescription(
        served_names=_names(resolved),
        architecture=model.architectures[0],
        max_sequence_tokens=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        dtype=str(model.dtype).removeprefix("torch."),
        limits=_limits(resolved),
        scheduling=_scheduling(resolved),
        kv_cache=KvCacheInfo(
            num_blocks=resolved.pool.num_blocks,
            block_size=resolved.shape.block_size,
            prefix_caching=bool(vllm_config.cache_config.enable_prefix_caching),
        ),
        capabilities=_capabilities(resolved),
        settings=_settings(vllm_config),
        generation_defaults=model.get_diff_sampling_param(),
        eos_token_ids=_eos_token_ids(model),
        fingerprint="",
        mesh=MeshInfo(kind=mesh.kind, rows=rows, columns=columns),
        vllm_version=version("vllm"),
    )
    return dataclasses.replace(
        description, fingerprint=_fingerprint(description, files_sha256)
    )


def _names(resolved: Resolved) -> tuple[str, ...]:
    given = resolved.config.engine["served_model_name"] or resolved.source.name
    return (given,) if isinstance(given, str) else tuple(given)


def _limits(resolved: Resolved) -> RequestLimits:
    model = resolved.vllm_config.model_config
    longest = model.max_model_len * _BYTES_PER_TOKEN_ID + _REST_OF_SUBMISSION
    return RequestLimits(
        max_logprobs=model.max_logprobs,
        max_queued_requests=resolved.config.queue_bound(resolved.shape.total_rows),
        max_submission_bytes=max(_LEAST_SUBMISSION_BYTES, longest),
    )


def _scheduling(resolved: Resolved) -> SchedulingInfo:
    scheduler = resolved.vllm_config.scheduler_config
    return SchedulingInfo(
        lanes=resolved.shape.lanes,
        rows_per_lane=resolved.shape.rows_per_lane,
        max_batched_tokens=scheduler.max_num_batched_tokens,
        policy=scheduler.policy,
        chunked_prefill=scheduler.enable_chunked_prefill,
        async_decode=not resolved.steps_wait_because,
    )


def _capabilities(resolved: Resolved) -> Capabilities:
    declared = resolved.capabilities
    return Capabilities(
        chunked_prefill=declared.supports_chunked_prefill,
        prefix_caching=declared.supports_prefix_caching,
        sample_on_device=declared.supports_sample_on_device,
        async_decode=declared.supports_async_decode,
        device_grammar=declared.supports_device_grammar,
        device_penalties=declared.supports_device_penalties,
        max_device_top_k=declared.max_device_top_k,
        output_tokens_per_step=declared.output_tokens_per_step,
    )


def _settings(vllm_config: VllmConfig) -> SharedSettings:
    model = vllm_config.model_config
    grammar = vllm_config.structured_outputs_config
    limits = dict.fromkeys(_MODALITIES, 0) if model.is_multimodal_model else None
    return SharedSettings(
        structured_output_backend=grammar.backend,
        disable_any_whitespace=grammar.disable_any_whitespace,
        disable_additional_properties=grammar.disable_additional_properties,
        reasoning_parser=grammar.reasoning_parser,
        logprobs_mode=model.logprobs_mode,
        tokenizer_mode=model.tokenizer_mode,
        trust_remote_code=model.trust_remote_code,
        structured_output_in_reasoning=grammar.enable_in_reasoning,
        mm_limits=limits,
    )


def _eos_token_ids(model: ModelConfig) -> tuple[int, ...]:
    """The tokenizer's own id first, then those of the generation config."""
    own = load_tokenizer(model).eos_token_id
    more = model.try_get_generation_config().get("eos_token_id")
    listed = more if isinstance(more, list) else [more]
    return tuple(dict.fromkeys(i for i in (own, *listed) if i is not None))


def _fingerprint(description: ModelDescription, files_sha256: str) -> str:
    """The number of KV blocks is left out: it follows from the memory that happens
    to be free, so a service that starts again would seem to be another one.
    """
    facts: dict[str, Any] = dataclasses.asdict(description)
    del facts["kv_cache"]["num_blocks"]
    facts["files"] = files_sha256
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
