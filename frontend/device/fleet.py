"""The device services behind a frontend: a fixed list, or what a name stands for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

import grpc.aio

from frontend.address import DeviceAddress
from frontend.device.channel import open_channel
from frontend.device.connection import Connection, DeviceState, ModelChanged
from frontend.device.lookup import Lookup
from ttserve.client_security import ChannelSecurity
from ttserve.errors import StartupError
from ttserve.v1.model_pb2 import Model

logger = logging.getLogger(__name__)

LOOKUP_SECONDS = 2.0
"""Between two lookups of a name; also how often those that leave are looked after."""


class AddressLookup(Protocol):
    """Who there is."""

    failure: str

    async def addresses(self) -> tuple[DeviceAddress, ...]:
        """Everyone's address now; empty, with `failure` set, when nobody can say."""


class MemberRequests(Protocol):
    """What a frontend has open in one device service."""

    def __len__(self) -> int:
        """Open requests."""

    @property
    def load(self) -> int:
        """Requests of all frontends that run or wait there, as far as is known."""

    def leave(self) -> None:
        """What runs goes on; nothing new is submitted."""

    def rejoin(self) -> None:
        """Submissions are welcome again."""

    def close(self) -> None:
        """It is not used any more."""


class Member:
    """One device service. `connection` and `requests` are there once it is used."""

    def __init__(self, address: DeviceAddress, security: ChannelSecurity) -> None:
        self.address = address
        self.channel: grpc.aio.Channel = open_channel(address, security)
        self.connection: Connection | None = None
        self.requests: MemberRequests | None = None
        self.leaving = False
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> DeviceState:
        """What can be done with it now."""
        if self.leaving:
            return DeviceState.LEAVING
        return self.connection.state if self.connection else DeviceState.ABSENT

    @property
    def reason(self) -> str:
        """Why it is not ready; empty if it is."""
        if self.leaving:
            return "its address is gone from DNS: it gets nothing new"
        return self.connection.reason if self.connection else "not connected yet"

    @property
    def instance_id(self) -> str:
        """The instance that answered last, empty before the first answer."""
        return self.connection.instance_id if self.connection else ""

    @property
    def may_serve(self) -> bool:
        """Whether it has, or may turn out to have, the model that is served."""
        connection = self.connection
        if connection is None or not connection.tried:
            return True
        return connection.state not in (DeviceState.ABSENT, DeviceState.REFUSED)

    @property
    def idle(self) -> bool:
        """Whether nothing of this frontend runs there."""
        return self.requests is None or len(self.requests) == 0

    def start(
        self, connection: Connection, requests: MemberRequests, model: Model
    ) -> asyncio.Task[None]:
        """Use it from now on; the task runs until it is closed."""
        self.connection = connection
        self.requests = requests
        self._task = asyncio.create_task(connection.run(model))
        return self._task

    async def close(self) -> None:
        """End the session and the channel."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.requests is not None:
            self.requests.close()
        await self.channel.close(None)


Connect = Callable[[Member, Callable[[], None]], tuple[Connection, MemberRequests]]
"""Make the connection of a member; the function is to be told of refusals."""


class Fleet:
    """All members, and who joins and leaves. Event loop only.

    `members` are in the order of the list, or of their addresses.
    """

    def __init__(
        self,
        addresses: Iterable[DeviceAddress],
        security: ChannelSecurity,
        lookup: AddressLookup | None = None,
    ) -> None:
        """`addresses` stay; `lookup` says again and again who else there is."""
        self._security = security
        self.members: tuple[Member, ...] = ()
        self.changed = asyncio.Event()
        self._lookup = lookup
        self._connect: Connect | None = None
        self._model = Model()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._join(addresses)

    @property
    def lookup_failure(self) -> str:
        """Why the name cannot be looked up; empty if it can, or need not be."""
        return self._lookup.failure if self._lookup is not None else ""

    def channels(self) -> dict[str, grpc.aio.Channel]:
        """The channel to each device service, by its address."""
        return {str(member.address): member.channel for member in self.members}

    async def run(self, model: Model, connect: Connect) -> None:
        """Keep sessions open with everyone who serves `model`, until cancelled.

        Raises ModelChanged or StartupError when all that can be reached serve
        another model or have another version.
        """
        self._model = model
        self._connect = connect
        for member in self.members:
            self._start(member)
        await self._ended

    async def look_up(self) -> None:
        """Follow the name once, and part with those that have left and are idle.

        A lookup that fails changes nothing.
        """
        if self._lookup is not None:
            found = await self._lookup.addresses()
            if found:
                self._follow(found)
            await self._part_with_those_that_left()

    async def close(self) -> None:
        """End all sessions."""
        for member in self.members:
            await member.close()
        self.members = ()
        self._ended.cancel()

    def _join(self, addresses: Iterable[DeviceAddress]) -> None:
        joined = [Member(address, self._security) for address in addresses]
        self.members = (*self.members, *joined)
        if self._connect is not None:
            for member in joined:
                self._start(member)
        self.changed.set()

    def _follow(self, found: tuple[DeviceAddress, ...]) -> None:
        known = {member.address: member for member in self.members}
        for address, member in known.items():
            self._set_leaving(member, leaving=address not in found)
        self._join(address for address in found if address not in known)
        self.members = tuple(sorted(self.members, key=lambda m: m.address.host))

    async def _part_with_those_that_left(self) -> None:
        gone = [member for member in self.members if member.leaving and member.idle]
        self.members = tuple(member for member in self.members if member not in gone)
        for member in gone:
            logger.info("device service %s is not used any more", member.address)
            self.changed.set()
            await member.close()

    def _set_leaving(self, member: Member, *, leaving: bool) -> None:
        if member.leaving == leaving:
            return
        member.leaving = leaving
        logger.info(
            "%s %s the addresses of %s",
            member.address,
            "has left" if leaving else "is again among",
            member.address.server_name,
        )
        if member.requests is not None:
            if leaving:
                member.requests.leave()
            else:
                member.requests.rejoin()

    def _start(self, member: Member) -> None:
        assert self._connect is not None
        connection, requests = self._connect(member, self._end_if_all_are_refused)
        member.start(connection, requests, self._model).add_done_callback(
            self._on_end_of_connection
        )

    def _on_end_of_connection(self, task: asyncio.Task[None]) -> None:
        """A connection ends when it is cancelled, or by a defect, which ends us too."""
        if not task.cancelled() and not self._ended.done():
            self._ended.set_exception(
                task.exception() or AssertionError("a connection ended by itself")
            )

    def _end_if_all_are_refused(self) -> None:
        if self._ended.done() or any(member.may_serve for member in self.members):
            return
        refusals = [
            member.connection.refusal
            for member in self.members
            if member.connection is not None and member.connection.refusal is not None
        ]
        if refusals:
            self._ended.set_exception(_why_it_ends(refusals, len(self.members)))


@contextlib.asynccontextmanager
async def open_fleet(
    addresses: tuple[DeviceAddress, ...], security: ChannelSecurity
) -> AsyncIterator[Fleet]:
    """Channels to all of them, closed at the end with every session on them."""
    if len(addresses) == 1 and addresses[0].may_be_several:
        fleet = Fleet((), security, Lookup(addresses[0]))
    else:
        fleet = Fleet(addresses, security)
    looking = asyncio.create_task(_look_up_again_and_again(fleet))
    try:
        yield fleet
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await fleet.close()


async def _look_up_again_and_again(fleet: Fleet) -> None:
    while True:
        await fleet.look_up()
        await asyncio.sleep(LOOKUP_SECONDS)


def _why_it_ends(
    refusals: list[ModelChanged | StartupError], members: int
) -> ModelChanged | StartupError:
    outdated = [error for error in refusals if isinstance(error, StartupError)]
    if len(outdated) == len(refusals):
        return outdated[0]
    who = (
        "the device service serves"
        if members == 1
        else "all device services that can be reached serve"
    )
    return ModelChanged(
        f"{who} another model now: this frontend ends, so that its supervisor starts "
        "it again"
    )
