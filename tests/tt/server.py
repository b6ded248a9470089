"""The server under test, and the few ways in which these tests ask it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import openai

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """One choice of a completion. `token_ids` are those that were sampled."""

    text: str
    token_ids: list[int]
    finish_reason: str
    logprobs: Any


@dataclass(frozen=True)
class Recall:
    """How the recall gate asks: prompts longer than `prompt_tokens`.

    With an effort it asks in chats that may reason for `allowance` tokens.
    """

    prompt_tokens: int
    effort: str | None
    allowance: int


class Server:
    """A client of one model."""

    def __init__(self, client: openai.OpenAI, model: str) -> None:
        self.client = client
        self.model = model

    def complete(self, prompt: str | list[int], **options: Any) -> Answer:
        """One completion; greedy, and to its last token, unless `options` say else.

        What OpenAI's API does not know goes into the body as it is.
        """
        settings = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True} | options
        known = {
            name: settings.pop(name)
            for name in list(settings)
            if name in _COMPLETION_PARAMETERS
        }
        answer = self.client.completions.create(
            model=self.model,
            prompt=prompt,
            **known,
            extra_body=settings | {"return_token_ids": True},
        )
        choice = answer.choices[0]
        extra = choice.model_extra or {}
        return Answer(
            choice.text,
            list(extra["token_ids"]),
            str(choice.finish_reason),
            choice.logprobs,
        )

    def chat(self, question: str, **options: Any) -> Any:
        """The first choice of a chat, greedy unless `options` say else."""
        settings = {"temperature": 0.0} | options
        known = {
            name: settings.pop(name)
            for name in list(settings)
            if name in _CHAT_PARAMETERS
        }
        answer = self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": question}],
            **known,
            extra_body=settings,
        )
        return answer.choices[0]


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """The results of calls that are made at the same time, in their order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda call: call(), calls))


_SHARED = {"temperature", "top_p", "max_tokens", "seed", "stop", "logit_bias", "n"}
_SHARED |= {"presence_penalty", "frequency_penalty", "logprobs"}
_COMPLETION_PARAMETERS = _SHARED | {"echo"}
_CHAT_PARAMETERS = _SHARED | {"top_logprobs", "reasoning_effort", "response_format"}
