"""`python -m device_service`, with the contract probe around its adapter.

Run as a script with the command's own arguments. A breach fails its step, which
the service logs.
"""

from __future__ import annotations

import sys
from typing import Any

from device_service.__main__ import main
from device_service.models import registry as adapters
from device_service.models.registry import HOST_ADAPTERS, AdapterRegistry

find = adapters.resolve_adapter


def resolve_probed(
    architecture: str, mesh_kind: str, registry: AdapterRegistry = HOST_ADAPTERS
) -> type[Any]:
    from device_service.models.probe import probed  # after the environment is set

    return probed(find(architecture, mesh_kind, registry))


if __name__ == "__main__":
    # Only in the process that is the service: others import this for its path.
    adapters.resolve_adapter = resolve_probed
    sys.exit(main())
