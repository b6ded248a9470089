"""Where the files of the model are: a local directory, in the end always."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download

from device_service.config import DeviceConfig
from ttserve.default_model import DEFAULT_MODEL_NAME, default_model_dir
from ttserve.errors import StartupError
from ttserve.sim_model import SIM_MODEL_NAME, sim_model_dir

Progress = Callable[[str], None]

_DESCRIPTIONS = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
_WEIGHTS = ["*.safetensors"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A directory, and the name under which it is served unless told otherwise."""

    directory: Path
    name: str


def find_model(config: DeviceConfig, progress: Progress) -> ModelSource:
    """Find the model, or make or download it now.

    Raises StartupError when there is none.
    """
    patterns = _DESCRIPTIONS if config.mesh == "sim" else _DESCRIPTIONS + _WEIGHTS
    return _find(config, progress, patterns)


def find_description(config: DeviceConfig, progress: Progress) -> Path:
    """A directory that says what the model is; its weights are not downloaded.

    Raises StartupError when there is none.
    """
    return _find(config, progress, _DESCRIPTIONS).directory


def _find(config: DeviceConfig, progress: Progress, patterns: list[str]) -> ModelSource:
    if config.model is None and config.mesh == "sim":
        return ModelSource(sim_model_dir(), SIM_MODEL_NAME)
    if config.model is None:
        return ModelSource(default_model_dir(progress), DEFAULT_MODEL_NAME)
    path = Path(config.model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise StartupError(
                f"--model {config.model}: the directory has no config.json; a model in "
                "Hugging Face's layout is needed"
            )
        return ModelSource(path, config.model)
    if path.exists():
        raise StartupError(
            f"--model {config.model}: is a file; a directory in Hugging Face's layout "
            "is needed"
        )
    if _looks_local(config.model):
        raise StartupError(f"--model {config.model}: no such directory")
    return ModelSource(
        _download(config, config.model, progress, patterns), config.model
    )


def _looks_local(model: str) -> bool:
    """Hub ids are NAME or OWNER/NAME; anything else can only be a path."""
    return model.startswith(("/", ".", "~")) or model.count("/") > 1 or not model


def _download(
    config: DeviceConfig, model: str, progress: Progress, patterns: list[str]
) -> Path:
    if config.engine["trust_remote_code"]:
        patterns = [*patterns, "*.py"]
    progress(f"looking for {model} in the cache and on the hub")
    try:
        directory = snapshot_download(
            model,
            revision=config.engine["revision"],
            token=config.engine["hf_token"],
            cache_dir=config.engine["download_dir"],
            allow_patterns=patterns,
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StartupError(
            f"--model {model}: is no local directory and cannot be had from the hub "
            f"({type(error).__name__}: {reason})"
        ) from error
    return Path(directory)
