"""One stack over the sim mesh for the cases that users reported elsewhere.

The sim model's tokenizer gives every byte an id, and a grammar of one choice
forces any text out of it, so tests of stop strings, emoji and log
probabilities need no real model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.stack import Stack, running_stack

MAX_MODEL_LEN = 2048
FIRST_START_SECONDS = 300  # on a busy machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever comes first waits for the stack's start."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(FIRST_START_SECONDS))


def force(text: str) -> dict[str, Any]:
    """Fields that make the model say exactly this."""
    return {"structured_outputs": {"choice": [text]}}


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(
        tmp_path_factory.mktemp("cases"),
        device_options=[
            *("--max-model-len", str(MAX_MODEL_LEN), "--block-size", "16"),
            *("--max-num-seqs", "32", "--max-queued-requests", "512"),
            # 4096 tokens: two full-length requests, so that load means pressure.
            *("--num-gpu-blocks-override", "257"),
            *("--max-num-batched-tokens", "256"),
        ],
        frontend_options=["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
    ) as made:
        yield made


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.urls[0], timeout=60) as client:
        yield client


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{stack.urls[0]}/v1", api_key="none", max_retries=0, timeout=60
    ) as made:
        yield made


@pytest.fixture(scope="package")
def model(stack: Stack) -> str:
    """The name that clients put into `model`."""
    listed = httpx.get(f"{stack.urls[0]}/v1/models", timeout=60).json()
    name: str = listed["data"][0]["id"]
    return name
