"""The default model, alone: what a user gets over HTTP, and what the engine gives."""

from __future__ import annotations

from collections.abc import Iterator

from bench.http_load import HttpLoad
from bench.measure import Batch, percentile
from bench.registry import benchmark
from bench.results import Result, result
from bench.rounds import Load, interleaved, rates
from bench.services import tt_serve
from bench.systems import default_model_flags, engine_worker

CONCURRENCY = (1, 8, 32)
TOKENS = 64
MOST_ROUNDS = {1: 5, 8: 5, 32: 3}
"""At 32 one round takes half a minute."""


@benchmark(
    "default-model",
    shows="tokens/s and times between tokens at 1, 8 and 32 requests at once",
)
def default_model(rounds: int) -> Iterator[Result]:
    """HTTP streams against `tt-serve`, and the same load on the engine in process."""
    flags = default_model_flags(max(CONCURRENCY))
    with tt_serve(*flags) as stack, engine_worker(flags) as engine:
        systems = {"engine": engine.run, "http": HttpLoad(stack.http_port).run}
        for rows in CONCURRENCY:
            load = Load(rows, TOKENS, min(rounds, MOST_ROUNDS[rows]))
            for name, batches in interleaved(systems, load).items():
                yield from _figures(f"default-model.{name}.{rows}", batches)


def _figures(name: str, batches: list[Batch]) -> Iterator[Result]:
    yield result(f"{name}.rate", rates(batches), "tokens/s")
    for percent in (50, 99):
        gaps = [percentile(batch.gaps_ms(), percent) for batch in batches]
        yield result(f"{name}.p{percent}", gaps, "ms between tokens")
    first = [batch.first_token_ms() for batch in batches]
    yield result(f"{name}.first", first, "ms to first token")
