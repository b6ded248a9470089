"""Many streams at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

from bench.progress import say
from bench.results import Result, result
from tests.chaos.registry import Setting, case
from tests.chaos.streams import End, Tally, all_right, ask
from tests.chaos.system import System, running
from ttserve.sim_model import PRINTABLE

STREAMS = 2000
TOKENS = 32
ROUNDS = 4
FLAT = "<= 5"
# The machine that is measured also runs the clients, and perhaps other things:
# who is dead and who is slow is another case's question.
PATIENT = ("--lost-after", "60")
DEVICE = (
    *("--heartbeat-timeout", "60"),
    *("--max-num-seqs", "128", "--max-queued-requests", str(STREAMS)),
    *("--max-model-len", "2048", "--num-gpu-blocks-override", "4097"),
)


@case(
    "streams",
    shows="2,000 streams at once, 128 rows, 2 frontends: all right, memory flat",
)
def streams(setting: Setting) -> Iterator[Result]:
    """Four rounds; memory of each process after the second and the fourth."""
    draw = random.Random(setting.seed)
    with running(
        setting.directory,
        frontends=2,
        device_options=DEVICE,
        frontend_options=PATIENT,
    ) as system:
        asyncio.run(all_right(system.ports, 64))
        before = system.holdings()
        memory: list[list[int]] = []
        for number in range(ROUNDS):
            tally, seconds = asyncio.run(_round(system, draw))
            for each in tally.ends:
                if each.end is not End.RIGHT:
                    say(f"  {each.end.value}: {each.said}")
                    break
            memory.append(system.memory())
            megabytes = [round(size / 2**20) for size in memory[-1]]
            say(f"  round {number + 1}: {tally}; {seconds:.0f} s; MB {megabytes}")
            yield result(
                f"streams.not_right_{number + 1}",
                len(tally.ends) - tally.count(End.RIGHT),
                "streams",
                "<= 0",
            )
        names = ["device", *(frontend.name for frontend in system.frontends)]
        for name, second, fourth in zip(names, memory[1], memory[3], strict=True):
            change = abs(fourth / second - 1) * 100
            yield result(f"streams.memory_{name}", change, "% changed", FLAT)
        yield system.settle("streams", before)


async def _round(system: System, draw: random.Random) -> tuple[Tally, float]:
    ports = system.ports
    prompts = [
        [draw.randrange(*PRINTABLE) for _ in range(draw.randrange(1, 60))]
        for _ in range(STREAMS)
    ]
    began = time.monotonic()
    ends = await asyncio.gather(
        *(
            ask(ports[i % len(ports)], prompt, TOKENS)
            for i, prompt in enumerate(prompts)
        )
    )
    return Tally(list(ends)), time.monotonic() - began
