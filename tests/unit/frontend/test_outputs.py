"""What the mended output processor hands out, over a real tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.tokenizers import TokenizerLike
from vllm.tokenizers.registry import get_tokenizer
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.outputs import LogprobsLists

from frontend.engine.outputs import MendedOutputProcessor
from tests.support import byte_model
from tests.support.byte_model import END_THINK, IM_END, THINK


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TokenizerLike:
    directory: Path = tmp_path_factory.mktemp("bytes")
    for name, content in byte_model.files().items():
        (directory / name).write_bytes(content)
    found: TokenizerLike = get_tokenizer(directory, runner_type="generate")
    return found


class Served:
    """One request in a processor; outputs go in, the completion comes out."""

    def __init__(
        self,
        tokenizer: TokenizerLike,
        params: SamplingParams,
        *,
        parser: str = "",
        reasoning_ended: bool | None = None,
    ) -> None:
        plain = OutputProcessor(tokenizer, log_stats=False)
        self.processor = MendedOutputProcessor(plain, parser)
        params.output_kind = RequestOutputKind.CUMULATIVE
        self._logprobs = params.logprobs is not None
        self.queue = RequestOutputCollector(params.output_kind, "r")
        request = EngineCoreRequest(
            request_id="r",
            prompt_token_ids=[1],
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            external_req_id="e",
            reasoning_ended=reasoning_ended,
        )
        self.processor.add_request(request, None, None, 0, self.queue)

    def say(self, tokens: list[int]) -> CompletionOutput:
        """Everything the model says, one token per output, then how it ends."""
        for token in tokens:
            ends = token == IM_END
            output = EngineCoreOutput(
                "r",
                [token],
                new_logprobs=logprobs(token) if self._logprobs else None,
                finish_reason=FinishReason.STOP if ends else None,
            )
            self.processor.process_outputs([output])
        answer = self.queue.get_nowait()
        assert isinstance(answer, RequestOutput)
        (completion,) = answer.outputs
        return completion


def logprobs(token: int) -> LogprobsLists:
    """The token, and the byte after it as an alternative."""
    return LogprobsLists(
        np.array([[token, token ^ 1]]), np.array([[-0.5, -1.5]]), np.array([1])
    )


def spelled(completion: CompletionOutput) -> list[str | None]:
    assert completion.logprobs is not None
    found: list[str | None] = [
        next(iter(position.values())).decoded_token
        for position in completion.logprobs
        if position
    ]
    return found


@pytest.mark.parametrize("text", ["abc", "x🌶🤣é漢y", "e\u0301", "\n\t 漢字"])
def test_tokens_spell_the_text(tokenizer: TokenizerLike, text: str) -> None:
    served = Served(tokenizer, SamplingParams(logprobs=1))
    completion = served.say([*text.encode(), IM_END])
    *tokens, last = spelled(completion)
    assert completion.text == "".join(token or "" for token in tokens) == text
    assert last is None  # it is no part of the text, and has no bytes


def test_bytes_that_are_no_text(tokenizer: TokenizerLike) -> None:
    """Whatever the text shows in their place, the tokens show it too."""
    served = Served(tokenizer, SamplingParams(logprobs=1))
    completion = served.say([97, 0xFF, 0xC3, 98, 0xF0, 0x9F, 99, IM_END])
    assert "".join(token or "" for token in spelled(completion)) == completion.text


def test_a_stop_string_cuts_the_text_not_the_tokens(tokenizer: TokenizerLike) -> None:
    served = Served(tokenizer, SamplingParams(logprobs=1, stop=["DE"]))
    completion = served.say(list(b"ABCDEFG"))
    assert completion.text == "ABC"
    assert completion.stop_reason == "DE"
    assert spelled(completion) == ["A", "B", "C", "D", "E"]


THOUGHT = [*b"plan Question: x", END_THINK, *b"answer Question: y", IM_END]


def test_stop_strings_in_reasoning(tokenizer: TokenizerLike) -> None:
    served = Served(
        tokenizer,
        SamplingParams(stop=["Question:"], logprobs=0),
        parser="deepseek_r1",
        reasoning_ended=False,
    )
    completion = served.say(THOUGHT)
    assert completion.text == "plan Question: x</think>answer "
    assert completion.stop_reason == "Question:"
    assert len(spelled(completion)) == len(THOUGHT) - len(" y") - 1


@pytest.mark.parametrize(
    ("parser", "ended"), [("deepseek_r1", True), ("deepseek_r1", None), ("", False)]
)
def test_stop_strings_without_reasoning(
    tokenizer: TokenizerLike, parser: str, *, ended: bool | None
) -> None:
    params = SamplingParams(stop=["Question:"])
    served = Served(tokenizer, params, parser=parser, reasoning_ended=ended)
    assert served.say(THOUGHT).text == "plan "


def test_reasoning_that_never_ends(tokenizer: TokenizerLike) -> None:
    params = SamplingParams(stop=["x"])
    served = Served(tokenizer, params, parser="deepseek_r1", reasoning_ended=False)
    assert served.say([THINK, *b"axb", IM_END]).text == "<think>axb"
