"""The entry point through which vLLM finds our platform.

vLLM asks every installed plugin, in every process that imports it. This module is
light, and answers only in processes that belong to one of our services, so that
an ordinary vLLM beside ttserve keeps its own platform.
"""

from __future__ import annotations

from ttserve.environment import current_role


def platform_plugin() -> str | None:
    """The name of the platform class, or None outside of ttserve's processes."""
    return "ttserve.platform.TTPlatform" if current_role() is not None else None
