"""What cannot be served and what is changed, in three tables: read them top to bottom.

`LAUNCH_CHECKS` look at what was asked for, before the port is bound.
`MODEL_CHECKS` look at the model and at what its adapter declares, `ADJUSTMENTS`
fit the defaults that this model cannot have; both before the mesh opens. An option
that was set and cannot be honoured is an error (DETAILS 35). Contract 2.4, 2.15.

What vLLM's other options mean is in `device_service.engine_flags`, what a `tt`
option accepts in `device_service.options`.
"""

from __future__ import annotations

from typing import Any

from device_service.config import DeviceConfig
from device_service.engine_flags import refused
from device_service.startup_rules import (
    Adjustment,
    Candidate,
    LaunchCheck,
    ModelCheck,
    bytes_given,
    given,
    items,
    reasoning_parser,
    unknown_parser,
)
from ttserve.errors import StartupError

LAUNCH_CHECKS = (
    LaunchCheck(
        "tensor parallelism",
        given("tensor_parallel_size"),
        "--tensor-parallel-size {tensor_parallel_size}: the mesh is one device to "
        "vLLM; leave it out and choose the grid with MESH_DEVICE",
    ),
    LaunchCheck(
        "pipeline parallelism",
        given("pipeline_parallel_size"),
        "--pipeline-parallel-size {pipeline_parallel_size}: the mesh is one device "
        "to vLLM; leave it out and choose the grid with MESH_DEVICE",
    ),
    LaunchCheck(
        "LoRA",
        given("enable_lora"),
        "--enable-lora: LoRA adapters are not served; merge them into the model",
    ),
    LaunchCheck(
        "speculation",
        given("speculative_config"),
        "--speculative-config: speculative decoding is not built yet; leave it out",
    ),
    LaunchCheck(
        "KV connector",
        given("kv_transfer_config"),
        "--kv-transfer-config: KV connectors and disaggregated prefill are not "
        "supported; leave it out",
    ),
    LaunchCheck(
        "KV events",
        given("kv_events_config"),
        "--kv-events-config: KV events are not published; leave it out, or start with "
        "--enable-vllm-grpc, which streams them over gRPC",
    ),
    LaunchCheck(
        "pooling runner",
        lambda config: config.engine["runner"] not in ("auto", "generate"),
        "--runner {runner}: only text generation is served; leave it out",
    ),
    LaunchCheck(
        "grammar backend",
        lambda config: (
            config.engine["structured_outputs_config"].backend
            not in ("auto", "xgrammar")
        ),
        "--structured-outputs-config: the grammar backend is always xgrammar; leave "
        "`backend` out",
    ),
    LaunchCheck(
        "reasoning parser",
        lambda config: unknown_parser(reasoning_parser(config)),
        "--reasoning-parser {reasoning}: vLLM knows no parser of that name; correct "
        "it, or bring it with --reasoning-parser-plugin",
    ),
    LaunchCheck(
        "images",
        lambda config: any(items(config.engine["limit_mm_per_prompt"])),
        "--limit-mm-per-prompt: prompts are text only; leave it out",
    ),
    LaunchCheck(
        "one token per block",
        lambda config: config.engine["block_size"] < 1,
        "--block-size {block_size}: must be at least 1",
    ),
    LaunchCheck(
        "one block per prefill step",
        lambda config: (
            config.engine["max_num_batched_tokens"] is not None
            and config.engine["max_num_batched_tokens"] < config.engine["block_size"]
        ),
        "--max-num-batched-tokens {max_num_batched_tokens} is less than one block "
        "of --block-size {block_size}; raise it",
    ),
    LaunchCheck(
        "a lane",
        lambda config: config.engine["data_parallel_size"] < 1,
        "--data-parallel-size {data_parallel_size}: must be at least 1",
    ),
    LaunchCheck(
        "threshold of what is not split",
        lambda config: (
            config.engine["enable_chunked_prefill"] is False
            and config.is_explicit("long_prefill_token_threshold")
        ),
        "--long-prefill-token-threshold {long_prefill_token_threshold} splits "
        "prompts, --no-enable-chunked-prefill forbids it; leave one of them out",
    ),
    LaunchCheck(
        "null block and another",
        lambda config: (
            config.is_explicit("num_gpu_blocks_override")
            and config.engine["num_gpu_blocks_override"] < 2
        ),
        "--num-gpu-blocks-override {num_gpu_blocks_override}: one block is the null "
        "block, so at least 2 are needed",
    ),
    LaunchCheck(
        "pool of the model's own size",
        lambda config: (
            config.mesh == "ttnn"
            and (config.is_explicit("num_gpu_blocks_override") or bytes_given(config))
        ),
        "the KV pool on mesh ttnn follows from the model's token budget; leave out "
        "--num-gpu-blocks-override, --kv-cache-memory-bytes and --kv-cache-fraction",
    ),
    LaunchCheck(
        "pool without bytes",
        lambda config: config.mesh == "sim" and bytes_given(config),
        "mesh sim holds no keys and values; leave out --kv-cache-memory-bytes and "
        "--kv-cache-fraction and size the pool with --num-gpu-blocks-override",
    ),
    LaunchCheck(
        "compatible sampling",
        lambda config: config.tt.always_compat_sampling,
        "tt option always_compat_sampling: true is not supported; leave it out, "
        "vLLM's sampler serves every request that needs it",
    ),
    LaunchCheck(
        "test models",
        lambda config: config.mesh != "ttnn" and config.tt.register_test_models,
        "tt option register_test_models: mesh {mesh} has none; leave it out, or use "
        "--mesh sim, which needs no model",
    ),
    LaunchCheck(
        "simulated latency",
        lambda config: config.mesh != "sim" and config.tt.sim is not None,
        "tt option sim: mesh {mesh} has no latency profile; use --mesh sim",
    ),
    LaunchCheck(
        "memory for traces",
        lambda config: (
            config.tt.trace_mode == "none" and config.tt.trace_region_size is not None
        ),
        "tt option trace_region_size: with trace_mode none there are no traces; "
        "leave one of them out",
    ),
    LaunchCheck(
        "hardware options",
        lambda config: config.mesh != "ttnn" and bool(config.tt.hardware_only()),
        "tt option {hardware_only}: mesh {mesh} has no use for it; leave it out, or "
        "use --mesh ttnn",
    ),
)

MODEL_CHECKS = (
    ModelCheck(
        "encoder-decoder",
        lambda it: it.model.is_encoder_decoder,
        "{architecture} is an encoder-decoder model; only decoder-only text "
        "generation is served",
    ),
    ModelCheck(
        "pooling",
        lambda it: it.model.runner_type != "generate",
        "{architecture} does not generate text; only text generation is served",
    ),
    ModelCheck(
        "state-space layers",
        lambda it: it.model.has_inner_state or it.model.is_attention_free,
        "{architecture} has layers with a state instead of keys and values; mesh "
        "{mesh} does not serve them",
    ),
    ModelCheck(
        "rope of each request",
        lambda it: it.model.uses_mrope,
        "{architecture} turns positions in a way of each request's own, which comes "
        "with images and is not built yet; use a text-only model",
    ),
    ModelCheck(
        "block output",
        lambda it: it.capabilities.output_tokens_per_step > 1,
        "{architecture} produces several tokens per step, which is not built yet",
    ),
    ModelCheck(
        "quantized weights",
        lambda it: it.config.mesh == "cpu" and it.model.quantization is not None,
        "{architecture} is quantized ({quantization}), which mesh cpu does not "
        "compute; use the unquantized model",
    ),
    ModelCheck(
        "chunked prefill",
        lambda it: (
            it.config.engine["enable_chunked_prefill"] is True
            and not it.capabilities.supports_chunked_prefill
        ),
        "--enable-chunked-prefill: {architecture} on mesh {mesh} cannot split a "
        "prompt; leave it out",
    ),
    ModelCheck(
        "threshold of what cannot be split",
        lambda it: (
            it.config.is_explicit("long_prefill_token_threshold")
            and not it.capabilities.supports_chunked_prefill
        ),
        "--long-prefill-token-threshold: {architecture} on mesh {mesh} cannot split a "
        "prompt; leave it out",
    ),
    ModelCheck(
        "budget of a whole prompt",
        lambda it: (
            it.config.is_explicit("max_num_batched_tokens") and _is_too_small(it)
        ),
        "--max-num-batched-tokens {max_num_batched_tokens}: prompts are prefilled "
        "whole, so a step must take max_model_len {max_model_len}; raise it or leave "
        "it out",
    ),
    ModelCheck(
        "prefix caching",
        lambda it: (
            it.config.engine["enable_prefix_caching"] is True
            and not it.capabilities.supports_prefix_caching
        ),
        "--enable-prefix-caching: {architecture} on mesh {mesh} cannot resume from "
        "cached blocks; leave it out",
    ),
    ModelCheck(
        "asynchronous decode",
        lambda it: (
            it.config.engine["async_scheduling"] is True
            and not it.capabilities.supports_async_decode
        ),
        "--async-scheduling: {architecture} on mesh {mesh} decodes one step at a "
        "time; leave it out",
    ),
    ModelCheck(
        "device sampling",
        lambda it: (
            it.config.tt.sample_on_device_mode is not None
            and not it.capabilities.supports_sample_on_device
        ),
        "tt option sample_on_device_mode: {architecture} on mesh {mesh} cannot sample "
        "on the device; leave it out",
    ),
)


ADJUSTMENTS = (
    Adjustment(
        "log probabilities",
        lambda it: it.model.max_logprobs != it.config.engine["max_logprobs"],
        None,  # our platform has limited it
        "max_logprobs {asked_logprobs} changed to {max_logprobs}",
    ),
    Adjustment(
        "prefix caching",
        lambda it: (
            bool(it.vllm_config.cache_config.enable_prefix_caching)
            and not it.capabilities.supports_prefix_caching
        ),
        lambda it: setattr(it.vllm_config.cache_config, "enable_prefix_caching", False),
        "prefix caching off: {architecture} cannot resume",
    ),
    Adjustment(
        "chunked prefill",
        lambda it: it.scheduler.enable_chunked_prefill and not _splits(it),
        lambda it: setattr(it.scheduler, "enable_chunked_prefill", False),
        "chunked prefill off: {architecture} cannot split a prompt",
    ),
    Adjustment(
        "budget of a whole prompt",
        lambda it: _is_too_small(it),
        lambda it: setattr(
            it.scheduler, "max_num_batched_tokens", it.model.max_model_len
        ),
        "max_num_batched_tokens {max_num_batched_tokens} raised to max_model_len "
        "{max_model_len}: prompts are prefilled whole",
    ),
    Adjustment(
        "asynchronous decode",
        lambda it: (
            bool(it.scheduler.async_scheduling)
            and not it.capabilities.supports_async_decode
        ),
        lambda it: setattr(it.scheduler, "async_scheduling", False),
        "asynchronous scheduling off: {architecture} decodes one step at a time",
    ),
    Adjustment(
        "images in one chunk",
        lambda it: _splits(it) is not it.scheduler.disable_chunked_mm_input,
        lambda it: setattr(it.scheduler, "disable_chunked_mm_input", _splits(it)),
        "",
    ),
)


def _splits(it: Candidate) -> bool:
    """Whether prompts may be prefilled in several steps (contract 2.4)."""
    return bool(
        it.scheduler.enable_chunked_prefill and it.capabilities.supports_chunked_prefill
    )


def _is_too_small(it: Candidate) -> bool:
    """Whether prompts come whole and the longest does not fit into a step."""
    return (
        not _splits(it) and it.scheduler.max_num_batched_tokens < it.model.max_model_len
    )


def check_launch(config: DeviceConfig) -> None:
    """Raise StartupError, a line for each thing that cannot be served."""
    values: dict[str, Any] = {
        **config.engine,
        "mesh": config.mesh,
        "hardware_only": ", ".join(config.tt.hardware_only()),
        "reasoning": reasoning_parser(config),
    }
    problems = refused(config.engine, config.engine_defaults)
    problems += [
        check.say.format_map(values) for check in LAUNCH_CHECKS if check.wrong(config)
    ]
    if problems:
        raise StartupError("\n".join(problems))


def check_model(candidate: Candidate) -> None:
    """Raise StartupError, a line for each thing that cannot be served."""
    values = _facts(candidate)
    problems = [
        check.say.format_map(values) for check in MODEL_CHECKS if check.wrong(candidate)
    ]
    if problems:
        raise StartupError("\n".join(problems))


def adjust(candidate: Candidate) -> list[str]:
    """Fit vLLM's configuration to what model and engine can do.

    Returns a note for everything that an operator may notice.
    """
    notes = []
    for adjustment in ADJUSTMENTS:
        if not adjustment.needed(candidate):
            continue
        if adjustment.say:
            notes.append(adjustment.say.format_map(_facts(candidate)))
        if adjustment.apply is not None:
            adjustment.apply(candidate)
    return notes


def _facts(candidate: Candidate) -> dict[str, Any]:
    """What the messages about a model may mention."""
    model = candidate.model
    return {
        "architecture": model.architectures[0],
        "quantization": model.quantization,
        "mesh": candidate.config.mesh,
        "asked_logprobs": candidate.config.engine["max_logprobs"],
        "max_logprobs": model.max_logprobs,
        "max_model_len": model.max_model_len,
        "max_num_batched_tokens": candidate.scheduler.max_num_batched_tokens,
    }
