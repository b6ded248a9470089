"""The command lines of the children."""

from __future__ import annotations

import signal
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ttserve.launcher.child import ChildSpec
from ttserve.launcher.config import LauncherConfig, with_variables
from ttserve.launcher.matching import matching_flags
from ttserve.service_plan import PlannedService

# Clients keep connections: each brings one more request and is closed.
LONGEST_DRAIN_DELAY = 1.0
# Starts take ten seconds, and minutes on a machine that is overloaded. After that
# its clients are told why it is not ready.
HELD_SECONDS = 120.0


def speakers(config: LauncherConfig) -> Sequence[str]:
    """Names of all children that there may be."""
    several = [f"device{i}" for i in range(config.data_parallel_size)]
    devices = ["plan", "device", *several] if len(several) > 1 else ["device"]
    return [*devices, *(f"frontend{i}" for i in range(config.frontends))]


def plan_spec(config: LauncherConfig, file: Path) -> ChildSpec:
    """Writes to `file` which device services there are to be."""
    return ChildSpec(
        name="plan",
        argv=(
            *_device_service(config),
            *("--data-parallel-size", str(config.data_parallel_size)),
            *("--plan", str(file)),
        ),
        orphan_signal=signal.SIGTERM,
    )


def device_specs(
    config: LauncherConfig, services: Sequence[PlannedService]
) -> Sequence[ChildSpec]:
    """One for each service, on consecutive ports."""
    return [
        ChildSpec(
            name="device" if len(services) == 1 else f"device{i}",
            argv=(
                *_device_service(config),
                *("--listen", config.grpc_address(i)),
                *("--shutdown-grace", f"{config.shutdown_seconds:g}"),
                *_metrics(config, i),
                *service.flags,
            ),
            # It owns the mesh, which has to be closed.
            orphan_signal=signal.SIGTERM,
            environment=with_variables(service.environment),
        )
        for i, service in enumerate(services)
    ]


def _metrics(config: LauncherConfig, device: int) -> Sequence[str]:
    first = config.device_metrics_port
    return () if first is None else ("--metrics-port", str(first + device))


def frontend_specs(
    config: LauncherConfig, listening_fd: int, devices: int
) -> Sequence[ChildSpec]:
    """All of them use all device services."""
    addresses = ",".join(map(config.grpc_address, range(devices)))
    drain_delay = min(LONGEST_DRAIN_DELAY, config.shutdown_seconds)
    return [
        ChildSpec(
            name=f"frontend{i}",
            argv=(
                *_script("tt-frontend"),
                *("--name", f"frontend{i}"),
                *("--device-service", addresses),
                *("--host", config.host),
                *("--port", str(config.port)),
                *("--fd", str(listening_fd)),
                *("--metrics-port", str(config.metrics_port + i)),
                *("--shutdown-timeout", f"{config.shutdown_seconds:g}"),
                *("--drain-delay", f"{drain_delay:g}"),
                *matching_flags(config.device_flags, config.frontend_flags),
                *config.frontend_flags,
            ),
            # Until it is ready, its connections are for the others.
            again=("--accept-when-ready", f"{HELD_SECONDS:g}"),
            # It owns nothing but its open HTTP requests, and must not stay.
            orphan_signal=signal.SIGKILL,
            inherited_fds=(listening_fd,),
        )
        for i in range(config.frontends)
    ]


def _device_service(config: LauncherConfig) -> tuple[str, ...]:
    model = ("--model", config.model) if config.model is not None else ()
    return (*_script("tt-device-service"), *model, *config.device_flags)


def _script(name: str) -> tuple[str, ...]:
    """Our command `name`, run by this interpreter; its output is not held back.

    By the path of its script and not as `-m frontend`, which would first look
    into the working directory, where a folder of that name is likely.
    """
    return (sys.executable, "-u", str(Path(sysconfig.get_path("scripts"), name)))
