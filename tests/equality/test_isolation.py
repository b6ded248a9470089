"""A request's output does not depend on its neighbours (DETAILS 25).

Real weights, random ones, in fp32: equal tokens, log probabilities within 1e-4.
The same request runs alone and then beside neighbours of every kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vllm.sampling_params import StructuredOutputsParams

from tests.support.rig import Rig, Stream
from tests.tiny_models import write_tiny_model

PROMPT = [70 + i % 50 for i in range(30)]
TOKENS = 24

REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 7},
    "seeded-cut": {"temperature": 0.8, "seed": -3, "top_p": 0.9, "top_k": 40},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    "constrained": {"structured_outputs": StructuredOutputsParams(regex="[a-z]{40}")},
}

NEIGHBOURS: dict[str, list[dict[str, Any]]] = {
    "sampled": [
        {"temperature": 1.5},
        {"temperature": 1.0, "top_p": 0.5, "min_p": 0.1},
        {"temperature": 1.0, "seed": 7},
    ],
    "grammars": [
        {"structured_outputs": StructuredOutputsParams(regex="(yes|no)+")},
        {"structured_outputs": StructuredOutputsParams(json_object=True)},
    ],
    "logprobs": [{"logprobs": 20}, {"temperature": 1.0, "logprobs": 5}],
    "filters": [
        {"logit_bias": {97: 50.0}},
        {"allowed_token_ids": [65, 66]},
        {"min_tokens": 10, "stop_token_ids": [65]},
        {"frequency_penalty": 2.0},
    ],
}


@pytest.fixture(scope="module", params=["llama", "qwen3-moe"])
def rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp(request.param)
    write_tiny_model(request.param, directory)
    with Rig(
        directory, mesh="cpu", rows=8, max_model_len=256, enable_prefix_caching=False
    ) as made:
        yield made


def ask(rig: Rig, name: str) -> Stream:
    return rig.submit(PROMPT, TOKENS, logprobs=3, **REQUESTS[name])


def assert_same(stream: Stream, alone: Stream) -> None:
    assert stream.token_ids == alone.token_ids
    assert len(stream.token_ids) == TOKENS
    for here, there in zip(stream.logprobs, alone.logprobs, strict=True):
        assert here.chosen == pytest.approx(there.chosen, abs=1e-4)
        assert here.chosen_rank == there.chosen_rank


@pytest.mark.feature(128)
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_beside_other_kinds(rig: Rig, name: str, neighbours: str) -> None:
    alone = ask(rig, name)
    rig.run()
    for i, options in enumerate(NEIGHBOURS[neighbours]):
        rig.submit([80 + i] * (5 + 20 * i), 40, **options)
    stream = ask(rig, name)
    rig.run()
    assert_same(stream, alone)


def test_beside_long_short_and_dying_ones(rig: Rig) -> None:
    def beside(after: Callable[[], None]) -> None:
        streams = {name: ask(rig, name) for name in REQUESTS}
        after()
        rig.run()
        for name, stream in streams.items():
            assert_same(stream, alone[name])

    alone = {}
    for name in REQUESTS:
        alone[name] = ask(rig, name)
        rig.run()

    def long_and_short() -> None:
        rig.submit([99] * 200, 50)
        rig.submit([98], 1)

    def dying() -> None:
        doomed = [rig.submit([90 + i] * 40, 200) for i in range(3)]
        for stream in doomed:
            rig.run(steps=4)
            rig.abort(stream)

    beside(long_and_short)
    beside(dying)
