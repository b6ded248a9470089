"""The addresses that a DNS name stands for."""

from __future__ import annotations

import asyncio
import logging
import socket

from frontend.address import DeviceAddress

logger = logging.getLogger(__name__)


class Lookup:
    """Asks the system's resolver, in a thread; says when an answer fails."""

    def __init__(self, name: DeviceAddress) -> None:
        self.name = name
        self.failure = ""

    async def addresses(self) -> tuple[DeviceAddress, ...]:
        """What the name stands for now, sorted; empty when nobody can say.

        A machine that has addresses of both families would count twice, so IPv6
        is used only where there is no IPv4.
        """
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                self.name.host, self.name.port, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            self._failed(f"cannot look up {self.name.host}: {why}")
            return ()
        self.failure = ""
        by_family = {
            family: sorted(
                {str(at[0]) for kind, _, _, _, at in found if kind is family}
            )
            for family in (socket.AF_INET, socket.AF_INET6)
        }
        hosts = by_family[socket.AF_INET] or by_family[socket.AF_INET6]
        return tuple(
            DeviceAddress(host, self.name.port, self.name.host) for host in hosts
        )

    def _failed(self, failure: str) -> None:
        if failure != self.failure:
            logger.warning("%s", failure)
        self.failure = failure
