"""Host time per step: `python -m bench.workers.step_loop DEVICE-SERVICE-FLAGS...`."""

from __future__ import annotations

import statistics
import sys
from typing import Any

from bench.workers.serve import serve, take_stdout


def main() -> None:
    pipe = take_stdout()
    from ttserve.environment import prepare_device_service

    prepare_device_service(None)
    from bench.engine import InProcessEngine
    from bench.seams import PARTS, Marks, wire_us

    marks = Marks()
    with InProcessEngine(sys.argv[1:], marks.seams()) as engine:

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            engine.run(question["prompts"], question["max_tokens"])
            turns = marks.take()
            parts = [part for part in PARTS if part in turns[0]]
            assert marks.delivered is not None
            wire = {"wire": wire_us(marks.delivered)}
            return {
                "steps": len(turns),
                "parts": [*parts, "wire"],
                "cpu_us": _medians(turns, [*parts, "host"], 1) | wire,
                "gap_us": statistics.median(
                    r.host_gap_us for r in engine.records[-len(turns) :]
                ),
            }

        serve(pipe, answer, {})


def _medians(turns: list[Any], parts: list[str], which: int) -> dict[str, float]:
    return {
        part: statistics.median(turn[part][which] for turn in turns) for part in parts
    }


if __name__ == "__main__":
    main()
