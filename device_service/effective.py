"""What is served, in one block for people: asked for, defaulted and derived."""

from __future__ import annotations

import json

from device_service.description import ModelDescription
from device_service.options import TTOptions
from device_service.resolve import Resolved


def effective_configuration(resolved: Resolved, description: ModelDescription) -> str:
    """The block that is printed at start. Holds no secret."""
    rows = [*_model(resolved, description), *_steps(resolved), *_service(resolved)]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name.ljust(width)}  {value}" for name, value in rows]
    notes = [f"  adjusted: {note}" for note in resolved.notes]
    return "\n".join(["effective configuration", *lines, *notes])


def _model(resolved: Resolved, description: ModelDescription) -> list[tuple[str, str]]:
    pool, shape = resolved.pool, resolved.shape
    size = f", {pool.total_bytes / (1 << 30):.2f} GiB" if pool.total_bytes else ""
    lanes = f"{shape.lanes} lanes of " if shape.lanes > 1 else ""
    mesh = description.mesh
    cached = "on" if description.kv_cache.prefix_caching else "off"
    return [
        ("model", f"{description.served_names[0]} ({resolved.source.directory})"),
        ("architecture", f"{description.architecture}, {description.dtype}"),
        ("mesh", f"{mesh.kind}, grid {mesh.rows} x {mesh.columns}"),
        ("rows", f"{lanes}{shape.rows_per_lane} requests at a time"),
        ("longest sequence", f"{description.max_sequence_tokens} tokens"),
        (
            "KV pool",
            f"{lanes}{pool.num_blocks} blocks of {shape.block_size} tokens{size} "
            f"({pool.origin})",
        ),
        ("prefix caching", cached),
        ("generation defaults", json.dumps(dict(description.generation_defaults))),
    ]


def _steps(resolved: Resolved) -> list[tuple[str, str]]:
    scheduler = resolved.vllm_config.scheduler_config
    grammar = resolved.vllm_config.structured_outputs_config
    tt = resolved.config.tt
    waits = resolved.steps_wait_because
    chunked = "on" if scheduler.enable_chunked_prefill else "off"
    interleave = (
        f"{tt.decode_interleave_decode_steps} decode per "
        f"{tt.decode_interleave_prefill_steps} prefill steps"
        if tt.decode_interleave_enabled
        else "off"
    )
    return [
        (
            "chunked prefill",
            f"{chunked}, budget {scheduler.max_num_batched_tokens} tokens a step, "
            f"threshold {scheduler.long_prefill_token_threshold or 'none'}",
        ),
        ("decode interleave", interleave),
        ("policy", str(scheduler.policy)),
        ("decode overlap", f"off ({waits})" if waits else "on"),
        ("sampling", _sampling(tt)),
        (
            "grammars",
            f"{grammar.backend}, reasoning parser {grammar.reasoning_parser or 'none'}",
        ),
        ("traces, warm-up", f"{tt.trace_mode}, {_on(value=tt.enable_model_warmup)}"),
    ]


def _sampling(tt: TTOptions) -> str:
    sites = {
        None: "on the host",
        "all": "on the device, where a step allows it",
        "decode_only": "on the device in decode steps, where one allows it",
    }
    seeded = tt.sample_on_device_mode and tt.seeded_sampling_policy == "host"
    return sites[tt.sample_on_device_mode] + ("; seeded on the host" if seeded else "")


def _service(resolved: Resolved) -> list[tuple[str, str]]:
    config = resolved.config
    queue = config.queue_bound(resolved.shape.total_rows)
    return [
        ("queue bound", f"{queue} waiting requests"),
        ("heartbeat timeout", f"{config.heartbeat_timeout:g} s"),
        ("shutdown grace", f"{config.shutdown_grace:g} s"),
        ("step control", _on(value=config.enable_step_control)),
        ("step records", str(config.step_ring)),
        ("threads", str(config.threads)),
    ]


def _on(*, value: bool) -> str:
    return "on" if value else "off"
