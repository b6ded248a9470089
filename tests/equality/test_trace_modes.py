"""What is replayed from traces says the same as what is not (contract 1.6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from device_service.mesh.driver import TraceMode
from tests.support.rig import Rig
from tests.tiny_models import write_tiny_model
from ttserve.sim_model import sim_model_dir

PROMPTS = [[70 + i % 50 for i in range(length)] for length in (1, 17, 40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    write_tiny_model("llama", directory)
    return directory


def _tokens(model: Path, mesh: str, **options: Any) -> list[list[int]]:
    with Rig(model, mesh=mesh, rows=4, max_model_len=256, **options) as rig:
        streams = [rig.submit(prompt, 40) for prompt in PROMPTS]
        rig.run()
        return [stream.token_ids for stream in streams]


@pytest.mark.feature(38, 42)
@pytest.mark.parametrize("mesh", ["cpu", "sim"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_tokens_do_not_depend_on_the_trace_mode(
    model: Path, mesh: str, lanes: int
) -> None:
    """The probe sees to it that the calls say what was captured."""
    directory = model if mesh == "cpu" else sim_model_dir()
    found = [
        _tokens(directory, mesh, lanes=lanes, trace_mode=mode) for mode in TraceMode
    ]
    assert found[1:] == found[:1] * 2
    assert [len(tokens) for tokens in found[0]] == [40, 40, 40]
