"""docs/HARDWARE.md: what it names exists, and its command lines are understood.

No mesh is opened and no model is looked up.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from device_service.config import DeviceConfig, Environment, parse_args
from device_service.data_parallel import runs_as_lanes
from device_service.mesh.grid import grid_of
from device_service.mesh.ttnn_mesh import TtnnMesh
from device_service.mesh.ttnn_settings import grid_on
from device_service.models.registry import Origin, adapter_registry
from device_service.options import TTOptions, catalogue
from device_service.startup_checks import MODEL_CHECKS, check_launch
from examples import offline_inference_tt
from frontend.config import read_command_line, unaccepted_option
from tests.support.ttnn_host import ClusterType, FabricConfig, RecordingTtnn
from tools.install import SERVE, plan, read_groups
from ttserve.launcher import config as launcher
from ttserve.service_plan import read_plan

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "HARDWARE.md"
TEXT = DOCUMENT.read_text()

OF_OTHERS = {
    *("TT_METAL_HOME", "TT_MESH_GRAPH_DESC_PATH", "PYTHONPATH", "LLAMA_DIR"),
    *("PYTHON_ENV_DIR", "HF_TOKEN"),
}
"""What the document says that other software reads."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command line: what it sets for itself, its program, its arguments."""

    environment: Mapping[str, str]
    program: str
    arguments: list[str]


def commands() -> Iterator[Command]:
    for block in re.findall(r"```console\n(.*?)```", TEXT, flags=re.S):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            assert line.startswith("$ "), line
            words = shlex.split(line.removeprefix("$ "))
            environment = {}
            while words and re.match(r"[A-Z0-9_]+=", words[0]):
                name, _, environment[name] = words.pop(0).partition("=")
            yield Command(environment, words[0], words[1:])


SERVING = [command for command in commands() if command.program == "tt-serve"]


def device_config(command: Command) -> DeviceConfig:
    """What `tt-serve` would tell its device service, on a host of hardware."""
    parsed = launcher.parse(command.arguments)
    assert parsed.model is not None
    size = ("--data-parallel-size", str(parsed.data_parallel_size))
    arguments = ["--mesh", "ttnn", "--model", parsed.model, *size, *parsed.device_flags]
    return parse_args(arguments, command.environment)


def test_there_are_recipes_for_every_model() -> None:
    models = " ".join(command.arguments[0] for command in SERVING)
    for name in ("Llama-3.3-70B", "Qwen3-32B", "gpt-oss", "gemma", "Qwen2.5-VL"):
        assert name in models


@pytest.mark.parametrize("command", SERVING, ids=lambda it: it.arguments[0])
def test_command_lines_are_understood(command: Command) -> None:
    config = device_config(command)
    check_launch(config)
    rows, columns = grid_of(config.environment.mesh_device)
    assert rows * columns >= 1
    frontend = launcher.parse(command.arguments).frontend_flags
    read = read_command_line(["--device-service", "127.0.0.1:50051", *frontend], {})
    assert unaccepted_option(read.vllm_arguments) is None


@pytest.mark.feature(5)
def test_recipes_choose_the_galaxy_adapters() -> None:
    """Dotted paths: contract 2.19."""
    chosen = {}
    for command in SERVING:
        config = device_config(command)
        targets = adapter_registry(config.environment).targets
        assert all(target.origin is Origin.BUILT_IN for target in targets.values())
        chosen[command.arguments[0]] = (targets, config)
    targets, config = chosen["meta-llama/Llama-3.3-70B-Instruct"]
    galaxy = "models.demos.llama3_70b_galaxy.tt.generator_vllm"
    assert targets["TTLlamaForCausalLM"].path == f"{galaxy}:LlamaForCausalLM"
    assert config.engine["data_parallel_size"] == 4
    assert runs_as_lanes("LlamaForCausalLM", config.environment)
    targets, config = chosen["Qwen/Qwen3-32B"]
    assert targets["TTQwen3ForCausalLM"].path == f"{galaxy}:QwenForCausalLM"
    targets, _ = chosen["google/gemma-3-27b-it"]
    assert "TTGemma3ForConditionalGeneration" in targets


def test_who_runs_as_lanes_and_who_as_device_services() -> None:
    found = set()
    for command in SERVING:
        config = device_config(command)
        if config.engine["data_parallel_size"] > 1:
            name = command.arguments[0]
            architecture = (
                "GptOss" if "gpt-oss" in name else name[name.index("/") + 1 :]
            )
            family = re.match("[A-Za-z]+[0-9]?", architecture)
            assert family is not None
            lanes = runs_as_lanes(f"{family[0]}ForCausalLM", config.environment)
            found.add((name, config.environment.mesh_device, lanes))
    assert found == {
        ("meta-llama/Llama-3.3-70B-Instruct", "TG", True),
        ("openai/gpt-oss-120b", "(4,8)", True),
        ("meta-llama/Llama-3.1-8B-Instruct", "T3K", False),
        ("meta-llama/Llama-3.1-70B-Instruct", "TG", False),
    }


def test_settings_of_the_recipes_are_those_of_the_models() -> None:
    """Values that tt-metal's demos name for these models and products."""
    sizes = {
        "meta-llama/Llama-3.3-70B-Instruct": (1344544, 220000000),
        "Qwen/Qwen3-32B": (1345000, 184915840),
        "Qwen/Qwen2.5-VL-72B-Instruct": (None, 28467200),
    }
    for command in SERVING:
        tt = device_config(command).tt
        if command.arguments[0] in sizes:
            wanted = sizes[command.arguments[0]]
            assert (tt.worker_l1_size, tt.trace_region_size) == wanted
    [gemma] = [it for it in SERVING if "gemma" in it.arguments[0]]
    tt = device_config(gemma).tt
    assert (tt.l1_small_size, tt.fabric_config) == (768, "FABRIC_1D")


def test_the_check_and_the_example_are_understood() -> None:
    alone = [it for it in commands() if it.program == "tt-device-service"]
    check, plan, *hosts = [parse_args(it.arguments, it.environment) for it in alone]
    assert check.check
    assert check.mesh == "ttnn"
    assert plan.plan is not None
    assert plan.engine["data_parallel_size"] == 4
    assert all(it.engine["data_parallel_size"] == 1 for it in hosts)
    [frontend] = [it for it in commands() if it.program == "tt-frontend"]
    addresses = frontend.arguments[frontend.arguments.index("--device-service") + 1]
    assert len(hosts) == len(addresses.split(",")) == 2
    [example] = [it for it in commands() if "examples/" in " ".join(it.arguments)]
    assert (ROOT / example.arguments[0]).samefile(offline_inference_tt.__file__)
    assert offline_inference_tt.parse(example.arguments[1:]).measure_perf


def test_what_the_check_prints() -> None:
    """The sample is what a T3K gets, but for the times."""
    mesh = TtnnMesh(RecordingTtnn(8, ClusterType.T3K), TTOptions(), "T3K")
    mesh.open()
    try:
        lines = "\n".join(mesh.found())
    finally:
        mesh.close()
    assert f"```text\n{lines}\nopened in" in TEXT


def test_the_plan_that_is_shown(tmp_path: Path) -> None:
    [sample] = re.findall(r"```json\n(.*?)```", TEXT, flags=re.S)
    (tmp_path / "plan").write_text(sample)
    services = read_plan(tmp_path / "plan")
    for service in services:
        config = parse_args(["--mesh", "ttnn", *service.flags], service.environment)
        assert config.engine["data_parallel_size"] == 1
        visible = config.environment.visible_devices
        assert grid_on(4, config.environment.mesh_device, visible) == (1, 4)


def test_every_option_exists() -> None:
    parsers = parse_args(["--mesh", "cpu"], {}).engine
    own = {"mesh", "check"} | set(parsers)
    others = {"build", "device", "measure-perf", "no-deps", "override"}  # not ours
    for name in re.findall(r"`--([a-z][a-z-]+)[^`]*`", TEXT):
        assert name.replace("-", "_") in own or name in others, name


def test_every_option_of_the_mesh_exists() -> None:
    section = TEXT.partition("## Choosing the mesh")[2].partition("## Recipes")[0]
    rows = re.findall(r"^\| (`[a-z_0-9`, ]+`) \|", section, flags=re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) >= 7
    assert named <= catalogue().keys()
    hardware = {name for name, option in catalogue().items() if option.hardware_only}
    assert hardware - {"register_test_models"} <= named


def test_every_fabric_exists() -> None:
    named = set(re.findall(r"FABRIC_\w+D\w*", TEXT))
    assert {"FABRIC_1D", "FABRIC_1D_RING", "FABRIC_2D_TORUS_XY"} <= named
    assert named <= FabricConfig.__members__.keys()


class Asked(dict[str, str]):
    """An environment that notes what was looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return default


def test_every_variable_is_read_by_somebody() -> None:
    asked = Asked()
    Environment.read(asked)
    steps = plan("serve", ROOT / "constraints.txt", ROOT)
    installing = {name for step in steps for name in step.environment}
    composing = set(
        re.findall(r"^(?:# )?(\w+)=", (ROOT / "compose/env.example").read_text(), re.M)
    )
    set_by_us = asked.names | installing | composing | OF_OTHERS
    in_text = set(re.findall(r"`\$?([A-Z][A-Z0-9]*_[A-Z0-9_]+)[`=]", TEXT))
    assigned = set(re.findall(r"[\s`]([A-Z][A-Z0-9_]+)=", TEXT))
    kinds = {"STRICT_INIT", "RELAXED_INIT"} | FabricConfig.__members__.keys()
    assert in_text | assigned <= set_by_us | kinds
    # And none is forgotten.
    assert asked.names <= in_text | assigned


def test_grids() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (\d+) x (\d+) \|$", TEXT, flags=re.M)
    named = {
        name: (int(height), int(width))
        for names, height, width in rows
        for name in re.findall(r"`([^`]+)`", names)
    }
    assert len(named) == 13
    assert {name: grid_of(name) for name in named} == named
    assert grid_of("(4,8)") == (4, 8)
    assert grid_on(8, None, None) == (1, 8)


def test_the_refusal_that_is_quoted() -> None:
    quoted = "comes with images and is not built yet"
    assert quoted in " ".join(TEXT.split())
    assert any(quoted in " ".join(check.say.split()) for check in MODEL_CHECKS)


def pins(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = {}
    for line in lines:
        [pin] = Requirement(line).specifier
        found[Requirement(line).name] = pin.version
    return found


def test_the_filtered_pins_are_all_but_three() -> None:
    [line] = re.findall(r"^\$ (sed .*) > /tmp/", TEXT, flags=re.M)
    done = subprocess.run(
        shlex.split(line),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    groups = read_groups((ROOT / "constraints.txt").read_text())
    wanted = pins("\n".join(pin for name in SERVE[:-1] for pin in groups[name]))
    left = pins(done.stdout)
    assert {name: wanted[name] for name in left} == left
    assert wanted.keys() - left.keys() == {"numpy", "torch", "vllm"}


def test_what_ttnn_asks_for_beside_what_is_pinned() -> None:
    pinned = pins((ROOT / "constraints.txt").read_text())
    rows = re.findall(r"^\| (\w+) \| `([<>=][^`]+)` \| ([\d.]+) \| (\w+)", TEXT, re.M)
    assert len(rows) == 5
    for name, asked, ours, result in rows:
        assert pinned[name] == ours
        fits = SpecifierSet(asked).contains(ours)
        assert result == ("ours" if fits else "a")  # a conflict
    versions = dict(re.findall(r"(torch|vllm)==([\d.]+)", TEXT))
    assert versions == {name: pinned[name] for name in ("torch", "vllm")}


def test_vllm_is_built_as_make_builds_it() -> None:
    [step] = [
        step
        for step in plan("serve", ROOT / "constraints.txt", ROOT)
        if step.name == "vllm"
    ]
    [command] = [it for it in commands() if "vllm==0.30.0" in it.arguments]
    assert command.environment == step.environment
    assert command.arguments[3:] == list(step.arguments)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    local = [target for target in targets if "://" not in target]
    assert len(local) >= 3
    for target in local:
        assert (DOCUMENT.parent / target).exists(), target
    for path in re.findall(r"`((?:examples|tests|compose)/[\w./-]+)`", TEXT):
        assert (ROOT / path).exists() or path == "compose/.env", path


def test_the_override_is_what_is_described() -> None:
    override = yaml.safe_load((ROOT / "compose/hardware.yaml").read_text())
    base = yaml.safe_load((ROOT / "compose/docker-compose.yaml").read_text())
    [(name, service)] = override["services"].items()
    assert name in base["services"]
    assert service["devices"] == ["/dev/tenstorrent:/dev/tenstorrent"]
    assert service["volumes"] == ["/dev/hugepages-1G:/dev/hugepages-1G"]
    assert service["ulimits"] == {"memlock": -1}
    assert service["stop_grace_period"] == "2m"
    asked = Asked()
    Environment.read(asked)
    assert asked.names <= service["environment"].keys()
    flags = service["environment"]["DEVICE_FLAGS"]
    assert flags == "--mesh ttnn ${DEVICE_FLAGS:-}"
    # Unset ones must stay unset: an empty TT_VISIBLE_DEVICES means no device.
    assert service["environment"]["TT_VISIBLE_DEVICES"] is None
