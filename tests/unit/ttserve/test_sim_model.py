"""The simulated model's directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer

from ttserve.sim_model import PRINTABLE, VOCABULARY, sim_model_dir, write_sim_model

TEXTS = [
    "plain words",
    "ümläute, ünïcode and 🎉 emoji",
    "\ttabs\nand  spaces \r\n",
    "".join(chr(code) for code in range(1, 256)),
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_sim_model(tmp_path, lambda _: None)
    return tmp_path


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_goes_through_and_back(directory: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokens = tokenizer.encode(text)
    assert tokens == list(text.encode())
    assert tokenizer.decode(tokens) == text


def test_the_chat_template(directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert len(tokenizer.encode("<|im_end|>")) == 1


def test_config_and_tokenizer_agree(directory: Path) -> None:
    config = AutoConfig.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert config.vocab_size == VOCABULARY >= len(tokenizer)
    assert config.eos_token_id == tokenizer.eos_token_id
    assert config.sim_output_ids == list(PRINTABLE)
    generation = json.loads((directory / "generation_config.json").read_text())
    assert config.eos_token_id in generation["eos_token_id"]


def test_it_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = sim_model_dir()
    stamp = (first / "config.json").stat().st_mtime_ns
    assert sim_model_dir() == first
    assert first.is_relative_to(tmp_path)
    assert (first / "config.json").stat().st_mtime_ns == stamp
