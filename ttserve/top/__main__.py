"""`tt-top`: shows what a device service is doing. Imports neither vLLM nor torch."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
from collections.abc import Sequence

import grpc.aio
from rich.console import Console
from rich.live import Live

from ttserve.channels import open_channel
from ttserve.errors import StartupError
from ttserve.top.config import TopConfig, read_command_line
from ttserve.top.draw import Frame, draw
from ttserve.top.keyboard import Key, keyboard
from ttserve.top.view import View
from ttserve.v1 import inspector_pb2_grpc
from ttserve.watching import Watch, describe, get_state, list_steps

FRAME_SECONDS = 0.25
ONCE_LINES = 60
CANNOT_START = 2
CANNOT_REACH = 1
CANNOT_WRITE = 1

_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Show until told to stop; never returns."""
    try:
        config = read_command_line(sys.argv[1:] if arguments is None else arguments)
        if not config.once and not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise StartupError("this is no terminal: use --once")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # not all encodings have the bars
        sys.exit(asyncio.run(_run(config)))
    except StartupError as error:
        sys.stderr.write(f"tt-top: {error}\n")
        sys.exit(CANNOT_START)
    except OSError as error:
        sys.stderr.write(f"tt-top: cannot write: {error.strerror}\n")
        sys.exit(CANNOT_WRITE)
    except KeyboardInterrupt:
        sys.exit(0)


async def _run(config: TopConfig) -> int:
    target = f"dns:///{config.address}"
    async with open_channel(target, _OPTIONS, config.security) as channel:
        view = View()
        inspector = inspector_pb2_grpc.InspectorStub(channel)
        try:
            view.on_state(await get_state(inspector))
            view.on_steps(await list_steps(inspector))
        except grpc.aio.AioRpcError as error:
            sys.stderr.write(f"tt-top: {config.address}: {describe(error)}\n")
            return CANNOT_REACH
        view.on_link("")
        if config.once:
            frame = Frame(config.address, keys=False)
            width = None if sys.stdout.isatty() else config.pipe_columns
            Console(width=width).print(draw(view, frame, ONCE_LINES))
        else:
            await _show(channel, View(), config.address)
    return 0


async def _show(channel: grpc.aio.Channel, view: View, address: str) -> None:
    """Draw until `q`, SIGTERM or the end of the terminal."""
    watching = asyncio.create_task(Watch(channel, view).run())
    frame = Frame(address)
    try:
        with keyboard() as keys, Live(screen=True, auto_refresh=False) as live:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, keys.put_nowait, Key.QUIT)
            key: Key | None = None
            while key is not Key.QUIT:
                frame = _after(key, frame, len(view.state.lanes))
                if not frame.paused or key is not None:
                    picture = draw(view, frame, live.console.height)
                    live.update(picture, refresh=True)
                key = await _next(keys)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _next(keys: asyncio.Queue[Key]) -> Key | None:
    try:
        return await asyncio.wait_for(keys.get(), FRAME_SECONDS)
    except asyncio.TimeoutError:
        return None


def _after(key: Key | None, frame: Frame, lanes: int) -> Frame:
    """The frame that a key makes; lanes go round, with all of them in between."""
    if key is Key.PAUSE:
        return Frame(frame.address, frame.lane, paused=not frame.paused)
    if key in (Key.LEFT, Key.RIGHT) and lanes:
        choices = [None, *range(lanes)]
        place = choices.index(frame.lane) if frame.lane in choices else 0
        step = 1 if key is Key.RIGHT else -1
        lane = choices[(place + step) % len(choices)]
        return Frame(frame.address, lane, paused=frame.paused)
    return frame


if __name__ == "__main__":
    main()
