"""Sessions and reconnection, over real gRPC to a fake device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc.aio import Metadata

from frontend.address import parse_device_address
from frontend.config import Liveness
from frontend.device.channel import open_channel
from frontend.device.connection import (
    Connection,
    DeviceState,
    Listeners,
    ModelChanged,
)
from frontend.device.session import Session
from tests.chaos.proxy import Proxy
from tests.support.fake_device import FakeDevice, model
from ttserve.errors import Reason, StartupError, TTServeError
from ttserve.v1.device_pb2 import AttachRequest, AttachResponse, OpenSession
from ttserve.v1.generation_pb2 import Sampling, StopRules, Submission

QUICK = Liveness(ping_interval=0.05, lost_after=0.4)


class Recorder:
    """The request side and the watcher of heartbeats: notes what it is told."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.lost: list[TTServeError] = []
        self.received: list[AttachResponse] = []
        self.draining = False
        self.loads: list[int] = []
        self.refused = 0
        self.closed_times = 0
        self.silences: list[float] = []
        self.opened = 0

    def session_ready(self, session: Session) -> None:
        self.session = session

    def session_draining(self, session: Session) -> None:
        self.draining = True
        session.finish()

    def session_lost(self, error: TTServeError) -> None:
        self.session = None
        self.lost.append(error)

    def take(self, response: AttachResponse) -> None:
        self.received.append(response)

    def load_reported(self, live_requests: int) -> None:
        self.loads.append(live_requests)

    def session_opened(self) -> None:
        self.opened += 1

    def model_refused(self) -> None:
        self.refused += 1

    def closed(self) -> None:
        self.closed_times += 1

    def heartbeat(self, round_trip: float, engine_silence: float) -> None:
        assert round_trip >= 0
        self.silences.append(engine_silence)


class Attached:
    """A connection in the making, on its own task."""

    def __init__(
        self, device: FakeDevice, liveness: Liveness, address: str | None = None
    ) -> None:
        """`address` is where to connect instead of the device's own."""
        self.recorder = Recorder()
        self._channel = open_channel(parse_device_address(address or device.address))
        self.looks = 0
        self.connection = Connection(
            (device.address, self._channel),
            "test",
            liveness,
            Listeners(self.recorder, self.recorder, self._refused),
        )
        self.task = asyncio.create_task(self.connection.run(device.model))

    def _refused(self) -> None:
        self.looks += 1

    async def until(self, condition: Callable[[], bool], seconds: float = 5) -> None:
        async def poll() -> None:
            while not condition():  # noqa: ASYNC110 - in another thread
                await asyncio.sleep(0.005)

        await asyncio.wait_for(poll(), seconds)

    async def until_state(self, state: DeviceState) -> None:
        await self.until(lambda: self.connection.state is state)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._channel.close(None)


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with FakeDevice() as running:
        yield running


@pytest_asyncio.fixture
async def attached(device: FakeDevice) -> AsyncIterator[Attached]:
    attempt = Attached(device, QUICK)
    yield attempt
    await attempt.close()


def submission(handle: int) -> Submission:
    return Submission(
        handle=handle,
        prompt_token_ids=[1],
        sampling=Sampling(temperature=0),
        stop=StopRules(max_output_tokens=3),
    )


async def test_a_session_serves(device: FakeDevice, attached: Attached) -> None:
    await attached.until_state(DeviceState.READY)
    recorder = attached.recorder
    assert recorder.session is not None
    recorder.session.submit(submission(1))
    await attached.until(lambda: len(recorder.received) >= 4)
    accepted, *steps = recorder.received
    assert accepted.accepted.handle == 1
    tokens = [token for step in steps for token in step.step.token_ids]
    assert bytes(tokens) == b"abc"
    (hello,) = device.seen.opened
    assert hello.frontend_name == "test"
    assert hello.vllm_version == device.model.vllm_version
    await attached.until(lambda: 0.007 in recorder.silences)


async def test_not_before_the_device_is_warm(
    device: FakeDevice, attached: Attached
) -> None:
    device.behaviour.serving = False
    await attached.until_state(DeviceState.WARMING_UP)
    assert attached.recorder.session is None
    device.behaviour.serving = True
    await attached.until_state(DeviceState.READY)


@pytest.mark.parametrize("stalled", [False, True])
async def test_loss_and_return(
    device: FakeDevice, attached: Attached, *, stalled: bool
) -> None:
    await attached.until_state(DeviceState.READY)
    if stalled:
        device.behaviour.stalled = True
    else:
        device.kill()
    await attached.until_state(DeviceState.ABSENT)
    assert attached.recorder.session is None
    assert attached.recorder.lost[0].reason is Reason.DEVICE_LOST
    if stalled:
        assert "silent for 0.4 s" in attached.recorder.lost[0].message
        device.behaviour.stalled = False
    else:
        device.start()
    await attached.until_state(DeviceState.READY)
    assert attached.recorder.opened == attached.connection.sessions_opened == 2


async def test_one_that_is_not_there_is_not_called_silent(
    device: FakeDevice, attached: Attached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.device.session.OPEN_SECONDS", 0.2)
    await attached.until_state(DeviceState.READY)
    device.kill()
    await attached.until(lambda: "cannot be reached" in attached.connection.reason)
    assert attached.connection.state is DeviceState.ABSENT


async def test_a_connection_that_hangs_is_replaced(device: FakeDevice) -> None:
    """Nobody closes it: it stands still, as after a firewall has forgotten it."""
    with Proxy(int(device.address.rpartition(":")[2])).running() as proxy:
        attached = Attached(device, QUICK, f"127.0.0.1:{proxy.port}")
        try:
            await attached.until_state(DeviceState.READY)
            await asyncio.to_thread(proxy.freeze, accepting=True)
            await attached.until_state(DeviceState.ABSENT)
            # gRPC needs 6 s to give it up, and OPEN_SECONDS may be under way.
            await attached.until(
                lambda: attached.connection.state is DeviceState.READY, seconds=20
            )
        finally:
            await attached.close()


async def test_our_own_sleep_is_not_their_silence(
    device: FakeDevice, attached: Attached
) -> None:
    import time

    await attached.until_state(DeviceState.READY)
    time.sleep(3 * QUICK.lost_after)  # noqa: ASYNC251 - the point of the test
    await asyncio.sleep(QUICK.lost_after)
    assert attached.connection.state is DeviceState.READY
    assert not attached.recorder.lost


async def test_draining(device: FakeDevice, attached: Attached) -> None:
    await attached.until_state(DeviceState.READY)
    device.drain(1500)
    await attached.until(lambda: attached.recorder.draining)
    await attached.until(lambda: bool(attached.recorder.lost))
    assert attached.recorder.lost[0].reason is Reason.DRAINING
    assert device.seen.half_closed == 1
    # Refused again; gRPC says so most of the time, and INTERNAL when it is busy.
    await attached.until_state(DeviceState.DRAINING)


async def test_not_serving_is_draining(device: FakeDevice, attached: Attached) -> None:
    """Health says it as well, also where no message does."""
    await attached.until_state(DeviceState.READY)
    device.behaviour.serving = False
    await attached.until(lambda: attached.recorder.draining)


async def test_load_comes_with_the_heartbeat(
    device: FakeDevice, attached: Attached
) -> None:
    await attached.until_state(DeviceState.READY)
    device.behaviour.live_elsewhere = 5
    await attached.until(lambda: 5 in attached.recorder.loads)


async def test_an_older_minor_reports_no_load(
    device: FakeDevice, attached: Attached
) -> None:
    device.behaviour.live_elsewhere = None
    await attached.until(lambda: len(attached.recorder.silences) >= 3)
    assert attached.recorder.loads == []


async def test_closing_ends_everything(device: FakeDevice, attached: Attached) -> None:
    """A connection that is cancelled leaves no task of its own behind."""
    await attached.until_state(DeviceState.READY)
    attached.task.cancel()
    await asyncio.gather(attached.task, return_exceptions=True)
    assert attached.recorder.closed_times == 1
    running = {str(task.get_coro()) for task in asyncio.all_tasks()}
    assert not {name for name in running if "follow_health" in name}


async def test_another_model_and_back(device: FakeDevice, attached: Attached) -> None:
    """It is told again and again, once a look; the right model is welcome."""
    await attached.until_state(DeviceState.READY)
    right = device.model
    device.kill()
    device.model = model(fingerprint="another", max_sequence_tokens=99)
    device.start()
    await attached.until_state(DeviceState.REFUSED)
    assert isinstance(attached.connection.refusal, ModelChanged)
    assert "max_sequence_tokens is 99 there and 512 here" in attached.connection.reason
    await attached.until(lambda: attached.looks >= 2)
    assert attached.recorder.refused == 1
    assert attached.recorder.lost[-1].reason is Reason.NOT_READY
    device.kill()
    device.model = right
    device.start()
    await attached.until_state(DeviceState.READY)
    assert attached.connection.refusal is None


async def test_another_version(device: FakeDevice, attached: Attached) -> None:
    await attached.until_state(DeviceState.READY)
    device.behaviour.session_refusal = TTServeError(
        Reason.VERSION_MISMATCH, "upgrade the frontend"
    )
    device.kill()
    device.start()
    await attached.until_state(DeviceState.REFUSED)
    assert isinstance(attached.connection.refusal, StartupError)
    assert "upgrade the frontend" in attached.connection.reason


class Broken:
    """A stream on which nothing can be sent any more."""

    async def __aiter__(self) -> AsyncIterator[AttachResponse]:
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL,
            Metadata(),
            Metadata(),
            details="Internal error from Core",
            debug_error_string="",
        )
        yield AttachResponse()

    async def write(self, request: AttachRequest) -> None:
        raise asyncio.InvalidStateError

    def cancel(self) -> bool:
        return True


async def test_what_grpc_calls_internal_is_a_lost_device() -> None:
    """Clients may ask again, and are not told of gRPC's insides."""
    session = Session(Broken(), Recorder(), QUICK)  # type: ignore[arg-type]
    error = await session.run(OpenSession())
    assert error.reason is Reason.DEVICE_LOST
    assert error.retry_after == 1.0
    assert "Core" not in error.message
