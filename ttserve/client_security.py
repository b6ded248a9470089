"""What a client of the device service shows and checks, from its command line.

    add_channel_options(parser)
    security = channel_security(parser.parse_args(), os.environ)
    channel = open_channel("dns:///device:50051", options, security)

Imports no grpc: a frontend's port answers before that is loaded.
"""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ttserve.errors import StartupError
from ttserve.tokens import Tokens

DEVICE_TOKEN_VARIABLE = "TTSERVE_GRPC_TOKEN"
INSPECTOR_TOKEN_VARIABLE = "TTSERVE_INSPECTOR_TOKEN"


@dataclass(frozen=True, slots=True)
class ChannelSecurity:
    """How a client proves who it is, and knows whom it speaks to.

    `ca`, `certificate` and `key` are PEM; no `ca` means no TLS.
    """

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    device_token: Tokens = field(default_factory=Tokens)
    inspector_token: Tokens = field(default_factory=Tokens)


PLAIN = ChannelSecurity()


def add_channel_options(group: Any) -> None:
    """Add the options of a client of the device service to a group of a parser."""
    group.add_argument(
        "--device-tls-ca",
        metavar="FILE",
        help="connect with TLS; the certificate has to be signed by one of these (PEM)",
    )
    group.add_argument(
        "--device-tls-cert", metavar="FILE", help="certificate to present (mTLS)"
    )
    group.add_argument("--device-tls-key", metavar="FILE", help="and its key")
    group.add_argument(
        "--device-tls-server-name",
        metavar="NAME",
        help="name in its certificate, if not the one that is connected to",
    )
    group.add_argument(
        "--device-token-file",
        metavar="FILE",
        help="token to present, the last line of a file that is read again when it "
        f"changes (also: {DEVICE_TOKEN_VARIABLE})",
    )
    group.add_argument(
        "--device-inspector-token-file",
        metavar="FILE",
        help="token for its Inspector, where that has one of its own (also: "
        f"{INSPECTOR_TOKEN_VARIABLE})",
    )


def channel_security(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> ChannelSecurity:
    """Read the files that the options of `add_channel_options` name.

    Raises StartupError, which names the option.
    """
    ca, cert, key = (
        options.device_tls_ca,
        options.device_tls_cert,
        options.device_tls_key,
    )
    if bool(cert) is not bool(key):
        raise StartupError("--device-tls-cert and --device-tls-key go together")
    if ca is None and (cert or options.device_tls_server_name):
        raise StartupError("TLS to the device service needs --device-tls-ca")
    check_certificates("--device-tls-ca", ca)
    check_pair("--device-tls-cert", cert, key)
    return ChannelSecurity(
        ca=_read(ca),
        certificate=_read(cert),
        key=_read(key),
        server_name=options.device_tls_server_name,
        device_token=read_tokens(
            ("--device-token-file", options.device_token_file),
            (DEVICE_TOKEN_VARIABLE, environ),
        ),
        inspector_token=read_tokens(
            ("--device-inspector-token-file", options.device_inspector_token_file),
            (INSPECTOR_TOKEN_VARIABLE, environ),
        ),
    )


def read_tokens(
    option: tuple[str, str | None], variable: tuple[str, Mapping[str, str]]
) -> Tokens:
    """Tokens of the file that an option names, else of a variable."""
    name, file = option
    if file is not None:
        return Tokens(file=Path(file), source=name)
    name, environ = variable
    return Tokens([environ.get(name, "")], source=name)


def check_certificates(option: str, file: str | None) -> None:
    """Refuse a file that holds no certificate of an authority."""
    if file is None:
        return
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:  # ssl.SSLError is one
        raise StartupError(f"{option} {file}: {_why(error)}") from error


def check_pair(option: str, certificate: str | None, key: str | None) -> None:
    """Refuse a certificate and a key that are not one pair."""
    if certificate is None or key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key, password=_no_password
        )
    except OSError as error:
        files = f"{option} {certificate}, {key}"
        raise StartupError(f"{files}: {_why(error)}") from error


def _no_password() -> str:
    raise StartupError("a TLS key with a password is not supported: decrypt it")


def _read(file: str | None) -> bytes | None:
    return Path(file).read_bytes() if file is not None else None


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not a PEM file").lower().replace("_", " ")
    return error.strerror or str(error)
