"""Keeps one session to a device service open for as long as the frontend uses it."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol

import grpc
import grpc.aio

from frontend.config import Liveness
from frontend.device.channel import (
    CALL_SECONDS,
    connection_problem,
    follow_health,
    is_refused,
)
from frontend.device.same_model import differences
from frontend.device.session import Session
from ttserve.errors import Reason, StartupError, TTServeError
from ttserve.protocol import OLDEST_PROTOCOL_MINOR, PROTOCOL_MINOR
from ttserve.v1.device_pb2 import (
    AttachResponse,
    GetModelRequest,
    OpenSession,
    Pong,
    SessionOpened,
)
from ttserve.v1.device_pb2_grpc import DeviceStub
from ttserve.v1.model_pb2 import Model

logger = logging.getLogger(__name__)

FIRST_BACKOFF = 0.1
LAST_BACKOFF = 1.0
REFUSED_POLL = 1.0
"""Seconds between two looks at a device service whose model does not fit."""


class ModelChanged(Exception):
    """A device service serves another model than this frontend was built for."""


class DeviceState(enum.Enum):
    """What can be done with a device service now; the values are reasons."""

    ABSENT = "no_device"
    WARMING_UP = "warming_up"
    READY = "ready"
    DRAINING = "device_draining"
    REFUSED = "wrong_model"
    LEAVING = "leaving"


REFUSING = {
    Reason.NOT_READY: DeviceState.WARMING_UP,
    Reason.DRAINING: DeviceState.DRAINING,
}
"""What a device service is that refuses a session, or ends it, for such a reason."""


class RequestSide(Protocol):
    """The requests that depend on the session; called on the event loop."""

    def session_ready(self, session: Session) -> None:
        """Submissions go to this session from now on."""

    def session_draining(self, session: Session) -> None:
        """New submissions would be refused; what runs may finish, and then the
        session is to be finished.
        """

    def session_lost(self, error: TTServeError) -> None:
        """Everything submitted and unfinished is lost with `error`."""

    def take(self, response: AttachResponse) -> None:
        """An answer to a submission, or a step's output."""

    def load_reported(self, live_requests: int) -> None:
        """Requests of all frontends that the device service has, as it says."""


class SessionWatcher(Protocol):
    """Who wants to know how the sessions do."""

    def session_opened(self) -> None:
        """Another session has begun."""

    def model_refused(self) -> None:
        """A session was not begun: another model, or another version."""

    def heartbeat(self, round_trip: float, engine_silence: float) -> None:
        """Both in seconds."""

    def closed(self) -> None:
        """The device service is not used any more."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who hears of a connection. `refused` is told after each look at a device
    service that does not fit.
    """

    requests: RequestSide
    watcher: SessionWatcher
    refused: Callable[[], None]


class Connection:
    """Connects, serves, reconnects; owns the sessions, one at a time.

    `refusal` is set while the device service has another model or version;
    `tried` once the first attempt to open a session has ended, either way.
    """

    def __init__(
        self,
        device: tuple[str, grpc.aio.Channel],
        frontend_name: str,
        liveness: Liveness,
        listeners: Listeners,
    ) -> None:
        """`device` is its address, for log lines, and the channel to it."""
        self._address, self._channel = device
        self._liveness = liveness
        self._requests = listeners.requests
        self._watcher = listeners.watcher
        self._on_refused = listeners.refused
        self._hello = OpenSession(
            protocol_minor=PROTOCOL_MINOR,
            frontend_name=frontend_name,
            vllm_version=version("vllm"),
        )
        self._expected = Model()
        self._session: Session | None = None
        self._health: asyncio.Task[None] | None = None
        self._said = ("", "")
        self.refusal: ModelChanged | StartupError | None = None
        self.state = DeviceState.ABSENT
        self.reason = "not connected yet"
        self.tried = False
        self.instance_id = ""
        self.sessions_opened = 0

    async def run(self, model: Model) -> None:
        """Keep a session open until cancelled, while the device serves `model`."""
        self._expected = model
        try:
            await self._stay_connected()
        finally:
            await self._stop_following_health()
            self._watcher.closed()

    async def _stay_connected(self) -> None:
        backoff = FIRST_BACKOFF
        while True:
            opened_before = self.sessions_opened
            call = DeviceStub(self._channel).Attach(wait_for_ready=True)
            error = await Session(call, self, self._liveness).run(self._hello)
            if self.sessions_opened == opened_before:
                error = await self._explain(error)
            await self._end_session(error)
            if self.refusal is not None:
                await self._until_it_may_fit()
            if self.sessions_opened > opened_before:
                backoff = FIRST_BACKOFF
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, LAST_BACKOFF)

    # SessionListener

    def on_opened(self, session: Session, opened: SessionOpened) -> None:
        """Go on with the same model only; serve once the device is warm."""
        self.tried = True
        self.instance_id = opened.instance_id
        if opened.model.fingerprint != self._expected.fingerprint:
            difference = differences(self._expected, opened.model)
            self.refusal = ModelChanged(f"it serves another model: {difference}")
            session.end()
            return
        self._session = session
        self.sessions_opened += 1
        self._watcher.session_opened()
        self.state = DeviceState.WARMING_UP
        self.reason = "the device service is warming up"
        logger.info(
            "session %d with device service %s, instance %s",
            opened.session_number,
            self._address,
            opened.instance_id,
        )
        self._health = asyncio.create_task(self._follow_health(session))

    def on_message(self, response: AttachResponse) -> None:
        """Draining concerns everybody, the rest the requests."""
        if response.WhichOneof("event") == "draining":
            self._drain()
        else:
            self._requests.take(response)

    def on_pong(self, pong: Pong, round_trip: float) -> None:
        """Pass on what a heartbeat measured; an older minor reports no load."""
        self._watcher.heartbeat(round_trip, pong.engine_silence_ms / 1000)
        if pong.HasField("live_requests"):
            self._requests.load_reported(pong.live_requests)

    async def _follow_health(self, session: Session) -> None:
        """Serve when the device service says that it can, and not when it cannot."""
        async for serving in follow_health(self._channel):
            if serving and self.state is DeviceState.WARMING_UP:
                self.state = DeviceState.READY
                self.reason = ""
                self._requests.session_ready(session)
            elif not serving and self.state is DeviceState.READY:
                self._drain()

    def _drain(self) -> None:
        if self.state is DeviceState.DRAINING or self._session is None:
            return
        self.state = DeviceState.DRAINING
        self.reason = "the device service is shutting down"
        logger.info("device service %s is shutting down", self._address)
        self._requests.session_draining(self._session)

    async def _end_session(self, error: TTServeError) -> None:
        self.tried = True
        had_session, self._session = self._session is not None, None
        await self._stop_following_health()
        if error.reason is Reason.VERSION_MISMATCH:
            self.refusal = StartupError(f"device service: {error.message}")
        if self.refusal is not None:
            self._requests.session_lost(
                TTServeError(Reason.NOT_READY, "the device service has another model")
            )
            self._set_refused(self.refusal)
            return
        self._requests.session_lost(error)
        self.state = REFUSING.get(error.reason, DeviceState.ABSENT)
        self.reason = error.message
        if had_session:
            expected = self.state is DeviceState.DRAINING
            level = logging.INFO if expected else logging.WARNING
            logger.log(level, "device service %s lost: %s", self._address, self.reason)

    async def _stop_following_health(self) -> None:
        following, self._health = self._health, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _explain(self, error: TTServeError) -> TTServeError:
        """Why a session did not begin; said once, if only an operator can help."""
        problem = error.message if is_refused(error) else None
        if error.reason is Reason.DEVICE_LOST:
            problem = await connection_problem(self._channel)
        if problem is None:
            return error
        if problem != self.reason:
            logger.error("device service %s: %s", self._address, problem)
        return TTServeError(error.reason, problem, retry_after=error.retry_after)

    def _set_refused(self, refusal: ModelChanged | StartupError) -> None:
        """Say once per instance why nothing is sent there."""
        self.state = DeviceState.REFUSED
        self.reason = str(refusal)
        if self._said != (self.instance_id, self.reason):
            self._said = (self.instance_id, self.reason)
            logger.error("device service %s is not used: %s", self._address, refusal)
        self._watcher.model_refused()
        self._on_refused()

    async def _until_it_may_fit(self) -> None:
        """Look again and again, without a session, until another answer comes."""
        while True:
            await asyncio.sleep(REFUSED_POLL)
            try:
                answer = await DeviceStub(self._channel).GetModel(
                    GetModelRequest(), timeout=CALL_SECONDS
                )
            except grpc.aio.AioRpcError:
                self.state = DeviceState.ABSENT
                self.reason = "not back yet"
                break
            same = answer.model.fingerprint == self._expected.fingerprint
            if same and answer.protocol_minor >= OLDEST_PROTOCOL_MINOR:
                break
            self._on_refused()
        self.refusal = None
