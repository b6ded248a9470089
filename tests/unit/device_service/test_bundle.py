"""The tokenizer bundle: what leaves the model's directory, and what does not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from device_service import bundle
from device_service.bundle import BundledFile, build_bundle
from ttserve.errors import StartupError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory with all sorts of files."""
    for name in (
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model.safetensors",
        "modeling_custom.py",
        ".env",
        "README.md",
    ):
        (tmp_path / name).write_text(name)
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "tokenizer.model").write_text("nested")
    (tmp_path / "tokenizer.model").symlink_to(tmp_path / "original" / "tokenizer.model")
    (tmp_path / "vocab.json").mkdir()  # a directory of that name
    return tmp_path


def names(directory: Path, *, trusted: bool = False) -> list[str]:
    built = build_bundle(directory, {}, trust_remote_code=trusted)
    return [file.name for file in built.files]


def test_only_names_on_the_list(model: Path) -> None:
    assert names(model) == [
        "chat_template.jinja",
        "config.json",
        "tokenizer.json",
        "tokenizer.model",
    ]


def test_code_travels_only_where_it_is_trusted(model: Path) -> None:
    assert set(names(model, trusted=True)) - set(names(model)) == {"modeling_custom.py"}


def test_links_are_followed(model: Path) -> None:
    built = build_bundle(model, {}, trust_remote_code=False)
    [linked] = [file for file in built.files if file.name == "tokenizer.model"]
    assert linked.data == b"nested"


def test_extra_files_replace_those_of_the_directory(model: Path) -> None:
    built = build_bundle(
        model,
        {"config.json": b"changed", "vllm_modelinfo.json": b"{}"},
        trust_remote_code=False,
    )
    contents = {file.name: file.data for file in built.files}
    assert contents["config.json"] == b"changed"
    assert contents["vllm_modelinfo.json"] == b"{}"


def test_total_size_is_bounded(model: Path) -> None:
    with (model / "merges.txt").open("wb") as file:
        file.truncate(bundle.MAX_BUNDLE_BYTES + 1)  # sparse: takes no space
    with pytest.raises(StartupError, match="64 MB"):
        build_bundle(model, {}, trust_remote_code=False)


def test_hash_changes_with_names_and_contents(model: Path) -> None:
    first = build_bundle(model, {}, trust_remote_code=False).sha256
    assert build_bundle(model, {}, trust_remote_code=False).sha256 == first
    (model / "tokenizer.json").write_text("other")
    assert build_bundle(model, {}, trust_remote_code=False).sha256 != first


@pytest.mark.parametrize("size", [0, 1, 262144, 262145, 600_000])
def test_pieces_make_up_the_file(size: int) -> None:
    data = bytes(size)
    file = BundledFile.of("f", data)
    pieces = list(file.pieces())
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= 262144 for piece in pieces)
    assert file.sha256 == hashlib.sha256(data).hexdigest()
