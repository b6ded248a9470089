"""Starts our commands as a user would, and ends them."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.process_log import ProcessLog
from bench.registry import CannotRun
from bench.worker import EQUAL_TERMS, ROOT

HOST = "127.0.0.1"
READY_SECONDS = 300.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Stack:
    """Where a running `tt-serve` listens."""

    http_port: int
    grpc_port: int

    @property
    def grpc_address(self) -> str:
        """HOST:PORT of the device service."""
        return f"{HOST}:{self.grpc_port}"


class Process:
    """A command that runs until `stop`. Its output goes to a file of its own."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.began = time.monotonic()
        self._log = ProcessLog()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log.file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **EQUAL_TERMS},
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_for(self, is_ready: Callable[[], bool]) -> float:
        """Ask until the answer is yes; seconds since the process was started."""
        while not is_ready():
            if self._process.poll() is not None:
                raise CannotRun(f"{self.name} ended: {self._log.last_words()}")
            if time.monotonic() > self.began + READY_SECONDS:
                words = self._log.last_words()
                raise CannotRun(f"{self.name} does not get ready; it said: {words}")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - self.began

    def stop(self) -> None:
        """Ask it to end, and make sure."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@contextlib.contextmanager
def running(name: str, command: Sequence[str]) -> Iterator[Process]:
    """A command for the time of a `with` block."""
    process = Process(name, command)
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def tt_serve(*flags: str) -> Iterator[Stack]:
    """`tt-serve` with one frontend, ready."""
    http_port, grpc_port, metrics_port = free_ports(3)
    command = [
        *program("tt-serve", "ttserve.launcher"),
        *("--port", str(http_port), "--grpc-port", str(grpc_port)),
        *("--metrics-port", str(metrics_port), *flags),
    ]
    with running("tt-serve", command) as process:
        process.wait_for(lambda: http_is_ready(http_port))
        yield Stack(http_port, grpc_port)


@contextlib.contextmanager
def device_service(*flags: str) -> Iterator[str]:
    """`tt-device-service`, serving; its address."""
    (port,) = free_ports(1)
    address = f"{HOST}:{port}"
    command = program("tt-device-service", "device_service")
    with running("tt-device-service", [*command, "--listen", address, *flags]) as it:
        it.wait_for(lambda: grpc_is_serving(address))
        yield address


def program(command: str, package: str) -> list[str]:
    """One of our commands, by the interpreter that runs this."""
    script = Path(sys.executable).with_name(command)
    return [os.fspath(script)] if script.exists() else [sys.executable, "-m", package]


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def http_is_ready(port: int) -> bool:
    """Whether `GET /ready` says 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def grpc_is_serving(address: str) -> bool:
    """Whether the standard health service says SERVING."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
