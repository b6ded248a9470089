"""Keeps one session to the device service open for as long as the frontend runs."""

from __future__ import annotations

import asyncio
import enum
import logging
from importlib.metadata import version
from typing import Protocol

import grpc
import grpc.aio

from frontend.config import Liveness
from frontend.device.channel import is_serving
from frontend.device.session import Session
from ttserve.errors import Reason, StartupError, TTServeError
from ttserve.protocol import PROTOCOL_MINOR
from ttserve.v1.device_pb2 import (
    AttachResponse,
    OpenSession,
    Pong,
    SessionOpened,
)
from ttserve.v1.device_pb2_grpc import DeviceStub

logger = logging.getLogger(__name__)

FIRST_BACKOFF = 0.1
LAST_BACKOFF = 1.0
WARM_UP_POLL = 0.1


class ModelChanged(Exception):
    """The device service came back with another model; only a new process helps."""


class DeviceState(enum.Enum):
    """What can be done with the device service now; the values are reasons."""

    ABSENT = "no_device"
    WARMING_UP = "warming_up"
    READY = "ready"
    DRAINING = "device_draining"


class RequestSide(Protocol):
    """The requests that depend on the session; called on the event loop."""

    def session_ready(self, session: Session) -> None:
        """Submissions go to this session from now on."""

    def session_draining(self, grace_seconds: float) -> None:
        """New submissions would be refused; what runs may finish."""

    def session_lost(self, error: TTServeError) -> None:
        """Everything submitted and unfinished has failed with `error`."""

    def take(self, response: AttachResponse) -> None:
        """An answer to a submission, or a step's output."""


class SessionWatcher(Protocol):
    """Who wants to know how the sessions do."""

    def session_opened(self) -> None:
        """Another session has begun."""

    def heartbeat(self, round_trip: float, engine_silence: float) -> None:
        """Both in seconds."""


class Connection:
    """Connects, serves, reconnects; owns the sessions, one at a time."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        name: str,
        liveness: Liveness,
        requests: RequestSide,
        watcher: SessionWatcher,
    ) -> None:
        self._channel = channel
        self._liveness = liveness
        self._requests = requests
        self._watcher = watcher
        self._hello = OpenSession(
            protocol_minor=PROTOCOL_MINOR,
            frontend_name=name,
            vllm_version=version("vllm"),
        )
        self._warm_up: asyncio.Task[None] | None = None
        self._wrong_model = False
        self.state = DeviceState.ABSENT
        self.reason = "not connected yet"
        self.instance_id = ""
        self.sessions_opened = 0
        self.expected_fingerprint = ""

    async def run(self, fingerprint: str) -> None:
        """Keep a session open until cancelled.

        Raises ModelChanged when the device service serves another model than
        `fingerprint`, StartupError when it has another version.
        """
        self.expected_fingerprint = fingerprint
        backoff = FIRST_BACKOFF
        while True:
            opened_before = self.sessions_opened
            call = DeviceStub(self._channel).Attach(wait_for_ready=True)
            error = await Session(call, self, self._liveness).run(self._hello)
            await self._end_session(error)
            if self.sessions_opened > opened_before:
                backoff = FIRST_BACKOFF
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, LAST_BACKOFF)

    # SessionListener

    def on_opened(self, session: Session, opened: SessionOpened) -> None:
        """Go on with the same model only; serve once the device is warm."""
        if opened.model.fingerprint != self.expected_fingerprint:
            self._wrong_model = True
            session.end()
            return
        self.sessions_opened += 1
        self._watcher.session_opened()
        self.instance_id = opened.instance_id
        self.state = DeviceState.WARMING_UP
        self.reason = "the device service is warming up"
        logger.info(
            "session %d with device service instance %s",
            opened.session_number,
            opened.instance_id,
        )
        self._warm_up = asyncio.create_task(self._await_warm_up(session))

    def on_message(self, response: AttachResponse) -> None:
        """Draining concerns everybody, the rest the requests."""
        if response.WhichOneof("event") == "draining":
            self.state = DeviceState.DRAINING
            self.reason = "the device service is shutting down"
            logger.info("the device service is shutting down")
            self._requests.session_draining(response.draining.grace_ms / 1000)
        else:
            self._requests.take(response)

    def on_pong(self, pong: Pong, round_trip: float) -> None:
        """Pass on what a heartbeat measured."""
        self._watcher.heartbeat(round_trip, pong.engine_silence_ms / 1000)

    async def _await_warm_up(self, session: Session) -> None:
        while not await is_serving(self._channel):  # noqa: ASYNC110 - asks over the wire
            await asyncio.sleep(WARM_UP_POLL)
        if self.state is DeviceState.WARMING_UP:
            self.state = DeviceState.READY
            self.reason = ""
            self._requests.session_ready(session)

    async def _end_session(self, error: TTServeError) -> None:
        if self._warm_up is not None:
            self._warm_up.cancel()
            await asyncio.gather(self._warm_up, return_exceptions=True)
            self._warm_up = None
        if self._wrong_model:
            raise ModelChanged(
                "the device service serves another model now: this frontend ends, "
                "so that its supervisor starts it again"
            )
        if error.reason is Reason.VERSION_MISMATCH:
            raise StartupError(f"device service: {error.message}")
        self._requests.session_lost(error)
        if self.state is not DeviceState.ABSENT:
            logger.warning("device service lost: %s", error.message)
        self.state = (
            DeviceState.WARMING_UP
            if error.reason is Reason.NOT_READY
            else DeviceState.ABSENT
        )
        self.reason = error.message
