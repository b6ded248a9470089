"""What cannot be served, in two tables: read them top to bottom.

`LAUNCH_CHECKS` look at what was asked for, before the port is bound.
`MODEL_CHECKS` look at the model and at what its adapter declares, before the
mesh opens. An option that was set and cannot be honoured is an error; a default
that the model cannot have is adjusted, see `device_service.adjustments`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.config import ModelConfig, VllmConfig
from vllm.reasoning import ReasoningParserManager

from device_service.config import DeviceConfig
from device_service.engine_flags import refused
from device_service.models.capabilities import Capabilities
from ttserve.errors import StartupError


@dataclass(frozen=True, slots=True)
class LaunchCheck:
    """Something that must not be asked for.

    `say` names the option and what to do instead; it is filled in with vLLM's
    engine options by field name, and with `mesh`, `hardware_only`, `reasoning`.
    """

    name: str
    wrong: Callable[[DeviceConfig], bool]
    say: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that is about to be served."""

    config: DeviceConfig
    vllm_config: VllmConfig
    capabilities: Capabilities

    @property
    def model(self) -> ModelConfig:
        """vLLM's view of the model."""
        return self.vllm_config.model_config


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Something that the model must not be, or must not be asked for."""

    name: str
    wrong: Callable[[Candidate], bool]
    say: str


def _given(field: str) -> Callable[[DeviceConfig], bool]:
    return lambda config: config.is_explicit(field)


def _bytes_given(config: DeviceConfig) -> bool:
    return config.kv_cache_fraction is not None or config.is_explicit(
        "kv_cache_memory_bytes"
    )


LAUNCH_CHECKS = (
    LaunchCheck(
        "tensor parallelism",
        _given("tensor_parallel_size"),
        "--tensor-parallel-size {tensor_parallel_size}: the mesh is one device to "
        "vLLM; leave it out and choose the grid with MESH_DEVICE",
    ),
    LaunchCheck(
        "pipeline parallelism",
        _given("pipeline_parallel_size"),
        "--pipeline-parallel-size {pipeline_parallel_size}: the mesh is one device "
        "to vLLM; leave it out and choose the grid with MESH_DEVICE",
    ),
    LaunchCheck(
        "LoRA",
        _given("enable_lora"),
        "--enable-lora: LoRA adapters are not served; merge them into the model",
    ),
    LaunchCheck(
        "speculation",
        _given("speculative_config"),
        "--speculative-config: speculative decoding is not built yet; leave it out",
    ),
    LaunchCheck(
        "KV connector",
        _given("kv_transfer_config"),
        "--kv-transfer-config: KV connectors and disaggregated prefill are not "
        "supported; leave it out",
    ),
    LaunchCheck(
        "KV events",
        _given("kv_events_config"),
        "--kv-events-config: KV events are not published; leave it out",
    ),
    LaunchCheck(
        "pooling runner",
        lambda config: config.engine["runner"] not in ("auto", "generate"),
        "--runner {runner}: only text generation is served; leave it out",
    ),
    LaunchCheck(
        "async scheduling",
        lambda config: config.engine["async_scheduling"] is True,
        "--async-scheduling: decode steps do not overlap yet; leave it out",
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
        lambda config: _unknown(_reasoning_parser(config)),
        "--reasoning-parser {reasoning}: vLLM knows no parser of that name",
    ),
    LaunchCheck(
        "images",
        lambda config: any(_items(config.engine["limit_mm_per_prompt"])),
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
            and (config.is_explicit("num_gpu_blocks_override") or _bytes_given(config))
        ),
        "the KV pool on mesh ttnn follows from the model's token budget; leave out "
        "--num-gpu-blocks-override, --kv-cache-memory-bytes and --kv-cache-fraction",
    ),
    LaunchCheck(
        "pool without bytes",
        lambda config: config.mesh == "sim" and _bytes_given(config),
        "mesh sim holds no keys and values; leave out --kv-cache-memory-bytes and "
        "--kv-cache-fraction and size the pool with --num-gpu-blocks-override",
    ),
    LaunchCheck(
        "device sampling",
        lambda config: config.tt.sample_on_device_mode is not None,
        "tt option sample_on_device_mode: device sampling is not built yet; leave "
        "it out",
    ),
    LaunchCheck(
        "compatible sampling",
        lambda config: config.tt.always_compat_sampling,
        "tt option always_compat_sampling: true is not supported; leave it out, "
        "vLLM's sampler serves every request that needs it",
    ),
    LaunchCheck(
        "test models",
        lambda config: config.tt.register_test_models,
        "tt option register_test_models: there are none; leave it out, and use "
        "--mesh sim to test without a model",
    ),
    LaunchCheck(
        "simulated latency",
        lambda config: config.mesh != "sim" and config.tt.sim is not None,
        "tt option sim: mesh {mesh} has no latency profile; use --mesh sim",
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
        "prefix caching",
        lambda it: (
            it.config.engine["enable_prefix_caching"] is True
            and not it.capabilities.supports_prefix_caching
        ),
        "--enable-prefix-caching: {architecture} on mesh {mesh} cannot resume from "
        "cached blocks; leave it out",
    ),
)


def check_launch(config: DeviceConfig) -> None:
    """Raise StartupError, a line for each thing that cannot be served."""
    values: dict[str, Any] = {
        **config.engine,
        "mesh": config.mesh,
        "hardware_only": ", ".join(config.tt.hardware_only()),
        "reasoning": _reasoning_parser(config),
    }
    problems = refused(config.engine, config.engine_defaults)
    problems += [
        check.say.format_map(values) for check in LAUNCH_CHECKS if check.wrong(config)
    ]
    if problems:
        raise StartupError("\n".join(problems))


def check_model(candidate: Candidate) -> None:
    """Raise StartupError, a line for each thing that cannot be served."""
    values = {
        "architecture": candidate.model.architectures[0],
        "quantization": candidate.model.quantization,
        "mesh": candidate.config.mesh,
    }
    problems = [
        check.say.format_map(values) for check in MODEL_CHECKS if check.wrong(candidate)
    ]
    if problems:
        raise StartupError("\n".join(problems))


def _items(limits: dict[str, Any]) -> list[int]:
    return [
        int(limit.get("count", 0) if isinstance(limit, dict) else limit)
        for limit in limits.values()
    ]


def _reasoning_parser(config: DeviceConfig) -> str:
    """The parser by either option; "" where a plugin is still to bring it."""
    if config.engine["reasoning_parser_plugin"]:
        return ""
    nested = config.engine["structured_outputs_config"].reasoning_parser
    return str(config.engine["reasoning_parser"] or nested)


def _unknown(reasoning_parser: str) -> bool:
    known = ReasoningParserManager.list_registered()
    return bool(reasoning_parser) and reasoning_parser not in known
