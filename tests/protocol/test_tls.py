"""TLS on the gRPC port: who gets in, what the others are told, new certificates."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from device_service.security import GrpcSecurity, TlsFiles
from tests.support.certificates import Authority, Pair, trusting
from tests.support.wire import serving
from ttserve.channels import connection_problem, open_channel
from ttserve.client_security import PLAIN, ChannelSecurity
from ttserve.errors import StartupError

HOST = "127.0.0.1"


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs")


def protected(pair: Pair, client_ca: Path | None = None) -> GrpcSecurity:
    return GrpcSecurity(
        TlsFiles(
            str(pair.certificate),
            str(pair.key),
            str(client_ca) if client_ca is not None else None,
        )
    )


async def problem(address: str, security: ChannelSecurity) -> str | None:
    """What a client is told that tries to connect; None when it gets through."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with open_channel(address, options, security) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            await check(health_pb2.HealthCheckRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return connection_problem(error.details()) or "not explained"
    return None


async def test_a_client_that_trusts_the_certificate_gets_in(ours: Authority) -> None:
    async with serving(security=protected(ours.pair(HOST))) as service:
        assert await problem(service.address, trusting(ours)) is None


async def test_others_are_told_what_to_change(
    ours: Authority, theirs: Authority
) -> None:
    async with serving(security=protected(ours.pair(HOST))) as service:
        distrusting = await problem(service.address, trusting(theirs))
        assert distrusting == "its certificate is not signed by --device-tls-ca"
        assert "--device-tls-ca" in str(await problem(service.address, PLAIN))
    async with serving() as plain:
        speaking = await problem(plain.address, trusting(ours))
        assert speaking == "it does not speak TLS, but --device-tls-ca is set"


async def test_the_name_counts_unless_another_is_given(ours: Authority) -> None:
    async with serving(security=protected(ours.pair("device.example"))) as service:
        told = await problem(service.address, trusting(ours))
        assert "--device-tls-server-name" in str(told)
        named = ChannelSecurity(ca=ours.ca.read_bytes(), server_name="device.example")
        assert await problem(service.address, named) is None


async def test_clients_show_a_certificate_where_it_is_asked_for(
    ours: Authority, theirs: Authority
) -> None:
    security = protected(ours.pair(HOST), client_ca=ours.ca)
    async with serving(security=security) as service:
        own = trusting(ours, ours.pair("frontend"))
        assert await problem(service.address, own) is None
        for wrong in (trusting(ours), trusting(ours, theirs.pair("frontend"))):
            assert "--device-tls-cert" in str(await problem(service.address, wrong))


@pytest.fixture
async def renewed(ours: Authority, tmp_path: Path) -> AsyncIterator[Any]:
    """A service whose files can be replaced: its address, and how."""
    live = Pair(tmp_path / "live.pem", tmp_path / "live.key")

    def put(pair: Pair) -> None:
        for new, old in ((pair.key, live.key), (pair.certificate, live.certificate)):
            shutil.copy(new, tmp_path / "new")
            (tmp_path / "new").replace(old)

    put(ours.pair(HOST))
    async with serving(security=protected(live)) as service:
        yield service.address, put


async def test_new_files_count_for_new_connections(
    ours: Authority, theirs: Authority, renewed: tuple[str, Callable[[Pair], None]]
) -> None:
    address, put = renewed
    assert await problem(address, trusting(ours)) is None
    put(theirs.pair(HOST))
    assert await problem(address, trusting(theirs)) is None
    assert await problem(address, trusting(ours)) is not None


async def test_files_that_do_not_fit_change_nothing(
    ours: Authority,
    theirs: Authority,
    renewed: tuple[str, Callable[[Pair], None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    address, put = renewed
    put(Pair(ours.pair(HOST).certificate, theirs.pair(HOST).key))
    assert await problem(address, trusting(ours)) is None
    assert any("stays as it was" in line for line in caplog.messages)


def test_a_bad_file_is_one_line_at_start(ours: Authority, theirs: Authority) -> None:
    mixed = Pair(ours.pair(HOST).certificate, theirs.pair(HOST).key)
    for pair in (mixed, Pair(mixed.key, mixed.key), Pair(Path("/no"), mixed.key)):
        tls = protected(pair).tls
        assert tls is not None
        with pytest.raises(StartupError, match="^--grpc-tls-cert [^\n]*$"):
            tls.check()
