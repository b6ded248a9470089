"""What protects the gRPC port, as the operator asked for it."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from device_service.access import Access
from ttserve.client_security import (
    DEVICE_TOKEN_VARIABLE,
    INSPECTOR_TOKEN_VARIABLE,
    check_certificates,
    check_pair,
    read_tokens,
)
from ttserve.errors import StartupError

if TYPE_CHECKING:
    from device_service.arguments import ListenAddress

STEP_CONTROL_TOKEN_VARIABLE = "TTSERVE_STEP_CONTROL_TOKEN"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca`, clients have to present a certificate of it."""

    certificate: str
    key: str
    client_ca: str | None = None

    def check(self) -> None:
        """Raises StartupError, which names option and file."""
        check_pair("--grpc-tls-cert", self.certificate, self.key)
        check_certificates("--grpc-tls-client-ca", self.client_ca)


@dataclass(frozen=True, slots=True)
class GrpcSecurity:
    """TLS, and who may call what. The default protects nothing."""

    tls: TlsFiles | None = None
    access: Access = field(default_factory=Access)


UNPROTECTED = GrpcSecurity()


def add_security_options(own: Any) -> None:
    """Add the options that `read_security` reads to a group of a parser."""
    own.add_argument(
        "--grpc-tls-cert",
        metavar="FILE",
        help="Serve TLS: the certificate and those between it and its authority, "
        "PEM. It is read again when it changes.",
    )
    own.add_argument("--grpc-tls-key", metavar="FILE", help="Key of the certificate.")
    own.add_argument(
        "--grpc-tls-client-ca",
        metavar="FILE",
        help="Authorities of client certificates, PEM. A client without one of "
        "theirs is turned away.",
    )
    own.add_argument(
        "--grpc-token-file",
        metavar="FILE",
        help="Tokens, one a line, of which a caller has to send one; read again when "
        "it changes. Or TTSERVE_GRPC_TOKEN in the environment, for one token.",
    )
    own.add_argument(
        "--inspector-token-file",
        metavar="FILE",
        help="Tokens of the Inspector; those of --grpc-token-file no longer open it. "
        "Or TTSERVE_INSPECTOR_TOKEN.",
    )
    own.add_argument(
        "--step-control-token-file",
        metavar="FILE",
        help="Tokens that pause, step and empty the prefix cache, where "
        "--enable-step-control lets somebody; no others do. Or "
        "TTSERVE_STEP_CONTROL_TOKEN.",
    )


def read_security(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> GrpcSecurity:
    """Read what the options name. Raises StartupError, which names the option."""
    access = Access(
        device=read_tokens(
            ("--grpc-token-file", options.grpc_token_file),
            (DEVICE_TOKEN_VARIABLE, environ),
        ),
        inspector=read_tokens(
            ("--inspector-token-file", options.inspector_token_file),
            (INSPECTOR_TOKEN_VARIABLE, environ),
        ),
        step_control=read_tokens(
            ("--step-control-token-file", options.step_control_token_file),
            (STEP_CONTROL_TOKEN_VARIABLE, environ),
        ),
    )
    if options.step_control_token_file and not options.enable_step_control:
        raise StartupError("--step-control-token-file needs --enable-step-control")
    return GrpcSecurity(_tls(options), access)


def exposure(listen: ListenAddress, security: GrpcSecurity) -> str | None:
    """What to warn of, if others than this machine can reach the port."""
    identified = bool(security.access.device) or (
        security.tls is not None and security.tls.client_ca is not None
    )
    missing = [
        what
        for what, given in (
            ("without TLS (--grpc-tls-cert)", security.tls is not None),
            ("without a token (--grpc-token-file)", identified),
        )
        if not given
    ]
    if not missing or _is_loopback(listen.host):
        return None
    return (
        f"other machines can reach {listen} {' and '.join(missing)}: "
        "only a network that is trusted may; see docs/SECURITY.md"
    )


def _tls(options: argparse.Namespace) -> TlsFiles | None:
    cert, key = options.grpc_tls_cert, options.grpc_tls_key
    client_ca = options.grpc_tls_client_ca
    if bool(cert) is not bool(key):
        raise StartupError("--grpc-tls-cert and --grpc-tls-key go together")
    if cert is None:
        if client_ca is not None:
            raise StartupError("--grpc-tls-client-ca needs --grpc-tls-cert")
        return None
    return TlsFiles(cert, key, client_ca)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
