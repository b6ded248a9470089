"""Case O6: reasoning is kept apart from the answer, in streams too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.fake_device import SERVED_NAME, FakeDevice, model
from tests.support.fake_script import THOUGHT_ENDS
from tests.support.frontend_process import FrontendProcess

THOUGHT, ANSWER = "plan Question: x", "answer Question: y"


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a frontend over a model that reasons."""
    served = model()
    served.settings.reasoning_parser = "deepseek_r1"
    log = tmp_path_factory.mktemp("reasoner") / "log"
    with (
        FakeDevice(served) as device,
        FrontendProcess(device.address, log) as frontend,
    ):
        frontend.wait_until_ready()
        with openai.OpenAI(
            base_url=f"{frontend.url}/v1", api_key="none", max_retries=0, timeout=20
        ) as client:
            yield client


def ask(client: openai.OpenAI, **options: Any) -> Any:
    said = f"SAY<{THOUGHT}{THOUGHT_ENDS}{ANSWER}>"
    return client.chat.completions.create(
        model=SERVED_NAME, messages=[{"role": "user", "content": said}], **options
    )


@pytest.mark.feature(152)
def test_o6_reasoning_is_apart_and_stops_wait_for_it(reasoner: openai.OpenAI) -> None:
    [choice] = ask(reasoner, stop=["Question:"]).choices
    assert choice.message.reasoning == THOUGHT
    assert choice.message.content == "answer "
    assert choice.finish_reason == "stop"


def test_o6_nothing_of_it_leaks_into_streamed_content(reasoner: openai.OpenAI) -> None:
    deltas = [chunk.choices[0].delta for chunk in ask(reasoner, stream=True)]
    content = "".join(delta.content or "" for delta in deltas)
    thought = "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
    assert (thought, content) == (THOUGHT, ANSWER)
