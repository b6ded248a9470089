"""The command lines of the children."""

from __future__ import annotations

import signal
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ttserve.launcher.child import ChildSpec
from ttserve.launcher.config import LauncherConfig

# Clients keep connections: each brings one more request and is closed.
DRAIN_DELAY_SECONDS = 1.0
# After that its clients are told why it is not ready.
HELD_SECONDS = 60.0


def device_spec(config: LauncherConfig) -> ChildSpec:
    model = ("--model", config.model) if config.model is not None else ()
    return ChildSpec(
        name="device",
        argv=(
            *_script("tt-device-service"),
            *model,
            *("--listen", config.grpc_address),
            *("--shutdown-grace", f"{config.shutdown_seconds:g}"),
            *config.device_flags,
        ),
        # It owns the mesh, which has to be closed.
        orphan_signal=signal.SIGTERM,
    )


def frontend_specs(config: LauncherConfig, listening_fd: int) -> Sequence[ChildSpec]:
    return [
        ChildSpec(
            name=f"frontend{i}",
            argv=(
                *_script("tt-frontend"),
                *("--name", f"frontend{i}"),
                *("--device-service", config.grpc_address),
                *("--host", config.host),
                *("--port", str(config.port)),
                *("--fd", str(listening_fd)),
                *("--metrics-port", str(config.metrics_port + i)),
                *("--shutdown-timeout", f"{config.shutdown_seconds:g}"),
                *("--drain-delay", f"{DRAIN_DELAY_SECONDS:g}"),
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


def _script(name: str) -> tuple[str, ...]:
    """Our command `name`, run by this interpreter; its output is not held back.

    By the path of its script and not as `-m frontend`, which would first look
    into the working directory, where a folder of that name is likely.
    """
    return (sys.executable, "-u", str(Path(sysconfig.get_path("scripts"), name)))
