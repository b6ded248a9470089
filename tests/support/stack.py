"""A device service and frontends as processes, for tests of the whole."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.frontend_process import (
    FrontendProcess,
    free_port,
    wait_for,
)
from tests.support.prepared import Process, start
from ttserve.v1 import device_pb2_grpc, inspector_pb2, inspector_pb2_grpc

START_SECONDS = 200.0


class DeviceProcess:
    """`tt-device-service` on a fixed port; may be killed and started again.

    With `fork`, the plain command may be a fork of a prepared process.
    """

    def __init__(
        self,
        log: Path,
        *options: str,
        mesh: str = "sim",
        program: Sequence[str] = ("-m", "device_service"),
        fork: bool = True,
    ) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._log = log
        self._fork = fork
        self._words = [
            *(*program, "--mesh", mesh),
            *("--listen", self.address, *options),
        ]
        self._process: Process | None = None
        self._channel = grpc.insecure_channel(
            self.address,
            options=[
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 100),
            ],
        )
        self.inspector = inspector_pb2_grpc.InspectorStub(self._channel)
        self.device = device_pb2_grpc.DeviceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def start(self, *more_options: str) -> None:
        """Start the process; `wait_until_serving` says when it is up."""
        words = [*self._words, *more_options]
        with self._log.open("ab") as log:
            file = log.fileno()
            self._process = start(words, stdout=file, stderr=file, fork=self._fork)

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def serving(self) -> bool:
        """What grpc.health.v1.Health says."""
        try:
            answer = self._health.Check(health_pb2.HealthCheckRequest(), timeout=2)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def wait_until_serving(self) -> None:
        """Until it serves; fails with its log if it ends before."""
        wait_for(
            lambda: self.serving() or self.process.poll() is not None, START_SECONDS
        )
        assert self.process.poll() is None, self.log

    def state(self) -> inspector_pb2.GetStateResponse:
        """A picture of the engine."""
        answer: inspector_pb2.GetStateResponse = self.inspector.GetState(
            inspector_pb2.GetStateRequest(), timeout=10
        )
        return answer

    def live_requests(self) -> int:
        """Requests that hold a row or wait for one."""
        return sum(len(lane.rows) + len(lane.waiting) for lane in self.state().lanes)

    def steps(self, limit: int = 1000) -> Sequence[inspector_pb2.StepRecord]:
        """The newest steps, oldest first."""
        request = inspector_pb2.ListStepsRequest(limit=limit)
        answer: inspector_pb2.ListStepsResponse = self.inspector.ListSteps(
            request, timeout=10
        )
        return answer.steps

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process still runs."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL and wait for the end."""
        self.signal(signal.SIGKILL)
        self.process.wait(20)

    def close(self) -> None:
        """Kill what runs and close the channel."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self.kill()
        self._channel.close()


class Stack:
    """One device service and frontends over it, all serving."""

    def __init__(self, device: DeviceProcess, frontends: list[FrontendProcess]) -> None:
        self.device = device
        self.frontends = frontends

    @property
    def urls(self) -> list[str]:
        """Base URLs of the frontends."""
        return [frontend.url for frontend in self.frontends]

    def assert_nothing_is_held(self, *, sessions: int) -> None:
        """No row, waiting request, referenced block or grammar is left."""
        wait_for(lambda: self.device.live_requests() == 0, 10)
        state = self.device.state()
        for lane in state.lanes:
            assert lane.free_blocks == lane.total_blocks
        assert state.grammars == 0
        assert state.steps_in_flight == 0
        assert len(state.sessions) == sessions


@contextlib.contextmanager
def running_stack(
    directory: Path,
    *,
    frontends: int = 1,
    mesh: str = "sim",
    sim: dict[str, Any] | None = None,
    device_options: Sequence[str] = (),
    frontend_options: Sequence[str] = (),
    fork: bool = True,
) -> Iterator[Stack]:
    """Start everything, wait until all serve, and leave nothing behind."""
    options = list(device_options)
    if sim is not None:
        options += ["--additional-config", json.dumps({"tt": {"sim": sim}})]
    device = DeviceProcess(directory / "device.log", *options, mesh=mesh, fork=fork)
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(device.close)
        device.start()
        started = [
            cleanup.enter_context(
                FrontendProcess(
                    device.address,
                    directory / f"frontend{i}.log",
                    *frontend_options,
                    fork=fork,
                )
            )
            for i in range(frontends)
        ]
        device.wait_until_serving()
        for frontend in started:
            frontend.wait_until_ready()
        yield Stack(device, started)
