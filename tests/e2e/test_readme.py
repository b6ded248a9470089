"""The README's commands do what it says, and its links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.stack import Stack, running_stack

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GRPC_ADDRESS = "127.0.0.1:50051"
HTTP_ADDRESS = "127.0.0.1:8000"
SECONDS = 60

pytestmark = pytest.mark.timeout(300)


def commands(program: str) -> list[str]:
    """Lines of console blocks that run a program, continuation lines joined."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", README, flags=re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith(f"$ {program} "):
                found.append(line.removeprefix("$ "))
    return found


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("readme"), fork=False) as made:
        body = {"prompt": [1, 2, 3], "max_tokens": 5}
        httpx.post(f"{made.urls[0]}/v1/completions", json=body, timeout=60)
        yield made


def grpcurl(command: str, stack: Stack) -> list[str]:
    """The arguments of a grpcurl command, for the service of this test."""
    program = shutil.which("grpcurl", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("grpcurl is not installed beside this Python")
    arguments = shlex.split(command.split("   #")[0])[1:]
    assert GRPC_ADDRESS in arguments
    here = [stack.device.address if a == GRPC_ADDRESS else a for a in arguments]
    return [program, *here]


FINITE = [c for c in commands("grpcurl") if "WatchSteps" not in c]


def test_there_is_something_to_run() -> None:
    assert len(FINITE) >= 5
    assert len(commands("curl")) >= 1


@pytest.mark.parametrize("command", FINITE)
def test_grpcurl_commands(command: str, stack: Stack) -> None:
    done = subprocess.run(
        grpcurl(command, stack),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if "ListSteps" in command:
        [step] = json.loads(done.stdout)["steps"]
        assert step["phase"] == "PHASE_DECODE"


def test_watching_shows_steps_as_they_happen(stack: Stack) -> None:
    [command] = [c for c in commands("grpcurl") if "WatchSteps" in c]
    with subprocess.Popen(
        grpcurl(command, stack), stdout=subprocess.PIPE, text=True
    ) as watcher:
        try:
            assert watcher.stdout is not None
            body = {"prompt": [1], "max_tokens": 1, "temperature": 0}
            for _ in range(20):
                httpx.post(f"{stack.urls[0]}/v1/completions", json=body, timeout=60)
            first = "".join(watcher.stdout.readline() for _ in range(3))
        finally:
            watcher.kill()
    assert '"step"' in first
    assert '"number"' in first


@pytest.mark.parametrize("command", commands("curl"))
def test_curl_commands(command: str, stack: Stack) -> None:
    url = stack.urls[0].removeprefix("http://")
    arguments = shlex.split(command.replace(HTTP_ADDRESS, url))
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
