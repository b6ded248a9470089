"""A frontend and a device service that do not know each other's secrets, yet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from device_service.access import Access
from device_service.codec.model import model_message
from device_service.security import GrpcSecurity, TlsFiles
from frontend.address import parse_device_address
from frontend.config import Liveness
from frontend.device.channel import Patience, get_model, open_channel
from frontend.device.connection import Connection, DeviceState, Listeners
from tests.support.certificates import Authority, trusting
from tests.support.waiting import eventually
from tests.support.wire import Service, serving
from ttserve.client_security import ChannelSecurity
from ttserve.tokens import Tokens
from ttserve.v1.device_pb2_grpc import DeviceStub

RIGHT, WRONG = "the-right-token", "the-wrong-token"
GUARDED = GrpcSecurity(access=Access(device=Tokens([RIGHT])))


class Nobody:
    """The request side and the watcher: interested in nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The file with the frontend's token, which is wrong."""
    file = tmp_path / "token"
    file.write_text(WRONG)
    return file


def correct(token: Path) -> None:
    """As an operator does, while everything runs."""
    token.write_text(RIGHT)


def security_of(token: Path) -> ChannelSecurity:
    return ChannelSecurity(
        device_token=Tokens(file=token, source="--device-token-file")
    )


@contextlib.asynccontextmanager
async def connected(
    service: Service, security: ChannelSecurity
) -> AsyncIterator[Connection]:
    """A connection that stays at it."""
    address = parse_device_address(service.address)
    async with open_channel(address, security) as channel:
        connection = Connection(
            (service.address, channel),
            "test",
            Liveness(),
            Listeners(Nobody(), Nobody(), lambda: None),
        )
        run = asyncio.create_task(connection.run(model_message(service.model)))
        yield connection
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def test_a_start_waits_for_a_token_that_is_known(
    token: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    async with serving(security=GUARDED, vllm_version=version("vllm")) as service:
        address = parse_device_address(service.address)
        async with open_channel(address, security_of(token)) as channel:
            patience = Patience(address, None, told.append)
            asking = asyncio.create_task(get_model(DeviceStub(channel), patience))
            await eventually(lambda: len(told) > 1)
            assert not asking.done()
            correct(token)
            answer = await asyncio.wait_for(asking, 10)
    assert answer.model.served_names[0] == "tiny"
    assert all("does not know this token" in line for line in told)
    (line,) = (r for r in caplog.records if r.levelno == logging.ERROR)
    assert "does not know this token" in line.getMessage()
    assert not any(secret in caplog.text for secret in (RIGHT, WRONG))


async def test_a_connection_comes_about_when_the_token_is_known(
    token: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(security=GUARDED, vllm_version=version("vllm")) as service,
        connected(service, security_of(token)) as connection,
    ):
        await eventually(lambda: "does not know this token" in connection.reason)
        assert connection.state is DeviceState.ABSENT
        correct(token)
        await eventually(lambda: connection.state is DeviceState.READY, 10)
    assert not any(secret in caplog.text for secret in (RIGHT, WRONG))


async def test_a_connection_says_what_is_wrong_with_a_certificate(
    tmp_path: Path,
) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    pair = ours.pair("127.0.0.1")
    tls = TlsFiles(str(pair.certificate), str(pair.key))
    async with (
        serving(security=GrpcSecurity(tls)) as service,
        connected(service, trusting(theirs)) as connection,
    ):
        signed = "its certificate is not signed by --device-tls-ca"
        await eventually(lambda: connection.reason == signed, 15)
