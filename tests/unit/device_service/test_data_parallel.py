"""How many device services `--data-parallel-size` takes, and what each is given."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from device_service.config import parse_args
from device_service.data_parallel import lanes_of, plan_services
from device_service.mesh.factory import make_mesh
from device_service.mesh_check import check_mesh
from tests.support.ttnn_host import ClusterType, RecordingTtnn
from ttserve.errors import StartupError
from ttserve.service_plan import PlannedService, read_plan, write_plan
from ttserve.sim_model import sim_model_dir

SIM_MODEL = ["--model", str(sim_model_dir())]
GALAXY = {"TT_LLAMA_TEXT_VER": "llama3_70b_galaxy", "MESH_DEVICE": "TG"}
T3K = """
import sys
from tests.support.ttnn_host import ClusterType, RecordingTtnn
sys.modules[__name__] = RecordingTtnn(8, ClusterType.T3K)
"""
SUBMESHES = "from tests.support.ttnn_host import create_submeshes\n"


def plan(*arguments: str, **environ: str) -> tuple[PlannedService, ...]:
    return plan_services(parse_args(arguments, environ), print)


def with_experts(path: Path) -> list[str]:
    shutil.copytree(sim_model_dir(), path)
    config = json.loads((path / "config.json").read_text())
    mixture = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    config |= mixture | {"num_local_experts": 8}
    (path / "config.json").write_text(json.dumps(config))
    return ["--model", str(path)]


def last(service: PlannedService, flag: str) -> str:
    flags = service.flags
    return flags[flags.index(flag) + 1]


def test_host_meshes_take_a_service_for_each_replica_and_share_the_machine() -> None:
    options = ("--threads", "8", "--kv-cache-fraction", "0.5")
    services = plan("--mesh", "cpu", *SIM_MODEL, "-dp", "4", *options)
    assert len(services) == 4
    for service in services:
        assert last(service, "--data-parallel-size") == "1"
        assert last(service, "--threads") == "2"
        assert last(service, "--kv-cache-fraction") == "0.125"
        assert service.environment == {}


def test_a_share_is_never_nothing() -> None:
    (first, _) = plan("--mesh", "cpu", *SIM_MODEL, "-dp", "2", "--threads", "1")
    assert last(first, "--threads") == "1"
    assert last(first, "--kv-cache-fraction") == "0.125"


def test_what_is_planned_is_understood() -> None:
    for mesh in ("cpu", "sim"):
        arguments = ("--mesh", mesh, *SIM_MODEL, "-dp", "3")
        for service in plan(*arguments):
            config = parse_args([*arguments, *service.flags], {})
            assert config.engine["data_parallel_size"] == 1


def test_lengths_that_would_differ_are_refused() -> None:
    arguments = ("--mesh", "cpu", *SIM_MODEL, "-dp", "2", "--max-model-len", "-1")
    with pytest.raises(StartupError, match="would fit another length"):
        plan(*arguments)
    assert len(plan(*arguments, "--kv-cache-memory-bytes", "9m")) == 2
    assert len(plan(*arguments, "--mesh", "sim")) == 2


@pytest.mark.feature(81)
def test_a_model_that_folds_is_one_service() -> None:
    (service,) = plan("--mesh", "sim", *SIM_MODEL, "-dp", "4", **GALAXY)
    assert service.flags == ("--data-parallel-size", "4")


@pytest.mark.feature(97)
def test_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    model = with_experts(tmp_path / "mixture")
    says = "--data-parallel-size 2: MixtralForCausalLM is a mixture of experts"
    with pytest.raises(StartupError, match=says) as caught:
        plan("--mesh", "sim", *model, "-dp", "2")
    assert "\n" not in str(caught.value)
    alone = parse_args(["--mesh", "sim", *model, "-dp", "2"], {})
    with pytest.raises(StartupError, match=says):
        lanes_of(alone, Path(model[1]))
    assert len(plan("--mesh", "sim", *model)) == 1


def test_without_a_launcher_the_line_says_who_does_it() -> None:
    config = parse_args(["--mesh", "sim", *SIM_MODEL, "-dp", "2"], {})
    with pytest.raises(StartupError, match="use tt-serve --data-parallel-size 2"):
        lanes_of(config, sim_model_dir())


@pytest.fixture
def hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A T3K and tt-metal on the import path of processes that are started."""
    (tmp_path / "ttnn.py").write_text(T3K)
    generator = tmp_path.joinpath("models", "tt_transformers", "tt", "generator.py")
    generator.parent.mkdir(parents=True)
    generator.write_text(SUBMESHES)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.timeout(200)
@pytest.mark.edge(49)
@pytest.mark.feature(93, 95)
def test_each_service_is_bound_to_its_group(hardware: None) -> None:
    services = plan("--mesh", "ttnn", *SIM_MODEL, "-dp", "2", MESH_DEVICE="T3K")
    assert [service.environment for service in services] == [
        {"TT_VISIBLE_DEVICES": "0,1,2,3", "MESH_DEVICE": "(1,4)"},
        {"TT_VISIBLE_DEVICES": "4,5,6,7", "MESH_DEVICE": "(1,4)"},
    ]
    assert "ttnn" not in sys.modules


@pytest.mark.edge(51)
@pytest.mark.feature(95)
def test_visible_devices_of_the_operator_contradict_the_groups(hardware: None) -> None:
    says = "TT_VISIBLE_DEVICES=0,1 contradicts --data-parallel-size 2"
    with pytest.raises(StartupError, match=says):
        plan("--mesh", "ttnn", *SIM_MODEL, "-dp", "2", TT_VISIBLE_DEVICES="0,1")


@pytest.mark.edge(50)
@pytest.mark.feature(96)
async def test_a_service_opens_what_was_found_and_looks_for_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it sees are four devices with numbers of their own."""
    bound = {"TT_VISIBLE_DEVICES": "4,0,2,6", "MESH_DEVICE": "(2,2)"}
    ttnn = RecordingTtnn(4, ClusterType.N300)
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    config = parse_args(["--mesh", "ttnn", "-dp", "1"], bound)
    await check_mesh(make_mesh(config.mesh, config.mesh_options()))
    opened: list[Any] = [call[1] for call in ttnn.calls if call[0] == "open"]
    assert opened == [(2, 2)]
    assert ttnn.board is not None
    assert ttnn.board.submeshes == []
    assert "open 2 x 2: 0, 1, 2, 3" in capsys.readouterr().out


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    services = (PlannedService(("--threads", "1"), {"A": "1"}), PlannedService())
    write_plan(tmp_path / "plan", services)
    assert read_plan(tmp_path / "plan") == services
    with pytest.raises(StartupError, match="there is no plan"):
        read_plan(tmp_path / "nothing")
    with pytest.raises(StartupError, match="--plan /no/where: No such file"):
        write_plan(Path("/no/where"), services)
