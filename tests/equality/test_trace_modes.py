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


def _served(model: Path, mesh: str, **options: Any) -> tuple[list[list[int]], set[str]]:
    """Tokens of all prompts, and the reasons why steps overlapped or did not."""
    with Rig(model, mesh=mesh, rows=4, max_model_len=256, **options) as rig:
        streams = [rig.submit(prompt, 40) for prompt in PROMPTS]
        rig.run()
        reasons = {record.overlap.reason for record in rig.records}
        return [stream.token_ids for stream in streams], reasons


@pytest.mark.feature(38, 42)
@pytest.mark.parametrize("mesh", ["cpu", "sim"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_tokens_do_not_depend_on_the_trace_mode(
    model: Path, mesh: str, lanes: int
) -> None:
    """The probe sees to it that the calls say what was captured."""
    directory = model if mesh == "cpu" else sim_model_dir()
    found = [
        _served(directory, mesh, lanes=lanes, trace_mode=mode)[0] for mode in TraceMode
    ]
    assert found[1:] == found[:1] * 2
    assert [len(tokens) for tokens in found[0]] == [40, 40, 40]


@pytest.mark.feature(113)
@pytest.mark.parametrize("mesh", ["cpu", "sim"])
def test_steps_overlap_only_where_decodes_are_traced(model: Path, mesh: str) -> None:
    directory = model if mesh == "cpu" else sim_model_dir()
    found = {
        mode: _served(
            directory,
            mesh,
            trace_mode=mode,
            async_scheduling=True,
            site={"mode": "decode_only"},
        )
        for mode in TraceMode
    }
    overlapped = {mode for mode, (_, reasons) in found.items() if "steady" in reasons}
    assert overlapped == {TraceMode.ALL, TraceMode.DECODE_ONLY}
    assert "inputs_not_resident" in found[TraceMode.NONE][1]
    assert len({str(tokens) for tokens, _ in found.values()}) == 1
