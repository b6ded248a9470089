"""From one stream per device service to any number of browsers. Event loop only.

Nothing is asked of a device service at which nobody looks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import grpc.aio

from frontend.inspect.reader import Reader
from frontend.inspect.wire import encode_state, encode_step, to_json
from ttserve.v1 import inspector_pb2
from ttserve.watching import HISTORY, Watch

MAX_READERS = 64

Devices = Callable[[], Mapping[str, grpc.aio.Channel]]
"""The device services of this frontend by name, as they are now."""


class TooManyReaders(Exception):
    """`MAX_READERS` browsers look already."""


class UnknownDevice(Exception):
    """There is no device service of this name."""


class Relay:
    """One device service and the browsers that look at it."""

    def __init__(self, channel: grpc.aio.Channel, devices: Devices) -> None:
        self._channel = channel
        self._devices = devices
        self._readers: set[Reader] = set()
        self._recent: deque[str] = deque(maxlen=HISTORY)
        self._news = {"trouble": to_json("connecting")}
        self._instance_id = ""
        self._watching: asyncio.Task[None] | None = None
        self.ended = False

    def __len__(self) -> int:
        return len(self._readers)

    def join(self, reader: Reader) -> None:
        """Send what is known at once, and what happens from now on."""
        self._readers.add(reader)
        for name, value in self._news.items():
            reader.tell(name, value)
        reader.offer(self._recent)
        if self._watching is None:
            self._watching = asyncio.create_task(Watch(self._channel, self).run())
            self._watching.add_done_callback(self._on_end)

    def leave(self, reader: Reader) -> None:
        """Send no more; with the last reader the stream ends."""
        self._readers.discard(reader)
        if not self._readers and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def end(self, why: str) -> None:
        """Send all readers away."""
        for reader in self._readers:
            reader.end(why)

    # ttserve.watching.Observer

    def on_link(self, trouble: str) -> None:
        """Say whether there is news, and if not, why."""
        self._tell("trouble", to_json(trouble))

    def on_state(self, state: inspector_pb2.GetStateResponse) -> None:
        """Pass the picture on; steps of another instance are forgotten."""
        if state.instance_id != self._instance_id:
            self._instance_id = state.instance_id
            self._recent.clear()
            for reader in self._readers:
                reader.forget_steps()
        self._tell("state", encode_state(state))
        devices = to_json(list(self._devices()))
        if devices != self._news.get("devices"):
            self._tell("devices", devices)

    def on_steps(self, steps: Sequence[inspector_pb2.StepRecord]) -> None:
        """Pass the steps on: each becomes JSON once, for all."""
        texts = [encode_step(step) for step in steps]
        self._recent.extend(texts)
        for reader in self._readers:
            reader.offer(texts)

    def on_lost(self, steps: int) -> None:
        """The device service had no room for them."""
        for reader in self._readers:
            reader.lose(steps)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Watching ends by itself only with its channel."""
        if task is self._watching:
            self.ended = True
            self.end("this device service is not used any more")

    def _tell(self, name: str, value: str) -> None:
        self._news[name] = value
        for reader in self._readers:
            reader.tell(name, value)


class Relays:
    """A relay for each device service at which somebody looks."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._relays: dict[str, Relay] = {}

    def join(self, device: str | None) -> tuple[str, Reader]:
        """Look at the device service of this name, or at the first.

        Raises TooManyReaders or UnknownDevice.
        """
        devices = self._devices()
        name = next(iter(devices), "") if device is None else device
        if name not in devices:
            raise UnknownDevice(name)
        if sum(map(len, self._relays.values())) >= MAX_READERS:
            raise TooManyReaders
        relay = self._relays.get(name)
        if relay is None or relay.ended:  # a slow browser may still be at the old one
            relay = self._relays[name] = Relay(devices[name], self._devices)
        reader = Reader()
        reader.tell("devices", to_json(list(devices)))
        relay.join(reader)
        return name, reader

    def leave(self, name: str, reader: Reader) -> None:
        """Look no longer."""
        relay = self._relays.get(name)
        if relay is None:
            return
        relay.leave(reader)
        if not len(relay):
            del self._relays[name]

    def end(self, why: str) -> None:
        """Send everybody away."""
        for relay in self._relays.values():
            relay.end(why)
