"""Which platform vLLM takes, and what ours makes of a configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import LlamaConfig
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.inputs import EngineInput
from vllm.inputs.engine import embeds_input, tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.utils.torch_utils import PIN_MEMORY

from ttserve.errors import StartupError
from ttserve.platform import NoWorker, TTPlatform
from ttserve.plugin import platform_plugin

TOKENS = tokens_input(prompt_token_ids=[1, 2, 3])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration without weights: all that a VllmConfig needs."""
    directory = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=64,
        intermediate_size=64,
        max_position_embeddings=256,
        num_attention_heads=4,
        num_hidden_layers=1,
        num_key_value_heads=2,
        vocab_size=128,
        dtype="float32",
    )
    config.save_pretrained(directory)
    return directory


def configure(model: Path, **flags: Any) -> VllmConfig:
    """What vLLM makes of these flags on our platform."""
    args = AsyncEngineArgs(
        model=str(model), skip_tokenizer_init=True, enforce_eager=True, **flags
    )
    return args.create_engine_config()


def seen_by_vllm(role: str | None) -> dict[str, object]:
    """What a fresh process finds after importing vLLM under this role."""
    program = """
import json
from vllm.platforms import current_platform
from vllm.utils.torch_utils import PIN_MEMORY
print(json.dumps({
    "platform": type(current_platform).__name__,
    "pin_memory": PIN_MEMORY,
    "backend": current_platform.simple_compile_backend,
}))
"""
    environment = {
        name: value for name, value in os.environ.items() if name != "TTSERVE_ROLE"
    }
    if role is not None:
        environment["TTSERVE_ROLE"] = role
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    return cast("dict[str, object]", json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.timeout(300)
def test_in_a_frontend_the_platform_is_ours() -> None:
    """And in time for what vLLM copies at import."""
    assert seen_by_vllm("frontend") == {
        "platform": "TTPlatform",
        "pin_memory": False,
        "backend": "eager",
    }


@pytest.mark.timeout(300)
@pytest.mark.feature(1)
def test_elsewhere_vllm_keeps_its_own_platform() -> None:
    assert seen_by_vllm(None)["platform"] == "UnspecifiedPlatform"


@pytest.mark.feature(1)
def test_in_a_device_service_the_platform_is_ours() -> None:
    """This process is one: tests/conftest.py has set its role."""
    assert platform_plugin() == "ttserve.platform.TTPlatform"
    assert type(current_platform) is TTPlatform
    assert PIN_MEMORY is False


@pytest.mark.feature(21)
def test_what_a_configuration_gets_without_flags(model: Path) -> None:
    config = configure(model)
    assert config.cache_config.block_size == 64
    assert config.model_config.max_logprobs == 20
    assert config.structured_outputs_config.backend == "xgrammar"
    assert config.structured_outputs_config.disable_any_whitespace
    assert not config.scheduler_config.disable_hybrid_kv_cache_manager
    assert not config.use_v2_model_runner


def test_a_chosen_block_size_stays(model: Path) -> None:
    assert configure(model, block_size=16).cache_config.block_size == 16


@pytest.mark.feature(20)
@pytest.mark.parametrize(("asked", "given"), [(5, 5), (20, 20), (21, 20), (-1, 20)])
def test_logprobs_are_limited(model: Path, asked: int, given: int) -> None:
    assert configure(model, max_logprobs=asked).model_config.max_logprobs == given


@pytest.mark.feature(17)
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size 2 is not supported"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2 is not supported"),
        ({"enable_lora": True}, "--enable-lora is not supported"),
        (
            {"structured_outputs_config": {"backend": "guidance"}},
            "backend 'guidance' is not supported",
        ),
    ],
)
def test_what_no_mesh_can_do_is_refused_in_one_line(
    model: Path, flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartupError, match=message) as info:
        configure(model, **flags)
    assert "\n" not in str(info.value)


@pytest.mark.feature(15)
def test_checking_twice_changes_nothing(model: Path) -> None:
    """vLLM checks again whenever a configuration is copied."""
    config = configure(model, max_logprobs=50)
    before = repr(config)
    TTPlatform.check_and_update_config(config)
    assert repr(config) == before


def test_a_vllm_engine_cannot_be_started(model: Path) -> None:
    """The worker that vLLM would make says who runs the steps."""
    name = configure(model).parallel_config.worker_cls
    assert name == f"{NoWorker.__module__}.{NoWorker.__name__}"
    with pytest.raises(RuntimeError, match="tt-device-service"):
        NoWorker(vllm_config=None)


def test_a_plain_request_passes() -> None:
    TTPlatform.validate_request(TOKENS, SamplingParams(logprobs=3))


@pytest.mark.feature(127)
@pytest.mark.parametrize("count", [0, 1])
def test_prompt_logprobs_are_refused(count: int) -> None:
    with pytest.raises(VLLMValidationError, match="prompt_logprobs") as info:
        TTPlatform.validate_request(TOKENS, SamplingParams(prompt_logprobs=count))
    assert info.value.parameter == "prompt_logprobs"


def test_prompt_embeds_are_refused() -> None:
    embeds = embeds_input(prompt_embeds=torch.zeros(2, 4))
    with pytest.raises(VLLMValidationError, match="prompt_embeds") as info:
        TTPlatform.validate_request(embeds, SamplingParams())
    assert info.value.parameter == "prompt_embeds"


def test_the_model_adds_checks_of_its_own() -> None:
    def refuse_seeds(inputs: EngineInput, params: SamplingParams) -> None:
        if params.seed is not None:
            raise VLLMValidationError("no seeds here", parameter="seed")

    TTPlatform.use_model_checks([refuse_seeds])
    try:
        TTPlatform.validate_request(TOKENS, SamplingParams())
        with pytest.raises(VLLMValidationError, match="no seeds here"):
            TTPlatform.validate_request(TOKENS, SamplingParams(seed=1))
    finally:
        TTPlatform.use_model_checks([])
    TTPlatform.validate_request(TOKENS, SamplingParams(seed=1))
