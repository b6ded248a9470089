"""Hardware to serve on without any: a `ttnn` whose boards compute like the sim mesh.

`write_tree` makes what a host of hardware has on its import path, `ttnn` and
tt-metal's `models`, so that nothing of ours is replaced: the device service finds
and loads both by itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from device_service.mesh.sim import SimMesh, SimProfile
from device_service.models.sim_adapter import SimAdapter
from tests.support.ttnn_host import ClusterType, MeshShape, RecordingTtnn

BUDGET_TOKENS = 4096
FAILING_FROM = "STAND_IN_FAILS_FROM_STEP"
"""Environment variable: the step from which on every one fails, as when a link
is down. Counted from 1, warm-up left out.
"""

_MANY_STEPS = 1000

_TTNN = """
import sys
from tests.support.hardware import ComputingTtnn
sys.modules[__name__] = ComputingTtnn()
"""

_MODULE = """
import ttnn
from device_service.models.probe import probed
from tests.support.hardware import HardwareAdapter


class {name}(HardwareAdapter):
    model_capabilities = HardwareAdapter.model_capabilities | {{
        "fabric_config": {{
            "config": ttnn.FabricConfig.FABRIC_1D_RING,
            "num_planes": 2,
        }}
    }}


{name} = probed({name})
"""


def write_tree(directory: Path, path: str) -> None:
    """A `ttnn`, and one adapter `module.path:Class`, behind the contract probe."""
    (directory / "ttnn.py").write_text(_TTNN)
    module, _, name = path.partition(":")
    file = directory.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True)
    file.write_text(_MODULE.format(name=name))


class SimBoard(SimMesh):
    """A mesh device with a queue of its own; its events are tasks."""

    name = "mesh"

    def get_submeshes(self) -> list[Any]:
        """None was made."""
        return []

    def get_device_ids(self) -> list[int]:
        """As many as the grid has."""
        rows, columns = self.grid
        return list(range(rows * columns))


class ComputingTtnn(RecordingTtnn):
    """A T3K. Says every call, for whoever reads the log."""

    def __init__(self) -> None:
        super().__init__(8, ClusterType.T3K)

    def open_mesh_device(self, shape: MeshShape, **sizes: Any) -> Any:
        """A board that runs."""
        self._note("open", shape, sizes)
        first = int(os.environ.get(FAILING_FROM, _MANY_STEPS))
        failing = frozenset(range(first, _MANY_STEPS))
        board = SimBoard((shape[0], shape[1]), SimProfile(fail_steps=failing))
        board.open()
        return board

    def close_mesh_device(self, board: Any) -> None:
        """Stop it."""
        self._note("close", board.name)
        board.close()

    def event_synchronize(self, event: Any) -> None:
        """Wait for the board's queue to come to the event."""
        event.result()

    def _note(self, call: str, *arguments: Any) -> None:
        print("ttnn:", call, *arguments, flush=True)
        super()._note(call, *arguments)


class HardwareAdapter(SimAdapter):
    """Tokens by `expected_tokens`, computed on a board of `ComputingTtnn`."""

    @classmethod
    def get_max_tokens_all_users(cls, **_: Any) -> int:
        """Contract 1.2."""
        return BUDGET_TOKENS

    @classmethod
    def initialize_vllm_model(
        cls, hf_config: Any, mesh_device: Any, *arguments: Any, **options: Any
    ) -> SimAdapter:
        """Insists on a device of ttnn's, not on something of ours."""
        assert isinstance(mesh_device, SimBoard)
        return super().initialize_vllm_model(
            hf_config, mesh_device, *arguments, **options
        )
