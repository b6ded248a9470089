"""What the generic adapter refuses by name and by config, each with its reason.

A refusal is a StartupError of one line. What only a forward pass can show is
refused by `hf.probe`.
"""

from __future__ import annotations

from typing import Any

from ttserve.errors import StartupError

TEXT_ONLY_ARCHITECTURES = frozenset(
    {"Gemma3ForConditionalGeneration", "Mistral3ForConditionalGeneration"}
)
"""Multimodal architectures whose language model can be loaded by itself."""

PAGEABLE_LAYERS = frozenset(
    {"full_attention", "sliding_attention", "chunked_attention"}
)
BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")


def refuse_architecture(architecture: str) -> None:
    """Raise StartupError unless the name stands for a decoder that generates text."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )

    if architecture in TEXT_ONLY_ARCHITECTURES:
        return
    if architecture.endswith("ForConditionalGeneration"):
        raise StartupError(
            f"{architecture} cannot be served on mesh cpu: it is an "
            "encoder-decoder or multimodal model that cannot be loaded text-only"
        )
    if architecture not in set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        raise StartupError(
            f"{architecture} cannot be served on mesh cpu: transformers knows no "
            "text-generating decoder of that name"
        )


def refuse_config(hf_config: Any, max_seq_len: int) -> None:
    """Raise StartupError for what pages of keys and values cannot serve."""
    text = hf_config.get_text_config()
    if hf_config.is_encoder_decoder or text.is_encoder_decoder:
        raise refusal(hf_config, "it is an encoder-decoder")
    if not getattr(text, "is_causal", True):
        raise refusal(hf_config, "its attention is not causal")
    layer_types = set(getattr(text, "layer_types", None) or ())
    if unpageable := sorted(layer_types - PAGEABLE_LAYERS):
        raise refusal(
            hf_config,
            f"it has layers of type {', '.join(unpageable)}, whose state is not "
            "keys and values per token",
        )
    quantization = getattr(hf_config, "quantization_config", None)
    if quantization is not None:
        raise refusal(
            hf_config, f"its weights are quantized ({_quantization_name(quantization)})"
        )
    _refuse_rope(hf_config, text, max_seq_len)


def _refuse_rope(hf_config: Any, text: Any, max_seq_len: int) -> None:
    """Some rope types choose frequencies by the longest row of the batch.

    Up to the trained length they never change, so a shorter limit is served.
    """
    for parameters in _rope_parameters(text):
        kind = parameters.get("rope_type", "default")
        if kind not in BATCH_DEPENDENT_ROPE:
            continue
        trained = parameters.get("original_max_position_embeddings") or getattr(
            text, "original_max_position_embeddings", None
        )
        if kind == "dynamic" or trained is None:
            trained = text.max_position_embeddings
        if max_seq_len > trained:
            raise refusal(
                hf_config,
                f"with {kind} rope, requests longer than {trained} tokens change "
                f"their neighbours' output; use --max-model-len {trained}",
            )


def _rope_parameters(text: Any) -> list[dict[str, Any]]:
    """One dict, or one per layer type."""
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]


def _quantization_name(quantization: Any) -> str:
    if isinstance(quantization, dict):
        return str(quantization.get("quant_method", "unknown"))
    method = getattr(quantization, "quant_method", "unknown")
    return str(getattr(method, "value", method))


def refusal(hf_config: Any, reason: str) -> StartupError:
    """The one line that names the model and why."""
    return StartupError(
        f"model {hf_config.name_or_path!r} ({hf_config.model_type}) cannot be "
        f"served on mesh cpu: {reason}"
    )
