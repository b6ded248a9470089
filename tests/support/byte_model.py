"""The files of a tiny model whose tokens are bytes, made up on the spot.

Token ids below 256 are bytes; after that come the marks of its chat template and
those around its reasoning. There are no weights: whoever serves it decides what it
says.
"""

from __future__ import annotations

import json
from typing import Any

IM_START = 256
IM_END = 257
THINK = 258
END_THINK = 259
VOCAB_SIZE = 260
ARCHITECTURE = "LlamaForCausalLM"

CHAT_TEMPLATE = (
    "{%- if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


MARKS = {
    IM_START: "<|im_start|>",
    IM_END: "<|im_end|>",
    THINK: "<think>",
    END_THINK: "</think>",
}


def files() -> dict[str, bytes]:
    """What a tokenizer bundle of this model holds, by bare file name."""
    contents: dict[str, Any] = {
        "config.json": _config(),
        "generation_config.json": {"eos_token_id": [IM_END], "temperature": 0.3},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 4096,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    return {name: json.dumps(content).encode() for name, content in contents.items()}


def text_of(token_ids: list[int]) -> str:
    """The text of a prompt or an output, marks left out."""
    return bytes(i for i in token_ids if i < 256).decode(errors="replace")


def _config() -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "vocab_size": VOCAB_SIZE,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "dtype": "float32",
        "eos_token_id": IM_END,
    }


def _tokenizer() -> dict[str, Any]:
    marks = [
        {
            "id": token_id,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token_id in (IM_START, IM_END),
        }
        for token_id, content in MARKS.items()
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    vocab = {letter: byte for byte, letter in enumerate(_letters())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": marks,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def _letters() -> list[str]:
    """One printable character per byte, as byte-level tokenizers write them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(rest)) for byte in range(256)]
