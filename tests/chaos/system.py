"""Device services and frontends as processes that may be harmed, and what they hold."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import psutil

from bench.progress import say
from bench.results import Result, result
from tests.support.frontend_process import FrontendProcess, wait_for
from tests.support.stack import DeviceProcess

SETTLE_SECONDS = 30.0
POLL_SECONDS = 0.2
READY_SECONDS = 900.0
# Connections that gRPC keeps or drops as it likes.
SPARE_FDS = 6


@dataclass(frozen=True, slots=True)
class Holding:
    """What a frontend holds: open files, and what its event loop's tasks run."""

    fds: int
    tasks: Counter[str]


class Frontend:
    """A frontend that can be killed, stopped, started again and looked into."""

    def __init__(
        self, addresses: str, directory: Path, name: str, *options: str
    ) -> None:
        self.name = name
        self._socket = directory / f"{name}.sock"
        program = ("-m", "tests.chaos.observed", str(self._socket))
        quiet = ("--disable-uvicorn-access-log", *options)
        log = directory / f"{name}.log"
        self._it = FrontendProcess(addresses, log, *quiet, program=program)

    @property
    def port(self) -> int:
        return self._it.port

    @property
    def url(self) -> str:
        return self._it.url

    @property
    def pid(self) -> int:
        return self._it.process.pid

    def start(self) -> None:
        self._socket.unlink(missing_ok=True)
        self._it.__enter__()

    def ready(self) -> bool:
        return self._it.ready()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process still runs."""
        if self._it.process.poll() is None:
            self._it.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._it.kill()

    def has_ended(self) -> bool:
        return self._it.process.poll() is not None

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.kill()

    def open_requests(self) -> int:
        """What it counts itself."""
        devices = httpx.get(f"{self.url}/health", timeout=10).json()["devices"]
        return sum(device["open_requests"] for device in devices)

    def holding(self) -> Holding:
        process = psutil.Process(self.pid)
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(20)
            asking.connect(str(self._socket))
            with asking.makefile() as lines:
                tasks = Counter(line.strip() for line in lines)
        return Holding(process.num_fds(), tasks)


@dataclass
class System:
    """Everything that runs in a case."""

    devices: list[DeviceProcess]
    frontends: list[Frontend]

    @property
    def ports(self) -> list[int]:
        return [frontend.port for frontend in self.frontends]

    def wait_until_ready(self) -> None:
        """Until every frontend works with every device service."""
        wait_for(self._all_ready, READY_SECONDS)

    def _all_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            for frontend in self.frontends:
                answer = httpx.get(f"{frontend.url}/ready", timeout=10)
                devices = answer.json().get("devices", [])
                states = [device["state"] for device in devices]
                if answer.status_code != 200 or {*states} - {"ready"}:
                    return False
            return True
        return False

    def memory(self) -> list[int]:
        """Resident bytes of each process, device services first."""
        pids = [device.process.pid for device in self.devices]
        pids += [frontend.pid for frontend in self.frontends]
        return [psutil.Process(pid).memory_info().rss for pid in pids]

    def holdings(self) -> list[Holding]:
        """What each frontend holds now."""
        return [frontend.holding() for frontend in self.frontends]

    def leftovers(self, before: Sequence[Holding]) -> dict[str, int]:
        """What should not be there when nobody asks anything; all zero when right.

        `before` is what frontends held before the harm, when nobody asked either.
        """
        states = [device.state() for device in self.devices]
        lanes = [lane for state in states for lane in state.lanes]
        now = self.holdings()
        pairs = list(zip(now, before, strict=True))
        tasks = sum((n.tasks - b.tasks for n, b in pairs), Counter[str]())
        counts = {
            "rows": sum(len(lane.rows) for lane in lanes),
            "waiting": sum(len(lane.waiting) for lane in lanes),
            "blocks": sum(lane.total_blocks - lane.free_blocks for lane in lanes),
            "grammars": sum(state.grammars for state in states),
            "steps in flight": sum(state.steps_in_flight for state in states),
            "sessions": sum(
                abs(len(state.sessions) - len(self.frontends)) for state in states
            ),
            "open requests": sum(f.open_requests() for f in self.frontends),
            "fds": sum(max(0, n.fds - b.fds - SPARE_FDS) for n, b in pairs),
        }
        return counts | {f"task {name}": count for name, count in tasks.items()}

    def settle(self, name: str, before: Sequence[Holding]) -> Result:
        """Wait until nothing is left, and say how much is."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                left = {k: v for k, v in self.leftovers(before).items() if v}
            except (OSError, grpc.RpcError, httpx.TransportError) as error:
                left = {f"no answer: {error}": 1}
            if not left or time.monotonic() > end:
                break
            time.sleep(POLL_SECONDS)
        if left:
            say(f"  left over: {left}")
        return result(f"{name}.left_over", sum(left.values()), "things", "<= 0")


@contextlib.contextmanager
def running(
    directory: Path,
    *,
    devices: int = 1,
    frontends: int = 1,
    decode_ms: float = 5.0,
    device_options: Sequence[str] = (),
    frontend_options: Sequence[str] = (),
) -> Iterator[System]:
    """Start everything, wait until all serve, and leave nothing behind."""
    sim = json.dumps({"tt": {"sim": {"decode_ms": decode_ms}}})
    options = ("--additional-config", sim, *device_options)
    with contextlib.ExitStack() as cleanup:
        made = System([], [])
        for number in range(devices):
            device = DeviceProcess(directory / f"device{number}.log", *options)
            cleanup.callback(device.close)
            device.start()
            made.devices.append(device)
        addresses = ",".join(device.address for device in made.devices)
        for number in range(frontends):
            frontend = Frontend(
                addresses, directory, f"frontend{number}", *frontend_options
            )
            frontend.start()
            cleanup.callback(frontend.close)
            made.frontends.append(frontend)
        made.wait_until_ready()
        say("  all serve")
        yield made
