"""Random traffic against engines of every kind.

Three oracles watch: the simulated model's own rule for the tokens, a ledger of
blocks at the adapter, and the contract's scheduling rules over the records. The
contract probe stands between engine and adapter as in every test.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from device_service.records import EngineState, FinishKind, StepRecord
from device_service.scheduling.interleave import InterleaveConfig
from tests.support.block_ledger import BlockLedger, kept_by
from tests.support.rig import Rig, Stream
from tests.support.step_oracle import Asked, Rules, StepOracle
from tests.unit.device_service.test_kv_groups import (
    Tabled,
    describing,
    full,
    named,
    window,
)
from ttserve.errors import Reason
from ttserve.sim_model import sim_model_dir

pytestmark = pytest.mark.timeout(400)

BLOCK_SIZE = 16
MAX_MODEL_LEN = 176  # eleven blocks
MOST_STEPS = 20_000  # of one run; it takes some hundreds


@dataclass(frozen=True)
class Submit:
    """A request. Its `stop`-th token is made its stop token, if it has so many."""

    first_token: int
    length: int
    max_tokens: int
    stop: int | None
    priority: int
    extra: dict[str, Any]


@dataclass(frozen=True)
class Abort:
    index: int


@dataclass(frozen=True)
class Reset:
    """Forget all prefixes; who runs starts over."""


@dataclass(frozen=True)
class Steps:
    count: int


@dataclass(frozen=True)
class Shape:
    """An engine. `budget` None: no chunks; `num_blocks` None: enough for all."""

    lanes: int
    rows: int
    num_blocks: int | None
    budget: int | None
    threshold: int
    interleave: InterleaveConfig
    asynchronous: bool
    site: str | None
    prefix_cache: bool
    policy: str

    def rig(
        self,
        adapter: type[Any] | None = None,
        fail_steps: Sequence[int] = (),
        step_ring: int = 4096,
    ) -> Rig:
        chunks: dict[str, Any] = {"enable_chunked_prefill": False}
        if self.budget is not None:
            chunks = {
                "max_num_batched_tokens": self.budget,
                "long_prefill_token_threshold": self.threshold,
            }
        return Rig(
            sim_model_dir(),
            adapter=adapter,
            mesh_options={"sim": {"fail_steps": list(fail_steps)}},
            lanes=self.lanes,
            rows=self.rows,
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            max_model_len=MAX_MODEL_LEN,
            interleave=self.interleave,
            async_scheduling=self.asynchronous,
            site=None if self.site is None else {"mode": self.site},
            enable_prefix_caching=self.prefix_cache,
            scheduling_policy=self.policy,
            step_ring=step_ring,
            **chunks,
        )

    def rules(self) -> Rules:
        return Rules(
            lanes=self.lanes,
            rows=self.rows,
            budget=self.budget,
            threshold=self.threshold if self.budget else 0,
            interleave=self.interleave,
            by_priority=self.policy == "priority",
        )


SHAPES = st.builds(
    Shape,
    lanes=st.sampled_from([1, 2, 1, 2, 3, 4]),
    rows=st.integers(1, 4),
    num_blocks=st.sampled_from([12, 12, 14, 20, None]),
    budget=st.sampled_from([None, 16, 24, 40, 100]),
    threshold=st.sampled_from([0, 0, 7, 32]),
    interleave=st.sampled_from(
        [InterleaveConfig(*it) for it in [(True, 2, 1), (True, 1, 1), (True, 2, 3)]]
        + [InterleaveConfig(enabled=False)]
    ),
    asynchronous=st.sampled_from([True, True, False]),
    site=st.sampled_from(["all", "decode_only", "all", None]),
    prefix_cache=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
)

# What each of these does to the sampling site and to overlap, it does for all rows;
# to the tokens of a greedy request it does nothing.
EXTRAS: list[dict[str, Any]] = [{}, {}, {}, {"logprobs": 1}, {"logit_bias": {0: -1.0}}]

# Few different first tokens, so that prompts often share prefixes.
SUBMIT = st.builds(
    Submit,
    first_token=st.integers(1, 3),
    length=st.integers(1, 100),
    max_tokens=st.integers(1, 60),
    stop=st.none() | st.integers(0, 40),
    priority=st.integers(0, 2),
    extra=st.sampled_from(EXTRAS),
)
BURST = st.lists(SUBMIT, min_size=1, max_size=8)
ACTIONS = st.lists(
    st.one_of(
        BURST,
        BURST,
        st.builds(Abort, index=st.integers(0, 30)) | st.just(Reset()),
        st.builds(Steps, count=st.integers(1, 20)),
        st.builds(Steps, count=st.integers(1, 20)),
    ),
    min_size=4,
    max_size=16,
)
Actions = list[list[Submit] | Abort | Reset | Steps]


@dataclass(frozen=True)
class Submitted:
    """`before`: the engine just before the request was admitted."""

    stream: Stream
    expected: list[int]
    priority: int
    before: Future[EngineState]


class Traffic:
    """Acts on a rig, and keeps what was asked of it."""

    def __init__(self, shape: Shape, rig: Rig, ledger: BlockLedger | None) -> None:
        self._shape = shape
        self._rig = rig
        self._ledger = ledger
        self._vocabulary = SimVocabulary.of(rig.config.model_config.hf_config)
        self._submitted: list[Submitted] = []
        self._aborted: set[int] = set()
        self._resets: list[Future[EngineState]] = []

    def run(self, actions: Actions) -> None:
        """Act, then step until all is done."""
        for action in actions:
            match action:
                case list():
                    for submit in action:
                        self._submit(submit)
                case Abort(index) if index < len(self._submitted):
                    self._rig.abort(self._submitted[index].stream)
                    self._aborted.add(index)
                case Reset():
                    self._resets.append(self._rig.engine.snapshot())
                    self._rig.engine.reset_prefix_cache(preempt_running=True)
                case Steps(count):
                    self._step(count)
        self._step(MOST_STEPS)

    def asked(self) -> list[Asked]:
        """Everything that was asked, for the oracle."""
        return [
            Asked(
                it.stream,
                it.expected,
                it.priority,
                arrived=it.before.result(timeout=0).step_number,
                lane=least_loaded(it.before.result(timeout=0)),
                aborted=index in self._aborted,
            )
            for index, it in enumerate(self._submitted)
        ]

    def resets(self) -> set[int]:
        """Numbers of the steps after which all had to start over."""
        return {state.result(timeout=0).step_number for state in self._resets}

    def _submit(self, action: Submit) -> None:
        rig, sampling = self._rig, dict(action.extra)
        prompt = [action.first_token + i % 5 for i in range(action.length)]
        tokens = expected_tokens(prompt, action.max_tokens, self._vocabulary)
        if action.stop is not None and action.stop < len(tokens):
            sampling["stop_token_ids"] = [tokens[action.stop]]
            tokens = tokens[: tokens.index(tokens[action.stop]) + 1]
        before = rig.engine.snapshot()
        stream = rig.submit(
            prompt, action.max_tokens, priority=action.priority, **sampling
        )
        priority = action.priority if self._shape.policy == "priority" else 0
        self._submitted.append(Submitted(stream, tokens, priority, before))

    def _step(self, count: int) -> None:
        """Step; between steps, what the adapter was told is what the books say."""
        engine, ledger = self._rig.engine, self._ledger
        if ledger is None:
            self._rig.run(count)
            return
        busy = engine.step()
        for _ in range(count - 1):
            if not busy:
                return
            occupied = ledger.occupied
            used = [ledger.used_blocks(lane) for lane in range(self._shape.lanes)]
            future = engine.snapshot()
            busy = engine.step()
            lanes = future.result(timeout=0).lanes
            assert {row.row for lane in lanes for row in lane.rows} == occupied
            assert [lane.total_blocks - lane.free_blocks for lane in lanes] == used
            assert ledger.faults == []


def least_loaded(state: EngineState) -> int:
    """The lane for the next request (contract 2.5)."""
    loads = [4 * len(lane.waiting) + len(lane.rows) for lane in state.lanes]
    return loads.index(min(loads))


def check(
    shape: Shape, actions: Actions, adapter: type[Any], ledger: BlockLedger | None
) -> None:
    with shape.rig(adapter) as rig:
        traffic = Traffic(shape, rig, ledger)
        traffic.run(actions)
        rig.assert_nothing_is_held()
        oracle = StepOracle(shape.rules(), traffic.asked(), traffic.resets())
        oracle.check(rig.records)
        assert ledger is None or ledger.faults == []
        assert rig.probe.breaches == []
        for name, happened in seen(rig.records).items():
            if happened:
                event(name)


def check_blocks_too(shape: Shape, actions: Actions) -> None:
    ledger = BlockLedger(rows_per_lane=shape.rows, block_size=BLOCK_SIZE)
    check(shape, actions, kept_by(ledger), ledger)


def seen(records: list[StepRecord]) -> dict[str, bool]:
    """What a run has met, for `pytest --hypothesis-show-statistics`."""
    return {
        "preempted": any(record.preempted for record in records),
        "overlapped": any(record.overlap.overlap for record in records),
        "interleaved": any(r.phase_reason == "interleave" for r in records),
        "stuck": any(r.phase_reason == "prefill_stuck" for r in records),
    }


@pytest.mark.feature(42, 56, 58, 64, 71, 72, 76, 82, 83, 84, 86, 87, 99, 101, 105, 111)
@pytest.mark.edge(2, 4, 8, 14, 15, 16, 21, 22, 58)
@settings(max_examples=50, deadline=None)
@given(shape=SHAPES, actions=ACTIONS)
def test_random_traffic(shape: Shape, actions: Actions) -> None:
    check_blocks_too(shape, actions)


@pytest.mark.feature(55)
@settings(max_examples=10, deadline=None)
@given(shape=SHAPES, actions=ACTIONS)
def test_random_traffic_over_two_kv_groups(shape: Shape, actions: Actions) -> None:
    """A layer with a window and one without, whose blocks come from one pool."""
    Tabled.reset()
    roomier = replace(shape, num_blocks=2 * (shape.num_blocks or 50))
    check(roomier, actions, describing(named(window(), full()), Tabled), None)


@pytest.mark.feature(114)
@settings(max_examples=12, deadline=None)
@given(shape=SHAPES, actions=ACTIONS, gaps=st.lists(st.integers(4, 40), max_size=12))
def test_failing_steps_cost_their_requests_and_nothing_else(
    shape: Shape, actions: Actions, gaps: list[int]
) -> None:
    """Nobody hits a block that was never written, and no block is lost."""
    ledger = BlockLedger(rows_per_lane=shape.rows, block_size=BLOCK_SIZE)
    with shape.rig(kept_by(ledger), list(itertools.accumulate(gaps))) as rig:
        traffic = Traffic(shape, rig, ledger)
        traffic.run(actions)
        rig.assert_nothing_is_held()
        for asked in traffic.asked():
            finish, tokens = asked.stream.finish, asked.stream.token_ids
            assert finish is not None
            if finish.kind is FinishKind.ERROR:
                assert finish.error is not None
                assert finish.error.reason is Reason.STEP_FAILED
            elif not asked.aborted:
                assert tokens == asked.expected
            assert tokens == asked.expected[: len(tokens)]
        assert ledger.faults == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(max_examples=600, deadline=None)
@given(shape=SHAPES, actions=ACTIONS)
def test_much_random_traffic(shape: Shape, actions: Actions) -> None:
    check_blocks_too(shape, actions)
