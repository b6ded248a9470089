"""What a model class says it can do, read once from the class (contract 1.13)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ttserve.errors import StartupError

SPEC_REQUIREMENTS = frozenset(
    {"device_propose", "hidden_feed", "drafter_scores", "paged_drafter_cache"}
)
SPEC_HANDOFFS = frozenset({"on_device", "roundtrip"})

_FLAGS = (
    "supports_chunked_prefill",
    "supports_prefix_caching",
    "supports_sample_on_device",
    "supports_device_penalties",
    "supports_async_decode",
    "supports_async_spec_decode",
    "supports_compact_host_logits",
    "supports_selective_host_readback",
    "tt_adaptive_block_output",
    "supports_spec_decode",
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The declared capabilities, defaults filled in, validated.

    A declaration promises an interface, not correctness. Unknown keys are
    ignored, as adapters declare some for themselves. `fabric_config` is handed
    on as it is and never changed.
    """

    supports_chunked_prefill: bool = False
    supports_prefix_caching: bool = False
    supports_sample_on_device: bool = False
    max_device_top_k: int | None = None
    supports_device_penalties: bool = True
    supports_device_grammar: bool = False
    supports_async_decode: bool = False
    supports_async_spec_decode: bool = False
    supports_compact_host_logits: bool = False
    supports_selective_host_readback: bool = False
    fabric_config: Mapping[str, Any] | None = None
    output_tokens_per_step: int = 1
    tt_adaptive_block_output: bool = False
    tt_adaptive_block_max_prompt_tokens: int = 0
    tt_block_kv_extent_tokens: int = 0
    supports_spec_decode: bool = False
    spec_requirements: frozenset[str] = frozenset()
    spec_hidden_handoff: frozenset[str] = frozenset()

    @classmethod
    def of(cls, adapter: type[Any]) -> Capabilities:
        """Read `adapter.model_capabilities`; raises StartupError if it is wrong."""
        declared = getattr(adapter, "model_capabilities", {})
        if not isinstance(declared, Mapping):
            raise StartupError(f"{adapter.__name__}.model_capabilities is not a dict")
        try:
            capabilities = cls(**_read(declared))
            _check_together(capabilities)
        except ValueError as error:
            raise StartupError(
                f"{adapter.__name__}.model_capabilities: {error}"
            ) from None
        return capabilities

    @property
    def block_output(self) -> bool:
        """Whether a decode step yields more than one token per row."""
        return self.output_tokens_per_step > 1


def _read(declared: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: bool(declared[name]) for name in _FLAGS if name in declared
    }
    values["max_device_top_k"] = declared.get("max_device_top_k")
    grammar = declared.get("supports_device_grammar", False)
    if not isinstance(grammar, bool):
        raise ValueError("supports_device_grammar must be True or False")
    values["supports_device_grammar"] = grammar
    values["output_tokens_per_step"] = _whole(declared, "output_tokens_per_step", 1, 1)
    for name in ("tt_adaptive_block_max_prompt_tokens", "tt_block_kv_extent_tokens"):
        values[name] = _whole(declared, name, 0, 0)
    values["spec_requirements"] = _names(
        declared, "spec_requirements", SPEC_REQUIREMENTS
    )
    values["spec_hidden_handoff"] = _names(
        declared, "spec_hidden_handoff", SPEC_HANDOFFS
    )
    fabric = declared.get("fabric_config")
    values["fabric_config"] = None if fabric is None else MappingProxyType(fabric)
    return values


def _whole(declared: Mapping[str, Any], name: str, default: int, least: int) -> int:
    value = declared.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, not {value!r}")
    return value


def _names(
    declared: Mapping[str, Any], name: str, allowed: frozenset[str]
) -> frozenset[str]:
    value = declared.get(name, ())
    if isinstance(value, str):
        raise ValueError(f"{name} must be a list, not the string {value!r}")
    listed = list(value)
    if len(set(listed)) != len(listed):
        raise ValueError(f"{name} names something twice: {listed}")
    if unknown := [entry for entry in listed if entry not in allowed]:
        raise ValueError(f"{name}: {unknown[0]!r} is not known")
    return frozenset(listed)


def _check_together(declared: Capabilities) -> None:
    """Raise ValueError where two declarations exclude each other."""
    if declared.supports_device_grammar and not declared.supports_sample_on_device:
        raise ValueError("supports_device_grammar needs supports_sample_on_device")
    if (
        declared.supports_selective_host_readback
        and not declared.supports_compact_host_logits
    ):
        raise ValueError(
            "supports_selective_host_readback needs supports_compact_host_logits"
        )
    _check_block_output(declared)
    if "hidden_feed" in declared.spec_requirements and not declared.spec_hidden_handoff:
        raise ValueError("hidden_feed needs a spec_hidden_handoff")


def _check_block_output(declared: Capabilities) -> None:
    if declared.block_output:
        for name in (
            "supports_prefix_caching",
            "supports_device_grammar",
            "max_device_top_k",
        ):
            if getattr(declared, name):
                raise ValueError(f"{name} cannot go with block output")
    elif declared.tt_adaptive_block_output:
        raise ValueError("tt_adaptive_block_output needs output_tokens_per_step > 1")
    if (
        declared.tt_adaptive_block_max_prompt_tokens
        and not declared.tt_adaptive_block_output
    ):
        raise ValueError(
            "tt_adaptive_block_max_prompt_tokens needs tt_adaptive_block_output"
        )
    extent = declared.tt_block_kv_extent_tokens
    if extent and extent < declared.output_tokens_per_step:
        raise ValueError(
            "tt_block_kv_extent_tokens is smaller than output_tokens_per_step"
        )
