"""Starting, and not starting: real processes, statuses and lines."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from device_service.codec.recording_file import decode
from device_service.replay.__main__ import main as replay_main
from tests.support.prepared import start as start_command
from ttserve.sim_model import sim_model_dir
from ttserve.v1 import (
    device_pb2,
    device_pb2_grpc,
    inspector_pb2,
    inspector_pb2_grpc,
    step_pb2,
)

RUN_MAIN = Path(__file__).with_name("run_main.py")
ROOT = Path(__file__).parents[3]
PREFIX = "tt-device-service: error: "
STOP_SECONDS = 60.0

pytestmark = pytest.mark.timeout(400)


def model_dir(path: Path, **changes: Any) -> str:
    """The sim model's directory with a changed configuration."""
    shutil.copytree(sim_model_dir(), path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))
    return str(path)


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@pytest.fixture(scope="module")
def refusals(
    tmp_path_factory: pytest.TempPathFactory, taken_port: int
) -> dict[str, tuple[int, str]]:
    """What each bad command line gave; one process runs them all."""
    models = tmp_path_factory.mktemp("models")
    (models / "broken").mkdir()
    (models / "broken" / "config.json").write_text("{")
    sim = str(sim_model_dir())
    unknown = model_dir(models / "unknown", architectures=["NobodyForCausalLM"])
    quantized = model_dir(
        models / "quantized",
        quantization_config={
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 128,
            "desc_act": False,
            "sym": True,
        },
    )
    without_tokenizer = model_dir(models / "bare")
    Path(without_tokenizer, "tokenizer.json").unlink()
    damaged_tokenizer = model_dir(models / "garbled")
    Path(damaged_tokenizer, "tokenizer.json").write_text("{oops")
    damaged_weights = model_dir(models / "cut")
    Path(damaged_weights, "model.safetensors").touch()
    cases: dict[str, tuple[list[str], dict[str, str]]] = {
        "unknown flag": (["--frobnicate"], {}),
        "malformed listen": (["--listen", "50051"], {}),
        "unknown tt key": (["--additional-config.tt.trace_mod", "all"], {}),
        "wrong tt type": (["--additional-config.tt.enable_model_warmup", "1"], {}),
        "explicit and unsupported": (["--enable-lora"], {}),
        "missing directory": (["--model", "/nowhere/at/all"], {}),
        "hub out of reach": (["--model", "nobody/nothing"], {}),
        "broken config": (["--model", str(models / "broken")], {}),
        "unknown architecture": (["--model", unknown], {}),
        "quantized": (["--mesh", "cpu", "--model", quantized], {}),
        "too long for the model": (["--max-model-len", "99999999"], {}),
        "too long for the pool": (["--num-gpu-blocks-override", "9"], {}),
        "no memory": (
            ["--mesh", "cpu", "--model", sim, "--kv-cache-memory-bytes", "100k"],
            {},
        ),
        "lanes": (["--data-parallel-size", "2"], {}),
        "grid": ([], {"MESH_DEVICE": "N9000"}),
        "simulated profile": (["--additional-config.tt.sim.decode_ms", "-1"], {}),
        "hardware": (["--mesh", "ttnn"], {}),
        "environment": ([], {"VLLM_USE_V2_MODEL_RUNNER": "1"}),
        "batch below rows": (["--max-num-batched-tokens=64", "--max-num-seqs=65"], {}),
        "address elsewhere": (["--listen", "203.0.113.1:1"], {}),
        "no tokenizer": (["--model", without_tokenizer], {}),
        "damaged tokenizer": (["--model", damaged_tokenizer], {}),
        "damaged weights": (["--mesh", "cpu", "--model", damaged_weights], {}),
        "port taken": (["--listen", f"127.0.0.1:{taken_port}"], {}),
    }
    lines = [
        (argv if "--mesh" in argv else ["--mesh", "sim", *argv], environment)
        for argv, environment in cases.values()
    ]
    lines = [
        (["--listen", "127.0.0.1:0", *argv], environment) for argv, environment in lines
    ]
    done = subprocess.run(
        [sys.executable, str(RUN_MAIN)],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    return dict(zip(cases, map(tuple, results), strict=True))


SAYS = {
    "unknown flag": "unknown option --frobnicate",
    "malformed listen": "'50051' is not HOST:PORT",
    "unknown tt key": "'trace_mod'; did you mean trace_mode?",
    "wrong tt type": "enable_model_warmup must be true or false, not 1",
    "explicit and unsupported": "--enable-lora",
    "missing directory": "--model /nowhere/at/all: no such directory",
    "hub out of reach": "--model nobody/nothing: is no local directory",
    "broken config": "",
    "unknown architecture": "NobodyForCausalLM",
    "quantized": "gptq",
    "too long for the model": "max_model_len (99999999) is greater",
    "too long for the pool": "does not fit --num-gpu-blocks-override 9",
    "no memory": "not enough memory for the KV pool",
    "lanes": "--data-parallel-size 2: LlamaForCausalLM does not run as lanes",
    "grid": "MESH_DEVICE='N9000' is not known",
    "simulated profile": "tt.sim.decode_ms must be a number >= 0",
    "hardware": "--mesh ttnn: the ttnn package does not import",
    "environment": "VLLM_USE_V2_MODEL_RUNNER=1 is set",
    "batch below rows": "max_num_batched_tokens",
    "address elsewhere": "--listen 203.0.113.1:1: cannot listen",
    "no tokenizer": "bare cannot be loaded; are its files complete?",
    "damaged tokenizer": "garbled cannot be loaded; are its files complete?",
    "damaged weights": "cut is damaged",
    "port taken": "the address is in use",
}


@pytest.mark.parametrize("case", SAYS)
def test_bad_input_is_one_line_and_status_2(
    case: str, refusals: dict[str, tuple[int, str]]
) -> None:
    status, stderr = refusals[case]
    said = [line for line in stderr.splitlines() if line.startswith(PREFIX)]
    others = [line for line in stderr.splitlines() if not _is_log_line(line)]
    assert status == 2
    assert len(said) == 1
    assert others == said
    assert SAYS[case] in said[0]


def _is_log_line(line: str) -> bool:
    return re.match(r"\d\d:\d\d:\d\d INFO ", line) is not None


class Service:
    """`tt-device-service` as a process of its own, or a fork of a prepared one."""

    def __init__(self, *arguments: str, fork: bool) -> None:
        reading, writing = os.pipe()
        self._errors = os.fdopen(reading)
        with open(os.devnull, "wb") as nowhere, os.fdopen(writing) as errors:
            self._process = start_command(
                ["-m", "device_service", *arguments],
                stdout=nowhere.fileno(),
                stderr=errors.fileno(),
                fork=fork,
            )
        self.lines: list[str] = []

    def wait_for(self, text: str) -> str:
        """Read what it says up to a line with this text."""
        for line in self._errors:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"ended without saying {text!r}: {self.output}")

    def catches(self, number: signal.Signals) -> bool:
        """Whether it has a handler for a signal yet."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (mask,) = re.findall(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
        return bool(int(mask, 16) >> (number - 1) & 1)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for its end; the status."""
        self.lines += self._errors
        return self._process.wait(STOP_SECONDS)

    def kill(self) -> None:
        self._errors.close()
        self._process.kill()
        self._process.wait(STOP_SECONDS)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def places(self, text: str) -> list[int]:
        """Of the lines with this text, among those that were read."""
        return [number for number, line in enumerate(self.lines) if text in line]


@pytest.fixture
def services() -> Iterator[list[Service]]:
    started: list[Service] = []
    yield started
    for service in started:
        service.kill()


def start(services: list[Service], *arguments: str, fork: bool = True) -> Service:
    services.append(Service("--mesh", "sim", *arguments, fork=fork))
    return services[-1]


def port_of(service: Service) -> int:
    line = service.wait_for("listening on")
    return int(line.rpartition(":")[2])


@pytest.mark.edge(55)
@pytest.mark.feature(40)
def test_a_life(services: list[Service]) -> None:
    options = ("--listen", "127.0.0.1:0", "--max-model-len", "2048")
    service = start(services, *options, fork=False)
    port = port_of(service)
    service.wait_for("serving, after")
    # Loggers outside of vLLM are heard from the first line on.
    assert "reading the model's configuration" in service.output
    assert "effective configuration" in service.output
    assert max(service.places("warming up")) < service.places("serving, after")[0]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        device = device_pb2_grpc.DeviceStub(channel)
        model = device.GetModel(device_pb2.GetModelRequest()).model
        request = device_pb2.GenerateRequest(prompt_token_ids=[40, 41, 42])
        request.stop.max_output_tokens = 5
        tokens = [i for answer in device.Generate(request) for i in answer.token_ids]
    assert model.served_names == ["ttserve-sim"]
    assert model.architecture == "LlamaForCausalLM"
    assert model.max_sequence_tokens == 2048
    assert model.scheduling.rows_per_lane == 32
    assert model.limits.max_queued_requests == 128
    assert model.kv_cache.num_blocks == 32 * 32 + 1
    assert model.mesh.kind == "sim"
    assert re.fullmatch("[0-9a-f]{64}", model.fingerprint)
    assert len(tokens) == 5
    began = time.monotonic()
    service.signal(signal.SIGTERM)
    assert service.end() == 0
    assert time.monotonic() - began < 10.0
    assert "Traceback" not in service.output
    assert "closing the mesh" in service.lines[-1]


def test_a_signal_while_starting(services: list[Service]) -> None:
    importing = start(services, "--listen", "127.0.0.1:0", fork=False)
    loading = start(services, "--listen", "127.0.0.1:0")
    while not importing.catches(signal.SIGTERM):
        time.sleep(0.01)
    importing.signal(signal.SIGINT)
    loading.wait_for("listening on")
    loading.signal(signal.SIGTERM)
    for service in (importing, loading):
        assert service.end() == 0
        assert "Traceback" not in service.output


@pytest.mark.feature(40)
def test_a_second_signal_ends_it_at_once(services: list[Service]) -> None:
    """Of one that serves without a warm-up, and says so."""
    slow = ("--additional-config.tt.sim.decode_ms", "60000")
    off = ("--additional-config.tt.enable_model_warmup", "false")
    service = start(services, "--listen", "127.0.0.1:0", *slow, *off)
    port = port_of(service)
    service.wait_for("serving, after")
    assert not service.places("warming up")
    assert service.places("tt.enable_model_warmup is off")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        device = device_pb2_grpc.DeviceStub(channel)
        request = device_pb2.GenerateRequest(prompt_token_ids=[40])
        next(iter(device.Generate(request)))  # prefill; decode takes a minute
        service.signal(signal.SIGTERM)
        service.wait_for("draining")
        began = time.monotonic()
        service.signal(signal.SIGTERM)
        assert service.end() == 128 + signal.SIGTERM
    assert time.monotonic() - began < 5.0
    assert "second signal" in service.lines[-1]


def wait_for_steps(inspector: inspector_pb2_grpc.InspectorStub, count: int) -> None:
    """Until a recording has them: a step's answers go out before its record."""
    steps = 0
    while steps < count:
        dump = inspector.DumpRecording(inspector_pb2.DumpRecordingRequest())
        steps = len(decode(b"".join(part.data for part in dump)).steps)


def test_a_dead_engine_ends_the_process(
    services: list[Service], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And leaves a recording, as SIGUSR1 does without ending anything."""
    poison = ("--additional-config.tt.sim.poison_step", "4")
    kept = ("--recording-dir", str(tmp_path))
    service = start(services, "--listen", "127.0.0.1:0", *poison, *kept)
    port = port_of(service)
    service.signal(signal.SIGUSR1)
    service.wait_for("nothing to record yet")
    service.wait_for("serving, after")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        device = device_pb2_grpc.DeviceStub(channel)
        request = device_pb2.GenerateRequest(prompt_token_ids=[40])
        request.stop.max_output_tokens = 2
        *_, _last = device.Generate(request)
        wait_for_steps(inspector_pb2_grpc.InspectorStub(channel), 2)
        service.signal(signal.SIGUSR1)
        asked_for = service.wait_for("recording of 2 steps (signal): ")
        request.stop.max_output_tokens = 9
        *_, last = device.Generate(request)
    assert last.finish.reason == step_pb2.FINISH_REASON_ERROR
    assert service.end() == 1
    assert sum("the engine has ended" in line for line in service.lines) == 1
    assert "closing the mesh" in service.lines[-1]
    (fatal,) = [it for it in service.lines if "recording of 4 steps (fatal): " in it]
    files = [Path(line.split()[-1]) for line in (asked_for, fatal)]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert [replay_main([str(file)]) for file in files] == [0, 0]
    said = capsys.readouterr().out
    assert "replayed 2 steps: every decision is equal" in said
    assert "the engine had ended: MeshPoisoned" in said
