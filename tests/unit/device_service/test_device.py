"""What was opened is closed once, in the reverse order, however far it came."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from device_service.config import parse_args
from device_service.device import Device
from device_service.mesh.cpu import CpuMesh
from device_service.mesh.sim import SimMesh
from device_service.models.sim_adapter import SimAdapter
from device_service.resolve import Resolved, resolve


class Steps:
    """What happened to a mesh and to a model on it, in order."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def mesh(self) -> SimMesh:
        steps = self

        class Noting(SimMesh):
            def open(self, model_fabric: Mapping[str, Any] | None = None) -> None:
                steps.taken.append("open")
                super().open(model_fabric)

            def close(self) -> None:
                steps.taken.append("close")
                super().close()

        return Noting()

    def adapter(self, failure: Exception | None = None) -> type[Any]:
        steps = self

        class Capturing(SimAdapter):
            def release_persistent_capture(self) -> None:
                steps.taken.append("release captures")
                if failure is not None:
                    raise failure

        return Capturing


def resolved(adapter: type[Any]) -> Resolved:
    config = parse_args(["--mesh", "sim", "--max-model-len", "256"], {})
    return dataclasses.replace(resolve(config, SimMesh(), print), adapter=adapter)


@pytest.mark.feature(36)
@pytest.mark.parametrize("failure", [None, RuntimeError("the link is down")])
def test_captures_are_released_while_the_mesh_is_open(
    failure: Exception | None,
) -> None:
    steps = Steps()
    device = Device(steps.mesh())
    it = resolved(steps.adapter(failure))
    device.open()
    device.allocate(device.load(it), it)
    device.close()
    device.close()
    assert steps.taken == ["open", "release captures", "close"]


def test_a_start_that_ended_early_closes_what_it_opened() -> None:
    steps = Steps()
    device = Device(steps.mesh())
    device.open()
    device.load(resolved(steps.adapter()))
    device.close()
    device.close()
    assert steps.taken == ["open", "close"]


@pytest.mark.feature(31, 32)
def test_the_mesh_is_told_the_fabric_of_the_model() -> None:
    told: list[Mapping[str, Any] | None] = []

    class Noting(CpuMesh):
        def open(self, model_fabric: Mapping[str, Any] | None = None) -> None:
            told.append(model_fabric)

    fabric = {"num_planes": 2}
    Device(Noting()).open(fabric)
    assert told == [fabric]
    assert told[0] is fabric


def test_a_mesh_that_failed_to_open_is_closed() -> None:
    closed: list[str] = []

    class Broken(CpuMesh):
        def open(self, model_fabric: Mapping[str, Any] | None = None) -> None:
            raise RuntimeError("no such board")

        def close(self) -> None:
            closed.append("close")
            super().close()

    device = Device(Broken())
    with pytest.raises(RuntimeError, match="no such board"):
        device.open()
    assert device.touched
    device.close()
    assert closed == ["close"]
