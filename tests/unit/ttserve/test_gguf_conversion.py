"""The converted default model is SmolLM2 as its makers published it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ttserve.default_model import default_model_dir

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

# <|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging
# Face<|im_end|>\n: what the published template puts before a first user message.
SYSTEM = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28]
SYSTEM += [7018, 411, 407, 19712, 8182, 2, 198]


@pytest.fixture(scope="module")
def directory() -> Path:
    return default_model_dir(print)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    return cast("PreTrainedTokenizerBase", AutoTokenizer.from_pretrained(directory))


def read(directory: Path, name: str) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((directory / name).read_text()))


def test_the_configuration(directory: Path) -> None:
    config = read(directory, "config.json")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert config["max_position_embeddings"] == 8192
    assert config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["tie_word_embeddings"] is True
    assert "quantization_config" not in config


def test_generation_ends_at_the_end_of_a_turn(
    directory: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    generation = read(directory, "generation_config.json")
    assert generation["eos_token_id"] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert generation["eos_token_id"] == 2
    assert generation["bos_token_id"] == 1
    # Nothing else: no temperature of its own.
    assert set(generation) - {"transformers_version"} == {
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    }


def test_a_chat_has_the_published_token_ids(tokenizer: PreTrainedTokenizerBase) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False
    )
    user, assistant = [1, 4093, 198, 26843, 2, 198], [1, 520, 9531, 198]
    assert ids == [*SYSTEM, *user, *assistant]


def test_a_system_message_replaces_the_default(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
    ]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYes?<|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a1234", ["a", "1", "2", "3", "4"]),
        # Digits are split off before spaces and newlines are grouped.
        ("a  1", ["a", "  ", "1"]),
        ("a\n\n1", ["a", "\n\n", "1"]),
        ("a  b", ["a", " ", " b"]),
    ],
)
def test_digits_are_tokens_of_their_own(
    tokenizer: PreTrainedTokenizerBase, text: str, tokens: list[str]
) -> None:
    ids = tokenizer(text)["input_ids"]
    assert [tokenizer.decode([token]) for token in ids] == tokens


def test_text_survives_the_way_there_and_back(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    text = "Grüße, 世界! 🙂\tdef f(x):\n    return x ** 2  # 3.14"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
