"""The tokenizer bundle as one ZIP archive, the form in which gateways take it."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from smg_grpc_proto.generated import common_pb2

from device_service.bundle import Bundle
from ttserve.model_info import MODEL_INFO_FILE

CHUNK_BYTES = 64 << 10
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""A fixed time, so that the same files make the same archive."""


@dataclass(frozen=True, slots=True)
class TokenizerArchive:
    """A ZIP archive and its SHA-256 in hexadecimal digits."""

    data: bytes
    sha256: str

    @classmethod
    def of(cls, bundle: Bundle) -> TokenizerArchive:
        """Pack what frontends get. Takes hundreds of milliseconds: a worker's job."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in bundle.files:
                if file.name != MODEL_INFO_FILE:  # frontends' own
                    entry = zipfile.ZipInfo(file.name, _EPOCH)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, file.data)
        data = buffer.getvalue()
        return cls(data, hashlib.sha256(data).hexdigest())

    def chunks(self) -> Iterator[Any]:
        """Messages of up to 64 KiB; the hash stands in the last."""
        for start in range(0, len(self.data), CHUNK_BYTES):
            end = start + CHUNK_BYTES
            yield common_pb2.GetTokenizerChunk(
                data=self.data[start:end],
                sha256=self.sha256 if end >= len(self.data) else "",
            )
