"""A tiny model to try an adapter with, for those who have none at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, set_seed

from ttserve.errors import StartupError

VOCABULARY = 320
LENGTH = 512


def model_config(directory: Path | None, scratch: Path) -> tuple[Any, Path]:
    """The config of the model in `directory`, or of one written into `scratch`.

    Raises StartupError if there is none in `directory`.
    """
    if directory is None:
        _write_tiny_llama(scratch)
        directory = scratch
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True), directory
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise StartupError(f"--model {directory}: {reason}") from None


def _write_tiny_llama(directory: Path) -> None:
    """Two layers of random weights, the same ones every time."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=LENGTH,
        initializer_range=0.15,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    set_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(directory)
