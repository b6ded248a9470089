"""The contract probe: checks calls of an adapter, and an adapter's answers.

`probed(SomeAdapter)` is a class like SomeAdapter that checks every call against
the model contract and fails with one line that names the rule.
`python -m device_service.models.probe MODULE:CLASS` drives an adapter through
its whole life over it.
"""

from __future__ import annotations

from device_service.models.probe.breach import ContractBreach
from device_service.models.probe.probed import Probe, probed

__all__ = ["ContractBreach", "Probe", "probed"]
