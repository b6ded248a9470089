"""Models of which vLLM knows no class, because only an adapter serves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vllm.model_executor.models import ModelRegistry

from frontend.config import read_command_line
from frontend.engine.build import build
from frontend.startup import Described
from tests.support import byte_model, fake_device
from ttserve.errors import Reason

ONLY_OURS = "UnheardForCausalLM"


class NobodyCounts:
    """No request is made here."""

    def failed(self, reason: Reason) -> None:
        raise AssertionError(reason)

    def moved(self, device: str, reason: Reason) -> None:
        raise AssertionError(device, reason)


@pytest.mark.feature(6)
def test_a_frontend_serves_what_only_an_adapter_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device service tells it the architecture, and its files name it too."""
    monkeypatch.setattr(ModelRegistry, "models", dict(ModelRegistry.models))
    for name, data in byte_model.files().items():
        (tmp_path / name).write_bytes(data)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = [ONLY_OURS]
    (tmp_path / "config.json").write_text(json.dumps(config))
    described = Described(fake_device.model(architecture=ONLY_OURS), tmp_path)
    engine = build(
        described,
        read_command_line(["--device-service", "127.0.0.1:1"], {}),
        NobodyCounts(),
    )
    assert engine.llm.model_config.architectures == [ONLY_OURS]
    assert engine.llm.model_config.runner_type == "generate"
