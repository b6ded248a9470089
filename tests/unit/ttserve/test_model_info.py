"""vLLM's model info, carried from one cache to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm.model_executor.models import ModelRegistry

from ttserve.model_info import collect_model_info, seed_model_info

ARCHITECTURE = "LlamaForCausalLM"
FILE = "vllm-model_executor-models-llama-LlamaForCausalLM.json"


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Cache roots of two processes; the first one is ours now."""
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(first))
    return first, second


def test_nothing_cached_is_nothing_carried(caches: tuple[Path, Path]) -> None:
    assert json.loads(collect_model_info([ARCHITECTURE])) == {"entries": []}


def test_name_is_the_one_that_vllm_looks_for() -> None:
    model: Any = ModelRegistry.models[ARCHITECTURE]
    assert f"{model.module_name}-{model.class_name}".replace(".", "-") + ".json" == FILE


def test_carried_entry_is_found_again(
    caches: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = caches
    content = {"hash": "h", "modelinfo": {"architecture": ARCHITECTURE}}
    (first / "modelinfos").mkdir(parents=True)
    (first / "modelinfos" / FILE).write_text(json.dumps(content))
    data = collect_model_info([ARCHITECTURE, "NoSuchForCausalLM"])
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(second))
    assert seed_model_info(data) == [FILE]
    assert json.loads((second / "modelinfos" / FILE).read_text()) == content
    assert [p.name for p in (second / "modelinfos").iterdir()] == [FILE]


@pytest.mark.parametrize("name", ["../evil.json", "/evil.json", "evil.py", ""])
def test_names_with_a_path_are_refused(caches: tuple[Path, Path], name: str) -> None:
    data = json.dumps({"entries": [{"file": name, "content": {}}]}).encode()
    with pytest.raises(ValueError, match="bare file name"):
        seed_model_info(data)
