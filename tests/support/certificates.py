"""Authorities and certificates for tests, written to files as flags want them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme

from ttserve.client_security import ChannelSecurity


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates into a directory of its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._authority = trustme.CA()
        self._directory = directory
        self._count = 0
        self.ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    def pair(self, *names: str) -> Pair:
        """A certificate for these names or addresses."""
        issued = self._authority.issue_cert(*names)
        self._count += 1
        certificate = self._directory / f"{self._count}.pem"
        key = self._directory / f"{self._count}.key"
        certificate.write_bytes(issued.cert_chain_pems[0].bytes())
        issued.private_key_pem.write_to_path(str(key))
        return Pair(certificate, key)


def trusting(authority: Authority, pair: Pair | None = None) -> ChannelSecurity:
    """A client that trusts the authority, and presents the pair."""
    return ChannelSecurity(
        ca=authority.ca.read_bytes(),
        certificate=pair.certificate.read_bytes() if pair else None,
        key=pair.key.read_bytes() if pair else None,
    )
