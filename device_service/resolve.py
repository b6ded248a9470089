"""From what was asked for to what is served: everything before the mesh opens.

    find the model -> vLLM's configuration -> adapter and what it declares
    -> checks and adjustments -> KV pool and sequence length

vLLM's own `EngineArgs` build the configuration, so every option means here what
it means there. The device service then decides three things itself: lanes,
pool size and the longest sequence.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

import torch
from vllm.config import VllmConfig
from vllm.reasoning import ReasoningParserManager
from vllm.transformers_utils.config import get_config

from device_service.adjustments import adjust
from device_service.config import DeviceConfig
from device_service.kv.memory import free_memory_bytes
from device_service.kv.sizing import (
    DEFAULT_HOST_FRACTION,
    DEFAULT_MODEL_TOKENS,
    Budget,
    Length,
    PoolShape,
    PoolSize,
    model_pool_blocks,
    size_given_pool,
    size_host_pool,
    size_model_pool,
    size_simulated_pool,
)
from device_service.mesh.interface import Mesh
from device_service.model_source import ModelSource, Progress, find_model
from device_service.models.capabilities import Capabilities
from device_service.models.registry import resolve_adapter
from device_service.startup_checks import Candidate, check_model
from device_service.vllm_config import create_vllm_config
from device_service.wording import one_line
from ttserve.errors import StartupError


@dataclass(frozen=True, slots=True)
class Resolved:
    """What is going to be served. `notes` say what was adjusted, and why."""

    config: DeviceConfig
    source: ModelSource
    vllm_config: VllmConfig
    adapter: type[Any]
    capabilities: Capabilities
    shape: PoolShape
    pool: PoolSize
    notes: tuple[str, ...]


def resolve(config: DeviceConfig, mesh: Mesh, progress: Progress) -> Resolved:
    """Decide everything that can be known without opening the mesh.

    Takes seconds: vLLM inspects an architecture it has not met in a process of
    its own. Raises StartupError.
    """
    source = find_model(config, progress)
    _load_reasoning_plugin(config)
    lanes = _lanes(config, source)
    vllm_config = create_vllm_config(_engine_values(config, source, lanes))
    adapter = resolve_adapter(vllm_config.model_config.architectures[0], config.mesh)
    candidate = Candidate(config, vllm_config, Capabilities.of(adapter))
    check_model(candidate)
    notes = adjust(candidate)
    shape = PoolShape(
        lanes=lanes,
        rows_per_lane=vllm_config.scheduler_config.max_num_seqs // lanes,
        block_size=vllm_config.cache_config.block_size,
    )
    pool = _size_pool(candidate, adapter, mesh, shape)
    _apply(pool, vllm_config)
    return Resolved(
        config=config,
        source=source,
        vllm_config=vllm_config,
        adapter=adapter,
        capabilities=candidate.capabilities,
        shape=shape,
        pool=pool,
        notes=tuple(notes),
    )


def _lanes(config: DeviceConfig, source: ModelSource) -> int:
    """Lanes that `--data-parallel-size` folds into (contract 2.17)."""
    size = int(config.engine["data_parallel_size"])
    if size == 1:
        return 1
    hf_config = get_config(
        source.directory, trust_remote_code=config.engine["trust_remote_code"]
    )
    architecture = (hf_config.architectures or [""])[0]
    environment = config.environment
    folds = (
        (
            architecture.startswith("Llama")
            and environment.llama_version == "llama3_70b_galaxy"
        )
        or (
            architecture.startswith("Qwen3")
            and environment.qwen3_version == "qwen3_32b_galaxy"
        )
        or architecture == "GptOssForCausalLM"
    )
    if not folds:
        raise StartupError(
            f"--data-parallel-size {size}: {architecture} does not run as lanes of one "
            "mesh; start one device service per mesh and give frontends all addresses"
        )
    return size


def _engine_values(
    config: DeviceConfig, source: ModelSource, lanes: int
) -> dict[str, Any]:
    """The operator's engine options, with what the step engine decides itself."""
    values = copy.deepcopy(dict(config.engine))
    structured = values["structured_outputs_config"]
    structured.backend = "xgrammar"
    structured.disable_any_whitespace = True
    return values | {
        "model": str(source.directory),
        "served_model_name": values["served_model_name"] or [source.name],
        # The mask of grammars and vLLM's logits processors span all lanes.
        "max_num_seqs": values["max_num_seqs"] * lanes,
        "data_parallel_size": 1,
        # Must say what the engine does: it plans one step at a time.
        "async_scheduling": False,
        "language_model_only": True,
    }


def _size_pool(
    candidate: Candidate, adapter: type[Any], mesh: Mesh, shape: PoolShape
) -> PoolSize:
    config, vllm_config = candidate.config, candidate.vllm_config
    model = candidate.model
    length = Length(model.max_model_len, fit=model.original_max_model_len == -1)
    given = vllm_config.cache_config.num_gpu_blocks_override
    if config.mesh == "ttnn":
        return size_model_pool(
            shape, length, _model_blocks(candidate, adapter, mesh, shape)
        )
    per_token = 0 if config.mesh == "sim" else kv_bytes_per_token(vllm_config)
    free_bytes = free_memory_bytes()
    if given is not None:
        return size_given_pool(shape, length, given, per_token, free_bytes)
    if config.mesh == "sim":
        return size_simulated_pool(shape, length)
    return size_host_pool(shape, length, per_token, _budget(config, free_bytes))


def _budget(config: DeviceConfig, free_bytes: int) -> Budget:
    given = config.engine["kv_cache_memory_bytes"]
    if given is not None:
        option = "--kv-cache-memory-bytes"
        return Budget(int(given), option, option)
    fraction = config.kv_cache_fraction or DEFAULT_HOST_FRACTION
    origin = f"{fraction:.0%} of {free_bytes / (1 << 30):.2f} GiB free memory"
    return Budget(int(free_bytes * fraction), origin, "--kv-cache-fraction")


def _model_blocks(
    candidate: Candidate, adapter: type[Any], mesh: Mesh, shape: PoolShape
) -> int:
    """Blocks by the token budget that the adapter class states (contract 2.13)."""
    rows, columns = mesh.grid
    budget = getattr(adapter, "get_max_tokens_all_users", None)
    tokens = DEFAULT_MODEL_TOKENS
    if budget is not None:
        tokens = budget(
            model_name=candidate.model.model,
            num_devices=rows * columns,
            tt_data_parallel=shape.lanes,
            max_model_len=candidate.model.max_model_len,
            max_num_seqs=shape.rows_per_lane,
        )
    hybrid = getattr(adapter, "_HYBRID_KV_CACHE_GROUPS_ENABLED", False)
    return model_pool_blocks(
        shape,
        tokens,
        output_tokens_per_step=candidate.capabilities.output_tokens_per_step,
        hybrid_window=candidate.model.get_sliding_window() if hybrid else None,
    )


def kv_bytes_per_token(vllm_config: VllmConfig) -> int:
    """Bytes of keys and values of one token, all layers, as the config tells."""
    model = vllm_config.model_config
    dtype = cast(torch.dtype, model.dtype)
    vectors = 1 if model.use_mla else 2 * model.get_total_num_kv_heads()
    layers = model.get_num_layers(vllm_config.parallel_config)
    return int(layers * vectors * model.get_head_size() * dtype.itemsize)


def _apply(pool: PoolSize, vllm_config: VllmConfig) -> None:
    """Tell vLLM's configuration what was decided, and let it verify once more."""
    vllm_config.cache_config.num_gpu_blocks = pool.num_blocks
    vllm_config.cache_config.num_gpu_blocks_override = pool.num_blocks
    vllm_config.model_config.max_model_len = pool.max_model_len
    try:
        vllm_config.scheduler_config.verify_max_model_len(pool.max_model_len)
    except ValueError as error:
        raise StartupError(one_line(error)) from error


def _load_reasoning_plugin(config: DeviceConfig) -> None:
    """Register the reasoning parsers of `--reasoning-parser-plugin`."""
    plugin = config.engine["reasoning_parser_plugin"]
    if plugin:
        try:
            ReasoningParserManager.import_reasoning_parser(plugin)
        except Exception as error:
            raise StartupError(
                f"--reasoning-parser-plugin {plugin}: {one_line(error)}"
            ) from error
