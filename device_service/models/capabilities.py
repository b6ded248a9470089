"""What a model class says it can do, read once from the class (contract 1.13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The declared capabilities, defaults filled in, validated."""

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
    output_tokens_per_step: int = 1
    supports_spec_decode: bool = False

    @classmethod
    def of(cls, adapter: type[Any]) -> Capabilities:
        """Read `adapter.model_capabilities`; raises StartupError if it is wrong."""
        raise NotImplementedError
