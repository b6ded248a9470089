"""The `cpu` mesh: real models on the host's cores."""

from __future__ import annotations

import torch

from device_service.mesh.host_mesh import HostMesh


class CpuMesh(HostMesh):
    """One worker thread in torch's inference mode.

    The grid only says how many devices to pretend; all of them are these cores.
    """

    def __init__(self, grid: tuple[int, int] = (1, 1)) -> None:
        super().__init__("cpu", grid, torch.inference_mode)
