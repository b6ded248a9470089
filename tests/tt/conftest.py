"""Options and the server under test.

    pytest tests/tt --tt-server-url http://localhost:8000 --tt-model-name NAME

The server may be any that speaks OpenAI's API with vLLM's additions.
"""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.tt.server import Recall, Server


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tt", "the server under test")
    group.addoption(
        "--tt-server-url",
        metavar="URL",
        help="where the server listens, such as http://localhost:8000",
    )
    group.addoption(
        "--tt-model-name",
        metavar="NAME",
        help="the model to ask for; unset means the one that the server lists",
    )
    group.addoption(
        "--tt-reasoning-token-budget",
        metavar="N",
        type=int,
        default=0,
        help="tokens added, for reasoning, to the limits of the tests of bad words and "
        "of structured beside plain chats",
    )
    group.addoption(
        "--tt-chunked-prefill-budget",
        metavar="N",
        type=int,
        help="the server's --max-num-batched-tokens: runs the recall gate with prompts "
        "that are longer",
    )
    group.addoption(
        "--tt-recall-reasoning-effort",
        metavar="EFFORT",
        help="runs the recall gate as chats with this reasoning_effort",
    )
    group.addoption(
        "--tt-recall-reasoning-token-budget",
        metavar="N",
        type=int,
        default=0,
        help="tokens added, for reasoning, to the recall gate's limit of 24; only with "
        "--tt-recall-reasoning-effort",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    option = session.config.option
    if not option.tt_server_url and not option.collectonly:
        raise pytest.UsageError(
            "--tt-server-url is not given; it says where the server listens, such as "
            "--tt-server-url http://localhost:8000"
        )


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """The server under test."""
    url = str(pytestconfig.getoption("--tt-server-url")).rstrip("/")
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600
    ) as client:
        name = pytestconfig.getoption("--tt-model-name")
        yield Server(client, name or client.models.list().data[0].id)


@pytest.fixture(scope="session")
def reasoning_budget(pytestconfig: pytest.Config) -> int:
    """Tokens that a model may spend on reasoning before it answers."""
    return int(pytestconfig.getoption("--tt-reasoning-token-budget"))


@pytest.fixture(scope="session")
def recall(pytestconfig: pytest.Config) -> Recall:
    """How the recall gate asks; skips where no budget was given."""
    budget = pytestconfig.getoption("--tt-chunked-prefill-budget")
    if budget is None:
        pytest.skip("--tt-chunked-prefill-budget is not given")
    return Recall(
        prompt_tokens=int(budget),
        effort=pytestconfig.getoption("--tt-recall-reasoning-effort"),
        allowance=int(pytestconfig.getoption("--tt-recall-reasoning-token-budget")),
    )
