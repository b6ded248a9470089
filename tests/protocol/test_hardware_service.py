"""A whole device service on mesh ttnn: from the registry to the tokens read back.

Its `ttnn` and its tt-metal are stand-ins on the import path; everything of ours is
what runs on hardware.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from transformers import AutoConfig

from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from tests.support.hardware import FAILING_FROM, write_tree
from tests.support.stack import DeviceProcess
from tests.unit.device_service.test_resolve import changed_model
from ttserve.sim_model import sim_model_dir
from ttserve.v1 import device_pb2, inspector_pb2

ROOT = Path(__file__).parents[2]
LLAMA = "models.tt_transformers.tt.generator_vllm:LlamaForCausalLM"
GALAXY = "models.demos.llama3_70b_galaxy.tt.generator_vllm:LlamaForCausalLM"
TOKENS = 40

pytestmark = pytest.mark.timeout(400)

Launch = Callable[..., DeviceProcess]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Start a device service on a T3K, with one adapter in its tt-metal."""
    started: list[DeviceProcess] = []

    def start(adapter: str, model: str, *options: str) -> DeviceProcess:
        write_tree(tmp_path, adapter)
        path = [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        monkeypatch.setenv("MESH_DEVICE", "T3K")
        service = DeviceProcess(
            tmp_path / "device.log",
            *("--model", model, "--max-model-len", "512"),
            *("--max-num-seqs", "4", "--max-num-batched-tokens", "64"),
            *options,
            mesh="ttnn",
            fork=False,  # it finds its modules elsewhere
        )
        started.append(service)
        service.start()
        return service

    yield start
    for service in started:
        service.close()


def _generate(service: DeviceProcess, prompt: list[int]) -> list[int]:
    request = device_pb2.GenerateRequest(prompt_token_ids=prompt)
    request.stop.max_output_tokens = TOKENS
    request.sampling.temperature = 0.0
    request.ignore_eos = True
    answers = service.device.Generate(request, timeout=100)
    return [token for answer in answers for token in answer.token_ids]


def _serve(service: DeviceProcess) -> None:
    """More requests than rows, prompts in chunks; each has its tokens."""
    prompts = [
        [70 + (i + first) % 9 for i in range(9 * first)] for first in range(2, 12)
    ]
    vocabulary = SimVocabulary.of(AutoConfig.from_pretrained(sim_model_dir()))
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda it: _generate(service, it), prompts))
    assert found == [expected_tokens(it, TOKENS, vocabulary) for it in prompts]


def _calls(service: DeviceProcess) -> list[str]:
    """What was done to devices."""
    return re.findall(r"^ttnn: (\w+.*)$", service.log, re.MULTILINE)


@pytest.mark.feature(3, 4, 31, 32, 34, 35)
def test_a_service_on_hardware_from_start_to_end(launch: Launch) -> None:
    mode = "--additional-config.tt.sample_on_device_mode"
    service = launch(LLAMA, str(sim_model_dir()), mode, "decode_only")
    service.wait_until_serving()
    _serve(service)
    steps = service.steps()
    assert any(step.overlapped for step in steps)
    assert inspector_pb2.SAMPLING_SITE_DEVICE in {step.sampling_site for step in steps}
    model = service.device.GetModel(device_pb2.GetModelRequest(), timeout=10)
    assert model.model.architecture == "LlamaForCausalLM"
    assert not re.search("TT[A-Z][a-z]", str(model))
    service.signal(signal.SIGTERM)
    assert service.process.wait(30) == 0
    fabric, opened, profiler, closed, disabled = _calls(service)
    assert fabric.startswith("fabric FabricConfig.FABRIC_1D_RING")
    assert "'num_planes': 2" in fabric
    assert opened == "open (1, 8) {'trace_region_size': 50000000}"
    assert (profiler, closed) == ("profiler mesh", "close mesh")
    assert disabled.startswith("fabric FabricConfig.DISABLED")
    assert "contract" not in service.log


@pytest.mark.feature(35)
@pytest.mark.edge(57)
def test_after_a_fatal_error_everything_is_closed(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAILING_FROM, "3")
    service = launch(LLAMA, str(sim_model_dir()))
    service.wait_until_serving()
    for _ in range(2):  # the second failure with no success between is the end
        with suppress(grpc.RpcError):
            assert len(_generate(service, [70] * 200)) < TOKENS
    assert service.process.wait(60) == 1
    assert "the engine has ended" in service.log
    done = [call.partition(" {")[0] for call in _calls(service)]
    assert done[1:] == [
        "open (1, 8)",
        "profiler mesh",
        "close mesh",
        "fabric FabricConfig.DISABLED",
    ]


@pytest.mark.feature(5, 31, 80)
def test_another_version_in_lanes_with_another_fabric_sampled_on_the_host(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tt-metal has only this version, so that no other can have been loaded."""
    monkeypatch.setenv("TT_LLAMA_TEXT_VER", "llama3_70b_galaxy")
    options = ("--data-parallel-size=2", "--additional-config.tt.fabric_config")
    service = launch(GALAXY, str(sim_model_dir()), *options, "FABRIC_2D")
    service.wait_until_serving()
    assert len(service.state().lanes) == 2
    _serve(service)
    assert _calls(service)[0].startswith("fabric FabricConfig.FABRIC_2D ")
    sites = {step.sampling_site for step in service.steps()}
    assert inspector_pb2.SAMPLING_SITE_DEVICE not in sites
    assert "contract" not in service.log


@pytest.mark.feature(3, 16)
def test_a_model_without_an_adapter_opens_nothing(
    launch: Launch, tmp_path: Path
) -> None:
    model = changed_model(tmp_path / "model", architectures=["GraniteForCausalLM"])
    service = launch(LLAMA, model)
    assert service.process.wait(100) == 2
    (line,) = re.findall(r"^.*no adapter serves.*$", service.log, re.MULTILINE)
    assert "TTGraniteForCausalLM on mesh ttnn; known are TTDeepseekV3" in line
    assert not _calls(service)
    assert "Traceback" not in service.log
