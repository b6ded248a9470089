"""VllmConfig of a frontend: what the device service says, in vLLM's words."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, cast

from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext

from ttserve.v1.model_pb2 import Model

GENERATION_CONFIG = "generation_config.json"
_SAMPLING_DEFAULTS: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
_KEPT = ("eos_token_id", "bos_token_id", "pad_token_id")
_SEVERAL = 2


def build_vllm_config(
    model: Model, directory: Path, arguments: argparse.Namespace
) -> VllmConfig:
    """Configure vLLM's server side for a model whose files are in `directory`.

    `arguments` are the parsed server options; of vLLM's engine options only
    those that concern a frontend are taken from them.
    """
    defaults = json.loads(model.generation_defaults_json or "{}")
    write_generation_config(directory, defaults)
    settings = model.settings
    rows = model.scheduling.rows_per_lane * model.scheduling.lanes
    engine_args = AsyncEngineArgs(
        model=str(directory),
        served_model_name=list(model.served_names),
        tokenizer_mode=settings.tokenizer_mode or "auto",
        trust_remote_code=settings.trust_remote_code,
        dtype=cast(Any, model.dtype),
        max_model_len=model.max_sequence_tokens,
        max_logprobs=model.limits.max_logprobs,
        logprobs_mode=cast(Any, settings.logprobs_mode or "raw_logprobs"),
        # Nothing is scheduled here; vLLM only wants these to fit each other.
        max_num_seqs=rows,
        max_num_batched_tokens=max(
            model.scheduling.max_batched_tokens, model.max_sequence_tokens, rows
        ),
        scheduling_policy=cast(Any, model.scheduling.policy or "fcfs"),
        enable_prefix_caching=model.kv_cache.prefix_caching,
        block_size=model.kv_cache.block_size,
        num_gpu_blocks_override=model.kv_cache.num_blocks,
        generation_config="auto",
        override_generation_config=_overrides(defaults),
        reasoning_parser=settings.reasoning_parser,
        limit_mm_per_prompt=json.loads(settings.mm_limits_json or "{}"),
        stream_interval=arguments.stream_interval,
        otlp_traces_endpoint=arguments.otlp_traces_endpoint,
        show_hidden_metrics_for_version=arguments.show_hidden_metrics_for_version,
        renderer_num_workers=arguments.renderer_num_workers,
        disable_log_stats=arguments.disable_log_stats,
        enable_log_requests=arguments.enable_log_requests,
        # Another frontend may share the device service's multimodal cache.
        _api_process_count=_SEVERAL,
    )
    config = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    _follow_device_service(config, model)
    return config


def write_generation_config(directory: Path, defaults: dict[str, Any]) -> None:
    """Keep the model's end-of-sequence ids, take every other default from the wire.

    A default for `max_tokens` has to stand in this file: given as an override,
    vLLM takes it for an upper bound as well.
    """
    path = directory / GENERATION_CONFIG
    found = json.loads(path.read_bytes()) if path.exists() else {}
    kept = {name: found[name] for name in _KEPT if name in found}
    if "max_tokens" in defaults:
        kept["max_new_tokens"] = defaults["max_tokens"]
    path.write_text(json.dumps(kept))


def _overrides(defaults: dict[str, Any]) -> dict[str, Any]:
    return {
        name: defaults[name]
        for name, neutral in _SAMPLING_DEFAULTS.items()
        if defaults.get(name, neutral) != neutral
    }


def _follow_device_service(config: VllmConfig, model: Model) -> None:
    """Set what vLLM's own engine would report back when it has started."""
    config.cache_config.num_gpu_blocks = (
        model.kv_cache.num_blocks * model.scheduling.lanes
    )
    config.cache_config.block_size = model.kv_cache.block_size
    outputs = config.structured_outputs_config
    outputs.backend = cast(Any, model.settings.structured_output_backend)
    outputs.disable_any_whitespace = model.settings.disable_any_whitespace
    outputs.disable_additional_properties = model.settings.disable_additional_properties
    outputs.enable_in_reasoning = model.settings.structured_output_in_reasoning
    # Both sides have fixed the length already; vLLM must not derive another.
    config.model_config.max_model_len = model.max_sequence_tokens
