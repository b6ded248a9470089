"""The KV pool of a launch: which rule sizes it, and with which numbers.

    mesh ttnn   the model's token budget (contract 2.13), raised for hybrid models
    mesh cpu    --num-gpu-blocks-override, or a share of the memory that is free
    mesh sim    --num-gpu-blocks-override, or a whole sequence for every row

The arithmetic is in `device_service.kv.sizing`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, cast

import torch
from vllm.config import VllmConfig

from device_service.config import DeviceConfig
from device_service.kv.groups import KVPlan, most_in_flight, sequence_blocks
from device_service.kv.memory import free_memory_bytes
from device_service.kv.sizing import (
    DEFAULT_HOST_FRACTION,
    DEFAULT_MODEL_TOKENS,
    Budget,
    Length,
    PoolShape,
    PoolSize,
    SequenceBlocks,
    model_pool_blocks,
    raised_pool_blocks,
    size_given_pool,
    size_host_pool,
    size_model_pool,
    size_simulated_pool,
)
from device_service.mesh.interface import Mesh
from device_service.startup_rules import Candidate

logger = logging.getLogger(__name__)


def size_pool(
    candidate: Candidate,
    adapter: type[Any],
    mesh: Mesh,
    shape: PoolShape,
    plan: KVPlan,
) -> PoolSize:
    """Decide blocks and sequence length before the mesh opens.

    Raises StartupError when not even one sequence of `max_model_len` fits.
    """
    config, vllm_config = candidate.config, candidate.vllm_config
    model = candidate.model
    length = Length(model.max_model_len, fit=model.original_max_model_len == -1)
    if config.mesh == "ttnn":
        blocks = _model_blocks(candidate, adapter, mesh, shape)
        return _size_by_model(candidate, adapter, shape, length, blocks, plan)
    per_token = 0 if config.mesh == "sim" else kv_bytes_per_token(vllm_config)
    free_bytes = free_memory_bytes()
    given = vllm_config.cache_config.num_gpu_blocks_override
    if given is not None:
        return size_given_pool(shape, length, given, per_token, free_bytes)
    if config.mesh == "sim":
        return size_simulated_pool(shape, length)
    return size_host_pool(shape, length, per_token, _budget(config, free_bytes))


def kv_bytes_per_token(vllm_config: VllmConfig) -> int:
    """Bytes of keys and values of one token, all layers, as the config tells."""
    model = vllm_config.model_config
    dtype = cast(torch.dtype, model.dtype)
    vectors = 1 if model.use_mla else 2 * model.get_total_num_kv_heads()
    layers = model.get_num_layers(vllm_config.parallel_config)
    return int(layers * vectors * model.get_head_size() * dtype.itemsize)


def _budget(config: DeviceConfig, free_bytes: int) -> Budget:
    given = config.engine["kv_cache_memory_bytes"]
    if given is not None:
        option = "--kv-cache-memory-bytes"
        return Budget(int(given), option, option)
    fraction = config.kv_cache_fraction or DEFAULT_HOST_FRACTION
    origin = f"{fraction:.0%} of {free_bytes / (1 << 30):.2f} GiB free memory"
    return Budget(int(free_bytes * fraction), origin, "--kv-cache-fraction")


def _size_by_model(
    candidate: Candidate,
    adapter: type[Any],
    shape: PoolShape,
    length: Length,
    num_blocks: int,
    plan: KVPlan,
) -> PoolSize:
    """The exception for hybrid models in contract 2.13 and 2.14."""
    blocks_of = _sequence_blocks(candidate, plan)
    origin = "the model's token budget"
    if _is_hybrid(adapter) and blocks_of and not length.fit:
        least = raised_pool_blocks(
            shape,
            length,
            blocks_of,
            output_tokens_per_step=candidate.capabilities.output_tokens_per_step,
        )
        if least > num_blocks:
            logger.info(
                "KV pool raised from %d to %d blocks, so that one sequence of "
                "max_model_len %d fits",
                num_blocks,
                least,
                length.tokens,
            )
            num_blocks = least
            origin = "raised to hold one sequence of max_model_len"
    return size_model_pool(
        shape, length, num_blocks, sequence_blocks=blocks_of, origin=origin
    )


def _is_hybrid(adapter: type[Any]) -> bool:
    return bool(getattr(adapter, "_HYBRID_KV_CACHE_GROUPS_ENABLED", False))


def _model_blocks(
    candidate: Candidate, adapter: type[Any], mesh: Mesh, shape: PoolShape
) -> int:
    """Blocks by the formula of contract 2.13."""
    window = candidate.model.get_sliding_window() if _is_hybrid(adapter) else None
    return model_pool_blocks(
        shape,
        _token_budget(candidate, adapter, mesh, shape),
        output_tokens_per_step=candidate.capabilities.output_tokens_per_step,
        hybrid_window=window,
    )


def _token_budget(
    candidate: Candidate, adapter: type[Any], mesh: Mesh, shape: PoolShape
) -> int:
    """Tokens that the adapter class grants the pool of one lane (contract 1.2)."""
    budget = getattr(adapter, "get_max_tokens_all_users", None)
    if budget is None:
        logger.warning(
            "%s has no get_max_tokens_all_users: a KV pool of %d tokens is taken",
            adapter.__name__,
            DEFAULT_MODEL_TOKENS,
        )
        return DEFAULT_MODEL_TOKENS
    rows, columns = mesh.grid
    return int(
        budget(
            model_name=candidate.model.model,
            num_devices=rows * columns,
            tt_data_parallel=shape.lanes,
            max_model_len=candidate.model.max_model_len,
            max_num_seqs=shape.rows_per_lane,
        )
    )


def _sequence_blocks(candidate: Candidate, plan: KVPlan) -> SequenceBlocks | None:
    """How many blocks a sequence takes; None where all layers are one group."""
    if not plan.groups:
        return None
    return partial(
        sequence_blocks,
        plan.groups,
        in_flight_tokens=most_in_flight(candidate.vllm_config),
    )
