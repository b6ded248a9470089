"""The tokenizer bundle: the files with which a frontend needs no model of its own.

Only names on a list leave the model's directory: configuration, tokenizer, chat
templates, processors; Python files only where the operator trusts the model's
code. Names are bare, so a receiver has no path to follow. Beside them travels
`vllm_modelinfo.json` (see `ttserve.model_info`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ttserve.errors import StartupError
from ttserve.protocol import FRAME_BYTES

MAX_BUNDLE_BYTES = 64 << 20

ALLOWED_NAMES = (
    # Model and generation configuration.
    "config.json",
    "generation_config.json",
    "params.json",
    # Tokenizers.
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tokenizer.model.v*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "tiktoken.model",
    "*.tiktoken",
    # Chat templates.
    "chat_template.json",
    "chat_template.jinja",
    "*.jinja",
    # Processors.
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
TRUSTED_NAMES = ("*.py",)


@dataclass(frozen=True, slots=True)
class BundledFile:
    """One file; `sha256` is in lower-case hexadecimal digits."""

    name: str
    data: bytes
    sha256: str

    @classmethod
    def of(cls, name: str, data: bytes) -> BundledFile:
        """Name and content; the hash is taken here."""
        return cls(name, data, hashlib.sha256(data).hexdigest())

    def pieces(self) -> Iterator[bytes]:
        """The content in pieces that fit into a frame; none for an empty file."""
        for start in range(0, len(self.data), FRAME_BYTES):
            yield self.data[start : start + FRAME_BYTES]


@dataclass(frozen=True, slots=True)
class Bundle:
    """All files, by name in alphabetical order."""

    files: tuple[BundledFile, ...]

    @property
    def sha256(self) -> str:
        """A hash over names and contents, for the model's fingerprint."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.name}\0{file.sha256}\n".encode())
        return digest.hexdigest()


def build_bundle(
    directory: Path, extra: Mapping[str, bytes], *, trust_remote_code: bool
) -> Bundle:
    """Read the allowed files of a model directory, and add `extra` ones.

    Raises StartupError where they are more than 64 MB in all.
    """
    allowed = ALLOWED_NAMES + (TRUSTED_NAMES if trust_remote_code else ())
    contents = dict(extra)
    total = sum(map(len, contents.values()))
    for path in sorted(directory.iterdir()):
        if path.name in contents or not path.is_file():
            continue
        if not any(fnmatchcase(path.name, pattern) for pattern in allowed):
            continue
        total += path.stat().st_size
        if total > MAX_BUNDLE_BYTES:
            raise StartupError(
                f"{directory}: configuration and tokenizer files exceed "
                f"{MAX_BUNDLE_BYTES >> 20} MB with {path.name}; "
                "frontends cannot be served with them"
            )
        contents[path.name] = path.read_bytes()
    return Bundle(
        tuple(BundledFile.of(name, contents[name]) for name in sorted(contents))
    )
