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
from typing import Any

from vllm.config import VllmConfig
from vllm.reasoning import ReasoningParserManager

from device_service.config import DeviceConfig
from device_service.data_parallel import lanes_of
from device_service.kv.groups import KVPlan, layer_specs, plan_layers
from device_service.kv.sizing import PoolShape, PoolSize
from device_service.mesh.interface import Mesh
from device_service.model_source import ModelSource, Progress, find_model
from device_service.models.capabilities import Capabilities
from device_service.models.registry import adapter_registry, resolve_adapter
from device_service.pool import size_pool
from device_service.startup_checks import adjust, check_model
from device_service.startup_rules import Candidate
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
    kv_plan: KVPlan
    notes: tuple[str, ...]

    @property
    def steps_wait_because(self) -> str:
        """Why no decode step of this launch can overlap another; "" if it can."""
        if not self.vllm_config.scheduler_config.async_scheduling:
            return "asynchronous scheduling is off"
        if self.config.tt.trace_mode == "none":
            return "there are no traces"
        if self.config.tt.sample_on_device_mode is None:
            return "the host samples"
        return ""


def resolve(config: DeviceConfig, mesh: Mesh, progress: Progress) -> Resolved:
    """Decide everything that can be known without opening the mesh.

    Takes seconds: vLLM inspects an architecture it has not met in a process of
    its own. Raises StartupError.
    """
    registry = adapter_registry(
        config.environment, test_models=config.tt.register_test_models
    )
    registry.activate()
    source = find_model(config, progress)
    _load_reasoning_plugin(config)
    lanes = lanes_of(config, source.directory)
    vllm_config = create_vllm_config(_engine_values(config, source, lanes))
    adapter = resolve_adapter(
        vllm_config.model_config.architectures[0], config.mesh, registry
    )
    candidate = Candidate(config, vllm_config, Capabilities.of(adapter))
    check_model(candidate)
    notes = adjust(candidate)
    shape = PoolShape(
        lanes=lanes,
        rows_per_lane=vllm_config.scheduler_config.max_num_seqs // lanes,
        block_size=vllm_config.cache_config.block_size,
    )
    kv_plan = plan_layers(vllm_config, layer_specs(adapter, vllm_config))
    pool = size_pool(candidate, adapter, mesh, shape, kv_plan)
    _apply(pool, vllm_config)
    return Resolved(
        config=config,
        source=source,
        vllm_config=vllm_config,
        adapter=adapter,
        capabilities=candidate.capabilities,
        shape=shape,
        pool=pool,
        kv_plan=kv_plan,
        notes=tuple(notes),
    )


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
        # Left to vLLM, executors would be asked that do not exist here.
        "async_scheduling": values["async_scheduling"] is not False,
        "language_model_only": True,
    }


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
