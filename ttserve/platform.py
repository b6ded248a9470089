"""The vLLM platform of both services: checks, adjusted defaults, nothing to run.

vLLM asks `current_platform` for defaults while it builds a configuration, and for
a veto on every request. It must be chosen before vLLM is imported, because vLLM
copies some of these answers at import (`PIN_MEMORY`, the compile backend); see
`ttserve.plugin`. That import is half done when this module is loaded, so of vLLM
it may import only what needs nothing else. No kernel, worker or attention backend
is behind this platform.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from vllm.exceptions import VLLMValidationError
from vllm.platforms.interface import Platform, PlatformEnum

from ttserve.errors import StartupError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.inputs import EngineInput
    from vllm.pooling_params import PoolingParams
    from vllm.sampling_params import SamplingParams

logger = logging.getLogger("vllm.ttserve")

DEFAULT_BLOCK_SIZE = 64
"""Tokens per KV block, unless the operator chooses."""

MAX_LOGPROBS = 20
"""Most logprobs per token that a request may ask for."""

RequestCheck = Callable[["EngineInput", "SamplingParams"], None]
"""Raises VLLMValidationError to refuse a request with 400."""


class NoWorker:
    """Stands where vLLM expects a worker class: ttserve starts no vLLM engine."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError(
            "vLLM tried to start an engine of its own in a ttserve process; "
            "steps are run by tt-device-service"
        )


class TTPlatform(Platform):
    """vLLM instantiates it once per process; all its state is the process's."""

    _enum = PlatformEnum.OOT
    device_name = "tt"
    # Tensors that vLLM itself makes live in host memory.
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    # With "inductor" the first request with logprobs compiles for 9 s, or fails
    # where there is no C++ compiler.
    simple_compile_backend = "eager"

    _model_checks: ClassVar[tuple[RequestCheck, ...]] = ()

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """One name for every device; vLLM only prints it."""
        return cls.device_name

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Pinned memory serves CUDA's copies only."""
        return False

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed what draws on the host; the mesh draws by position, not by state."""
        torch.manual_seed(seed)

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Layers with a sliding window keep block tables of their own."""
        return True

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """Leave the block size alone: there is no attention backend to please."""

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Refuse what no mesh can do, adjust defaults; may run several times.

        Raises StartupError, which passes through pydantic as it is (a ValueError
        would come out as a validation report of several lines).
        """
        _refuse_parallel_ranks(vllm_config)
        _refuse_lora(vllm_config)
        _refuse_encoder_decoder(vllm_config)
        _set_block_size(vllm_config)
        _limit_logprobs(vllm_config)
        _fix_structured_outputs(vllm_config)
        vllm_config.parallel_config.worker_cls = f"{__name__}.{NoWorker.__name__}"

    @classmethod
    def use_model_checks(cls, checks: Iterable[RequestCheck]) -> None:
        """Set the checks that depend on the served model.

        They run after those that hold for every model. The frontend calls this
        when it knows the model, before it serves.
        """
        cls._model_checks = tuple(checks)

    @classmethod
    def validate_request(
        cls, processed_inputs: EngineInput, params: SamplingParams | PoolingParams
    ) -> None:
        """Refuse a request that no device can serve.

        vLLM calls this for every prompt, on the event loop or a renderer thread,
        and has refused pooling before: `generate` is the only task.
        """
        sampling = cast("SamplingParams", params)
        for check in (*EVERY_MODEL_CHECKS, *cls._model_checks):
            check(processed_inputs, sampling)


def refuse_prompt_embeds(inputs: EngineInput, params: SamplingParams) -> None:
    """Embeddings are looked up on the device, from token ids."""
    if inputs["type"] == "embeds":
        raise VLLMValidationError(
            "prompt_embeds is not supported: send text or token ids",
            parameter="prompt_embeds",
        )


def refuse_prompt_logprobs(inputs: EngineInput, params: SamplingParams) -> None:
    """A prefill returns the logits of its last position only."""
    if params.prompt_logprobs is not None:
        raise VLLMValidationError(
            "prompt_logprobs is not supported (echo with logprobs asks for it too)",
            parameter="prompt_logprobs",
            value=params.prompt_logprobs,
        )


EVERY_MODEL_CHECKS: tuple[RequestCheck, ...] = (
    refuse_prompt_embeds,
    refuse_prompt_logprobs,
)


def _refuse_parallel_ranks(config: VllmConfig) -> None:
    parallel = config.parallel_config
    for flag, size in (
        ("--tensor-parallel-size", parallel.tensor_parallel_size),
        ("--pipeline-parallel-size", parallel.pipeline_parallel_size),
    ):
        if size != 1:
            raise StartupError(
                f"{flag} {size} is not supported: one process drives the whole "
                "mesh, and its adapter spreads the model over it"
            )


def _refuse_lora(config: VllmConfig) -> None:
    if config.lora_config is not None:
        raise StartupError("--enable-lora is not supported")


def _refuse_encoder_decoder(config: VllmConfig) -> None:
    model = config.model_config
    if model is not None and model.is_encoder_decoder:
        raise StartupError(f"{model.model} is an encoder-decoder model: not supported")


def _set_block_size(config: VllmConfig) -> None:
    if not config.cache_config.user_specified_block_size:
        config.cache_config.block_size = DEFAULT_BLOCK_SIZE


def _limit_logprobs(config: VllmConfig) -> None:
    model = config.model_config
    if model is not None and not 0 <= model.max_logprobs <= MAX_LOGPROBS:
        logger.warning(
            "--max-logprobs %d is more than the devices can give: using %d",
            model.max_logprobs,
            MAX_LOGPROBS,
        )
        model.max_logprobs = MAX_LOGPROBS


def _fix_structured_outputs(config: VllmConfig) -> None:
    outputs = config.structured_outputs_config
    if outputs.backend not in ("auto", "xgrammar"):
        raise StartupError(
            f"structured output backend {outputs.backend!r} is not supported: "
            "only xgrammar is"
        )
    # "auto" would let the first request choose for all that follow.
    outputs.backend = "xgrammar"
    # Under greedy decoding, whitespace between JSON tokens may never end.
    outputs.disable_any_whitespace = True
