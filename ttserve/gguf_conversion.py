"""Converts the GGUF file of SmolLM2 to an ordinary Hugging Face directory.

A program, run as `python -m ttserve.gguf_conversion SOURCE TARGET` in a process
of its own, because it needs torch and transformers and must not import vLLM. It
prints one line per stage on stdout, and ends when its stdin does: the process
that started it is gone then, and nobody would use the result.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging


def convert(source: Path, target: Path) -> None:
    """Write the model in `source`, weights as bfloat16, to the directory `target`."""
    _say("reading the tokenizer")
    tokenizer = _load_tokenizer(source)
    _say("unpacking the weights (the longest part)")
    model = _load_model(source)
    _say("writing the directory")
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(target)
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    model.save_pretrained(target)


def _load_tokenizer(source: Path) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # The file names its pre-tokenizer ("smollm"), which transformers ignores. It
    # splits digits off first; without that, "\n\n1" would become three tokens
    # where the model was trained on two.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


def _load_model(source: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        # Else the saved config would claim that the weights are still quantized.
        quantization_config=GgufConfig(dequantize=True),
    )


def _say(stage: str) -> None:
    print(stage, flush=True)  # noqa: T201 - stdout is this program's interface


def _end_with_parent() -> None:
    # Not sys.stdin: a thread inside its lock makes the interpreter's exit fatal.
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
