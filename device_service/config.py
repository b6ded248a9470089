"""What the operator asked for: command line, `tt` options and environment.

This is the only module of the device service that reads the environment.
Nothing here looks at the model or opens anything; `device_service.resolve`
turns a `DeviceConfig` into what is served.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from device_service.arguments import ListenAddress, make_parser
from device_service.engine_flags import flag
from device_service.options import MeshKind, TTOptions, parse_tt_options
from device_service.security import GrpcSecurity, read_security
from ttserve.environment import cache_dir
from ttserve.errors import StartupError

_ROWS_QUEUED_PER_ROW = 4
_OFF = frozenset({"0", "false", "no", "off"})
_OWN = frozenset(
    {
        "listen",
        "mesh",
        "max_queued_requests",
        "heartbeat_timeout",
        "shutdown_grace",
        "enable_step_control",
        "grpc_tls_cert",
        "grpc_tls_key",
        "grpc_tls_client_ca",
        "grpc_token_file",
        "inspector_token_file",
        "step_control_token_file",
        "enable_vllm_grpc",
        "step_ring",
        "log_format",
        "metrics_port",
        "metrics_host",
        "recording_dir",
        "kv_cache_fraction",
        "threads",
        "check",
        "plan",
        "config",
        "model",
    }
)


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment variables that the device service reads.

    `mesh_device` names the grid, `visible_devices` the devices that `ttnn` sees.
    The versions choose an implementation within a family of models; some of them
    run `--data-parallel-size` as lanes. What the last three do is said in
    `device_service.models.registry`.
    """

    mesh_device: str | None = None
    visible_devices: str | None = None
    llama_version: str | None = None
    qwen3_version: str | None = None
    qwen35_version: str | None = None
    model_class_overrides: str | None = None
    extra_models_dir: str | None = None
    builtin_models: bool = True

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Environment:
        """Empty variables count as unset."""
        builtin = environ.get("TT_VLLM_BUILTIN_MODELS", "").strip().lower()
        return cls(
            mesh_device=environ.get("MESH_DEVICE") or None,
            visible_devices=environ.get("TT_VISIBLE_DEVICES") or None,
            llama_version=environ.get("TT_LLAMA_TEXT_VER") or None,
            qwen3_version=environ.get("TT_QWEN3_TEXT_VER") or None,
            qwen35_version=environ.get("TT_QWEN35_TEXT_VER") or None,
            model_class_overrides=environ.get("TT_MODEL_CLASS_OVERRIDES") or None,
            extra_models_dir=environ.get("EXTRA_MODELS_DIR") or None,
            builtin_models=builtin not in _OFF,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """One launch, as asked for.

    `engine` holds vLLM's engine options by field name, `engine_defaults` what
    vLLM takes when they are not given: an option counts as explicit when the
    two differ. Times are seconds. None means: not given.
    """

    model: str | None
    engine: Mapping[str, Any]
    engine_defaults: Mapping[str, Any]
    tt: TTOptions
    mesh: MeshKind
    listen: ListenAddress
    max_queued_requests: int | None
    heartbeat_timeout: float
    shutdown_grace: float
    enable_step_control: bool
    security: GrpcSecurity
    enable_vllm_grpc: bool
    step_ring: int
    metrics_port: int | None
    metrics_host: str
    recording_dir: Path
    kv_cache_fraction: float | None
    threads: int
    check: bool
    plan: Path | None
    environment: Environment

    def is_explicit(self, field: str) -> bool:
        """Whether the operator gave an engine option another value than vLLM's."""
        value, default = self.engine[field], self.engine_defaults[field]
        return value is not default and bool(value != default)

    def mesh_options(self) -> dict[str, Any]:
        """What `mesh.factory.make_mesh` is told."""
        return {
            "mesh_device": self.environment.mesh_device,
            "visible_devices": self.environment.visible_devices,
            "sim": self.tt.sim,
            "tt": self.tt,
        }

    def queue_bound(self, total_rows: int) -> int:
        """Requests that may wait, all sessions together."""
        return self.max_queued_requests or _ROWS_QUEUED_PER_ROW * total_rows


def parse_args(
    argv: Sequence[str], environ: Mapping[str, str] = os.environ
) -> DeviceConfig:
    """Read a command line.

    Raises StartupError; argparse's own errors leave as SystemExit(2) after one
    line, `--help` as SystemExit(0).
    """
    parser = make_parser()
    options = _parse(parser, _normalise(argv))
    values = vars(options)
    engine = {name: value for name, value in values.items() if name not in _OWN}
    defaults = {name: parser.get_default(name) for name in engine}
    tt = parse_tt_options(engine["additional_config"])
    if values["metrics_host"] and values["metrics_port"] is None:
        raise StartupError("--metrics-host needs --metrics-port")
    return DeviceConfig(
        model=values["model"],
        engine=MappingProxyType(engine),
        engine_defaults=MappingProxyType(defaults),
        tt=tt,
        mesh=_mesh(values["mesh"], tt.mesh),
        listen=values["listen"],
        max_queued_requests=values["max_queued_requests"],
        heartbeat_timeout=values["heartbeat_timeout"],
        shutdown_grace=values["shutdown_grace"],
        enable_step_control=values["enable_step_control"],
        security=read_security(options, environ),
        enable_vllm_grpc=values["enable_vllm_grpc"],
        step_ring=values["step_ring"],
        metrics_port=values["metrics_port"],
        metrics_host=values["metrics_host"] or "127.0.0.1",
        recording_dir=values["recording_dir"] or cache_dir(environ) / "recordings",
        kv_cache_fraction=values["kv_cache_fraction"],
        threads=values["threads"] or default_threads(_cores()),
        check=values["check"],
        plan=values["plan"],
        environment=Environment.read(environ),
    )


def default_threads(cores: int) -> int:
    """All cores but one, which the event loop and a frontend share; at least 2."""
    return max(2, cores - 1)


def _parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """vLLM's parser reads `--config` and dotted options ahead of argparse, and
    raises whatever it meets there.
    """
    try:
        return parser.parse_args(argv)
    except IndexError:
        raise StartupError(f"{argv[-1]} needs a value") from None
    except (OSError, ValueError, AttributeError, AssertionError) as error:
        raise StartupError(f"--config: {' '.join(str(error).split())}") from error
    except yaml.YAMLError as error:
        raise StartupError(f"--config: {' '.join(str(error).split())}") from error


def _normalise(argv: Sequence[str]) -> list[str]:
    """Split `--config=FILE`, which vLLM's parser would not read, and refuse
    `--additional-config` in both its forms, of which it would drop one.
    """
    arguments: list[str] = []
    names: set[str] = set()
    for argument in argv:
        name, equals, value = argument.partition("=")
        names.add(name.partition(".")[0] + "." * ("." in name))
        arguments += [name, value] if name == "--config" and equals else [argument]
    both = flag("additional_config")
    if {both, f"{both}."} <= {name.replace("_", "-") for name in names}:
        raise StartupError(
            f"{both} is given as JSON and key by key ({both}.tt.NAME); use one form"
        )
    return arguments


def _mesh(option: MeshKind | None, tt_option: MeshKind | None) -> MeshKind:
    if option and tt_option and option != tt_option:
        raise StartupError(
            f"--mesh {option} contradicts tt option mesh {tt_option}; give one of them"
        )
    found = importlib.util.find_spec("ttnn") is not None
    return option or tt_option or ("ttnn" if found else "cpu")


def _cores() -> int:
    return len(os.sched_getaffinity(0))
