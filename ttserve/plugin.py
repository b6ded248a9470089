"""The entry point through which vLLM finds our platform.

vLLM asks every installed plugin, in every process that imports it. This module is
light, and answers for us only in processes that belong to one of our services, so
that an ordinary vLLM beside ttserve keeps its own platform, even one whose plugin
has the same name.
"""

from __future__ import annotations

from ttserve.entry_points import PLATFORM, other_plugin
from ttserve.environment import current_role


def platform_plugin() -> str | None:
    """The name of the platform class, or None outside of ttserve's processes.

    There another package's plugin of this name answers, if one is installed:
    vLLM has forgotten it in favour of ours.
    """
    if current_role() is not None:
        return "ttserve.platform.TTPlatform"
    other = other_plugin(PLATFORM)
    return other() if other else None
