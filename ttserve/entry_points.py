"""Our plugins among those that vLLM finds installed.

vLLM keeps one plugin of each name, the last that it meets, and another package
may bring one of the same name: Tenstorrent's plugin for vLLM does. Outside of our
commands ours steps aside (`ttserve.plugin`); under them, one that vLLM would not
keep is a refusal to start. This module imports nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ttserve.errors import StartupError


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point of ours, as pyproject.toml declares it."""

    group: str
    name: str
    target: str


PLATFORM = Plugin("vllm.platform_plugins", "tt", "ttserve.plugin:platform_plugin")
MODEL_REGISTRY = Plugin(
    "vllm.general_plugins", "tt_model_registry", "device_service.plugin:register_models"
)


def check_plugins(plugins: Iterable[Plugin]) -> None:
    """Raise StartupError where vLLM would not load these, but none or another's."""
    for plugin in plugins:
        found = _of_that_name(plugin)
        if not found:
            raise StartupError(
                f"vLLM's plugin {plugin.name} of ttserve is not installed, or of an "
                "older version; run `make install`"
            )
        kept = found[-1]
        if kept.value != plugin.target:
            owner = kept.dist.name if kept.dist else kept.value
            raise StartupError(
                f"{owner} brings a vLLM plugin named {plugin.name} too, and vLLM keeps "
                f"only that one; uninstall {owner} here, or give ttserve an "
                "environment of its own"
            )


def other_plugin(plugin: Plugin) -> Callable[[], Any] | None:
    """The plugin of the same name that vLLM would keep without ours."""
    others = [it for it in _of_that_name(plugin) if it.value != plugin.target]
    return others[-1].load() if others else None


def _of_that_name(plugin: Plugin) -> list[EntryPoint]:
    """In vLLM's order."""
    return list(entry_points(group=plugin.group, name=plugin.name))
