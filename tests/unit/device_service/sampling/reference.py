"""What vLLM's own sampler says about one row, with everything switched on."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.v1.outputs import SamplerOutput
from vllm.v1.request import Request
from vllm.v1.sample.logits_processor import BatchUpdate, build_logitsprocs
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler


def vllm_sample(
    config: VllmConfig,
    request: Request,
    logits: torch.Tensor,
    *,
    mode: str = "raw_logprobs",
    num_logprobs: int | None = None,
    generator: torch.Generator | None = None,
) -> SamplerOutput:
    """Sample one row [V] with vLLM 0.30's sampler, as its runner calls it."""
    vocab = logits.shape[0]
    params = request.sampling_params
    assert params is not None
    processors = build_logitsprocs(config, torch.device("cpu"), False, False)
    output = list(request.output_token_ids)
    added = (0, params, request.prompt_token_ids, output)
    for processor in processors.all:
        processor.update_state(BatchUpdate(1, removed=[], added=[added], moved=[]))
    greedy = params.temperature < 1e-5
    forbidden = None
    if params.allowed_token_ids:
        forbidden = torch.ones(1, vocab, dtype=torch.bool)
        forbidden[0, params.allowed_token_ids] = False
    bad_words = params.bad_words_token_ids
    metadata = SamplingMetadata(
        temperature=None if greedy else torch.tensor([params.temperature]),
        all_greedy=greedy,
        all_random=not greedy,
        top_p=torch.tensor([params.top_p]) if params.top_p < 1 else None,
        top_k=torch.tensor([params.top_k]) if params.top_k > 0 else None,
        generators={} if generator is None else {0: generator},
        max_num_logprobs=num_logprobs,
        no_penalties=(
            params.presence_penalty == 0
            and params.frequency_penalty == 0
            and params.repetition_penalty == 1
        ),
        prompt_token_ids=torch.tensor([request.prompt_token_ids]),
        frequency_penalties=torch.tensor([params.frequency_penalty]),
        presence_penalties=torch.tensor([params.presence_penalty]),
        repetition_penalties=torch.tensor([params.repetition_penalty]),
        output_token_ids=[output],
        allowed_token_ids_mask=forbidden,
        bad_words_token_ids={0: bad_words} if bad_words else {},
        logitsprocs=processors,
    )
    sampler = Sampler(logprobs_mode=mode)  # type: ignore[arg-type]
    output_ = sampler(logits[None].clone(), metadata)
    assert isinstance(output_, SamplerOutput)
    return output_


def vllm_drawn_from(
    config: VllmConfig, request: Request, logits: torch.Tensor
) -> torch.Tensor:
    """The logits [V] that vLLM's sampler draws from: scaled, and -inf where cut."""
    output = vllm_sample(
        config, request, logits, mode="processed_logits", num_logprobs=-1
    )
    assert output.logprobs_tensors is not None
    return output.logprobs_tensors.logprobs[0]
