"""What the engine thread does between two steps of the mesh, and how long it takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from bench.progress import say
from bench.registry import benchmark
from bench.results import Result, result
from bench.rounds import Load
from bench.systems import LANE_MODEL, SIM_PROMPT_IDS, sim_flags
from bench.worker import Worker

STEP_MS = 12.5
TOKENS = 200
LANES = 4
TARGETS = {32: "<= 1000", 128: "<= 2500"}


@benchmark(
    "step-loop",
    shows="host time per decode step, in parts, at 32 and 128 rows in four lanes",
    target="<= 1 ms at 32 rows, <= 2.5 ms at 128",
)
def step_loop(rounds: int) -> Iterator[Result]:
    """The simulated mesh; timers stand around the engine's parts (bench.seams)."""
    for rows, target in TARGETS.items():
        for mode in ("sync", "async"):
            load = Load(rows, TOKENS, rounds, prompt_ids=SIM_PROMPT_IDS)
            flags = sim_flags(rows, STEP_MS, lanes=LANES, overlap=mode == "async")
            command = [sys.executable, "-m", "bench.workers.step_loop", *flags]
            with Worker("the engine", command, LANE_MODEL) as worker:
                answers = [_ask(worker, load, n) for n in range(rounds)]
            yield from _figures(f"step-loop.{rows}.{mode}", answers, target)


def _ask(worker: Worker, load: Load, number: int) -> dict[str, Any]:
    question = {"prompts": load.prompts(number), "max_tokens": load.max_tokens}
    answer = worker.ask(question)
    say(f"  round {number + 1}/{load.rounds}: {answer['steps']} steps")
    return answer


def _figures(name: str, answers: list[dict[str, Any]], target: str) -> Iterator[Result]:
    """The host's work for a step as a whole, then every part of it.

    `wire` is the event loop's: what it takes to make the step's one message.
    """
    yield result(f"{name}.cpu", [a["cpu_us"]["host"] for a in answers], "us", target)
    yield result(f"{name}.mesh-idle", [a["gap_us"] for a in answers], "us")
    for part in answers[0]["parts"]:
        cpu = [a["cpu_us"][part] for a in answers]
        yield result(f"{name}.cpu.{part}", cpu, "us")
