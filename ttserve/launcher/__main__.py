"""`tt-serve`: device services and their frontends on this machine."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
from collections.abc import Sequence

from ttserve.errors import StartupError
from ttserve.launcher.child import Child
from ttserve.launcher.commands import device_specs, frontend_specs, speakers
from ttserve.launcher.config import (
    GRPC_HOST,
    LauncherConfig,
    parse,
    reachable,
    wants_colour,
)
from ttserve.launcher.output import Console
from ttserve.launcher.planning import PlanFailedError, plan
from ttserve.launcher.readiness import ReadyPort, wait_until_ready
from ttserve.launcher.rolling import RollingRestart
from ttserve.launcher.sockets import check_free, listen
from ttserve.launcher.supervisor import USAGE_ERROR, Supervisor, Timing

# The parts end by themselves within the shutdown timeout; then they hang.
KILL_AFTER_SECONDS = 10.0


def main() -> None:
    """Entry point of the command."""
    try:
        sys.exit(serve(parse(sys.argv[1:])))
    except StartupError as error:
        print(f"tt-serve: error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(USAGE_ERROR)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def serve(config: LauncherConfig) -> int:
    """Run until stopped; returns the exit code."""
    with listen(config.host, config.port) as http_socket:
        port = http_socket.getsockname()[1]
        config = dataclasses.replace(config, port=port)
        console = Console(
            sys.stdout.buffer,
            speakers(config),
            colour=wants_colour(is_terminal=sys.stdout.isatty()),
            as_json=config.logs_json,
        )
        return asyncio.run(_serve(config, http_socket.fileno(), console))


async def _serve(config: LauncherConfig, listening_fd: int, console: Console) -> int:
    try:
        services = await plan(config, console)
    except PlanFailedError as failed:
        return failed.exit_code
    _check_ports(config, len(services))
    devices = device_specs(config, services)
    frontends = frontend_specs(config, listening_fd, len(devices))
    ports = [
        ReadyPort(spec.name, reachable(config.host), config.metrics_port + i)
        for i, spec in enumerate(frontends)
    ]

    async def announce() -> None:
        seconds = await wait_until_ready(ports, console.say)
        for line in _ready_report(config, len(devices), seconds):
            console.say(line)

    async def ready_again(name: str) -> None:
        await wait_until_ready([p for p in ports if p.frontend == name], console.say)

    timing = Timing(grace=config.shutdown_seconds + KILL_AFTER_SECONDS)
    children = [Child(spec, console.show) for spec in frontends]
    supervisor = Supervisor(
        [Child(spec, console.show) for spec in devices],
        children,
        announce,
        console,
        timing,
        RollingRestart(children, ready_again, console, timing.grace),
    )
    return await supervisor.run()


def _check_ports(config: LauncherConfig, services: int) -> None:
    """What the parts would refuse after some seconds, and in words of their own."""
    check_free(GRPC_HOST, config.grpc_port, services, "--grpc-port")
    check_free(config.host, config.metrics_port, config.frontends, "--metrics-port")
    if config.device_metrics_port is not None:
        first = config.device_metrics_port
        check_free(GRPC_HOST, first, services, "--device-metrics-port")


def _ready_report(
    config: LauncherConfig, devices: int, seconds: float
) -> Sequence[str]:
    return (
        f"ready in {seconds:.1f} s; Ctrl-C stops everything",
        f"  HTTP  {config.http_url}",
        f"  gRPC  {' '.join(map(config.grpc_address, range(devices)))}",
        f"  try   curl {config.http_url}/v1/chat/completions "
        "-H 'Content-Type: application/json' "
        """-d '{"messages": [{"role": "user", "content": "Hello"}]}'""",
    )


if __name__ == "__main__":
    main()
