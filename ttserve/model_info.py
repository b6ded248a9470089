"""What vLLM knows about a model class, carried from one process to another.

To build its configuration vLLM inspects the model class in a subprocess, which
takes some seconds per architecture, and caches what it learns in a file. The
device service sends that file's content in the tokenizer bundle, as
`vllm_modelinfo.json`, and a frontend writes it into its own cache before it
builds a configuration. Entries hold a hash of the class's source, so a cache
seeded by another vLLM version is ignored by vLLM, not believed.

    {"entries": [{"file": "<name in the cache>", "content": {...}}, ...]}
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import vllm.envs as envs
from vllm.model_executor.models import ModelRegistry

MODEL_INFO_FILE = "vllm_modelinfo.json"


def collect_model_info(architectures: Iterable[str]) -> bytes:
    """What vLLM has cached about these architectures; those it has not are left out.

    vLLM fills its cache when it builds a configuration for the architecture.
    """
    entries = []
    for architecture in architectures:
        cached = _cached_file(architecture)
        if cached is None:
            continue
        try:
            content = json.loads(cached.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        entries.append({"file": cached.name, "content": content})
    return json.dumps({"entries": entries}, sort_keys=True).encode()


def seed_model_info(data: bytes) -> list[str]:
    """Put carried entries into this process's vLLM cache; the files written.

    Raises ValueError where the data is not what `collect_model_info` makes.
    """
    directory = _cache_directory()
    written = []
    for entry in json.loads(data)["entries"]:
        name, content = entry["file"], entry["content"]
        if Path(name).name != name or not name.endswith(".json"):
            raise ValueError(f"not a bare file name: {name!r}")
        directory.mkdir(parents=True, exist_ok=True)
        _write_whole(directory / name, json.dumps(content))
        written.append(name)
    return written


def _write_whole(path: Path, text: str) -> None:
    """Replace a file at once, so that no other process reads half of it."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, delete=False
    ) as file:
        file.write(text)
    os.replace(file.name, path)


def _cached_file(architecture: str) -> Path | None:
    registered = ModelRegistry.models.get(architecture)
    module = getattr(registered, "module_name", None)
    name = getattr(registered, "class_name", None)
    if module is None or name is None:
        return None
    return _cache_directory() / (f"{module}-{name}".replace(".", "-") + ".json")


def _cache_directory() -> Path:
    return Path(envs.VLLM_CACHE_ROOT) / "modelinfos"
