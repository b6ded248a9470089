"""The entry point through which vLLM learns the architectures that only we serve.

vLLM calls it in every process that builds a configuration. It acts in those of the
device service; a frontend learns its one architecture from the device service.
"""

from __future__ import annotations

from ttserve.entry_points import MODEL_REGISTRY, other_plugin
from ttserve.environment import Role, current_role


def register_models() -> None:
    """Let vLLM configure models of adapters that it has no class for.

    Outside of ttserve's processes another package's plugin of this name is called,
    if one is installed: vLLM has forgotten it in favour of ours. Calling twice
    changes nothing. Raises StartupError where the environment is wrong.
    """
    role = current_role()
    if role is None:
        other = other_plugin(MODEL_REGISTRY)
        if other:
            other()
    elif role is Role.DEVICE:
        from device_service.config import Environment
        from device_service.models.registry import adapter_registry
        from ttserve.text_models import register_text_models

        registry = adapter_registry(Environment.read(), test_models=True)
        register_text_models(registry.architectures)
