"""What protects the gRPC port, as far as the command line says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_service.config import DeviceConfig, parse_args
from device_service.security import exposure
from tests.support.certificates import Authority
from ttserve.errors import StartupError

TOKEN = "a-token-of-this-test"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Paths by the words of the lines below."""
    authority = Authority(tmp_path / "authority")
    pair = authority.pair("127.0.0.1")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    return {
        "CERT": str(pair.certificate),
        "KEY": str(pair.key),
        "CA": str(authority.ca),
        "TOKEN": str(token),
    }


def parsed(line: str, files: dict[str, str], **environ: str) -> DeviceConfig:
    return parse_args([files.get(word, word) for word in line.split()], environ)


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("--listen 127.0.0.1:1", ()),
        ("--listen localhost:1", ()),
        ("--listen [::1]:1", ()),
        ("--listen 0.0.0.0:1", ("TLS", "token")),
        ("--listen 10.0.0.1:1 --grpc-token-file TOKEN", ("TLS",)),
        ("--listen [::]:1 --grpc-tls-cert CERT --grpc-tls-key KEY", ("token",)),
        (
            "--listen 0.0.0.0:1 --grpc-tls-cert CERT --grpc-tls-key KEY "
            "--grpc-tls-client-ca CA",
            (),
        ),
        (
            "--listen 0.0.0.0:1 --grpc-tls-cert CERT --grpc-tls-key KEY "
            "--grpc-token-file TOKEN",
            (),
        ),
    ],
)
def test_what_others_can_reach_is_warned_of(
    line: str, missing: tuple[str, ...], files: dict[str, str]
) -> None:
    config = parsed(line, files)
    warning = exposure(config.listen, config.security)
    assert (warning is not None) is bool(missing)
    for what in ("TLS", "token"):
        assert (f"without {what}" in (warning or "").replace("a token", "token")) is (
            what in missing
        )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--grpc-tls-cert CERT", "--grpc-tls-cert and --grpc-tls-key go together"),
        ("--grpc-tls-key KEY", "--grpc-tls-cert and --grpc-tls-key go together"),
        ("--grpc-tls-client-ca CA", "--grpc-tls-client-ca needs --grpc-tls-cert"),
        ("--grpc-token-file /no", "--grpc-token-file /no: No such file"),
        ("--step-control-token-file TOKEN", "needs --enable-step-control"),
    ],
)
def test_what_does_not_fit_is_one_line(
    line: str, says: str, files: dict[str, str]
) -> None:
    with pytest.raises(StartupError) as raised:
        parsed(line, files)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_tokens_come_from_the_environment_too(files: dict[str, str]) -> None:
    variables = {
        "TTSERVE_GRPC_TOKEN": "d",
        "TTSERVE_INSPECTOR_TOKEN": "i",
        "TTSERVE_STEP_CONTROL_TOKEN": "s",
    }
    access = parsed("", files, **variables).security.access
    assert access.device.newest() == "d"
    assert access.inspector.newest() == "i"
    assert access.step_control.newest() == "s"
    config = parsed("--grpc-token-file TOKEN", files, **variables)
    assert not config.security.access.device.accept("d")
    assert TOKEN not in repr(config)
