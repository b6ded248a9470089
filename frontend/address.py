"""Where a device service listens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ttserve.errors import StartupError

_PATTERN = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:/\s,]+)):(?P<port>\d{1,5})"
)


@dataclass(frozen=True, slots=True)
class DeviceAddress:
    """Host and port of a device service; the host may be a name."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def target(self) -> str:
        """The address as gRPC resolves it."""
        return f"dns:///{self}"


def parse_device_address(text: str) -> DeviceAddress:
    """Read HOST:PORT or [IPV6]:PORT; anything else is a StartupError."""
    match = _PATTERN.fullmatch(text.strip())
    port = int(match["port"]) if match else 0
    if match is None or not 0 < port < 65536:
        raise StartupError(
            f"--device-service {text!r} is not HOST:PORT (for example "
            "127.0.0.1:50051, device:50051 or [::1]:50051)"
        )
    return DeviceAddress(match["v6"] or match["host"], port)
