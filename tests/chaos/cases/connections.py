"""Connections that hang, stay idle, or are left."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import Iterator

import grpc

from bench.progress import say
from bench.results import Result, result
from tests.chaos.proxy import Proxy
from tests.chaos.registry import Setting, case
from tests.chaos.streams import HOST, End, Tally, all_right, ask, request
from tests.chaos.system import Frontend, System, running
from tests.support.frontend_process import wait_for
from ttserve.sim_model import PRINTABLE
from ttserve.v1 import device_pb2, device_pb2_grpc

SMALL = ("--max-num-seqs", "16", "--max-model-len", "2048")
IDLE_SECONDS = 600
LEAVERS = 1000
AT_ONCE = 100
OTHERS = 16
NO_LINGER = struct.pack("ii", 1, 0)


@case(
    "half-open", shows="the connection to the device service hangs, nothing is closed"
)
def half_open(setting: Setting) -> Iterator[Result]:
    """Old connections stand still for ever; new ones hang for a while, then work."""
    with running(setting.directory, device_options=SMALL) as system:
        [device] = system.devices
        with Proxy(device.port).running() as proxy:
            behind = Frontend(f"{HOST}:{proxy.port}", setting.directory, "behind")
            behind.start()
            system.frontends.append(behind)
            try:
                wait_for(behind.ready, 300)
                before = system.holdings()
                yield from _hang(system, behind, proxy)
                yield system.settle("half-open", before)
            finally:
                behind.close()


def _hang(system: System, behind: Frontend, proxy: Proxy) -> Iterator[Result]:
    [device] = system.devices
    # gRPC needs 6 s to give up a connection; nothing is needed for new ones.
    for name, accepting, back_in in (("old", True, "<= 6"), ("all", False, "<= 2")):
        tally, lost = asyncio.run(_streams_cut(behind, proxy, accepting=accepting))
        say(f"  {name}: {tally}")
        yield result(f"half-open.{name}_not_ready", lost, "s", "<= 2")
        ends = tally.count(End.FAILED, End.REFUSED)
        yield result(
            f"half-open.{name}_without_error", len(tally.ends) - ends, "streams", "<= 0"
        )
        began = time.monotonic()
        wait_for(lambda: device.live_requests() == 0, 60)
        rows = time.monotonic() - began
        yield result(f"half-open.{name}_rows_free", rows, "s", "<= 6")
        proxy.accept()
        began = time.monotonic()
        wait_for(behind.ready, 120)
        back = time.monotonic() - began
        yield result(f"half-open.{name}_ready_again", back, "s", back_in)
        after = asyncio.run(all_right([behind.port], 16))
        yield result(
            f"half-open.{name}_not_right",
            16 - after.count(End.RIGHT),
            "streams",
            "<= 0",
        )


async def _streams_cut(
    behind: Frontend, proxy: Proxy, *, accepting: bool
) -> tuple[Tally, float]:
    """Freeze under eight streams; how they ended, and seconds to not ready."""
    streams = [
        asyncio.create_task(ask(behind.port, [65 + number], 2000))
        for number in range(8)
    ]
    await asyncio.sleep(2)
    began = time.monotonic()
    await asyncio.to_thread(proxy.freeze, accepting=accepting)
    await asyncio.to_thread(wait_for, lambda: not behind.ready(), 60)
    lost = time.monotonic() - began
    return Tally(list(await asyncio.gather(*streams))), lost


@case(
    "idle-channel", shows="an idle channel with keepalive of 1 s lives for 10 minutes"
)
def idle_channel(setting: Setting) -> Iterator[Result]:
    """Neither a GOAWAY nor a lost connection, and calls work afterwards."""
    with running(setting.directory) as system:
        [device] = system.devices
        states: list[grpc.ChannelConnectivity] = []
        options = [
            ("grpc.keepalive_time_ms", 1000),
            ("grpc.keepalive_timeout_ms", 1000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        with grpc.insecure_channel(device.address, options=options) as channel:
            stub = device_pb2_grpc.DeviceStub(channel)
            stub.GetModel(device_pb2.GetModelRequest(), timeout=10)
            channel.subscribe(states.append)
            time.sleep(IDLE_SECONDS)
            stub.GetModel(device_pb2.GetModelRequest(), timeout=10)
        changes = states[1:]
        say(f"  {[state.name for state in states]}")
        yield result("idle-channel.seconds", IDLE_SECONDS, "s")
        yield result("idle-channel.connection_changes", len(changes), "times", "<= 0")


@case("aborts", shows="a thousand clients leave at any moment, others stay")
def aborts(setting: Setting) -> Iterator[Result]:
    """Half of them with a reset, some in the middle of their request."""
    draw = random.Random(setting.seed)
    size = ("--max-num-seqs", "32", "--max-queued-requests", "512", *SMALL[2:])
    with running(setting.directory, frontends=2, device_options=size) as system:
        asyncio.run(all_right(system.ports, 64))
        before = system.holdings()
        for number in range(2):
            tally = asyncio.run(_storm(system, draw))
            say(f"  storm {number + 1}: those who stayed: {tally}")
            wrong = len(tally.ends) - tally.count(End.RIGHT)
            yield result(f"aborts.not_right_{number + 1}", wrong, "streams", "<= 0")
            yield system.settle(f"aborts.{number + 1}", before)


async def _storm(system: System, draw: random.Random) -> Tally:
    gate = asyncio.Semaphore(AT_ONCE)
    staying = [
        asyncio.create_task(ask(system.ports[i % 2], [65 + i], 400))
        for i in range(OTHERS)
    ]

    async def leave() -> None:
        async with gate:
            await _leave(draw.choice(system.ports), draw)

    await asyncio.gather(*(leave() for _ in range(LEAVERS)))
    return Tally(list(await asyncio.gather(*staying)))


async def _leave(port: int, draw: random.Random) -> None:
    """Ask for much and go: before the request is whole, at once, or a little later."""
    prompt = [draw.randrange(*PRINTABLE) for _ in range(draw.randrange(1, 400))]
    asked = request(prompt, 1000)
    if draw.random() < 0.2:
        asked = asked[: draw.randrange(len(asked))]
    patience = draw.choice([0.0, 0.0, 0.01, 0.1, 0.5])
    resets = draw.random() < 0.5
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(asked)
        try:
            async with asyncio.timeout(patience):
                while await reader.read(1 << 16):
                    pass
        except TimeoutError:
            pass  # that was all the patience
        if resets:
            made = writer.get_extra_info("socket")
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        writer.close()
    except OSError:
        pass  # it was the server that left
