"""Declarations are read from the class, completed and checked."""

from __future__ import annotations

from typing import Any

import pytest

from device_service.models.capabilities import Capabilities
from device_service.models.sim_adapter import SimAdapter
from device_service.models.transformers_adapter import TransformersAdapter
from ttserve.errors import StartupError


def _adapter(**declared: Any) -> type[Any]:
    return type("SomeAdapter", (), {"model_capabilities": declared})


def test_defaults() -> None:
    nothing = Capabilities.of(type("Bare", (), {}))
    assert nothing == Capabilities()
    assert nothing.supports_device_penalties
    assert not nothing.supports_chunked_prefill
    assert not nothing.block_output


def test_flags_are_truth_tested_and_unknown_keys_ignored() -> None:
    declared = _adapter(supports_async_decode=1, accepts_trace_mode=True)
    assert Capabilities.of(declared).supports_async_decode is True


def test_a_fabric_config_is_handed_on_unchanged() -> None:
    fabric = {"config": "FABRIC_1D"}
    read = Capabilities.of(_adapter(fabric_config=fabric)).fabric_config
    assert read == fabric
    with pytest.raises(TypeError):
        read["config"] = "other"  # type: ignore[index]


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"supports_device_grammar": 1}, "supports_device_grammar"),
        ({"supports_device_grammar": True}, "supports_sample_on_device"),
        ({"supports_selective_host_readback": True}, "compact_host_logits"),
        ({"output_tokens_per_step": True}, "output_tokens_per_step"),
        ({"output_tokens_per_step": 0}, "output_tokens_per_step"),
        (
            {"output_tokens_per_step": 8, "supports_prefix_caching": True},
            "prefix_caching",
        ),
        ({"output_tokens_per_step": 8, "max_device_top_k": 32}, "max_device_top_k"),
        ({"tt_adaptive_block_output": True}, "output_tokens_per_step > 1"),
        ({"tt_adaptive_block_max_prompt_tokens": 5}, "tt_adaptive_block_output"),
        (
            {"output_tokens_per_step": 8, "tt_block_kv_extent_tokens": 4},
            "tt_block_kv_extent_tokens",
        ),
        ({"spec_requirements": "hidden_feed"}, "must be a list"),
        ({"spec_requirements": ["telepathy"]}, "telepathy"),
        ({"spec_requirements": ["device_propose"] * 2}, "twice"),
        ({"spec_requirements": ["hidden_feed"]}, "spec_hidden_handoff"),
    ],
)
def test_wrong_declarations(declared: dict[str, Any], named: str) -> None:
    with pytest.raises(StartupError, match=named):
        Capabilities.of(_adapter(**declared))


@pytest.mark.parametrize("adapter", [SimAdapter, TransformersAdapter])
def test_our_own_adapters(adapter: type[Any]) -> None:
    own = Capabilities.of(adapter)
    assert own.supports_chunked_prefill
    assert own.supports_prefix_caching
    assert own.supports_async_decode
    assert not own.supports_spec_decode
    assert not own.block_output
