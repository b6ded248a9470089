"""Puts an engine together from a resolved configuration."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_events import KVCacheEvent
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)

from device_service.control import StepControl
from device_service.decode.overlap import OverlapPolicy, OverlapRule
from device_service.decode.pipeline import Pipeline
from device_service.engine import Engine, EngineParts
from device_service.inbox import Inbox
from device_service.kv.lane_kv import BlockHasher, LaneKV
from device_service.kv.layers import PageTables
from device_service.live import LiveRequests
from device_service.mesh.interface import Driver
from device_service.outcome import Outcomes
from device_service.recording.picture import Camera
from device_service.recording.recorder import Recorder
from device_service.recording.setup import setup_of
from device_service.records import StepRecord
from device_service.sampling.interface import HostSampling
from device_service.sampling.site import SiteRule
from device_service.scheduling.interleave import InterleaveConfig, InterleavePolicy
from device_service.scheduling.lane import Lane, LaneLimits
from device_service.scheduling.planner import Planner
from device_service.step_log import StepRing
from device_service.updates import UpdateBoard

LaneEventSink = Callable[[int, list[KVCacheEvent]], None]
"""Takes what happened to the cached blocks of a lane. Engine thread; does not wait."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes that the engine works within.

    `num_blocks` counts the null block and is per lane, as is `rows`. `kv_groups`
    are those of a model that describes its layers.
    """

    lanes: int
    rows: int
    num_blocks: int
    step_ring: int
    kv_groups: tuple[KVCacheGroupSpec, ...] = ()


def table_width(max_model_len: int, block_size: int, num_blocks: int) -> int:
    """Columns of a page table, the same in every call (contract 2.6)."""
    return min(math.ceil(max_model_len / block_size), num_blocks)


def kv_cache_plan(
    vllm_config: VllmConfig,
    num_blocks: int,
    groups: tuple[KVCacheGroupSpec, ...] = (),
) -> KVCacheConfig:
    """The groups that were planned, or one of full attention for all layers
    (contract 1.2).

    The heads and sizes in the spec are never used to allocate anything: the
    adapter owns the storage. Block size and count are what the manager needs.
    """
    if groups:
        return KVCacheConfig(num_blocks, [], list(groups))
    model_config = vllm_config.model_config
    assert isinstance(model_config.dtype, torch.dtype)  # resolved by vLLM
    spec = FullAttentionSpec(
        block_size=vllm_config.cache_config.block_size,
        num_kv_heads=model_config.get_total_num_kv_heads(),
        head_size=model_config.get_head_size(),
        dtype=model_config.dtype,
    )
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layers.0"], spec)],
    )


def _block_hasher(vllm_config: VllmConfig, plan: KVCacheConfig) -> BlockHasher | None:
    """What hashes a request's blocks; None without a prefix cache.

    Sets vLLM's process-wide seed of the hash chain, so it runs once, before the
    first block is hashed. The hasher itself may be used on any thread.
    """
    cache_config = vllm_config.cache_config
    if not cache_config.enable_prefix_caching:
        return None
    hash_function = get_hash_fn_by_name(cache_config.prefix_caching_hash_algo)
    init_none_hash(hash_function)
    _, hash_block_size = resolve_kv_cache_block_sizes(plan, vllm_config)
    return get_request_block_hasher(hash_block_size, hash_function)


def _report_block_events(lanes: list[Lane], _: StepRecord) -> None:
    for lane in lanes:
        lane.kv.report_block_events()


def build_engine(  # noqa: PLR0913 - wiring: one parameter per part
    vllm_config: VllmConfig,
    limits: EngineLimits,
    interleave: InterleaveConfig,
    driver: Driver,
    sampling: HostSampling,
    *,
    clock: Callable[[], float] = time.monotonic,
    on_block_events: LaneEventSink | None = None,
) -> Engine:
    """Assemble an engine; nothing runs until `Engine.start`."""
    parts = build_parts(
        vllm_config,
        limits,
        interleave,
        driver,
        sampling,
        clock=clock,
        on_block_events=on_block_events,
    )
    return Engine(parts)


def build_parts(  # noqa: PLR0913 - wiring: one parameter per part
    vllm_config: VllmConfig,
    limits: EngineLimits,
    interleave: InterleaveConfig,
    driver: Driver,
    sampling: HostSampling,
    *,
    clock: Callable[[], float],
    on_block_events: LaneEventSink | None = None,
    block_hasher: BlockHasher | None = None,
) -> EngineParts:
    """The parts of an engine.

    With `on_block_events`, what is cached and evicted is told after every step.
    `block_hasher` replaces the one that hashes tokens.
    """
    scheduler = vllm_config.scheduler_config
    max_model_len = vllm_config.model_config.max_model_len
    lane_limits = LaneLimits(
        rows=limits.rows,
        max_batched_tokens=scheduler.max_num_batched_tokens,
        long_prefill_threshold=scheduler.long_prefill_token_threshold,
        chunked_prefill=scheduler.enable_chunked_prefill,
        max_model_len=max_model_len,
    )
    plan = kv_cache_plan(vllm_config, limits.num_blocks, limits.kv_groups)
    block_sizes = [group.kv_cache_spec.block_size for group in plan.kv_cache_groups]
    width = table_width(max_model_len, min(block_sizes), limits.num_blocks)
    hasher = block_hasher or _block_hasher(vllm_config, plan)
    tables = PageTables.zero(len(block_sizes), limits.lanes * limits.rows, width)
    lanes = [
        Lane(
            number,
            lane_limits,
            LaneKV(
                vllm_config,
                plan,
                tables=tables.of_rows(number * limits.rows, (number + 1) * limits.rows),
                block_hasher=hasher,
                on_block_events=on_block_events and partial(on_block_events, number),
            ),
            clock=clock,
            on_row_left=driver.release_row,
        )
        for number in range(limits.lanes)
    ]
    steps = StepRing(limits.step_ring)
    if on_block_events is not None:
        steps.add_listener(partial(_report_block_events, lanes))
    board = UpdateBoard(
        clock, lambda: sum(lane.kv.usage for lane in lanes) / len(lanes)
    )
    live = LiveRequests(
        lanes,
        board,
        sampling,
        by_priority=scheduler.policy == "priority",
        clock=clock,
    )
    planner = Planner(
        lanes, InterleavePolicy(interleave), SiteRule(sampling.site, live.by_id)
    )
    outcomes = Outcomes(
        lanes, live, board, sampling, max_model_len=max_model_len, clock=clock
    )
    control = StepControl()
    overlap = OverlapPolicy(
        asynchronous=bool(scheduler.async_scheduling),
        resident_inputs=driver.resident_inputs,
        custom_processors=sampling.site.custom_processors,
    )
    recorder = Recorder(
        setup_of(vllm_config, plan, lanes, interleave, overlap, sampling.site),
        Camera(lanes, live, planner, outcomes, control),
        limits.step_ring,
    )
    steps.add_listener(recorder.step)
    return EngineParts(
        inbox=Inbox(recorder),
        control=control,
        lanes=lanes,
        live=live,
        board=board,
        planner=planner,
        pipeline=Pipeline(lanes, tables, live, driver, sampling.grammars, clock),
        overlap=OverlapRule(overlap, lanes),
        outcomes=outcomes,
        grammars=sampling.grammars,
        steps=steps,
        recorder=recorder,
        block_hasher=hasher,
        clock=clock,
    )
