"""The kinds of checks that a launch goes through, and what they look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.config import ModelConfig, SchedulerConfig, VllmConfig
from vllm.reasoning import ReasoningParserManager

from device_service.config import DeviceConfig
from device_service.models.capabilities import Capabilities


@dataclass(frozen=True, slots=True)
class LaunchCheck:
    """Something that must not be asked for.

    `say` names the option and what to do instead; it is filled in with vLLM's
    engine options by field name, and with `mesh`, `hardware_only`, `reasoning`.
    """

    name: str
    wrong: Callable[[DeviceConfig], bool]
    say: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that is about to be served."""

    config: DeviceConfig
    vllm_config: VllmConfig
    capabilities: Capabilities

    @property
    def model(self) -> ModelConfig:
        """vLLM's view of the model."""
        return self.vllm_config.model_config

    @property
    def scheduler(self) -> SchedulerConfig:
        """How requests are to be scheduled."""
        return self.vllm_config.scheduler_config


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Something that the model must not be, or must not be asked for."""

    name: str
    wrong: Callable[[Candidate], bool]
    say: str


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A default that the model cannot have. `say` is the note about the change;
    `apply` is None where vLLM's configuration is changed already.
    """

    name: str
    needed: Callable[[Candidate], bool]
    apply: Callable[[Candidate], None] | None
    say: str


def given(field: str) -> Callable[[DeviceConfig], bool]:
    return lambda config: config.is_explicit(field)


def bytes_given(config: DeviceConfig) -> bool:
    return config.kv_cache_fraction is not None or config.is_explicit(
        "kv_cache_memory_bytes"
    )


def items(limits: dict[str, Any]) -> list[int]:
    return [
        int(limit.get("count", 0) if isinstance(limit, dict) else limit)
        for limit in limits.values()
    ]


def reasoning_parser(config: DeviceConfig) -> str:
    """The parser by either option; "" where a plugin is still to bring it."""
    if config.engine["reasoning_parser_plugin"]:
        return ""
    nested = config.engine["structured_outputs_config"].reasoning_parser
    return str(config.engine["reasoning_parser"] or nested)


def unknown_parser(name: str) -> bool:
    known = ReasoningParserManager.list_registered()
    return bool(name) and name not in known
