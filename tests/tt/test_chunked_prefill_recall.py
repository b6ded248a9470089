"""The recall gate: what a long prompt began with is known at its end.

A prompt that is longer than the server's token budget is prefilled in chunks. A
chunk whose keys and values were lost, or written to the wrong pages, is a hole in
the model's memory: it cannot tell the code that was in it.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.tt.server import Recall, Server, together

ROUNDS = 3
AT_ONCE = 4
ANSWER_TOKENS = 24
FILLER = "The river runs past the old mill and the fields beyond it. "
CODES = ["KX7-4921", "QM3-8075", "ZT9-1364", "WB5-2708"]


def prompt(code: str, filler_repeats: int) -> str:
    """A note, as long a text as it takes, and the question for the note."""
    return (
        f"The access code is {code}. Remember: the access code is {code}.\n"
        f"{FILLER * filler_repeats}\n"
        "Question: What is the access code? Answer: The access code is"
    )


def repeats_beyond(server: Server, tokens: int) -> int:
    """How much filler makes the prompt longer than so many tokens."""
    answer = server.client.completions.create(
        model=server.model, prompt=FILLER * 10, max_tokens=1
    )
    assert answer.usage is not None
    return 1 + tokens * 10 // answer.usage.prompt_tokens


@pytest.mark.feature(75, 76)
def test_recall_under_chunked_prefill(server: Server, recall: Recall) -> None:
    repeats = repeats_beyond(server, recall.prompt_tokens)
    ask = in_chats if recall.effort else in_completions
    for round_number in range(ROUNDS):
        codes = CODES[round_number:] + CODES[:round_number]
        calls = [
            partial(ask, server, recall, prompt(code, repeats), code)
            for code in codes[:AT_ONCE]
        ]
        together(calls)


def in_completions(server: Server, _: Recall, text: str, code: str) -> None:
    """As plain text: the code, whole, is in the first tokens."""
    answer = server.complete(text, max_tokens=ANSWER_TOKENS)
    assert code in answer.text


def in_chats(server: Server, recall: Recall, text: str, code: str) -> None:
    """As a chat that may reason: it must come to an end, with the code in it."""
    choice = server.chat(
        text,
        max_tokens=ANSWER_TOKENS + recall.allowance,
        reasoning_effort=recall.effort,
    )
    assert choice.finish_reason == "stop"
    assert code in (choice.message.content or "")
