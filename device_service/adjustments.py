"""Defaults that the model cannot have, fitted with a note (DETAILS 35)."""

from __future__ import annotations

from device_service.startup_checks import Candidate


def adjust(candidate: Candidate) -> list[str]:
    """Fit vLLM's configuration to what model and engine can do.

    Returns a note for everything that was changed. Contract 2.4 and 2.15.
    """
    notes = []
    scheduler = candidate.vllm_config.scheduler_config
    cache = candidate.vllm_config.cache_config
    model = candidate.model
    asked = candidate.config.engine["max_logprobs"]
    if model.max_logprobs != asked:  # the platform limits it
        notes.append(f"max_logprobs {asked} changed to {model.max_logprobs}")
    resumes = candidate.capabilities.supports_prefix_caching
    if cache.enable_prefix_caching and not resumes:
        notes.append(f"prefix caching off: {model.architectures[0]} cannot resume")
        cache.enable_prefix_caching = False
    splits = candidate.capabilities.supports_chunked_prefill
    if scheduler.enable_chunked_prefill and splits:
        scheduler.disable_chunked_mm_input = True
    else:
        notes += _prefill_whole(candidate)
    return notes


def _prefill_whole(candidate: Candidate) -> list[str]:
    """Turn chunked prefill off; a prompt must then fit into one step."""
    scheduler = candidate.vllm_config.scheduler_config
    model = candidate.model
    notes = []
    if scheduler.enable_chunked_prefill:
        notes.append(
            f"chunked prefill off: {model.architectures[0]} cannot split a prompt"
        )
    if scheduler.max_num_batched_tokens < model.max_model_len:
        notes.append(
            f"max_num_batched_tokens {scheduler.max_num_batched_tokens} raised to "
            f"max_model_len {model.max_model_len}: prompts are prefilled whole"
        )
        scheduler.max_num_batched_tokens = model.max_model_len
    scheduler.enable_chunked_prefill = False
    scheduler.long_prefill_token_threshold = 0
    return notes
