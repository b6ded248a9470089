"""KV groups of hybrid models: layers of different kinds, each kind with its own
page table (contract 2.20).

An adapter class describes its layers with `get_kv_cache_spec`; vLLM's planner
makes groups of them. All groups take blocks out of one pool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from device_service.kv.layers import PlannedLayer
from ttserve.errors import StartupError

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class KVPlan:
    """How the layers of a model that describes them share the pool.

    Both are empty for other models: one group of full attention, and storage as
    the adapter's configuration tells. `layers` are in their order.
    """

    groups: tuple[KVCacheGroupSpec, ...] = ()
    layers: tuple[PlannedLayer, ...] = ()


def layer_specs(adapter: type[Any], vllm_config: VllmConfig) -> dict[str, KVCacheSpec]:
    """What the adapter class says of its layers, by name (contract 1.2).

    Empty where it has no such hook or leaves the plan to us. Raises
    StartupError for an answer that is no such mapping.
    """
    hook = getattr(adapter, "get_kv_cache_spec", None)
    specs = None if hook is None else hook(vllm_config)
    if specs is None:
        return {}
    said = f"{adapter.__name__}.get_kv_cache_spec"
    if not isinstance(specs, Mapping):
        raise StartupError(f"{said} must return a dict or None, not {specs!r}")
    for name, spec in specs.items():
        if not isinstance(name, str) or not _LAYER.search(name):
            raise StartupError(
                f"{said}: {name!r} names no layer; names are like layers.0.self_attn"
            )
        if not isinstance(spec, KVCacheSpec):
            raise StartupError(f"{said}: {name} must be a KVCacheSpec, not {spec!r}")
    return dict(specs)


def plan_layers(vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec]) -> KVPlan:
    """What vLLM's planner makes of some layers. Raises StartupError.

    Layers at the same place in their groups share a buffer: blocks of one pool
    have one size in bytes, whatever group they are of.
    """
    if not specs:
        return KVPlan()
    register_all_kvcache_specs(vllm_config)
    # Its planner asks how vLLM would lay blocks out, which is the adapter's affair.
    vllm_config.cache_config.kv_cache_layout = "NHD"
    try:
        groups = get_kv_cache_groups(vllm_config, dict(specs))
    except (NotImplementedError, ValueError) as error:
        raise StartupError(
            f"the model's KV layers cannot be planned: {error}"
        ) from error
    placed = {
        int(_number(name)): _place(number, place, name, group)
        for number, group in enumerate(groups)
        for place, name in enumerate(group.layer_names)
    }
    if sorted(placed) != list(range(len(specs))):
        raise StartupError(
            f"get_kv_cache_spec names the layers {sorted(map(_number, specs))}; there "
            f"must be one entry for each of 0 to {len(specs) - 1}"
        )
    return KVPlan(
        tuple(_for_manager(group) for group in groups),
        tuple(placed[layer] for layer in range(len(specs))),
    )


def _number(name: str) -> int:
    match = _LAYER.search(name)
    assert match is not None  # `layer_specs` has looked
    return int(match[1])


def _place(number: int, place: int, name: str, group: KVCacheGroupSpec) -> PlannedLayer:
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        spec = spec.kv_cache_specs[name]
    if not isinstance(spec, AttentionSpec):
        raise StartupError(f"{name} is no attention layer ({type(spec).__name__})")
    return PlannedLayer(
        group=number,
        tensor=place,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        block_size=spec.block_size,
        dtype=spec.dtype,
    )


def _for_manager(group: KVCacheGroupSpec) -> KVCacheGroupSpec:
    """A wrapper of unequal layers stands for a single one: they need equal blocks."""
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        spec = next(iter(spec.kv_cache_specs.values()))
    return replace(group, kv_cache_spec=spec)


def most_in_flight(vllm_config: VllmConfig) -> int:
    """Most tokens of one request that are submitted and not yet applied.

    Windows keep their blocks for them. vLLM would count two whole batches under
    asynchronous scheduling; here a prefill never overlaps another step.
    """
    return int(vllm_config.scheduler_config.max_num_batched_tokens)


def sequence_blocks(
    groups: Sequence[KVCacheGroupSpec], tokens: int, in_flight_tokens: int
) -> int:
    """Blocks that one sequence of so many tokens takes, all groups together.

    A group of sliding windows keeps its window and what is in flight: at most
    `in_flight_tokens`, a step's budget for each step that may be outstanding.
    """
    return sum(_group_blocks(group, tokens, in_flight_tokens) for group in groups)


def _group_blocks(group: KVCacheGroupSpec, tokens: int, in_flight_tokens: int) -> int:
    spec = group.kv_cache_spec
    if isinstance(spec, SlidingWindowSpec):
        return int(spec.max_admission_blocks_per_request(in_flight_tokens, tokens))
    return -(-tokens // spec.block_size)
