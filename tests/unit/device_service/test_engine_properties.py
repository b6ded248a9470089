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
from device_service.records import FinishKind, Phase, StepRecord
from device_service.scheduling.interleave import InterleaveConfig
from tests.support.rig import Rig, Stream
from ttserve.sim_model import sim_model_dir


@dataclass(frozen=True)
class Submit:
    first_token: int
    length: int
    max_tokens: int
    priority: int


@dataclass(frozen=True)
class Abort:
    index: int


@dataclass(frozen=True)
class Steps:
    count: int


@dataclass
class Asked:
    """A request that was submitted, and whether its client left."""

    stream: Stream
    prompt: list[int]
    max_tokens: int
    priority: int
    aborted: bool = False


# Few different first tokens, so that prompts often share prefixes.
ACTIONS = st.lists(
    st.one_of(
        st.builds(
            Submit,
            first_token=st.integers(1, 3),
            length=st.integers(1, 100),
            max_tokens=st.integers(1, 60),
            priority=st.integers(0, 2),
        ),
        st.builds(Abort, index=st.integers(0, 30)),
        st.builds(Steps, count=st.integers(1, 12)),
    ),
    min_size=1,
    max_size=40,
)

SCARCE = {"num_blocks": 12, "max_model_len": 176}
OVERLAPPING: dict[str, Any] = {"async_scheduling": True, "site": {"mode": "all"}}
SHAPES: dict[str, dict[str, Any]] = {
    "chunked": {"rows": 4, "max_num_batched_tokens": 24},
    "lanes": {"rows": 2, "lanes": 3, "max_num_batched_tokens": 32},
    "whole": {"rows": 4, "enable_chunked_prefill": False},
    "eager decode": {
        "rows": 4,
        "max_num_batched_tokens": 16,
        "interleave": InterleaveConfig(True, 1, 3),
    },
    "no interleave": {
        "rows": 4,
        "max_num_batched_tokens": 16,
        "interleave": InterleaveConfig(enabled=False),
    },
    "by priority": {
        "rows": 3,
        "max_num_batched_tokens": 24,
        "scheduling_policy": "priority",
    },
    "lanes by priority": {
        "rows": 2,
        "lanes": 2,
        "max_num_batched_tokens": 24,
        "long_prefill_token_threshold": 8,
        "scheduling_policy": "priority",
        "enable_prefix_caching": False,
    },
    "overlapping": {"rows": 4, "max_num_batched_tokens": 24, **OVERLAPPING},
    "overlapping lanes": {"rows": 2, "lanes": 2, **OVERLAPPING},
}


@pytest.fixture(scope="module", params=list(SHAPES.values()), ids=list(SHAPES))
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with Rig(sim_model_dir(), **(SCARCE | request.param)) as made:
        yield made


@pytest.mark.feature(58, 72)
@pytest.mark.edge(2, 4, 8, 14)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(actions=ACTIONS)
def test_traffic_of_any_kind_is_served_in_order_and_in_time(
    rig: Rig, actions: list[Submit | Abort | Steps]
) -> None:
    seen = len(rig.records)
    asked = act(rig, actions)
    rig.run(MOST_STEPS)
    check_tokens(rig, asked)
    records = rig.records[seen:]
    for record in records:
        check_step(record)
    check_order(rig, asked, records)
    check_gaps(rig, asked, records)
    rig.assert_nothing_is_held()


def act(rig: Rig, actions: list[Submit | Abort | Steps]) -> list[Asked]:
    asked: list[Asked] = []
    by_priority = rig.config.scheduler_config.policy == "priority"
    for action in actions:
        match action:
            case Submit(first_token, length, max_tokens, priority):
                prompt = [first_token + i % 5 for i in range(length)]
                priority = priority if by_priority else 0
                stream = rig.submit(prompt, max_tokens, priority=priority)
                asked.append(Asked(stream, prompt, max_tokens, priority))
            case Abort(index) if index < len(asked):
                rig.abort(asked[index].stream)
                asked[index].aborted = True
            case Steps(count):
                rig.run(count)
    return asked


MOST_STEPS = 40 * (100 + 60) * 2
"""More than any of these cases can need, prompts token by token and twice."""


def check_tokens(rig: Rig, asked: list[Asked]) -> None:
    """Nothing is lost, doubled or wrong, and everybody has ended."""
    vocabulary = SimVocabulary.of(rig.config.model_config.hf_config)
    for entry in asked:
        stream = entry.stream
        lone = expected_tokens(entry.prompt, entry.max_tokens, vocabulary)
        assert stream.finish is not None, "somebody waits for ever"
        if stream.finish.kind is FinishKind.ABORT:
            assert entry.aborted
            assert stream.token_ids == lone[: len(stream.token_ids)]
        else:
            assert stream.finish.kind is FinishKind.LENGTH
            assert stream.token_ids == lone


def check_step(record: StepRecord) -> None:
    """A step has rows, each once, all of one phase; blocks are counted right."""
    rows = [row for lane in record.lanes for row in lane.rows]
    assert rows, "an empty step was submitted"
    assert len({row.row for row in rows}) == len(rows)
    assert len({row.request_id for row in rows}) == len(rows)
    if record.phase is Phase.DECODE:
        assert all(row.tokens == 1 and row.produced_tokens <= 1 for row in rows)
        assert not any(row.intermediate_chunk for row in rows)
    for lane in record.lanes:
        assert lane.used_blocks + lane.free_blocks == SCARCE["num_blocks"] - 1


def check_order(rig: Rig, asked: list[Asked], records: list[StepRecord]) -> None:
    """Equals of a lane begin in the order in which they came."""
    begun: dict[str, tuple[int, int]] = {}
    for record in records:
        for lane in record.lanes:
            for row in lane.rows:
                begun.setdefault(row.request_id, (record.number, lane.lane))
    places = [
        (begun[entry.stream.request_id], entry.priority)
        for entry in asked
        if entry.stream.request_id in begun
    ]
    for number in rig.lane_numbers:
        for priority in {priority for _, priority in places}:
            steps = [
                step
                for (step, where), urgency in places
                if where == number and urgency == priority
            ]
            assert steps == sorted(steps), "an equal was overtaken"


def check_gaps(rig: Rig, asked: list[Asked], records: list[StepRecord]) -> None:
    """Whoever decodes gets a token after so many prefill steps, if not preempted."""
    if not rig.interleave.enabled:
        return
    preempted = {
        (name, record.number) for record in records for name in record.preempted
    }
    for entry in asked:
        steps = entry.stream.steps
        for before, after in zip(steps, steps[1:], strict=False):
            names = {(entry.stream.request_id, n) for n in range(before, after + 1)}
            if names.isdisjoint(preempted):
                assert after - before <= rig.interleave.prefill_steps + 1
