"""Who belongs to a fleet, and who does not, over real gRPC to fake devices."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from frontend.address import DeviceAddress, parse_device_address
from frontend.config import Liveness, read_command_line
from frontend.device.connection import (
    Connection,
    DeviceState,
    Listeners,
    ModelChanged,
)
from frontend.device.fleet import Fleet, Member, MemberRequests
from frontend.device.lookup import Lookup
from frontend.engine.client import GrpcEngineClient
from frontend.engine.requests import Placement
from frontend.startup import describe_model
from tests.support.fake_device import FakeDevice, model
from tests.support.frontend_process import free_port
from tests.unit.frontend.test_connection import Recorder
from tests.unit.frontend.test_engine_client import request
from ttserve.client_security import PLAIN
from ttserve.errors import Reason, StartupError
from ttserve.v1 import device_pb2

LIVENESS = Liveness(ping_interval=0.05, lost_after=2.0)


class Script:
    """A lookup that says what it is told to."""

    def __init__(self, *addresses: DeviceAddress) -> None:
        self.failure = ""
        self.next = addresses

    async def addresses(self) -> tuple[DeviceAddress, ...]:
        return self.next


class Used:
    """A fleet whose members serve an engine client."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.client = GrpcEngineClient(model(), self)
        self.task = asyncio.create_task(fleet.run(model(), self._connect))

    def failed(self, reason: Reason) -> None:
        raise AssertionError(reason)

    def moved(self, device: str, reason: Reason) -> None:
        raise AssertionError(device, reason)

    def _connect(
        self, member: Member, refused: Callable[[], None]
    ) -> tuple[Connection, MemberRequests]:
        requests = self.client.add_device(str(member.address))
        connection = Connection(
            (str(member.address), member.channel),
            "test",
            LIVENESS,
            Listeners(requests, Recorder(), refused),
        )
        return connection, requests

    async def until_states(self, *states: DeviceState) -> None:
        async def poll() -> None:
            while [m.state for m in self.fleet.members] != list(states):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        try:
            await asyncio.wait_for(poll(), 15)
        except asyncio.TimeoutError:
            found = [(m.state, m.reason) for m in self.fleet.members]
            raise AssertionError(found) from None

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.fleet.close()


def address(device: FakeDevice) -> DeviceAddress:
    return parse_device_address(device.address)


@pytest.fixture
def devices() -> Iterator[tuple[FakeDevice, FakeDevice]]:
    with FakeDevice() as first, FakeDevice() as second:
        yield first, second


Start = Callable[[Fleet], Used]


@pytest_asyncio.fixture
async def use() -> AsyncIterator[Start]:
    """Starts a fleet; all are closed at the end."""
    started = []

    def start(fleet: Fleet) -> Used:
        started.append(Used(fleet))
        return started[-1]

    yield start
    for used in started:
        await used.close()


async def test_another_model_is_refused_while_the_right_one_serves(
    devices: tuple[FakeDevice, FakeDevice], use: Start
) -> None:
    """It ends the fleet only when nobody else is left who can be reached."""
    right, wrong = devices
    wrong.model = model(fingerprint="another", served_names=["other"])
    used = use(Fleet([address(right), address(wrong)], PLAIN))
    await used.until_states(DeviceState.READY, DeviceState.REFUSED)
    assert "served_names" in used.fleet.members[1].reason
    assert used.client.refusal is None
    await asyncio.sleep(0)
    assert not used.task.done()
    right.kill()
    with pytest.raises(ModelChanged, match="all device services that can be reached"):
        await asyncio.wait_for(used.task, 15)


async def test_one_that_returns_right_joins(
    devices: tuple[FakeDevice, FakeDevice], use: Start
) -> None:
    right, wrong = devices
    wrong.model = model(fingerprint="another")
    used = use(Fleet([address(right), address(wrong)], PLAIN))
    await used.until_states(DeviceState.READY, DeviceState.REFUSED)
    wrong.kill()
    wrong.model = model()
    wrong.start()
    await used.until_states(DeviceState.READY, DeviceState.READY)


async def test_the_only_one_with_another_model_ends_the_fleet(use: Start) -> None:
    with FakeDevice(model(fingerprint="another")) as wrong:
        used = use(Fleet([address(wrong)], PLAIN))
        with pytest.raises(ModelChanged, match="the device service serves another"):
            await asyncio.wait_for(used.task, 15)


async def test_addresses_join_and_leave(
    devices: tuple[FakeDevice, FakeDevice], use: Start
) -> None:
    """What leaves keeps what it has, and is closed when that has ended."""
    first, second = sorted(devices, key=lambda device: device.address)
    first.behaviour.first_token_seconds = 60
    lookup = Script(address(first))
    fleet = Fleet([], PLAIN, lookup)
    await fleet.look_up()
    used = use(fleet)
    await used.until_states(DeviceState.READY)
    await used.client.submit(request("stays"), "", Placement())

    lookup.next = (address(second),)
    await fleet.look_up()
    await used.until_states(DeviceState.LEAVING, DeviceState.READY)
    await used.client.submit(request("new"), "", Placement())
    while not second.seen.submissions:  # noqa: ASYNC110 - in another thread
        await asyncio.sleep(0.01)
    assert [s.request_id for s in first.seen.submissions] == ["stays"]

    lookup.next = ()  # nobody can say: nothing changes
    await fleet.look_up()
    assert len(fleet.members) == 2

    lookup.next = (address(first), address(second))
    await fleet.look_up()
    await used.until_states(DeviceState.READY, DeviceState.READY)
    lookup.next = (address(second),)
    await fleet.look_up()
    used.client.abort(["stays"], device_pb2.ABORT_CAUSE_CLIENT)
    await fleet.look_up()
    assert [member.address for member in fleet.members] == [address(second)]
    assert used.client.refusal is None


async def test_a_name_is_looked_up() -> None:
    lookup = Lookup(DeviceAddress("localhost", 7))
    (found,) = await lookup.addresses()
    assert (str(found), found.server_name) == ("127.0.0.1:7", "localhost")
    assert lookup.failure == ""


V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (
            [(V4, "10.0.0.2"), (V4, "10.0.0.1"), (V4, "10.0.0.2")],
            ["10.0.0.1:7", "10.0.0.2:7"],
        ),
        ([(V6, "fd00::1"), (V4, "10.0.0.1")], ["10.0.0.1:7"]),
        ([(V6, "fd00::2"), (V6, "fd00::1")], ["[fd00::1]:7", "[fd00::2]:7"]),
    ],
)
async def test_every_address_of_a_name_is_a_device_service(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[tuple[socket.AddressFamily, str]],
    expected: list[str],
) -> None:
    """The resolver's answers are what a headless service of Kubernetes gives."""

    async def resolve(host: str, port: int, **how: object) -> list[object]:
        assert (host, port) == ("devices", 7)
        return [(family, 1, 6, "", (address, port)) for family, address in answers]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    found = await Lookup(DeviceAddress("devices", 7)).addresses()
    assert [str(address) for address in found] == expected
    assert {address.server_name for address in found} == {"devices"}


async def test_a_name_that_cannot_be_looked_up() -> None:
    lookup = Lookup(DeviceAddress("no..name", 7))
    assert await lookup.addresses() == ()
    assert "cannot look up no..name" in lookup.failure


async def described(addresses: str, directory: Path, *options: str) -> str:
    config = read_command_line(("--device-service", addresses, *options), {})
    fleet = Fleet(config.devices, PLAIN)
    try:
        found = await asyncio.wait_for(
            describe_model(fleet, config, directory, lambda what: None), 30
        )
    finally:
        await fleet.close()
    assert (found.directory / "tokenizer.json").exists()
    return found.model.fingerprint


async def test_the_first_that_answers_describes_the_model(tmp_path: Path) -> None:
    dead = f"127.0.0.1:{free_port()}"
    with FakeDevice() as alive:
        found = await described(f"{dead},{alive.address}", tmp_path)
    assert found == alive.model.fingerprint


async def test_one_of_another_version_is_left_out(tmp_path: Path) -> None:
    with FakeDevice(model(vllm_version="0.1.0")) as old, FakeDevice() as alive:
        found = await described(f"{old.address},{alive.address}", tmp_path)
        assert found == alive.model.fingerprint
        with pytest.raises(StartupError, match=r"runs vLLM 0\.1\.0"):
            await described(old.address, tmp_path / "old")


async def test_nobody_answers(tmp_path: Path) -> None:
    dead = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    with pytest.raises(StartupError, match=r"not ready after 0\.3 s"):
        await described(dead, tmp_path, "--device-timeout", "0.3")
