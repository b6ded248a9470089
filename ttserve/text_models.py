"""What stands in vLLM's model registry for a text model that it does not know.

vLLM refuses to configure an architecture without a class. Our adapters are no
classes of vLLM's, and it never builds a model here, so that a class which says
"generates text" is all that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from vllm.model_executor.models import ModelRegistry


class TextModel(nn.Module):
    """Generates text, as far as vLLM's inspection looks. Never built."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        raise NotImplementedError("the device service runs the model, not vLLM")

    def embed_input_ids(self, input_ids: Any) -> Any:
        """Part of vLLM's protocol."""
        raise NotImplementedError

    def forward(self, input_ids: Any, positions: Any) -> Any:
        """Part of vLLM's protocol."""
        raise NotImplementedError

    def compute_logits(self, hidden_states: Any) -> Any:
        """Part of vLLM's protocol."""
        raise NotImplementedError


def register_text_models(architectures: Iterable[str]) -> None:
    """Register those that vLLM does not know; its own classes stay."""
    for architecture in architectures:
        if architecture not in ModelRegistry.models:
            ModelRegistry.register_model(architecture, TextModel)
