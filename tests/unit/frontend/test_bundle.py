"""The tokenizer bundle is unpacked whole, or refused with a reason."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from frontend.device.bundle import MAX_BUNDLE_BYTES, fetch_bundle, private_directory
from ttserve.errors import StartupError
from ttserve.v1.device_pb2 import BundleFile, GetTokenizerResponse


class Stub:
    """Answers GetTokenizer with these parts."""

    def __init__(self, *parts: GetTokenizerResponse) -> None:
        self._parts = parts

    async def GetTokenizer(
        self, request: object
    ) -> AsyncIterator[GetTokenizerResponse]:
        for part in self._parts:
            yield part


def announce(name: str, content: bytes, **changes: Any) -> GetTokenizerResponse:
    fields: dict[str, Any] = {
        "name": name,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return GetTokenizerResponse(file=BundleFile(**fields | changes))


def data(content: bytes) -> GetTokenizerResponse:
    return GetTokenizerResponse(data=content)


async def fetch(directory: Path, *parts: GetTokenizerResponse) -> list[str]:
    stub: Any = Stub(*parts)
    return await fetch_bundle(stub, directory, python_files=False)


def contents_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def test_files_in_pieces(tmp_path: Path) -> None:
    names = await fetch(
        tmp_path,
        announce("a.json", b"123456"),
        data(b"123"),
        data(b"456"),
        announce("empty", b""),
        announce("b", b"x"),
        data(b"x"),
    )
    assert names == ["a.json", "empty", "b"]
    assert contents_of(tmp_path) == {"a.json": b"123456", "empty": b"", "b": b"x"}


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (data(b"x"),),
        (announce("a", b"12"), data(b"123")),
        (announce("a", b"12"), data(b"1")),
        (announce("a", b"12"), data(b"13")),
        (announce("a", b"12", sha256="0" * 64), data(b"12")),
        (announce("../a", b""),),
        (announce("/a", b""),),
        (announce("a/b", b""),),
        (announce(".bashrc", b""),),
        (announce("", b""),),
        (announce("a\0", b""),),
        (announce("n" * 200, b""),),
        (announce("a", b""), announce("a", b"")),
        (announce("model.py", b""),),
        (announce("a", b"", size=MAX_BUNDLE_BYTES + 1),),
    ],
)
async def test_malformed(
    tmp_path: Path, parts: tuple[GetTokenizerResponse, ...]
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(StartupError):
        await fetch(inside, *parts)
    assert os.listdir(tmp_path) == ["inside"]


async def test_code_only_where_it_is_trusted(tmp_path: Path) -> None:
    stub: Any = Stub(announce("model.py", b""))
    assert await fetch_bundle(stub, tmp_path, python_files=True) == ["model.py"]


def test_the_directory_is_private_and_goes_away() -> None:
    with private_directory() as path:
        assert path.stat().st_mode & 0o077 == 0
    assert not path.exists()
