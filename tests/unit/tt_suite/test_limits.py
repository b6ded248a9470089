"""What the options of the server suite change in its requests, and what they do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.tt.server import Answer, Recall, Server
from tests.tt.test_chunked_prefill_recall import in_chats, in_completions
from tests.tt.test_host_only_params import test_bad_words_do_not_come as bad_words
from tests.tt.test_structured_output import KINDS, ask

CODE = "KX7-4921"


class Scripted(Server):
    """Answers with a text, and remembers what it was asked."""

    def __init__(self, text: str, finish_reason: str = "stop") -> None:
        self.text, self.finish_reason = text, finish_reason
        self.asked: list[tuple[Any, dict[str, Any]]] = []

    def complete(self, prompt: str | list[int], **options: Any) -> Answer:
        self.asked.append((prompt, options))
        return Answer(self.text, [], self.finish_reason, None)

    def chat(self, question: str, **options: Any) -> Any:
        self.asked.append((question, options))
        banned = options.get("bad_words", [])
        tokens = [SimpleNamespace(token=f" {w}") for w in self.text.split()]
        return SimpleNamespace(
            message=SimpleNamespace(content=self.text),
            finish_reason=self.finish_reason,
            logprobs=SimpleNamespace(
                content=[t for t in tokens if t.token.strip() not in banned]
            ),
        )


@pytest.mark.feature(157)
def test_recall_without_an_effort_has_its_old_limit() -> None:
    """Also when an allowance was given."""
    server = Scripted(f"{CODE}.")
    in_completions(server, Recall(128, None, allowance=1000), "the prompt", CODE)
    assert server.asked == [("the prompt", {"max_tokens": 24})]


@pytest.mark.feature(157)
def test_recall_with_an_effort_may_reason() -> None:
    server = Scripted(f"It is {CODE}.")
    in_chats(server, Recall(8192, "low", allowance=1000), "the prompt", CODE)
    assert server.asked == [
        ("the prompt", {"max_tokens": 1024, "reasoning_effort": "low"})
    ]


@pytest.mark.feature(157)
@pytest.mark.parametrize(
    ("text", "finish_reason"),
    [
        (f"It is {CODE}.", "length"),
        (f"It is {CODE}.", "tool_calls"),
        ("", "stop"),
        ("It is KX7-492.", "stop"),
    ],
)
def test_what_is_no_recall(text: str, finish_reason: str) -> None:
    with pytest.raises(AssertionError):
        in_chats(Scripted(text, finish_reason), Recall(1, "low", 0), "p", CODE)


@pytest.mark.feature(157)
@pytest.mark.parametrize("budget", [0, 500])
def test_the_reasoning_budget_is_added_where_it_is_said_to_be(budget: int) -> None:
    answers = {
        "choice": "red",
        "regex": "abc-12",
        "json": '{"size": "small", "count": 1, "good": true}',
        "plain": "Hello.",
    }
    limits = {}
    for kind in KINDS:
        server = Scripted(answers[kind])
        ask(server, kind, budget)
        [(_, options)] = server.asked
        limits[kind] = options["max_tokens"]
    assert limits == {
        "choice": 8 + budget,
        "regex": 16 + budget,
        "json": 64 + budget,
        "plain": 16 + budget,
    }
    words = Scripted("the clear sky is very blue")
    bad_words(words, budget)
    assert [options["max_tokens"] for _, options in words.asked] == [100 + budget] * 2
