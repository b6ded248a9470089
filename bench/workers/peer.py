"""vLLM's own engine on its CPU backend, in process. Runs in the peer's environment.

`python -m bench.workers.peer MODEL ROWS MAX_MODEL_LEN`. It steps the engine that
`LLM.generate` steps, and notes when. Text is not made of the tokens: our engine
makes none either.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

from bench.measure import Arrival, Prompt
from bench.workers.serve import serve_batches, take_stdout


def main() -> None:
    pipe = take_stdout()
    model, rows, max_model_len = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    import torch
    from vllm import LLM

    began = time.monotonic()
    llm = LLM(
        model=model,
        max_num_seqs=rows,
        max_model_len=max_model_len,
        dtype="bfloat16",
        disable_log_stats=True,
    )
    about = {
        "start_seconds": time.monotonic() - began,
        "threads": torch.get_num_threads(),
        "eager": bool(llm.llm_engine.model_config.enforce_eager),
    }
    serve_batches(pipe, _Runner(llm.llm_engine).run, about)


class _Runner:
    """Submits a batch and steps until it is over."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._ids = (f"r{n}" for n in itertools.count())

    def run(self, prompts: list[Prompt], max_tokens: int) -> list[list[Arrival]]:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        streams: dict[str, list[Arrival]] = {}
        began = time.monotonic()
        for prompt in prompts:
            name = next(self._ids)
            streams[name] = []
            self._engine.add_request(
                name, TokensPrompt(prompt_token_ids=prompt), params
            )
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.monotonic() - began
            for output in outputs:
                count = len(output.outputs[0].token_ids)
                if count:
                    streams[output.request_id].append((now, count))
        return list(streams.values())


if __name__ == "__main__":
    main()
