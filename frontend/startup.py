"""From addresses to an engine: ask the device services, load vLLM, put together.

vLLM takes seconds to import, the device service perhaps minutes to load its
model: both go on at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from frontend.config import FrontendConfig
from frontend.device.bundle import fetch_bundle
from frontend.device.channel import Patience, ask_patiently, get_model
from frontend.device.fleet import Fleet, Member
from ttserve.v1.device_pb2_grpc import DeviceStub
from ttserve.v1.model_pb2 import Model

if TYPE_CHECKING:
    from frontend.engine.build import Engine
    from frontend.engine.client import RequestCounter

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StopWatch:
    """How long each part of the start took, in the order of their ends."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._parts: list[tuple[str, float]] = []

    def lap(self, name: str) -> None:
        """The part that just ended; it began where the one before ended."""
        now = time.monotonic()
        self._parts.append((name, now - self._last))
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._parts)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        megabytes = peak // (1024 if sys.platform == "linux" else 1024**2)
        return f"{self._last - self._started:.1f} s ({parts}), {megabytes} MB"


@dataclass(frozen=True, slots=True)
class Described:
    """What the device service says of its model, and the files that came with it."""

    model: Model
    directory: Path


async def describe_model(
    fleet: Fleet,
    config: FrontendConfig,
    directory: Path,
    tell: Callable[[str], None],
) -> Described:
    """Ask all until one has said what its model is and sent its files.

    `tell` hears what is waited for.

    One that cannot be worked with is left out; when that is true of all, or none is
    known or answers within `device_timeout`, it is a StartupError.
    """
    patience = Patience(config.devices[0], config.device_timeout, tell)
    while not fleet.members:
        await patience.pause(fleet.lookup_failure or "its name is being looked up")
    fetching = asyncio.Lock()
    numbers = itertools.count(1)
    asking: dict[Member, asyncio.Task[Described]] = {}
    try:
        while True:
            fleet.changed.clear()
            for gone in asking.keys() - set(fleet.members):
                asking.pop(gone).cancel()
            for member in fleet.members:
                if member not in asking:
                    own = _subdirectory(directory, next(numbers))
                    asking[member] = asyncio.create_task(
                        _ask(member, config, own, fetching, tell)
                    )
            if (described := await _first_answer(asking, fleet)) is not None:
                return described
    finally:
        for task in asking.values():
            task.cancel()
        await asyncio.gather(*asking.values(), return_exceptions=True)


def _subdirectory(directory: Path, number: int) -> Path:
    own = directory / str(number)
    own.mkdir(parents=True)
    return own


async def _ask(
    member: Member,
    config: FrontendConfig,
    directory: Path,
    fetching: asyncio.Lock,
    tell: Callable[[str], None],
) -> Described:
    """Ask until the model is known; then fetch its files."""
    stub = DeviceStub(member.channel)
    patience = Patience(member.address, config.device_timeout, tell)
    answer = await get_model(stub, patience)
    trusted = answer.model.settings.trust_remote_code

    async def fetch() -> list[str]:
        async with fetching:  # one at a time: the first to have them all will do
            return await fetch_bundle(stub, directory, python_files=trusted)

    names = await ask_patiently(fetch, patience)
    logger.info(
        "model %s (%s, %d tokens) of device service %s, %d files",
        answer.model.served_names[0],
        answer.model.architecture,
        answer.model.max_sequence_tokens,
        member.address,
        len(names),
    )
    return Described(answer.model, directory)


async def _first_answer(
    asking: dict[Member, asyncio.Task[Described]], fleet: Fleet
) -> Described | None:
    """Wait for an answer or for other members; raises when all answers are errors."""
    changed = asyncio.create_task(fleet.changed.wait())
    pending = {task for task in asking.values() if not task.done()}
    try:
        await asyncio.wait({changed, *pending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        changed.cancel()
    done = [task for task in asking.values() if task.done() and not task.cancelled()]
    errors = [error for task in done if (error := task.exception()) is not None]
    if len(errors) == len(asking):
        raise errors[0]
    for error in (task.exception() for task in done if task in pending):
        if error is not None:
            logger.error("%s", error)
    return next((task.result() for task in done if task.exception() is None), None)


async def load_vllm() -> None:
    """Import what the engine needs, beside the event loop."""
    await in_daemon_thread(_import_engine)


async def build_engine(
    described: Described, config: FrontendConfig, counter: RequestCounter
) -> Engine:
    """Tokenizer, renderer and the rest of vLLM's front half, beside the event loop."""
    from frontend.engine.build import build

    return await in_daemon_thread(lambda: build(described, config, counter))


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # one of two is set

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001 - handed over, not swallowed
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="startup", daemon=True).start()
    return await future


def _import_engine() -> None:
    import frontend.app
    import frontend.engine.build  # noqa: F401
