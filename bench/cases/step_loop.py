"""What the engine thread does between two steps of the mesh, and how long it takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from bench.progress import say
from bench.registry import benchmark
from bench.results import Result, result
from bench.rounds import Load
from bench.systems import SIM_PROMPT_IDS, sim_flags
from bench.worker import Worker

STEP_MS = 12.5
TOKENS = 200


@benchmark("step-loop", shows="host time per decode step, in parts, at 32 and 128 rows")
def step_loop(rounds: int) -> Iterator[Result]:
    """The simulated mesh; timers stand around the engine's parts (bench.seams)."""
    for rows in (32, 128):
        load = Load(rows, TOKENS, rounds, prompt_ids=SIM_PROMPT_IDS)
        command = [sys.executable, "-m", "bench.workers.step_loop"]
        with Worker("the engine", [*command, *sim_flags(rows, STEP_MS)]) as worker:
            answers = [_ask(worker, load, n) for n in range(rounds)]
        yield from _figures(f"step-loop.{rows}", answers)


def _ask(worker: Worker, load: Load, number: int) -> dict[str, Any]:
    question = {"prompts": load.prompts(number), "max_tokens": load.max_tokens}
    answer = worker.ask(question)
    say(f"  round {number + 1}/{load.rounds}: {answer['steps']} steps")
    return answer


def _figures(name: str, answers: list[dict[str, Any]]) -> Iterator[Result]:
    """What lies between two steps as a whole, then every part."""
    yield result(f"{name}.wall", [a["wall_us"]["between"] for a in answers], "us")
    yield result(f"{name}.cpu", [a["cpu_us"]["between"] for a in answers], "us")
    yield result(f"{name}.mesh-idle", [a["gap_us"] for a in answers], "us")
    for part in answers[0]["parts"]:
        cpu = [a["cpu_us"][part] for a in answers]
        yield result(f"{name}.cpu.{part}", cpu, "us")
