"""Whether people who watch every step slow the steps down."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from bench.attach_load import AttachLoad
from bench.measure import Batch, Prompt
from bench.progress import say
from bench.registry import benchmark
from bench.results import Result, result
from bench.rounds import Load, interleaved, rates, ratios
from bench.services import device_service
from bench.systems import SIM_PROMPT_IDS, sim_flags
from bench.worker import Worker

ROWS = 32
STEP_MS = 12.5
TOKENS = 200
WATCHERS = 10


@benchmark(
    "watchers",
    shows="token rate with ten watchers of every step, and without",
    target=">= 0.99",
)
def watchers(rounds: int) -> Iterator[Result]:
    """Over gRPC. The watchers share a process of their own, and the machine."""
    with device_service(*sim_flags(ROWS, STEP_MS)) as address:
        command = [sys.executable, "-m", "bench.workers.watchers", address]
        load = AttachLoad(address)
        many = Load(ROWS, TOKENS, rounds, prompt_ids=SIM_PROMPT_IDS)
        with Worker("the watchers", command) as worker:
            seen = _Seen()

            def watched(prompts: Sequence[Prompt], max_tokens: int) -> Batch:
                worker.ask({"watchers": WATCHERS})
                batch = load.run(prompts, max_tokens)
                seen.add(worker.ask({"watchers": 0}))
                return batch

            systems = {"alone": load.run, "watched": watched}
            batches = interleaved(systems, many)
    alone, beside = rates(batches["alone"]), rates(batches["watched"])
    yield result("watchers.alone", alone, "tokens/s")
    yield result("watchers.watched", beside, "tokens/s")
    yield result("watchers.ratio", ratios(beside, alone), "x", ">= 0.99")
    yield result("watchers.lost", seen.lost_share, "of records")
    say(f"  {seen.records} records were read, {seen.lost} lost")


class _Seen:
    """What the watchers got, over all rounds."""

    def __init__(self) -> None:
        self.records = 0
        self.lost = 0

    @property
    def lost_share(self) -> float:
        return self.lost / max(1, self.records + self.lost)

    def add(self, answer: dict[str, int]) -> None:
        self.records += answer["records"]
        self.lost += answer["lost"]
