"""How much of a mesh's own rate is left when the engine drives it.

A simulated mesh whose steps take 12.5 ms can give rows / 12.5 ms tokens a second
and not more. Measured at the engine, with sessions in its process and on its
own thread; gRPC and HTTP are printed beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from bench.attach_load import AttachLoad
from bench.http_load import HttpLoad
from bench.registry import benchmark
from bench.results import Result, result
from bench.rounds import Load, Run, interleaved, rates
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
        yield from _shares(rows, rounds, _at_the_engine(rows))
        yield from _shares(rows, rounds, _served(rows))


@contextmanager
def _at_the_engine(rows: int) -> Iterator[dict[str, Run]]:
    lanes = sim_flags(rows, STEP_MS, lanes=LANES)
    overlapping = sim_flags(rows, STEP_MS, lanes=LANES, overlap=True)
    with (
        engine_worker(sim_flags(rows, STEP_MS)) as engine,
        engine_worker(lanes, LANE_MODEL) as sync,
        engine_worker(overlapping, LANE_MODEL) as asynchronous,
    ):
        yield {"engine": engine.run, "sync": sync.run, "async": asynchronous.run}


@contextmanager
def _served(rows: int) -> Iterator[dict[str, Run]]:
    """Apart from the engines: idle servers are not quite idle."""
    with tt_serve(*sim_flags(rows, STEP_MS)) as stack:
        yield {
            "grpc": AttachLoad(stack.grpc_address).run,
            "http": HttpLoad(stack.http_port).run,
        }


def _shares(
    rows: int, rounds: int, made: AbstractContextManager[dict[str, Run]]
) -> Iterator[Result]:
    ideal = rows / (STEP_MS / 1e3)
    load = Load(rows, TOKENS, rounds, prompt_ids=SIM_PROMPT_IDS)
    with made as systems:
        for name, batches in interleaved(systems, load).items():
            shares = [rate / ideal for rate in rates(batches)]
            target = TARGETS.get((rows, name))
            yield result(f"step-rate.{rows}.{name}", shares, "of ideal", target)
