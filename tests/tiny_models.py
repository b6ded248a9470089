"""Tiny random models of the families that are served, made on the spot.

Each is an ordinary Hugging Face directory: config, weights and a byte-level
tokenizer. Windows are shorter than the tests' prompts, heads are grouped, and
weights are large enough that a wrong mask or a lost block shows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, set_seed
from transformers import models as families

from ttserve.sim_model import VOCABULARY, write_byte_tokenizer

WINDOW = 24
END_OF_SEQUENCE = 259

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": END_OF_SEQUENCE,
    "pad_token_id": 260,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}


def _llama() -> Any:
    return families.LlamaConfig(**_COMMON, head_dim=16)


def _qwen2() -> Any:
    return families.Qwen2Config(**_COMMON)


def _qwen3() -> Any:
    return families.Qwen3Config(**_COMMON, head_dim=16)


def _mistral_sliding() -> Any:
    return families.MistralConfig(**_COMMON, head_dim=16, sliding_window=WINDOW)


def _gemma3() -> Any:
    return families.Gemma3TextConfig(
        **_COMMON | {"tie_word_embeddings": True},
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )


def _gpt_oss() -> Any:
    return families.GptOssConfig(
        **_COMMON,
        head_dim=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        num_local_experts=4,
        num_experts_per_tok=2,
    )


def _deepseek_v3() -> Any:
    return families.DeepseekV3Config(
        **_COMMON | {"num_key_value_heads": 4},
        **_EXPERTS,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=1,
        kv_lora_rank=32,
        q_lora_rank=24,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
    )


def _qwen3_moe() -> Any:
    return families.Qwen3MoeConfig(
        **_COMMON, **_EXPERTS, num_experts=8, decoder_sparse_step=1
    )


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mistral-sliding": _mistral_sliding,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "deepseek-v3": _deepseek_v3,
    "qwen3-moe": _qwen3_moe,
}


def tiny_model(
    family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """A model with random weights, in memory."""
    set_seed(seed)
    model: PreTrainedModel
    model = AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=dtype)
    _make_noisy(model)
    model.eval()
    return model


def _make_noisy(model: torch.nn.Module) -> None:
    """Give what starts as zeros or ones a value that matters: norms, sinks, biases."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))


def write_tiny_model(
    family: str,
    directory: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Write a model directory that any service can load; answers the model."""
    model = tiny_model(family, seed=seed, dtype=dtype)
    model.save_pretrained(directory)
    write_byte_tokenizer(directory)
    return model
