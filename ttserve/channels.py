"""Channels to a device service: TLS where it is asked for, tokens where they are set.

Tokens are added to each call, and once per call: what a stream carries costs
nothing more. They are looked up anew for each, so that a file may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from ttserve.client_security import PLAIN, ChannelSecurity

INSPECTING = ("/ttserve.v1.Inspector/", "/grpc.channelz.v1.Channelz/")
"""Methods that the Inspector's token opens, where there is one."""

_REASONS = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by --device-tls-ca"),
    (
        "Hostname Verification",
        "its certificate is for another name: connect by that name, or give it as "
        "--device-tls-server-name",
    ),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS, but --device-tls-ca is set"),
    (
        "Socket closed",
        "it closed the connection at once: it may want TLS (--device-tls-ca) or a "
        "client certificate (--device-tls-cert)",
    ),
)


def open_channel(
    target: str, options: Sequence[tuple[str, Any]], security: ChannelSecurity = PLAIN
) -> grpc.aio.Channel:
    """A channel that connects when it is first used, again and again."""
    if security.ca is None:
        channel = grpc.aio.insecure_channel(target, options=options)
    else:
        credentials = grpc.ssl_channel_credentials(
            security.ca, security.key, security.certificate
        )
        name = security.server_name
        named = [("grpc.ssl_target_name_override", name)] if name else []
        channel = grpc.aio.secure_channel(
            target, credentials, options=[*options, *named]
        )
    if security.device_token or security.inspector_token:
        return _WithTokens(channel, security)
    return channel


def connection_problem(details: str | None) -> str | None:
    """What an operator can do about a connection that failed; None: nothing known.

    `details` is gRPC's text, which is long and names no remedy.
    """
    found = [say for sign, say in _REASONS if details and sign in details]
    return found[0] if found else None


class _WithTokens(grpc.aio.Channel):
    """A channel whose calls carry the token that their method asks for."""

    def __init__(self, channel: grpc.aio.Channel, security: ChannelSecurity) -> None:
        self._channel = channel
        self._security = security

    async def __aenter__(self) -> _WithTokens:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: FBT001, FBT002 - gRPC's signature
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(
        self, last_observed_state: grpc.ChannelConnectivity
    ) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, method: str, *args: Any, **options: Any) -> Any:
        return self._bearing(
            method, self._channel.unary_unary(method, *args, **options)
        )

    def unary_stream(self, method: str, *args: Any, **options: Any) -> Any:
        return self._bearing(
            method, self._channel.unary_stream(method, *args, **options)
        )

    def stream_unary(self, method: str, *args: Any, **options: Any) -> Any:
        return self._bearing(
            method, self._channel.stream_unary(method, *args, **options)
        )

    def stream_stream(self, method: str, *args: Any, **options: Any) -> Any:
        return self._bearing(
            method, self._channel.stream_stream(method, *args, **options)
        )

    def _bearing(self, method: str, call: Any) -> Any:
        security = self._security
        inspecting = method.startswith(INSPECTING) and bool(security.inspector_token)
        tokens = security.inspector_token if inspecting else security.device_token

        def start(*args: Any, metadata: Any = None, **options: Any) -> Any:
            token = tokens.newest()
            own = [("authorization", f"Bearer {token}")] if token else []
            return call(*args, metadata=[*(metadata or ()), *own], **options)

        return start
