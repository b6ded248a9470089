"""The gRPC channel to a device service and what is asked of it before a session."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend.address import DeviceAddress
from ttserve import channels
from ttserve.client_security import PLAIN, ChannelSecurity
from ttserve.errors import Reason, StartupError, TTServeError
from ttserve.protocol import DEVICE_SERVICE, OLDEST_PROTOCOL_MINOR, PROTOCOL_MINOR
from ttserve.status import from_rpc_error
from ttserve.v1.device_pb2 import GetModelRequest, GetModelResponse
from ttserve.v1.device_pb2_grpc import DeviceStub

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_MESSAGE_BYTES = 64 << 20
RETRY_SECONDS = 0.2
REMIND_SECONDS = 10.0
CALL_SECONDS = 5.0
PROBE_SECONDS = 0.3
CANNOT_CONNECT = "cannot connect"

_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)
HEALTH_RETRY_SECONDS = 0.1

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Also how long one attempt to connect may take: 20 s if it is not set.
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A connection that hangs is given up after 6 s, so that the next session gets
    # another one. gRPC's keepalive alone waits for the ping's own timeout, which is
    # a minute, and asks so often only while data comes. No less than 5 s, because
    # it would count as silence what a frontend has slept.
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Whether to ask again is ours to decide, never the transport's.
    ("grpc.enable_retries", 0),
)


def open_channel(
    address: DeviceAddress, security: ChannelSecurity = PLAIN
) -> grpc.aio.Channel:
    """A channel that connects when it is first used, again and again.

    A certificate is checked for the name that an address was looked up by.
    """
    if address.server_name and security.server_name is None:
        security = dataclasses.replace(security, server_name=address.server_name)
    return channels.open_channel(address.target, _OPTIONS, security)


class Patience:
    """How long the frontend waits for a device service, and what it says meanwhile."""

    def __init__(
        self,
        address: DeviceAddress,
        timeout: float | None,
        tell: Callable[[str], None] = lambda waiting_for: None,
    ) -> None:
        """`tell` hears each time what is waited for, for whoever asks meanwhile."""
        self._address = address
        self._started = time.monotonic()
        self._timeout = timeout
        self._tell = tell
        self._complained = ""
        self._next_reminder = self._started + REMIND_SECONDS

    def complain(self, reason: str) -> None:
        """Say at once what will not pass without an operator."""
        if reason != self._complained:
            self._complained = reason
            logger.error("device service %s: %s", self._address, reason)

    async def pause(self, reason: str) -> None:
        """Wait a little; every 10 s say for what; in the end give up."""
        self._tell(f"waiting for the device service at {self._address}: {reason}")
        now = time.monotonic()
        waited = now - self._started
        if self._timeout is not None and waited >= self._timeout:
            raise StartupError(
                f"device service {self._address} not ready after "
                f"{self._timeout:g} s: {reason}"
            )
        if now >= self._next_reminder:
            self._next_reminder = now + REMIND_SECONDS
            logger.info(
                "waiting for the device service at %s (%.0f s): %s",
                self._address,
                waited,
                reason,
            )
        await asyncio.sleep(RETRY_SECONDS)


async def ask_patiently(call: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """Repeat a call until the device service can answer it.

    Only UNAVAILABLE and a call without an answer are worth repeating, and a token
    that is refused, because it may be replaced on either side; anything else is an
    answer and becomes a StartupError.
    """
    while True:
        try:
            return await asyncio.wait_for(call(), CALL_SECONDS)
        except asyncio.TimeoutError:
            reason = "no answer"
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error)
            if error.code() not in _PASSING:
                raise StartupError(f"device service: {failure.message}") from None
            reason = describe(failure)
            lost = failure.reason is Reason.DEVICE_LOST
            if is_refused(failure) or (lost and reason != CANNOT_CONNECT):
                patience.complain(reason)
        await patience.pause(reason)


async def get_model(stub: DeviceStub, patience: Patience) -> GetModelResponse:
    """The model, as soon as its limits are known; refuses another version."""
    answer: GetModelResponse = await ask_patiently(
        lambda: stub.GetModel(GetModelRequest()), patience
    )
    ours, theirs = version("vllm"), answer.model.vllm_version
    if theirs != ours:
        raise StartupError(
            f"the device service runs vLLM {theirs}, this frontend {ours}: "
            "install the same version on both sides"
        )
    if answer.protocol_minor < OLDEST_PROTOCOL_MINOR:
        raise StartupError(
            f"the device service speaks ttserve.v1 minor {answer.protocol_minor}, "
            f"this frontend {OLDEST_PROTOCOL_MINOR} to {PROTOCOL_MINOR}: upgrade it"
        )
    return answer


async def is_serving(channel: grpc.aio.Channel) -> bool:
    """Whether the device service says that it can serve requests.

    One without a health service has nothing to wait for.
    """
    request = health_pb2.HealthCheckRequest(service=DEVICE_SERVICE)
    try:
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=1.0)
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.UNIMPLEMENTED
    serving: bool = answer.status == health_pb2.HealthCheckResponse.SERVING
    return serving


async def follow_health(channel: grpc.aio.Channel) -> AsyncIterator[bool]:
    """Whether requests can be served, now and after every change; does not end.

    One without a health service can, always. While it cannot be asked nothing is
    said: the session's own heartbeat notices that.
    """
    request = health_pb2.HealthCheckRequest(service=DEVICE_SERVICE)
    while True:
        watching = health_pb2_grpc.HealthStub(channel).Watch(request)
        try:
            async for answer in watching:
                yield answer.status == health_pb2.HealthCheckResponse.SERVING
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                yield True
                return
        finally:
            watching.cancel()
        await asyncio.sleep(HEALTH_RETRY_SECONDS)


def describe(error: TTServeError) -> str:
    """A reason for a log line; gRPC's own texts are long and name no remedy."""
    if error.reason is not Reason.DEVICE_LOST:
        return error.message
    return channels.connection_problem(error.message) or CANNOT_CONNECT


def is_refused(error: TTServeError) -> bool:
    """Whether the device service does not take this frontend's token."""
    return error.reason in (Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED)


async def connection_problem(channel: grpc.aio.Channel) -> str | None:
    """Why no connection comes about, if an operator can do something about it.

    A call that waits for a connection, as a session's does, never learns that.
    """
    check = health_pb2_grpc.HealthStub(channel).Check
    try:
        await check(health_pb2.HealthCheckRequest(), timeout=PROBE_SECONDS)
    except grpc.aio.AioRpcError as error:
        return channels.connection_problem(error.details())
    return None
