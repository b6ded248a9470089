"""What the cpu mesh refuses before or while loading, and in which words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import models as families

from device_service.mesh.cpu import CpuMesh
from device_service.mesh.driver import LoadedModel, LoadSpec, load_model
from device_service.models.refusals import refuse_architecture, refuse_config
from device_service.models.registry import resolve_adapter
from device_service.models.sim_adapter import SimAdapter
from device_service.models.transformers_adapter import TransformersAdapter
from tests.tiny_models import FAMILIES, write_tiny_model
from ttserve.errors import StartupError

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 64,
}


@pytest.fixture(scope="module")
def mesh() -> Iterator[CpuMesh]:
    mesh = CpuMesh()
    mesh.open()
    yield mesh
    mesh.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_model("llama", directory)
    return directory


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def _load(mesh: CpuMesh, directory: Path, config: Any = None) -> LoadedModel:
    config = config or AutoConfig.from_pretrained(directory)
    spec = LoadSpec(config, str(directory), torch.float32, 64, 16, 2)
    return load_model(TransformersAdapter, mesh, spec)


def test_the_registry_answers_for_each_mesh() -> None:
    assert resolve_adapter("LlamaForCausalLM", "cpu") is TransformersAdapter
    assert resolve_adapter("TTLlamaForCausalLM", "cpu") is TransformersAdapter
    assert resolve_adapter("AnythingAtAll", "sim") is SimAdapter
    with pytest.raises(StartupError, match="on mesh ttnn"):
        resolve_adapter("LlamaForCausalLM", "ttnn")


@pytest.mark.parametrize("family", FAMILIES)
def test_served_architectures(family: str) -> None:
    config = FAMILIES[family]()
    refuse_architecture(type(config).__name__.replace("Text", "")[:-6] + "ForCausalLM")
    refuse_config(config, 128)


@pytest.mark.parametrize(
    "architecture",
    [
        "T5ForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "LlamaForSequenceClassification",
        "BertModel",
        "Nonsense",
    ],
)
def test_refused_architectures(architecture: str) -> None:
    with pytest.raises(StartupError, match=architecture):
        resolve_adapter(architecture, "cpu")


def _with(config: Any, **changes: Any) -> Any:
    for name, value in changes.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (families.MambaConfig(num_hidden_layers=2), "linear_attention"),
        (families.Qwen3NextConfig(num_hidden_layers=4), "linear_attention"),
        (families.T5Config(), "encoder-decoder"),
        (_with(families.LlamaConfig(), is_causal=False), "not causal"),
        (
            _with(families.LlamaConfig(), quantization_config={"quant_method": "gptq"}),
            r"quantized \(gptq\)",
        ),
        (
            families.LlamaConfig(
                max_position_embeddings=64,
                rope_parameters={
                    "rope_type": "dynamic",
                    "factor": 2.0,
                    "rope_theta": 1e4,
                },
            ),
            "--max-model-len 64",
        ),
        (
            families.Phi3Config(
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 48,
                    "long_factor": [2.0] * 48,
                    "original_max_position_embeddings": 100,
                },
                original_max_position_embeddings=100,
            ),
            "--max-model-len 100",
        ),
    ],
)
def test_refused_configs(config: Any, reason: str) -> None:
    with pytest.raises(StartupError, match=reason) as refused:
        refuse_config(config, 128)
    assert "\n" not in str(refused.value)


def test_batch_dependent_rope_is_served_up_to_its_trained_length() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    config = families.LlamaConfig(max_position_embeddings=64, rope_parameters=rope)
    refuse_config(config, 64)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (families.BloomConfig(**SMALL), "does not go through"),
        (families.FalconConfig(**SMALL), "cannot be paged"),
        (
            families.BertConfig(**SMALL, intermediate_size=32),
            "forward pass fails|keeps no keys|not causal",
        ),
    ],
)
def test_what_only_a_forward_shows(
    mesh: CpuMesh, tmp_path: Path, config: Any, reason: str
) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(StartupError, match=reason):
        _load(mesh, tmp_path)


def test_no_weights(mesh: CpuMesh, copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    _check_one_line(mesh, copy, "safetensors")


def test_damaged_weights(mesh: CpuMesh, copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    _check_one_line(mesh, copy, "cannot load model")


def test_a_missing_tensor(mesh: CpuMesh, copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(copy / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    _check_one_line(mesh, copy, r"1 tensors are missing.*layers\.1\.mlp\.up_proj")


def test_a_tensor_of_another_shape(mesh: CpuMesh, copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["intermediate_size"] = 80
    (copy / "config.json").write_text(json.dumps(config))
    _check_one_line(mesh, copy, "cannot load model")


def test_no_such_directory(mesh: CpuMesh, tiny: Path, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(tiny)
    with pytest.raises(StartupError, match="cannot load model"):
        _load(mesh, tmp_path / "nowhere", config)


def _check_one_line(mesh: CpuMesh, directory: Path, reason: str) -> None:
    with pytest.raises(StartupError, match=reason) as refused:
        _load(mesh, directory)
    assert "\n" not in str(refused.value)
