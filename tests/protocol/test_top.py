"""tt-top, in a pipe and in a terminal, over a device service of this process."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from device_service.access import Access
from device_service.security import GrpcSecurity
from tests.support.attach_client import AttachClient
from tests.support.scripted_inspector import InspectedDevice, ScriptedInspector
from tests.support.waiting import eventually
from tests.support.wire import Service, serving
from ttserve.tokens import Tokens
from ttserve.v1 import inspector_pb2

SECONDS = 30.0
WIDE = 160


@pytest_asyncio.fixture
async def device() -> AsyncIterator[InspectedDevice]:
    """One that can be stopped and started again."""
    running = InspectedDevice()
    await running.start()
    yield running
    await running.stop()


async def busy(service: Service, *names: str) -> AttachClient:
    """Requests of these ids, after a few steps."""
    client = await service.attach("front-1")
    for name in names:
        await client.submit(
            request_id=name, external_request_id=name, stop__max_output_tokens=400
        )
        await client.next("accepted")
    for _ in range(3):
        service.engine.step()
    return client


async def run_top(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """Its status and what it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ttserve.top", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": str(WIDE)} | environ,
    )
    out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_once(service: Service) -> None:
    names = [f"mine-{number}" for number in range(9)]
    await busy(service, *names)
    status, out, _ = await run_top(service.address, "--once")
    assert status == 0
    assert "\x1b" not in out
    lines = out.splitlines()
    assert service.address in lines[0]
    assert "tiny" in lines[0]
    assert "rows 8/8" in lines[1]
    assert "waiting 1" in lines[1]
    held = [line.split()[:3] for line in lines if re.match(r" *\d+ +mine-", line)]
    assert held == [[str(row), names[row], "decode"] for row in range(8)]
    assert re.search(r"^mine-8 +0 +capacity ", out, re.MULTILINE)
    assert re.search(r" front-1 +ipv4:127.0.0.1:", out)
    recorded = (
        await service.inspector().ListSteps(inspector_pb2.ListStepsRequest())
    ).steps
    steps = [line for line in lines if re.match(r" *\d+ +(prefill|decode) ", line)]
    assert [int(line.split()[0]) for line in steps] == [3, 2, 1]
    for line, step in zip(steps, reversed(recorded), strict=True):
        for reason in (step.phase_reason, step.sampling_reason, step.overlap_reason):
            assert reason in line
        assert f"{step.host_us / 1000:.2f}" in line


async def test_what_strangers_send_steers_no_terminal(service: Service) -> None:
    await busy(service, "\x1b[2J[red]x[/red]")
    _, out, _ = await run_top(service.address, "--once")
    assert "\x1b" not in out
    assert "?[2J[red]x[/red]" in out


async def test_a_pipe_has_room_for_everything(service: Service) -> None:
    await busy(service, "mine")
    _, out, _ = await run_top(service.address, "--once", COLUMNS="")
    assert "…" not in out
    assert "grammars 0" in out.splitlines()[1]


async def test_text_is_cut_before_numbers(service: Service) -> None:
    await busy(service, "mine-" + "x" * 100)
    _, out, _ = await run_top(service.address, "--once", COLUMNS="80")
    state = await service.inspector().GetState(inspector_pb2.GetStateRequest())
    row = state.lanes[0].rows[0]
    [line] = [line for line in out.splitlines() if "mine-xx" in line]
    assert len(line) <= 80
    assert "…" in line
    assert [int(number) for number in line.split()[-6:]] == [
        *(row.prompt_tokens, row.output_tokens, row.computed_tokens),
        *(row.blocks, row.preemptions, row.session_number),
    ]


async def test_an_encoding_without_the_signs_of_the_picture(service: Service) -> None:
    status, out, err = await run_top(
        service.address, "--once", PYTHONIOENCODING="ascii"
    )
    assert (status, err) == (0, "")
    assert out.isascii()
    assert "? live" in out


async def test_a_picture_that_cannot_be_written(service: Service) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ttserve.top", service.address, "--once"),
            stdout=full,
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        os.close(full)
    assert process.returncode == 1
    assert err.decode() == "tt-top: cannot write: No space left on device\n"


async def test_nobody_is_there() -> None:
    status, out, err = await run_top("127.0.0.1:1", "--once")
    assert (status, out) == (1, "")
    assert err == "tt-top: 127.0.0.1:1: cannot connect\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense", "--once"], "'nonsense' is not HOST:PORT"),
        (["device:0", "--once"], "'device:0' is not HOST:PORT"),
        (["device:65536", "--once"], "'device:65536' is not HOST:PORT"),
        (["--twice"], "unrecognized arguments: --twice"),
        ([], "this is no terminal: use --once"),
        (
            ["--once", "--device-tls-cert", "x"],
            "--device-tls-cert and --device-tls-key",
        ),
    ],
)
async def test_bad_command_lines(arguments: list[str], said: str) -> None:
    status, _, err = await run_top(*arguments)
    assert status == 2
    assert err.startswith(f"tt-top: {said}")
    assert err.count("\n") == 1


async def test_it_starts_without_vllm() -> None:
    program = (
        "import sys, ttserve.top.__main__; "
        "print({'vllm', 'torch', 'transformers'} & set(sys.modules))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    assert out == b"set()\n"


# -- in a terminal -----------------------------------------------------------


class Terminal:
    """A pseudo-terminal with tt-top in it."""

    def __init__(self, master: int, slave: int) -> None:
        self._master = master
        self._slave = slave
        self.said = ""
        os.set_blocking(master, False)
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.said += os.read(self._master, 1 << 16).decode(errors="replace")

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, size)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._slave)

    async def until(self, pattern: str) -> str:
        """Wait for what matches, in what is said from now on."""
        self.said = ""
        await eventually(
            lambda: re.search(pattern, self.said, re.DOTALL) is not None, SECONDS
        )
        return self.said


@contextlib.asynccontextmanager
async def terminal(
    address: str, columns: int = WIDE, lines: int = 40
) -> AsyncIterator[tuple[Terminal, asyncio.subprocess.Process]]:
    master, slave = pty.openpty()
    opened = Terminal(master, slave)
    opened.resize(columns, lines)
    environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ttserve.top", address),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environ | {"TERM": "xterm-256color"},
    )
    try:
        yield opened, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        asyncio.get_running_loop().remove_reader(master)
        os.close(master)
        os.close(slave)


async def test_a_session_in_a_terminal(service: Service) -> None:
    await busy(service, "mine-0")
    async with terminal(service.address) as (screen, process):
        before = screen.settings()
        await screen.until("mine-0.*lane: all")
        service.engine.step()
        await screen.until(r"\D4 .*decode")
        screen.press(b"\x1b[C")
        await screen.until("lane: 0")
        screen.press(b"p")
        await screen.until("view paused")
        screen.press(b"p")
        await screen.until("live.*lane: 0")
        screen.resize(70, 12)
        drawn = await screen.until(r"\x1b\[H.*lane: 0.*\x1b\[H.*lane: 0")
        frame = drawn.split("\x1b[H")[-2]
        shown = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", x) for x in frame.split("\n")]
        assert len(shown) <= 12
        assert max(len(line.rstrip("\r")) for line in shown) <= 70
        screen.press(b"q")
        assert await asyncio.wait_for(process.wait(), SECONDS) == 0
        await eventually(lambda: "\x1b[?1049l" in screen.said)
        assert "\x1b[?25h" in screen.said  # the cursor is back
        assert screen.settings() == before


async def test_loss_and_return(device: InspectedDevice) -> None:
    async with terminal(device.address) as (screen, process):
        await screen.until("● live")
        await device.stop()
        await screen.until("▲ cannot connect")
        device.inspector = ScriptedInspector("two")
        device.inspector.step(71)
        await device.start()
        await screen.until("● live.*71 .*because")
        process.terminate()
        assert await asyncio.wait_for(process.wait(), SECONDS) == 0


async def test_tokens(tmp_path: Path) -> None:
    tokens = Access(Tokens(["device"]), Tokens(["inspector"]))
    file = tmp_path / "token"
    file.write_text("inspector\n")
    right = ("--device-inspector-token-file", str(file))
    wrong = {"TTSERVE_GRPC_TOKEN": "device"}
    async with serving(security=GrpcSecurity(access=tokens)) as service:
        with service.engine.ticking():
            status, out, _ = await run_top(service.address, "--once", *right)
            assert (status, "rows 0/8" in out) == (0, True)
            status, out, err = await run_top(service.address, "--once", **wrong)
    assert (status, out) == (1, "")
    assert err.startswith(f"tt-top: {service.address}: ")
    assert "token" in err
    assert err.count("\n") == 1
