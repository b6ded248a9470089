"""The model directory of the `sim` mesh: a config and a byte-level tokenizer.

It has no weights. Its tokenizer gives every byte an id of its own, so any text
goes through it and back; the output ids that the config names are printable
ASCII, so that what the simulated model says is text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ttserve.default_model import Progress, ensure_model_dir
from ttserve.environment import cache_dir

SIM_MODEL_NAME = "ttserve-sim"
LAYOUT = "1"
"""Raised when something else is written, so that caches are renewed."""

MAX_MODEL_LEN = 32768
BYTES = 256
PRINTABLE = (0x20, 0x7F)
SPECIAL_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
)
VOCABULARY = 320
"""Rounded up; the ids above the special tokens are never used."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def sim_model_dir() -> Path:
    """The directory in the user's cache, written if it is not there yet.

    Safe against two at once and against being killed half way. Raises
    StartupError when it cannot be written.
    """
    directory = cache_dir() / "models" / LAYOUT / SIM_MODEL_NAME
    return ensure_model_dir(directory, write_sim_model, lambda _: None)


def write_sim_model(directory: Path, progress: Progress) -> None:
    """Write the files into an empty directory."""
    progress("writing the simulated model")
    _write_json(directory / "config.json", _config())
    _write_json(directory / "generation_config.json", _generation_config())
    write_byte_tokenizer(directory)


def write_byte_tokenizer(directory: Path) -> None:
    """Write only the tokenizer's files, for other models of this vocabulary."""
    _write_json(directory / "tokenizer_config.json", _tokenizer_config())
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    _write_tokenizer(directory / "tokenizer.json")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _special_id(token: str) -> int:
    return BYTES + SPECIAL_TOKENS.index(token)


def _config() -> dict[str, Any]:
    """A Llama by name, small enough that nobody minds what is never built."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "max_position_embeddings": MAX_MODEL_LEN,
        "bos_token_id": _special_id("<|begin_of_text|>"),
        "eos_token_id": _special_id("<|im_end|>"),
        "pad_token_id": _special_id("<|pad|>"),
        "dtype": "float32",
        "sim_output_ids": list(PRINTABLE),
    }


def _generation_config() -> dict[str, Any]:
    return {
        "bos_token_id": _special_id("<|begin_of_text|>"),
        "eos_token_id": [
            _special_id("<|im_end|>"),
            _special_id("<|end_of_text|>"),
        ],
        "pad_token_id": _special_id("<|pad|>"),
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "model_max_length": MAX_MODEL_LEN,
        "clean_up_tokenization_spaces": False,
    }


def _write_tokenizer(path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    symbols = _byte_symbols()
    vocabulary = {symbols[byte]: byte for byte in range(BYTES)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in SPECIAL_TOKENS]
    )
    tokenizer.save(str(path))


def _byte_symbols() -> dict[int, str]:
    """The printable character that byte-level tokenizers write for each byte.

    Printable Latin-1 characters stand for themselves, the other bytes, in
    order, for the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(BYTES) if byte not in printable]
    symbols = {byte: chr(byte) for byte in printable}
    return symbols | {byte: chr(BYTES + order) for order, byte in enumerate(others)}
