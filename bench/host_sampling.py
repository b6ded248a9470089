"""What sampling on the host costs, beside vLLM's own sampler on the same logits.

`measure()` takes some two minutes. Both samplers take turns, so that what else
the machine does hits both; compare the ratios, not the milliseconds. Needs the
environment of the device service (`TTSERVE_ROLE=device`) before vLLM is imported.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import SamplingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.request import Request
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from device_service.records import SamplingRow
from device_service.sampling.host_sampler import HostSampler
from ttserve.sim_model import sim_model_dir

PROMPT = 200
ROUNDS = 7

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy_logprobs_5": {"temperature": 0.0, "logprobs": 5},
    "greedy_penalties": {"temperature": 0.0, "repetition_penalty": 1.1},
    "temperature_1": {},
    "temperature_0.7": {"temperature": 0.7},
    "temperature_1_logprobs_5": {"logprobs": 5},
    "top_p_0.9": {"top_p": 0.9},
    "top_p_0.9_temperature_0.7": {"top_p": 0.9, "temperature": 0.7},
    "top_k_32": {"top_k": 32},
    "top_k_32_top_p_0.9": {"top_k": 32, "top_p": 0.9},
    "min_p_0.05": {"min_p": 0.05},
    "seeded": {"seed": 7},
    "seeded_top_k_32": {"seed": 7, "top_k": 32},
}


COMMON = ("greedy", "temperature_1", "top_p_0.9")


@dataclass(frozen=True, slots=True)
class Shape:
    """The logits of a step: rows, and tokens that may follow."""

    rows: int
    vocabulary: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.vocabulary // 1000}k"


SHAPES = {
    Shape(32, 49_152): tuple(CASES),
    Shape(128, 49_152): COMMON,
    Shape(32, 128_256): COMMON,
    Shape(128, 128_256): COMMON,
}
"""What is measured at which shape; two vocabularies that models have."""


@dataclass(frozen=True, slots=True)
class Contest:
    """The same rows for both samplers."""

    ours: Callable[[torch.Tensor], object]
    vllms: Callable[[torch.Tensor], object]


def measure() -> list[dict[str, Any]]:
    """Milliseconds of a step's sampling, ours and vLLM's, and their ratio."""
    figures: list[dict[str, Any]] = []
    for shape, names in SHAPES.items():
        config = _config(shape)
        logits = _model_like_logits(shape)
        for case in names:
            contest = _contest(config, shape, CASES[case])
            ours, vllms = _take_turns(contest, logits)
            name = f"{shape}.{case}"
            figures += [
                _figure(f"{name}.ours", ours * 1e3, "ms"),
                _figure(f"{name}.vllm", vllms * 1e3, "ms"),
                _figure(f"{name}.ratio", ours / vllms, "ours / vLLM"),
            ]
    return figures


def _take_turns(contest: Contest, logits: torch.Tensor) -> tuple[float, float]:
    """Median seconds of each; logits are copied before the clock starts."""
    times: dict[str, list[float]] = {"ours": [], "vllms": []}
    for _ in range(ROUNDS + 1):
        for name, sample in (("ours", contest.ours), ("vllms", contest.vllms)):
            copy = logits.clone()
            began = time.perf_counter()
            sample(copy)
            times[name].append(time.perf_counter() - began)
    return statistics.median(times["ours"][1:]), statistics.median(times["vllms"][1:])


def _contest(config: VllmConfig, shape: Shape, sampling: dict[str, Any]) -> Contest:
    requests = [_request(place, shape, sampling) for place in range(shape.rows)]
    sampler = HostSampler(
        config, shape.vocabulary, shape.rows, position_keyed_seeds=True
    )
    rows = [
        SamplingRow(request, place, request.num_tokens, sampling.get("logprobs"))
        for place, request in enumerate(requests)
    ]
    metadata = _metadata(requests)
    theirs = Sampler()
    return Contest(
        lambda logits: sampler.sample(logits, rows, None),
        lambda logits: theirs(logits, metadata),
    )


def _request(place: int, shape: Shape, sampling: dict[str, Any]) -> Request:
    prompt = torch.randint(shape.vocabulary, (PROMPT,)).tolist()
    request = Request(
        request_id=str(place),
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=1000, **sampling),
        pooling_params=None,
        arrival_time=0.0,
    )
    request.append_output_token_ids(prompt[:50])
    return request


def _metadata(requests: Sequence[Request]) -> SamplingMetadata:
    """What vLLM's runner would hand its sampler; min_p is left out of its work."""
    params = [request.sampling_params for request in requests]
    count = len(requests)
    first = params[0]
    assert first is not None
    greedy = first.temperature == 0.0
    seeds = range(len(requests)) if first.seed is not None else ()
    return SamplingMetadata(
        temperature=None if greedy else torch.full((count,), first.temperature),
        all_greedy=greedy,
        all_random=not greedy,
        top_p=torch.full((count,), first.top_p) if first.top_p < 1 else None,
        top_k=torch.full((count,), first.top_k) if first.top_k else None,
        generators={i: torch.Generator().manual_seed(7) for i in seeds},
        max_num_logprobs=first.logprobs,
        no_penalties=first.repetition_penalty == 1.0,
        prompt_token_ids=torch.tensor([r.prompt_token_ids for r in requests]),
        frequency_penalties=torch.zeros(count),
        presence_penalties=torch.zeros(count),
        repetition_penalties=torch.full((count,), first.repetition_penalty),
        output_token_ids=[list(r.output_token_ids) for r in requests],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def _model_like_logits(shape: Shape) -> torch.Tensor:
    """Rows from sure to undecided: power laws, as language models give them."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.arange(1, shape.vocabulary + 1).log()
    steepness = torch.linspace(1.3, 2.6, shape.rows)[:, None]
    logits = -steepness * ranks
    order = torch.rand(shape.rows, shape.vocabulary, generator=generator).argsort(dim=1)
    return logits.gather(1, order)


def _config(shape: Shape) -> VllmConfig:
    args = AsyncEngineArgs(
        model=str(sim_model_dir()),
        max_num_seqs=shape.rows,
        max_model_len=4096,
        dtype="float32",
        num_gpu_blocks_override=64,
    )
    return args.create_engine_config(UsageContext.OPENAI_API_SERVER)


def _figure(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": f"host_sampling.{name}", "value": round(value, 3), "unit": unit}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
