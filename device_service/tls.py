"""TLS of the gRPC port: files to credentials, again whenever the files change."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc

from device_service.security import TlsFiles
from ttserve.errors import StartupError

logger = logging.getLogger(__name__)


class ServerTls:
    """Reads the files, and again when one has changed.

    gRPC asks at every handshake, from threads of its own. Files that are bad
    when they change are said once and ignored: connections go on with what was
    read before.
    """

    def __init__(self, files: TlsFiles) -> None:
        files.check()
        self._files = files
        self._seen = self._stamps()

    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`. Raises StartupError where a file cannot be read."""
        try:
            first = self._read()
        except OSError as error:
            raise StartupError(f"--grpc-tls-cert: {error}") from error
        return grpc.dynamic_ssl_server_credentials(
            first,
            self._changed,  # type: ignore[arg-type]  # None means: as before
            self._files.client_ca is not None,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new configuration, or None if there is none."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return None
            self._seen = stamps
            self._files.check()
            configuration = self._read()
        except (OSError, StartupError) as error:
            logger.warning("the certificate stays as it was: %s", error)
            return None
        logger.info("%s was read again", self._files.certificate)
        return configuration

    def _read(self) -> grpc.ServerCertificateConfiguration:
        pair = (_bytes(self._files.key), _bytes(self._files.certificate))
        client_ca = self._files.client_ca
        return grpc.ssl_server_certificate_configuration(
            [pair], None if client_ca is None else _bytes(client_ca)
        )

    def _stamps(self) -> list[tuple[int, int]]:
        files = self._files
        return [
            (found.st_ino, found.st_mtime_ns)
            for found in (
                Path(file).stat()
                for file in (files.certificate, files.key, files.client_ca)
                if file is not None
            )
        ]


def _bytes(file: str) -> bytes:
    return Path(file).read_bytes()
