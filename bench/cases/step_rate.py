"""How much of a mesh's own rate is left when the engine drives it.

A simulated mesh whose steps take 12.5 ms can give rows / 12.5 ms tokens a second
and not more. Measured at the engine, with sessions in its process and on its
own thread; gRPC and HTTP are printed beside it.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.attach_load import AttachLoad
from bench.http_load import HttpLoad
from bench.registry import benchmark
from bench.results import Result, result
from bench.rounds import Load, interleaved, rates
from bench.services import tt_serve
from bench.systems import LANE_MODEL, SIM_PROMPT_IDS, engine_worker, sim_flags

STEP_MS = 12.5
TOKENS = 200
LANES = 4
TARGETS = {
    (32, "engine"): ">= 0.9",
    (32, "sync"): ">= 0.92",
    (32, "async"): ">= 0.98",
}


@benchmark(
    "step-rate",
    shows="share of the ideal rate of a simulated mesh with 12.5 ms steps",
    target=">= 0.9 at 32 rows, at the engine; in lanes 0.92, overlapping 0.98",
)
def step_rate(rounds: int) -> Iterator[Result]:
    """32 and 128 rows: one lane, then the rows of four lanes, sync and async."""
    for rows in (32, 128):
        flags = sim_flags(rows, STEP_MS)
        lanes = sim_flags(rows, STEP_MS, lanes=LANES)
        overlapping = sim_flags(rows, STEP_MS, lanes=LANES, overlap=True)
        ideal = rows / (STEP_MS / 1e3)
        with (
            tt_serve(*flags) as stack,
            engine_worker(flags) as engine,
            engine_worker(lanes, LANE_MODEL) as sync,
            engine_worker(overlapping, LANE_MODEL) as asynchronous,
        ):
            systems = {
                "engine": engine.run,
                "sync": sync.run,
                "async": asynchronous.run,
                "grpc": AttachLoad(stack.grpc_address).run,
                "http": HttpLoad(stack.http_port).run,
            }
            load = Load(rows, TOKENS, rounds, prompt_ids=SIM_PROMPT_IDS)
            for name, batches in interleaved(systems, load).items():
                shares = [rate / ideal for rate in rates(batches)]
                target = TARGETS.get((rows, name))
                yield result(f"step-rate.{rows}.{name}", shares, "of ideal", target)
