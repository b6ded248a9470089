"""What the split costs: the same load on the engine in process, and through the wire.

The engine in process is the one that the device service has, on its thread,
without event loop, gRPC, frontend and HTTP. Its time per token is what nothing
between engine and user can undercut.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.attach_load import AttachLoad
from bench.http_load import HttpLoad
from bench.measure import Batch
from bench.registry import benchmark
from bench.results import Result, result
from bench.rounds import Load, interleaved
from bench.services import tt_serve
from bench.systems import (
    SIM_PROMPT_IDS,
    default_model_flags,
    engine_worker,
    sim_flags,
)

ROWS = 8
STEP_MS = 12.5


@benchmark(
    "split",
    shows="time per token that gRPC and HTTP add to the engine, 8 requests at once",
    target="< 5 % for the default model",
)
def split(rounds: int) -> Iterator[Result]:
    """The default model, then a simulated one whose steps are short."""
    load = Load(ROWS, 64, rounds)
    yield from _compare("split.default-model", default_model_flags(ROWS), load, "< 5")
    load = Load(ROWS, 200, rounds, prompt_ids=SIM_PROMPT_IDS)
    yield from _compare("split.sim", sim_flags(ROWS, STEP_MS), load, None)


def _compare(
    name: str, flags: list[str], load: Load, target: str | None
) -> Iterator[Result]:
    with tt_serve(*flags) as stack, engine_worker(flags) as engine:
        systems = {
            "engine": engine.run,
            "grpc": AttachLoad(stack.grpc_address).run,
            "http": HttpLoad(stack.http_port).run,
        }
        batches = interleaved(systems, load)
    alone = [_token_ms(batch) for batch in batches["engine"]]
    yield result(f"{name}.engine", alone, "ms a token")
    for wire in ("grpc", "http"):
        through = [_token_ms(batch) for batch in batches[wire]]
        added = [100 * (t / a - 1) for t, a in zip(through, alone, strict=True)]
        yield result(f"{name}.{wire}.added", added, "%", target)
        first = [
            w.first_token_ms() - e.first_token_ms()
            for w, e in zip(batches[wire], batches["engine"], strict=True)
        ]
        yield result(f"{name}.{wire}.first-token-added", first, "ms")


def _token_ms(batch: Batch) -> float:
    """Time between two tokens of one request, while all decode."""
    return len(batch.streams) / batch.decode_rate() * 1e3
