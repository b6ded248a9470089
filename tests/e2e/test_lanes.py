"""`--data-parallel-size` as lanes of one mesh, through the whole split.

A tiny Llama on the `cpu` mesh, under the variable that makes it the galaxy's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.support.frontend_process import wait_for
from tests.support.reference import greedy
from tests.support.stack import Stack, running_stack
from tests.tiny_models import write_tiny_model
from ttserve.v1 import inspector_pb2

pytestmark = pytest.mark.timeout(400)

LANES, ROWS, NEW_TOKENS = 4, 2, 20
PROMPTS = [[65 + i % 9 for i in range(5 + 7 * number)] for number in range(10)]


@dataclass(frozen=True)
class Served:
    stack: Stack
    answers: list[list[int]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("lanes")
    model = write_tiny_model("llama", directory / "model")
    answers = [greedy(model, prompt, NEW_TOKENS) for prompt in PROMPTS]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TT_LLAMA_TEXT_VER", "llama3_70b_galaxy")
        environment.setenv("MESH_DEVICE", "TG")
        with running_stack(
            directory,
            frontends=2,
            mesh="cpu",
            device_options=[
                *("--model", str(directory / "model"), "--dtype", "float32"),
                *("--data-parallel-size", str(LANES), "--max-num-seqs", str(ROWS)),
                *("--max-model-len", "256", "--block-size", "16"),
                "--enable-step-control",
            ],
        ) as stack:
            yield Served(stack, answers)


@pytest.mark.feature(80, 82, 84)
async def test_requests_of_two_frontends_share_the_lanes(served: Served) -> None:
    stack = served.stack
    async with httpx.AsyncClient(timeout=120) as client:

        async def ask(number: int) -> list[int]:
            body = {
                "prompt": PROMPTS[number],
                "max_tokens": NEW_TOKENS,
                "temperature": 0,
                "return_token_ids": True,
            }
            url = stack.urls[number % 2]
            response = await client.post(f"{url}/v1/completions", json=body)
            assert response.status_code == 200, response.text
            tokens: list[int] = response.json()["choices"][0]["token_ids"]
            return tokens

        inspector = stack.device.inspector
        inspector.Pause(inspector_pb2.PauseRequest(), timeout=10)
        asking = asyncio.gather(*map(ask, range(len(PROMPTS))))
        await asyncio.to_thread(
            wait_for, lambda: stack.device.live_requests() == len(PROMPTS), 60
        )
        lanes = stack.device.state().lanes
        inspector.Resume(inspector_pb2.ResumeRequest(), timeout=10)
        answers = await asking
    assert answers == served.answers
    assert [lane.lane for lane in lanes] == list(range(LANES))
    assert {lane.total_rows for lane in lanes} == {ROWS}
    assert [len(lane.waiting) for lane in lanes] == [3, 3, 2, 2]
    both = {request.session_number for lane in lanes for request in lane.waiting}
    assert len(both) == 2
    lanes_of: dict[str, set[int]] = {}
    for step in stack.device.steps():
        for lane in step.lanes:
            for row in lane.rows:
                assert row.row // ROWS == lane.lane
                lanes_of.setdefault(row.request_id, set()).add(lane.lane)
    assert len(lanes_of) == len(PROMPTS)
    assert {len(lanes) for lanes in lanes_of.values()} == {1}
    assert {lane for lanes in lanes_of.values() for lane in lanes} == set(range(LANES))
    stack.assert_nothing_is_held(sessions=2)
