"""Which of vLLM's engine options the device service honours.

Every vLLM option keeps its name on our command line, and each is
either served, or refused with what to do instead. A refused option that an
operator sets is an error at start; nothing is accepted and ignored. Importing
this module fails when vLLM has an option that is on no list, so that a new
release cannot bring one unnoticed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs

_SERVED = """
    model model_weights served_model_name tokenizer tokenizer_mode
    tokenizer_revision revision code_revision hf_token hf_overrides config_format
    trust_remote_code download_dir dtype quantization seed max_model_len
    max_logprobs logprobs_mode logits_processors generation_config
    override_generation_config language_model_only limit_mm_per_prompt runner
    max_num_seqs max_num_batched_tokens long_prefill_token_threshold
    enable_chunked_prefill disable_chunked_mm_input scheduling_policy
    scheduler_reserve_full_isl watermark async_scheduling data_parallel_size
    block_size enable_prefix_caching prefix_caching_hash_algo
    num_gpu_blocks_override kv_cache_memory_bytes
    structured_outputs_config reasoning_parser reasoning_parser_plugin
    reasoning_config enforce_eager additional_config fail_on_environ_validation
    enable_log_requests otlp_traces_endpoint
"""
SERVED = frozenset(_SERVED.split())
"""Options that mean here what they mean in vLLM, by field of its engine arguments.

Some have values that startup_checks.py refuses, such as a limit of images.
"""

_CHECKED = """
    tensor_parallel_size pipeline_parallel_size enable_lora speculative_config
    kv_transfer_config kv_events_config
"""
CHECKED = frozenset(_CHECKED.split())
"""Options that startup_checks.py refuses, in words of their own."""

_REFUSED = {
    "one process owns the whole mesh; choose the grid with MESH_DEVICE and the "
    "devices with TT_VISIBLE_DEVICES": """
    device_ids distributed_executor_backend prefill_context_parallel_size
    decode_context_parallel_size dcp_comm_backend dcp_q_replicate
    dcp_kv_cache_interleave_size cp_kv_cache_interleave_size master_addr master_port
    nnodes node_rank distributed_timeout_seconds cpu_distributed_timeout_seconds
    numa_bind numa_bind_nodes numa_bind_cpus data_parallel_rank
    data_parallel_start_rank data_parallel_size_local data_parallel_address
    data_parallel_rpc_port data_parallel_backend data_parallel_hybrid_lb
    data_parallel_external_lb data_parallel_multi_port_external_lb
    enable_expert_parallel enable_batch_sharded_sampling enable_ep_weight_filter
    all2all_backend enable_elastic_ep elastic_ep_max_dp_size enable_dbo ubatch_size
    dbo_decode_token_threshold dbo_prefill_token_threshold dp_sync_interval
    disable_nccl_for_dp_synchronization enable_eplb eplb_config
    expert_placement_strategy max_parallel_loading_workers disable_custom_all_reduce
    ray_workers_use_nsight worker_cls worker_extension_cls enable_fault_tolerance
    fault_tolerance_config _api_process_count _api_process_rank
    enable_nccl_comm_suspend
    """,
    "it tunes vLLM's own kernels and graphs, which no mesh runs": """
    compilation_config cudagraph_capture_sizes max_cudagraph_capture_size
    optimization_level performance_mode attention_backend attention_config
    disable_cascade_attn disable_sliding_window kernel_config ir_op_priority
    enable_flashinfer_autotune moe_backend linear_backend
    sparse_indexer_topk_backend gdn_prefill_backend kda_prefill_backend
    kda_decode_backend use_fp64_gumbel engram_config jit_monitor_mode
    jit_monitor_verbose cudagraph_metrics enable_layerwise_nvtx_tracing
    enable_mfu_metrics
    """,
    "the mesh keeps its own memory; size the pool with --kv-cache-fraction, "
    "--kv-cache-memory-bytes or --max-model-len": """
    gpu_memory_utilization kv_cache_dtype kv_cache_dtype_skip_layers
    kv_sharing_fast_prefill kv_offloading_size kv_offloading_backend
    prefix_cache_retention_interval prefix_match_unit offload_backend cpu_offload_gb
    cpu_offload_params offload_group_size offload_num_in_group offload_prefetch_step
    offload_params enable_sleep_mode enable_cumem_allocator kv_cache_metrics
    kv_cache_metrics_sample disable_hybrid_kv_cache_manager
    """,
    "the adapter of the mesh loads the model, not vLLM": """
    model_impl model_class_overrides load_format safetensors_load_strategy
    safetensors_prefetch_num_threads safetensors_prefetch_block_size
    model_loader_extra_config ignore_patterns use_tqdm_on_load pt_load_map_location
    quantization_config allow_deprecated_quantization weight_transfer_config
    tokens_only
    """,
    "state-space layers are not served": """
    mamba_backend mamba_ssu_algorithm mamba_config mamba_cache_dtype
    mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode
    enable_mamba_fine_grained_prefix_cache enable_mamba_cache_stochastic_rounding
    mamba_cache_philox_rounds replayssm_buffer_len use_replayssm
    """,
    "LoRA adapters are not served": """
    max_loras max_lora_rank default_mm_loras fully_sharded_loras max_cpu_loras
    lora_dtype lora_target_modules enable_tower_connector_lora
    specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras
    """,
    "speculative decoding is not built yet": """
    spec_method spec_model spec_tokens per_request_spec_decode_metrics
    """,
    "KV connectors and disaggregated serving are not supported": """
    ec_transfer_config ec_manager_config
    """,
    "only text generation is served": """
    convert pooler_config io_processor_plugin diffusion_config watermark_config
    enable_return_routed_experts return_sampling_mask enable_trace_replay
    enable_prompt_embeds
    """,
    "images, audio and video are not served yet": """
    enable_mm_embeds interleave_mm_strings media_io_kwargs mm_processor_kwargs
    mm_processor_cache_gb mm_processor_cache_type mm_hasher_algorithm
    mm_shm_cache_max_object_size_mb mm_encoder_only mm_encoder_tp_mode
    mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path
    mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin
    skip_mm_profiling video_pruning_rate video_pruning_method mm_tensor_ipc
    mm_processor_device mm_ipc_gpu_memory_gb mm_device_do_normalize
    enable_mm_processor_stats
    """,
    "frontends need the tokenizer, so it is always served": """
    skip_tokenizer_init
    """,
    "the configuration is served from the model's own directory": """
    hf_config_path
    """,
    "it belongs to the frontend": """
    allowed_local_media_path allowed_media_domains renderer_num_workers
    stream_interval disable_log_stats aggregate_engine_logging
    enable_logging_iteration_details show_hidden_metrics_for_version
    collect_detailed_traces
    """,
    "the step engine is ttserve's own; every step can be seen with "
    "Inspector.WatchSteps": """
    scheduler_cls max_num_scheduled_tokens prefill_schedule_interval profiler_config
    """,
    "use --max-queued-requests": """
    max_num_queued_reqs max_num_queued_tokens
    """,
    "use --shutdown-grace": """
    shutdown_timeout
    """,
}

REFUSED: dict[str, str] = {
    field: reason for reason, fields in _REFUSED.items() for field in fields.split()
}
"""Refused options by field of vLLM's engine arguments, with what to say."""


def refused(asked: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """One line for each refused option that was given another value than vLLM's."""
    return [
        f"{flag(field)} is not supported: {REFUSED[field]}"
        for field, value in asked.items()
        if field in REFUSED and value is not (was := defaults[field]) and value != was
    ]


def flag(field: str) -> str:
    """The command-line option of a field."""
    return "--" + field.lstrip("_").replace("_", "-")


def _assert_complete() -> None:
    lists = [*SERVED, *CHECKED, *REFUSED]
    fields = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    if sorted(lists) != sorted(fields):
        raise AssertionError(
            "decide about vLLM's engine options in device_service/engine_flags.py: "
            f"new {sorted(fields - set(lists))}, gone {sorted(set(lists) - fields)}, "
            f"on two lists {sorted({f for f in lists if lists.count(f) > 1})}"
        )


_assert_complete()
