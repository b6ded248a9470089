"""Workers answer, end with us, and say why they ended."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from bench.measure import Batch, Prompt
from bench.registry import CannotRun
from bench.rounds import Load, Run, interleaved, rates, ratios
from bench.worker import Worker

ECHO = """
from bench.workers.serve import serve_batches, take_stdout
pipe = take_stdout()
print("this does not disturb the answers")
def run(prompts, max_tokens):
    return [[(float(t), 1) for t in range(max_tokens)] for _ in prompts]
serve_batches(pipe, run, {"threads": 2})
"""


def test_a_worker_runs_batches() -> None:
    with Worker("echo", [sys.executable, "-c", ECHO]) as worker:
        assert worker.about == {"threads": 2}
        batch = worker.run([[1], [2, 3]], max_tokens=4)
    assert batch == Batch(tuple(((0.0, 1), (1.0, 1), (2.0, 1), (3.0, 1)) for _ in "ab"))


def test_a_worker_that_ends_is_told_by_its_last_line() -> None:
    program = "import sys; sys.exit('no model here')"
    with (
        pytest.raises(CannotRun, match="broken ended: no model here"),
        Worker("broken", [sys.executable, "-c", program]),
    ):
        pass


def test_systems_take_turns_and_get_other_prompts_every_time() -> None:
    calls: list[tuple[str, int]] = []
    seen: set[tuple[int, ...]] = set()

    def system(name: str, step: float) -> Run:
        def run(prompts: Sequence[Prompt], max_tokens: int) -> Batch:
            calls.append((name, max_tokens))
            seen.update(tuple(prompt) for prompt in prompts)
            return Batch.of([[(step * i, 1) for i in range(1, 5)] for _ in prompts])

        return run

    load = Load(rows=2, max_tokens=4, rounds=3)
    found = interleaved({"a": system("a", 1.0), "b": system("b", 2.0)}, load)
    names = [name for name, tokens in calls if tokens == 4]
    assert names == ["a", "b", "b", "a", "a", "b"]
    assert len(seen) == 2 * len(calls)
    assert ratios(rates(found["a"]), rates(found["b"])) == [2.0, 2.0, 2.0]
