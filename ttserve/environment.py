"""What each command sets in the environment before its first heavy import.

vLLM, torch and Hugging Face libraries read some settings once, at import; vLLM's
own subprocesses inherit them. So each `__main__` calls one of the `prepare_*`
functions before it imports anything else. This module therefore imports nothing
but the standard library, and it is the only one outside `config.py` that touches
`os.environ`.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from ttserve.entry_points import MODEL_REGISTRY, PLATFORM, check_plugins
from ttserve.errors import StartupError

Environ = MutableMapping[str, str]

ROLE_VARIABLE = "TTSERVE_ROLE"


class Role(enum.Enum):
    """Which of the two services this process, or its parent, is."""

    FRONTEND = "frontend"
    DEVICE = "device"


PLUGINS = {Role.FRONTEND: (PLATFORM,), Role.DEVICE: (PLATFORM, MODEL_REGISTRY)}
"""What each service loads. A frontend hears from the device service what is served,
and may be installed without the packages of that.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable; `fixed` ones may be set by nobody else to another value."""

    name: str
    value: str
    why: str
    fixed: bool = False


SERVICE_SETTINGS = (
    Setting(
        "VLLM_TARGET_DEVICE",
        "empty",
        "`cpu` would choose vLLM's CPU platform before any plugin is asked",
        fixed=True,
    ),
    Setting(
        "VLLM_USE_V2_MODEL_RUNNER",
        "0",
        "its requests lack fields that resuming a preempted request needs",
        fixed=True,
    ),
    Setting(
        "VLLM_WORKER_MULTIPROC_METHOD",
        "spawn",
        "a process that has imported grpc must not fork",
        fixed=True,
    ),
    Setting(
        "VLLM_REGEX_COMPILATION_TIMEOUT_S",
        "0",
        "its own limit leaves a thread behind that holds up the exit; ours does not",
        fixed=True,
    ),
    Setting("VLLM_NO_USAGE_STATS", "1", "nothing is reported to anybody"),
    Setting("DO_NOT_TRACK", "1", "the same, for Hugging Face's libraries"),
)

TORCH_SETTINGS = (
    Setting(
        "OMP_WAIT_POLICY",
        "PASSIVE",
        "threads that spin after a matrix product starve the ones with work",
    ),
)

SERVICE_NAMES = {Role.FRONTEND: "tt-frontend", Role.DEVICE: "tt-device-service"}
"""Names in traces, unless the environment has another."""

OFFLINE_SETTINGS = (
    Setting("HF_HUB_OFFLINE", "1", "all files are local: no hub is asked"),
)


def prepare_device_service(
    model: str | Path | None, environ: Environ = os.environ
) -> None:
    """Set the environment of `tt-device-service`, for the model it will load.

    `model` is what `--model` says; None means the default model. A local
    directory (the default model is one) keeps the process off the hub, a hub id
    leaves it the choice. Raises StartupError if a fixed setting was set to
    something else.
    """
    _enter(Role.DEVICE, environ)
    _apply(TORCH_SETTINGS, environ)
    if model is None or Path(model).is_dir():
        _apply(OFFLINE_SETTINGS, environ)


def prepare_frontend(environ: Environ = os.environ) -> None:
    """Set the environment of `tt-frontend`; all its files come over the wire.

    Raises StartupError if a fixed setting was set to something else, or if vLLM
    would not find our plugins.
    """
    _enter(Role.FRONTEND, environ)
    _apply(TORCH_SETTINGS, environ)
    _apply(OFFLINE_SETTINGS, environ)


def silence_vllm_logging(default: str, environ: Environ = os.environ) -> str:
    """Keep vLLM from printing log lines of its own, before it is imported.

    They go to whoever logs for the process then. Returns the level that
    VLLM_LOGGING_LEVEL asks for.
    """
    environ["VLLM_CONFIGURE_LOGGING"] = "0"
    return environ.get("VLLM_LOGGING_LEVEL", default).upper()


def conversion_environment(environ: Environ = os.environ) -> dict[str, str]:
    """The environment of a process that only converts a local model file."""
    prepared = dict(environ)
    _apply(TORCH_SETTINGS, prepared)
    _apply(OFFLINE_SETTINGS, prepared)
    return prepared


def current_role(environ: Environ = os.environ) -> Role | None:
    """The service that this process belongs to; None outside of both."""
    value = environ.get(ROLE_VARIABLE)
    return Role(value) if value in {role.value for role in Role} else None


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where ttserve keeps what it can make again; not created here.

    A relative XDG_CACHE_HOME is ignored, as its specification asks.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "ttserve"


def _enter(role: Role, environ: Environ) -> None:
    ours = PLUGINS[role]
    check_plugins(ours)
    _apply(SERVICE_SETTINGS, environ)
    environ[ROLE_VARIABLE] = role.value
    environ.setdefault("OTEL_SERVICE_NAME", SERVICE_NAMES[role])
    chosen = (environ.get("VLLM_PLUGINS") or "").split(",")
    environ["VLLM_PLUGINS"] = ",".join(_plugins(chosen, [it.name for it in ours]))


def _plugins(chosen: Iterable[str], ours: list[str]) -> list[str]:
    """The vLLM plugins to load: ours, and those that the operator names.

    Left unset, vLLM would load every installed one, and refuse to start where
    two of them bring a platform. Those of the other service are left out.
    """
    both = {plugin.name for plugins in PLUGINS.values() for plugin in plugins}
    return [name for name in chosen if name and name not in both] + ours


def _apply(settings: Iterable[Setting], environ: Environ) -> None:
    for setting in settings:
        found = environ.setdefault(setting.name, setting.value)
        if setting.fixed and found != setting.value:
            raise StartupError(
                f"{setting.name}={found} is set, but ttserve needs "
                f"{setting.name}={setting.value}: {setting.why}"
            )
