"""A seeded request says the same wherever, beside whomever and however it is run.

The yardstick is the request alone on an engine that samples on the host. The
neighbours decide about the sampling site of every step, and few blocks make
some of them, and the request itself, give way and start again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from vllm.sampling_params import StructuredOutputsParams

from device_service.records import SamplingSite
from tests.support.rig import Rig
from ttserve.sim_model import sim_model_dir

SUBJECTS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 32, "seed": 1},
    {"temperature": 1.6, "top_k": 5, "seed": -(2**63)},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.7, "seed": 2**63 - 1},
    {"temperature": 1.9, "top_k": 1, "top_p": 0.2, "seed": 5},
    {"temperature": 1.2, "top_k": 16, "seed": 6, "presence_penalty": 1.5},
    {"temperature": 0.0, "frequency_penalty": 0.8, "repetition_penalty": 1.4},
    {"temperature": 0.8, "top_k": 32, "top_p": 0.95, "seed": 7},
]
NEIGHBOURS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 8},
    {"temperature": 1.0, "top_k": 0, "seed": 11},
    {"temperature": 0.7, "min_p": 0.2, "top_k": 4, "seed": 12},
    {"temperature": 0.0, "logit_bias": {40: 5.0}},
    {"temperature": 0.0, "min_tokens": 4, "stop_token_ids": [77]},
    {
        "temperature": 1.2,
        "top_k": 20,
        "seed": 13,
        "structured_outputs": StructuredOutputsParams(regex="[a-z]{5}|[0-9]{30}"),
        "stop_token_ids": [259],
    },
    {"temperature": 1.1, "allowed_token_ids": [40, 41, 50], "seed": 14},
]


@dataclass(frozen=True)
class Submit:
    """A request: one of `SUBJECTS`, or one of `NEIGHBOURS`."""

    subject: bool
    which: int
    length: int

    @property
    def sampling(self) -> dict[str, Any]:
        return copy.deepcopy((SUBJECTS if self.subject else NEIGHBOURS)[self.which])

    @property
    def repeats(self) -> bool:
        """Whether it says the same every time: all but one do."""
        return self.sampling["temperature"] == 0.0 or "seed" in self.sampling


@dataclass(frozen=True)
class Steps:
    count: int


ACTIONS = st.lists(
    st.one_of(
        st.builds(
            Submit, st.booleans(), st.integers(0, 7), st.sampled_from([1, 9, 30])
        ),
        st.builds(Steps, st.integers(1, 9)),
    ),
    min_size=2,
    max_size=30,
)
SHAPES: dict[str, dict[str, Any]] = {
    "few blocks": {"rows": 5, "num_blocks": 14, "max_num_batched_tokens": 24},
    "lanes": {"rows": 2, "lanes": 3, "num_blocks": 9},
    "overlapped": {"rows": 5, "num_blocks": 14, "async_scheduling": True},
    "decode only": {"rows": 5, "mode": "decode_only", "num_blocks": 14},
}
COUNT = 40


def _prompt(submit: Submit) -> list[int]:
    return [40 + submit.which + i % 7 for i in range(submit.length)]


@pytest.fixture(scope="module", params=SHAPES.values(), ids=list(SHAPES))
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    shape = {"mode": "all"} | request.param
    site: dict[str, Any] = {"mode": shape.pop("mode")}
    if "async_scheduling" in shape:
        site["device_grammar"] = False
    with Rig(sim_model_dir(), max_model_len=128, site=site, **shape) as made:
        yield made


class Alone:
    """What requests say alone on the host; asked once each."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._said: dict[Submit, list[int]] = {}

    def says(self, submit: Submit) -> list[int]:
        if submit not in self._said:
            self._said[submit] = self._rig.generate(
                _prompt(submit), COUNT, **submit.sampling
            )
        return self._said[submit]


@pytest.fixture(scope="module")
def alone() -> Iterator[Alone]:
    with Rig(sim_model_dir(), max_model_len=128) as made:
        yield Alone(made)


@pytest.mark.feature(121, 123, 124, 128)
@pytest.mark.edge(35)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(actions=ACTIONS)
@example(actions=[Submit(False, 6, 1), Submit(True, 6, 1), Submit(True, 5, 9)])
def test_tokens_do_not_depend_on_site_row_neighbours_or_preemption(
    rig: Rig, alone: Alone, actions: list[Submit | Steps]
) -> None:
    subjects = []
    for action in actions:
        match action:
            case Submit() as submit:
                stream = rig.submit(_prompt(submit), COUNT, **submit.sampling)
                if submit.repeats:
                    subjects.append((stream, submit))
            case Steps(count):
                rig.run(count)
    rig.run()
    for stream, submit in subjects:
        assert stream.finish is not None
        assert stream.finish.error is None
        assert stream.token_ids == alone.says(submit)
    rig.assert_nothing_is_held()
    assert rig.probe.breaches == []


def test_the_shapes_above_reach_both_sites_and_preempt(rig: Rig) -> None:
    """Guards the property: without this it could hold for lack of trying."""
    seen = len(rig.records)
    for which in range(7):
        rig.submit(_prompt(Submit(True, which, 30)), COUNT, **SUBJECTS[which])
    rig.run(60)
    rig.submit(_prompt(Submit(False, 4, 30)), COUNT, **NEIGHBOURS[4])
    rig.run()
    records = rig.records[seen:]
    sites = {record.sampling.site for record in records}
    assert {SamplingSite.DEVICE, SamplingSite.HOST} <= sites
    assert any(record.preempted for record in records)
