"""The end of a device service, as each kind of client sees it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.support import slow_start
from tests.support.attach_client import submission
from tests.support.frontend_process import FrontendProcess, wait_for
from tests.support.schemas import slow_schema
from tests.support.stack import DeviceProcess
from ttserve.errors import Reason
from ttserve.protocol import PROTOCOL_MINOR
from ttserve.status import from_rpc_error, from_status
from ttserve.v1 import device_pb2, generation_pb2, inspector_pb2, step_pb2

pytestmark = pytest.mark.timeout(400)

GRACE = 3.0
STREAMS = 8
STARVED_SECONDS = 4.0
LOGPROBS = generation_pb2.LogprobsRequest(top_count=20)
ENDLESS = generation_pb2.StopRules(max_output_tokens=1900)
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@contextlib.contextmanager
def started(directory: Path, *options: str, **how: Any) -> Iterator[DeviceProcess]:
    """A device service that ends with the test."""
    device = DeviceProcess(directory / "log", *options, **how)
    try:
        device.start()
        yield device
    finally:
        device.close()


def requests_of(*handles: int) -> Iterator[device_pb2.AttachRequest]:
    """What an attached frontend sends that never pings and never reads."""
    hello = device_pb2.OpenSession(
        protocol_minor=PROTOCOL_MINOR, frontend_name="deaf", vllm_version="0.30.0"
    )
    yield device_pb2.AttachRequest(open=hello)
    for handle in handles:
        changes = {"stop": ENDLESS, "logprobs": LOGPROBS}
        yield device_pb2.AttachRequest(submit=submission(handle, **changes))
    while True:  # never half-closed
        time.sleep(0.1)
        yield device_pb2.AttachRequest(ping=device_pb2.Ping(sequence=1))


def test_nobody_holds_up_a_drain(tmp_path: Path) -> None:
    """Clients that do not read, connections without a call, a grammar that compiles."""
    options = ("--shutdown-grace", str(GRACE), "--max-num-seqs", "16")
    profile = ("--additional-config.tt.sim.decode_ms", "10")
    with (
        started(tmp_path, *options, *profile) as service,
        ThreadPoolExecutor() as pool,
        contextlib.ExitStack() as connections,
    ):
        service.wait_until_serving()
        device, channel = service.device, grpc.insecure_channel(service.address)
        deaf = [
            device.Attach(requests_of(*range(1, 9))),
            service.inspector.WatchSteps(inspector_pb2.WatchStepsRequest()),
            device.Generate(
                device_pb2.GenerateRequest(
                    prompt_token_ids=[40],
                    stop=ENDLESS,
                    ignore_eos=True,
                    logprobs=LOGPROBS,
                )
            ),
        ]
        wait_for(lambda: service.live_requests() == 9)
        silent = [
            connections.enter_context(
                socket.create_connection(("127.0.0.1", service.port))
            )
            for _ in range(2)
        ]
        silent[1].sendall(HTTP2_PREFACE)

        def generate(tokens: int, **constraint: Any) -> step_pb2.Finish:
            request = device_pb2.GenerateRequest(
                prompt_token_ids=[40],
                stop=generation_pb2.StopRules(max_output_tokens=tokens),
                ignore_eos=not constraint,
                structured_output=generation_pb2.StructuredOutput(**constraint),
            )
            if not constraint:
                request.ClearField("structured_output")
            *_, last = device.Generate(request)
            finish: step_pb2.Finish = last.finish
            return finish

        short = pool.submit(generate, 60)
        endless = pool.submit(generate, 1900)
        compiling = pool.submit(generate, 60, json_schema=slow_schema(2000))
        wait_for(lambda: service.live_requests() == 12)
        service.signal(signal.SIGTERM)
        began = time.monotonic()
        wait_for(lambda: not service.serving(), 1.0)
        with pytest.raises(grpc.RpcError) as refused:
            generate(1)
        error: Any = refused.value
        assert from_rpc_error(error).reason is Reason.DRAINING
        assert short.result().reason == step_pb2.FINISH_REASON_LENGTH
        for ended in (endless, compiling):
            finish = ended.result()
            assert finish.reason == step_pb2.FINISH_REASON_ERROR
            assert from_status(finish.error).reason is Reason.DRAINING
        assert service.process.wait(30) == 0
        assert GRACE - 0.1 < time.monotonic() - began < GRACE + 2
        assert "Traceback" not in service.log
        for call in deaf:
            call.cancel()
        channel.close()


def test_a_frontend_without_processor_time_loses_nothing(tmp_path: Path) -> None:
    """All is generated and written long before it reads on: that is waited for."""
    profile = ("--additional-config.tt.sim.decode_ms", "10")
    with (
        started(tmp_path, *profile, "--heartbeat-timeout", "10") as service,
        FrontendProcess(service.address, tmp_path / "frontend") as frontend,
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        service.wait_until_serving()
        frontend.wait_until_ready()
        begun = [threading.Event() for _ in range(STREAMS)]
        answers = [pool.submit(stream, frontend.url, event) for event in begun]
        for event in begun:
            assert event.wait(20)
        service.signal(signal.SIGTERM)
        wait_for(lambda: "device_draining" in httpx.get(f"{frontend.url}/ready").text)
        frontend.process.send_signal(signal.SIGSTOP)
        # The streams are generated in 2 s; a second more than what is written at the
        # very end may take.
        time.sleep(STARVED_SECONDS)
        assert service.process.poll() is None
        frontend.process.send_signal(signal.SIGCONT)
        for answer in answers:
            assert answer.result(20) == "length"
        assert service.process.wait(10) == 0


def stream(url: str, begun: threading.Event) -> str | None:
    """The finish reason, or error, of a stream of 200 tokens."""
    body = {"model": "ttserve-sim", "prompt": [1, 2, 3], "max_tokens": 200}
    answer = httpx.stream("POST", f"{url}/v1/completions", json=body | {"stream": True})
    last = None
    with answer as response:
        for line in response.iter_lines():
            begun.set()
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                last = (
                    chunk["choices"][0]["finish_reason"] if "choices" in chunk else line
                )
    return last


def test_a_signal_while_it_warms_up(tmp_path: Path) -> None:
    """The part under way is waited for, as the mesh must be closed; no other is."""
    with started(tmp_path, program=(str(slow_start.__file__),)) as service:
        wait_for(lambda: "prefill warms up" in service.log, 200)
        service.signal(signal.SIGTERM)
        assert service.process.wait(30) == 0
        assert "closing the mesh" in service.log
        assert "Traceback" not in service.log
