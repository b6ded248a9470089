"""Where device services listen."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ttserve.errors import StartupError

_PATTERN = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:/\s,]+)):(?P<port>\d{1,5})"
)


@dataclass(frozen=True, slots=True)
class DeviceAddress:
    """Host and port of a device service; the host may be a name.

    `server_name` is the name that an IP address was looked up by, empty if it was
    given as it is.
    """

    host: str
    port: int
    server_name: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def target(self) -> str:
        """The address as gRPC resolves it."""
        return f"dns:///{self}"

    @property
    def may_be_several(self) -> bool:
        """Whether the host is a name that may stand for several machines."""
        if self.host == "localhost":
            return False
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return True
        return False


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


def parse_device_addresses(texts: Iterable[str]) -> tuple[DeviceAddress, ...]:
    """Read HOST:PORT[,HOST:PORT...], once or several times; keeps the order.

    An address that stands there twice is a StartupError: it would get twice the
    work.
    """
    found: list[DeviceAddress] = []
    for part in (part for text in texts for part in text.split(",")):
        address = parse_device_address(part)
        if address in found:
            raise StartupError(f"--device-service names {address} twice")
        found.append(address)
    return tuple(found)
