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
    from bench.seams import PARTS, Marks

    marks = Marks()
    with InProcessEngine(sys.argv[1:], marks.seams()) as engine:

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            engine.run(question["prompts"], question["max_tokens"])
            turns = marks.take()
            return {
                "steps": len(turns),
                "parts": PARTS,
                "wall_us": _medians(turns, PARTS, 0),
                "cpu_us": _medians(turns, PARTS, 1),
                "gap_us": statistics.median(
                    r.host_gap_us for r in engine.records[-len(turns) :]
                ),
            }

        serve(pipe, answer, {})


def _medians(turns: list[Any], parts: tuple[str, ...], which: int) -> dict[str, float]:
    return {
        part: statistics.median(turn[part][which] for turn in turns)
        for part in (*parts, "between")
    }


if __name__ == "__main__":
    main()
