"""`python -m device_service`, with an adapter that takes long to warm up.

Run as a script with the command's own arguments. Its prefill takes three seconds
to warm up, its decode longer than any test waits.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from device_service.__main__ import main
from device_service.models import registry as adapters
from device_service.models.registry import HOST_ADAPTERS, AdapterRegistry

PREFILL_SECONDS = 3.0
DECODE_SECONDS = 600.0

find = adapters.resolve_adapter


def resolve_slow(
    architecture: str, mesh_kind: str, registry: AdapterRegistry = HOST_ADAPTERS
) -> type[Any]:
    base = find(architecture, mesh_kind, registry)

    class Slow(base):  # type: ignore[misc, valid-type]
        def warmup_model_prefill(self, **call: Any) -> None:
            sys.stderr.write("prefill warms up\n")
            time.sleep(PREFILL_SECONDS)
            super().warmup_model_prefill(**call)

        def warmup_model_decode(self, **call: Any) -> None:
            time.sleep(DECODE_SECONDS)

    return Slow


if __name__ == "__main__":
    # Only in the process that is the service: others import this for its path.
    adapters.resolve_adapter = resolve_slow
    sys.exit(main())
