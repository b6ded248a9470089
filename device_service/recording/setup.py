"""What an engine's decisions depend on and what never changes while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    SlidingWindowSpec,
)

from device_service.decode.overlap import OverlapPolicy
from device_service.sampling.site import SitePolicy
from device_service.scheduling.interleave import InterleaveConfig
from device_service.scheduling.lane import Lane


@dataclass(frozen=True, slots=True)
class KVGroup:
    """A KV group. window: tokens of its sliding window, None for full attention.

    known: False for another kind of layer, whose blocks a replay cannot keep.
    """

    block_size: int
    window: int | None
    known: bool = True


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """Sizes and rules. `rows` and `num_blocks` are per lane, the null block counted.

    reserve_full_prompt: a prompt is admitted only if all of it fits. watermark:
    share of blocks that admissions leave free. resident_inputs: the adapter
    decodes from what is on the device.
    """

    lanes: int
    rows: int
    num_blocks: int
    groups: tuple[KVGroup, ...]
    block_size: int
    max_model_len: int
    max_batched_tokens: int
    long_prefill_threshold: int
    chunked_prefill: bool
    by_priority: bool
    asynchronous: bool
    resident_inputs: bool
    prefix_cache: bool
    reserve_full_prompt: bool
    watermark: float
    interleave: InterleaveConfig
    site: SitePolicy


def setup_of(
    config: VllmConfig,
    kv: KVCacheConfig,
    lanes: Sequence[Lane],
    interleave: InterleaveConfig,
    overlap: OverlapPolicy,
    site: SitePolicy,
) -> EngineSetup:
    """The setup of an engine that is being put together."""
    scheduler, limits = config.scheduler_config, lanes[0].limits
    return EngineSetup(
        lanes=len(lanes),
        rows=limits.rows,
        num_blocks=kv.num_blocks,
        groups=tuple(_group(group.kv_cache_spec) for group in kv.kv_cache_groups),
        block_size=config.cache_config.block_size,
        max_model_len=limits.max_model_len,
        max_batched_tokens=limits.max_batched_tokens,
        long_prefill_threshold=limits.long_prefill_threshold,
        chunked_prefill=bool(limits.chunked_prefill),
        by_priority=scheduler.policy == "priority",
        asynchronous=overlap.asynchronous,
        resident_inputs=overlap.resident_inputs,
        prefix_cache=bool(config.cache_config.enable_prefix_caching),
        reserve_full_prompt=bool(scheduler.scheduler_reserve_full_isl),
        watermark=scheduler.watermark,
        interleave=interleave,
        site=site,
    )


def _group(spec: object) -> KVGroup:
    if isinstance(spec, SlidingWindowSpec):
        return KVGroup(spec.block_size, spec.sliding_window)
    if isinstance(spec, FullAttentionSpec):
        return KVGroup(spec.block_size, None)
    return KVGroup(getattr(spec, "block_size", 0), None, known=False)
