"""KV groups of hybrid models: layers of different kinds, each kind with its own
page table (contract 2.20).

An adapter class describes its layers with `get_kv_cache_spec`; vLLM's planner
makes groups of them. All groups take blocks out of one pool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)

from ttserve.errors import StartupError

_LAYER = re.compile(r"(?:^|\.)layers\.\d+(?:\.|$)")


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


def plan_groups(
    vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec]
) -> list[KVCacheGroupSpec]:
    """The groups that vLLM's planner makes of some layers."""
    register_all_kvcache_specs(vllm_config)
    # Its planner asks how vLLM would lay blocks out, which is the adapter's affair.
    vllm_config.cache_config.kv_cache_layout = "NHD"
    return list(get_kv_cache_groups(vllm_config, dict(specs)))


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
