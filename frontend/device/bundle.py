"""The files that a frontend needs, from the device service into a directory.

What comes over the wire is not trusted to be well formed: names must be bare
and plain, sizes and SHA-256 must agree, and all files together stay below a
bound. Python files are taken only where the device service runs such code too.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from ttserve.errors import StartupError
from ttserve.v1.device_pb2 import (
    BundleFile,
    GetTokenizerRequest,
    GetTokenizerResponse,
)
from ttserve.v1.device_pb2_grpc import DeviceStub

MAX_BUNDLE_BYTES = 64 << 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """A directory that only this user can read, gone when the frontend ends."""
    with tempfile.TemporaryDirectory(prefix="tt-frontend-") as path:
        yield Path(path)


async def fetch_bundle(
    stub: DeviceStub, directory: Path, *, python_files: bool
) -> list[str]:
    """Write the bundle's files into `directory`; return their names.

    gRPC errors pass through, so that the caller can ask again; a malformed
    bundle is a StartupError. Safe to repeat after a failure half way.
    """
    parts = stub.GetTokenizer(GetTokenizerRequest())
    unpacker = _Unpacker(directory, python_files=python_files)
    await unpacker.take_all(parts)
    return unpacker.names


class _Unpacker:
    """Takes announcements and bytes in turn; writes a file when it is complete."""

    def __init__(self, directory: Path, *, python_files: bool) -> None:
        self._directory = directory
        self._python_files = python_files
        self._left = MAX_BUNDLE_BYTES
        self._file: BundleFile | None = None
        self._data = bytearray()
        self.names: list[str] = []

    async def take_all(self, parts: AsyncIterator[GetTokenizerResponse]) -> None:
        async for part in parts:
            match part.WhichOneof("part"):
                case "file":
                    self._finish()
                    self._begin(part.file)
                case "data":
                    self._append(part.data)
        self._finish()
        if not self.names:
            raise StartupError("the device service sent an empty tokenizer bundle")

    def _begin(self, file: BundleFile) -> None:
        if not _PLAIN_NAME.fullmatch(file.name) or file.name in self.names:
            raise _malformed(f"file name {file.name[:80]!r}")
        if file.name.endswith(".py") and not self._python_files:
            raise _malformed(f"{file.name} is code, and no code was to be trusted")
        if file.size > self._left:
            raise _malformed(f"more than {MAX_BUNDLE_BYTES} bytes")
        self._left -= file.size
        self._file = file
        self._data = bytearray()

    def _append(self, data: bytes) -> None:
        if self._file is None or len(self._data) + len(data) > self._file.size:
            raise _malformed("bytes that belong to no announced file")
        self._data += data

    def _finish(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        digest = hashlib.sha256(self._data).hexdigest()
        if len(self._data) != file.size or digest != file.sha256:
            raise _malformed(f"{file.name} is not what was announced")
        (self._directory / file.name).write_bytes(self._data)
        self.names.append(file.name)


def _malformed(what: str) -> StartupError:
    return StartupError(f"the device service sent a malformed tokenizer bundle: {what}")
