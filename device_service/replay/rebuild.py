"""An engine like the recorded one, over the simulated mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)

from device_service.assembly import EngineLimits, build_parts, kv_cache_plan
from device_service.engine import EngineParts
from device_service.mesh.driver import AdapterDriver, LoadSpec, TraceMode, load_model
from device_service.mesh.interface import Driver, Mesh
from device_service.models.registry import resolve_adapter
from device_service.recording.picture import EnginePicture
from device_service.recording.setup import EngineSetup, KVGroup
from device_service.replay.outcomes import ReplayGrammars, ReplaySampler
from device_service.replay.requests import RecordedHashes, sequence
from device_service.sampling.interface import HostSampling
from ttserve.errors import StartupError
from ttserve.sim_model import sim_model_dir

STEP_RING = 8
"""Records that the engine keeps; each is compared as it comes."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The parts of an engine, and what names the blocks of its requests."""

    parts: EngineParts
    hashes: RecordedHashes


def vllm_config(setup: EngineSetup) -> VllmConfig:
    """vLLM's configuration with everything that scheduling reads from it.

    Raises StartupError for a recording that cannot be replayed.
    """
    if not all(group.known for group in setup.groups):
        raise StartupError(
            "the recorded model has layers that are neither full attention nor a "
            "sliding window, whose blocks cannot be replayed"
        )
    args = AsyncEngineArgs(
        model=str(sim_model_dir()),
        dtype="float32",
        max_num_seqs=setup.rows,
        max_model_len=setup.max_model_len,
        hf_overrides={"max_position_embeddings": setup.max_model_len},
        block_size=setup.block_size,
        num_gpu_blocks_override=setup.num_blocks,
        max_num_batched_tokens=setup.max_batched_tokens,
        long_prefill_token_threshold=setup.long_prefill_threshold,
        enable_chunked_prefill=setup.chunked_prefill,
        scheduling_policy="priority" if setup.by_priority else "fcfs",
        async_scheduling=setup.asynchronous,
        enable_prefix_caching=setup.prefix_cache,
        scheduler_reserve_full_isl=setup.reserve_full_prompt,
        watermark=setup.watermark,
    )
    config: VllmConfig = args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    config.cache_config.num_gpu_blocks = setup.num_blocks
    return config


def load(setup: EngineSetup, config: VllmConfig, mesh: Mesh) -> AdapterDriver:
    """The simulated model on an open mesh."""
    (architecture,) = config.model_config.architectures
    spec = LoadSpec(
        hf_config=config.model_config.hf_config,
        model_path=str(sim_model_dir()),
        dtype=torch.float32,
        max_model_len=setup.max_model_len,
        block_size=setup.groups[0].block_size,
        rows_per_lane=setup.rows,
        lanes=setup.lanes,
        trace_mode=TraceMode.ALL if setup.resident_inputs else TraceMode.NONE,
    )
    loaded = load_model(resolve_adapter(architecture, "sim"), mesh, spec)
    return loaded.allocate(setup.num_blocks, setup.max_model_len)


def rebuild(
    setup: EngineSetup,
    config: VllmConfig,
    driver: Driver,
    clock: Callable[[], float],
) -> Rebuilt:
    """An engine's parts, as new."""
    groups = _groups(setup)
    if groups:
        register_all_kvcache_specs(config)
    plan = kv_cache_plan(config, setup.num_blocks, groups)
    _, tokens_per_hash = resolve_kv_cache_block_sizes(plan, config)
    hashes = RecordedHashes(tokens_per_hash)
    parts = build_parts(
        config,
        EngineLimits(setup.lanes, setup.rows, setup.num_blocks, STEP_RING, groups),
        setup.interleave,
        driver,
        HostSampling(ReplaySampler(), ReplayGrammars(), setup.site),
        clock=clock,
        block_hasher=hashes if setup.prefix_cache else None,
    )
    return Rebuilt(parts, hashes)


def restore(rebuilt: Rebuilt, setup: EngineSetup, picture: EnginePicture) -> None:
    """Make an engine as new what a picture shows."""
    parts = rebuilt.parts
    for lane, seen in zip(parts.lanes, picture.lanes, strict=True):
        lane.kv.restore(seen.pool)
        lane.preempted += seen.untold
    for it in picture.sequences:
        rebuilt.hashes.learn(it.request)
    vocab_size = setup.site.vocab_size
    sequences = [
        sequence(it, vocab_size, setup.max_model_len, parts.clock)
        for it in picture.sequences
    ]
    published = [it.published_blocks for it in picture.sequences]
    parts.live.restore(picture.arrivals, zip(sequences, published, strict=True))
    parts.planner.restore(picture.last_number, picture.interleave_runs)
    parts.outcomes.failed_in_a_row = picture.failed_in_a_row


def _groups(setup: EngineSetup) -> tuple[KVCacheGroupSpec, ...]:
    """Groups of the recorded kinds; empty where there is one of full attention.

    Heads and sizes decide nothing: block ids are all that is kept.
    """
    if len(setup.groups) == 1 and setup.groups[0].window is None:
        return ()
    return tuple(
        KVCacheGroupSpec([f"layers.{number}"], _spec(group))
        for number, group in enumerate(setup.groups)
    )


def _spec(group: KVGroup) -> FullAttentionSpec | SlidingWindowSpec:
    if group.window is None:
        return FullAttentionSpec(
            block_size=group.block_size,
            num_kv_heads=1,
            head_size=16,
            dtype=torch.float32,
        )
    return SlidingWindowSpec(
        block_size=group.block_size,
        num_kv_heads=1,
        head_size=16,
        dtype=torch.float32,
        sliding_window=group.window,
    )
