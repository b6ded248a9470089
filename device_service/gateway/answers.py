"""What a gateway is told about the model, the service and its load."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from smg_grpc_proto import vllm_engine_pb2

from device_service.bundle import Bundle
from device_service.description import ModelDescription
from device_service.records import LaneState, StepRecord
from device_service.serving import Published

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Generation defaults that a gateway applies."""

_NOT_ON_A_HUB = "served/by/worker"
"""A gateway looks for the tokenizer on its disk and on a hub, and asks GetTokenizer
only when both have none. Another model's must not be found under the served name.
"""

THROUGHPUT_SECONDS = 2.0
THROUGHPUT_STEPS = 512
"""How far back steps count for the tokens per second; whichever is less."""


def model_info(served: Published) -> Any:
    """GetModelInfo. The model's directory stays the service's own matter."""
    model = served.description
    config = _config(served.bundle)
    defaults = {
        name: model.generation_defaults[name]
        for name in _DEFAULTS
        if name in model.generation_defaults
    }
    return vllm_engine_pb2.GetModelInfoResponse(
        model_path=model.served_names[0],
        is_generation=True,
        max_context_length=model.max_sequence_tokens,
        vocab_size=model.vocab_size,
        supports_vision=False,
        served_model_name=model.served_names[0],
        tokenizer_path=f"{_NOT_ON_A_HUB}/{model.served_names[0]}",
        model_type=config.get("model_type", ""),
        architectures=[model.architecture],
        eos_token_ids=model.eos_token_ids,
        pad_token_id=config.get("pad_token_id") or 0,
        bos_token_id=config.get("bos_token_id") or 0,
        max_req_input_len=model.max_sequence_tokens,
        default_sampling_params_json=json.dumps(defaults) if defaults else "",
    )


def server_info(
    model: ModelDescription, *, active: int, paused: bool, last: float, uptime: float
) -> Any:
    """GetServerInfo. `last` is when the last call came, in seconds since 1970."""
    settings = model.settings
    waits = settings.reasoning_parser and not settings.structured_output_in_reasoning
    return vllm_engine_pb2.GetServerInfoResponse(
        active_requests=active,
        is_paused=paused,
        last_receive_timestamp=last,
        uptime_seconds=uptime,
        server_type="vllm-grpc",
        data_parallel_size=model.scheduling.lanes,
        kv_cache_dtype="auto",
        block_size=model.kv_cache.block_size,
        model_dtype=f"torch.{model.dtype}",
        max_num_seqs=model.scheduling.total_rows,
        engine_reasoning_parser=settings.reasoning_parser,
        constrained_decoding_start="after_reasoning" if waits else "first_token",
    )


def loads(
    model: ModelDescription,
    lanes: Iterable[LaneState],
    steps: Sequence[StepRecord],
    now: float,
) -> Any:
    """GetLoads, of these lanes as they are; `now` in seconds since 1970."""
    entries = [_load(model, lane, _throughput(steps, lane.lane, now)) for lane in lanes]
    return vllm_engine_pb2.GetLoadsResponse(
        timestamp=datetime.fromtimestamp(now, timezone.utc).isoformat(),
        version=model.vllm_version,
        dp_rank_count=len(entries),
        loads=entries,
    )


def _load(model: ModelDescription, lane: LaneState, tokens_per_second: float) -> Any:
    size = model.kv_cache.block_size
    used = lane.total_blocks - lane.free_blocks
    running, waiting = len(lane.rows), len(lane.waiting)
    return vllm_engine_pb2.SchedulerLoad(
        dp_rank=lane.lane,
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_total_reqs=running + waiting,
        num_used_tokens=used * size,
        max_total_num_tokens=lane.total_blocks * size,
        token_usage=used / lane.total_blocks,
        gen_throughput=tokens_per_second,
        utilization=running / lane.total_rows,
        max_running_requests=lane.total_rows,
        # What of it is cached is known when it gets a row.
        num_waiting_uncached_tokens=sum(row.prompt_tokens for row in lane.waiting),
    )


def _throughput(steps: Sequence[StepRecord], lane: int, now: float) -> float:
    """Tokens per second over the last seconds, or since the oldest of the steps."""
    seconds = THROUGHPUT_SECONDS
    if steps and len(steps) == THROUGHPUT_STEPS:
        seconds = min(seconds, now - steps[0].unix_seconds)
    produced = sum(
        row.produced_tokens
        for step in steps
        if step.unix_seconds > now - seconds
        for row in step.lanes[lane].rows
    )
    return produced / seconds if produced else 0.0


def _config(bundle: Bundle) -> dict[str, Any]:
    for file in bundle.files:
        if file.name == "config.json":
            return dict(json.loads(file.data))
    return {}
