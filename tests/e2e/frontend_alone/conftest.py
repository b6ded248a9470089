"""One frontend process, over a fake device, for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.fake_device import Behaviour, FakeDevice, Seen
from tests.support.frontend_process import FrontendProcess, free_port, wait_for

MAX_BODY_BYTES = 1_000_000
FIRST_START_SECONDS = 300  # on a busy machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever comes first waits for the shared frontend's start."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(FIRST_START_SECONDS))


@pytest.fixture(scope="session")
def shared_device() -> Iterator[FakeDevice]:
    """The fake that the shared frontend is attached to."""
    with FakeDevice() as device:
        yield device


@pytest.fixture(scope="session")
def metrics_port() -> int:
    """Where the shared frontend serves its metrics."""
    return free_port()


@pytest.fixture(scope="session")
def frontend(
    shared_device: FakeDevice,
    metrics_port: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[FrontendProcess]:
    """The shared frontend, serving."""
    log = tmp_path_factory.mktemp("frontend") / "log"
    options = (
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--max-body-bytes", str(MAX_BODY_BYTES)),
        *("--metrics-port", str(metrics_port)),
    )
    with FrontendProcess(shared_device.address, log, *options) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture
def device(
    shared_device: FakeDevice, frontend: FrontendProcess
) -> Iterator[FakeDevice]:
    """The fake, behaving well at first; nothing may be left on it afterwards."""
    wait_for(frontend.ready)
    shared_device.behaviour = Behaviour()
    shared_device.seen = Seen()
    yield shared_device
    shared_device.behaviour.stalled = False
    wait_for(lambda: shared_device.live_requests == 0)


@pytest.fixture
def http(device: FakeDevice, frontend: FrontendProcess) -> Iterator[httpx.Client]:
    """A plain HTTP client."""
    with httpx.Client(base_url=frontend.url, timeout=20) as client:
        yield client


@pytest.fixture
def client(device: FakeDevice, frontend: FrontendProcess) -> Iterator[openai.OpenAI]:
    """OpenAI's client, which does not try again by itself."""
    with openai.OpenAI(
        base_url=f"{frontend.url}/v1", api_key="none", max_retries=0, timeout=20
    ) as openai_client:
        yield openai_client
