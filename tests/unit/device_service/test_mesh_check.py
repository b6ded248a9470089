"""`--check`: opens, tells, closes; every kind of mesh; no model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from device_service.config import parse_args
from device_service.mesh.factory import make_mesh
from device_service.mesh_check import check_mesh
from tests.support.hardware import write_tree
from tests.support.ttnn_host import ClusterType, RecordingTtnn
from ttserve.errors import StartupError

ROOT = Path(__file__).parents[3]
TIMES = r"opened in \d+\.\d s, closed in \d+\.\d s"


@pytest.mark.parametrize("kind", ["cpu", "sim"])
async def test_a_mesh_of_the_host(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--check", "--mesh", kind]
    config = parse_args(arguments, {"MESH_DEVICE": "T3K"})
    assert config.check
    await check_mesh(make_mesh(config.mesh, config.mesh_options()))
    out = capsys.readouterr().out
    assert re.fullmatch(f"mesh {kind} stands for 1 x 8 devices\n{TIMES}\n", out)


async def test_hardware_is_told_and_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ttnn = RecordingTtnn(2, ClusterType.N300)
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    config = parse_args(
        ["--check", "--mesh", "ttnn"],
        {"MESH_DEVICE": "T3K", "TT_VISIBLE_DEVICES": "2,3"},
    )
    await check_mesh(make_mesh(config.mesh, config.mesh_options()))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cluster N300, wormhole_b0, 2 devices"
    assert lines[1] == "open 1 x 2: 0, 1"
    assert [call[0] for call in ttnn.calls[-3:]] == ["profiler", "close", "fabric"]


@pytest.mark.feature(35)
async def test_a_mesh_that_does_not_open_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ttnn = RecordingTtnn(2, ClusterType.N300)
    ttnn.failing.add("open")
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    with pytest.raises(StartupError, match="open is broken"):
        await check_mesh(make_mesh("ttnn", {}))
    assert capsys.readouterr().out == ""


@pytest.mark.timeout(300)
@pytest.mark.feature(35)
def test_the_command_opens_the_mesh_and_loads_nothing(tmp_path: Path) -> None:
    write_tree(tmp_path, "models.nothing:Nothing")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "MESH_DEVICE": "N300"}
    command = [sys.executable, "-m", "device_service", "--mesh", "ttnn", "--check"]
    done = subprocess.run(
        [*command, "--model", "/no/such/model"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    calls = [line.split()[1] for line in lines if line.startswith("ttnn: ")]
    assert calls == ["fabric", "open", "profiler", "close", "fabric"]
    assert "open 1 x 2: 0, 1" in lines
    assert re.fullmatch(TIMES, lines[-1])
