"""Random traffic against the engine.

The oracle is the simulated model's own rule, and the contract probe for the calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from device_service.records import FinishKind, Phase
from tests.support.rig import Rig
from ttserve.sim_model import sim_model_dir


@dataclass(frozen=True)
class Submit:
    first_token: int
    length: int
    max_tokens: int


@dataclass(frozen=True)
class Abort:
    index: int


@dataclass(frozen=True)
class Steps:
    count: int


# Few different first tokens, so that prompts often share prefixes.
ACTIONS = st.lists(
    st.one_of(
        st.builds(
            Submit,
            first_token=st.integers(1, 3),
            length=st.integers(1, 100),
            max_tokens=st.integers(1, 60),
        ),
        st.builds(Abort, index=st.integers(0, 30)),
        st.builds(Steps, count=st.integers(1, 12)),
    ),
    min_size=1,
    max_size=40,
)

OVERLAPPING: dict[str, Any] = {"async_scheduling": True, "site": {"mode": "all"}}

SHAPES: dict[str, dict[str, Any]] = {
    "chunked": {"rows": 4, "num_blocks": 12, "max_num_batched_tokens": 24},
    "lanes": {"rows": 2, "lanes": 3, "num_blocks": 12, "max_num_batched_tokens": 32},
    "whole": {"rows": 4, "num_blocks": 12, "enable_chunked_prefill": False},
    "overlapping": {"rows": 4, "num_blocks": 12, **OVERLAPPING},
    "overlapping-lanes": {"rows": 2, "lanes": 2, "num_blocks": 12, **OVERLAPPING},
}


@pytest.fixture(scope="module", params=list(SHAPES.values()), ids=list(SHAPES))
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with Rig(sim_model_dir(), max_model_len=176, **request.param) as made:
        yield made


@pytest.mark.feature(42, 56, 58, 76, 99, 101, 105)
@pytest.mark.edge(21, 22, 58)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(actions=ACTIONS)
def test_no_token_is_lost_doubled_or_wrong(
    rig: Rig, actions: list[Submit | Abort | Steps]
) -> None:
    vocabulary = SimVocabulary.of(rig.config.model_config.hf_config)
    streams = []
    aborted = set()
    seen = len(rig.records)
    for action in actions:
        match action:
            case Submit(first_token, length, max_tokens):
                prompt = [first_token + i % 5 for i in range(length)]
                streams.append((rig.submit(prompt, max_tokens), prompt, max_tokens))
            case Abort(index) if index < len(streams):
                rig.abort(streams[index][0])
                aborted.add(index)
            case Steps(count):
                rig.run(count)
    rig.run()
    for index, (stream, prompt, max_tokens) in enumerate(streams):
        lone = expected_tokens(prompt, max_tokens, vocabulary)
        assert stream.finish is not None
        if stream.finish.kind is FinishKind.ABORT:
            assert index in aborted
            assert stream.token_ids == lone[: len(stream.token_ids)]
        else:
            assert stream.finish.kind is FinishKind.LENGTH
            assert stream.token_ids == lone
    for record in rig.records[seen:]:
        rows = [row for lane in record.lanes for row in lane.rows]
        assert rows, "an empty step was submitted"
        assert len({row.row for row in rows}) == len(rows)
        if record.phase is Phase.DECODE:
            assert all(row.tokens == 1 and row.produced_tokens <= 1 for row in rows)
            assert not any(row.intermediate_chunk for row in rows)
    rig.assert_nothing_is_held()
    assert rig.probe.breaches == []
