"""One configuration of vLLM for the sampler's tests, and samplers over it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext

from device_service.sampling.host_sampler import HostSampler
from ttserve.sim_model import sim_model_dir

VOCAB = 320

SamplerMaker = Callable[..., HostSampler]


@pytest.fixture(scope="session")
def config() -> VllmConfig:
    """A configuration of the simulated model."""
    args = AsyncEngineArgs(
        model=str(sim_model_dir()),
        max_num_seqs=64,
        max_model_len=512,
        dtype="float32",
        num_gpu_blocks_override=64,
    )
    return args.create_engine_config(UsageContext.OPENAI_API_SERVER)


@pytest.fixture
def make_sampler(config: VllmConfig) -> SamplerMaker:
    """Makes samplers; model options such as `logprobs_mode` may be given."""

    def make(
        vocab_size: int = VOCAB,
        *,
        total_rows: int = 64,
        position_keyed_seeds: bool = True,
        **model_options: Any,
    ) -> HostSampler:
        changed = copy(config)
        changed.model_config = copy(config.model_config)
        for name, value in model_options.items():
            setattr(changed.model_config, name, value)
        return HostSampler(
            changed,
            vocab_size,
            total_rows,
            position_keyed_seeds=position_keyed_seeds,
        )

    return make
