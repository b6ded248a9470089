"""Grid, fabric and memory of the `ttnn` mesh, decided before anything opens."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from device_service.mesh.ttnn_settings import (
    default_fabric,
    fabric_arguments,
    grid_on,
    open_arguments,
)
from device_service.options import TTOptions
from tests.support.ttnn_host import (
    ClusterType,
    DispatchCoreAxis,
    DispatchCoreConfig,
    FabricConfig,
    FabricReliabilityMode,
    HostTtnn,
    RecordingTtnn,
)
from ttserve.errors import StartupError

STRICT = FabricReliabilityMode.STRICT_INIT
RELAXED = FabricReliabilityMode.RELAXED_INIT


@pytest.mark.feature(27)
@pytest.mark.parametrize(
    ("available", "mesh_device", "grid"),
    [
        (8, None, (1, 8)),
        (1, None, (1, 1)),
        (8, "N300", (1, 2)),
        (8, "(2,4)", (2, 4)),
        (32, "TG", (8, 4)),
        (32, "BH-Galaxy", (8, 4)),
    ],
)
@pytest.mark.edge(53)
def test_the_grid(
    available: int, mesh_device: str | None, grid: tuple[int, int]
) -> None:
    assert grid_on(available, mesh_device, None) == grid


@pytest.mark.feature(29)
@pytest.mark.edge(49)
@pytest.mark.parametrize(
    ("available", "mesh_device", "visible", "grid"),
    [
        (2, None, "4,5", (1, 2)),
        (2, "T3K", "4,5", (1, 2)),  # narrower than the name says
        (8, "(2,4)", "0,1,2,3,4,5,6,7", (2, 4)),
        (4, "(2,2)", "0,1", (2, 2)),  # two boards of two devices
        (4, None, "0,1", (1, 2)),
        (4, "T3K", " 0, 1,", (1, 2)),
    ],
)
def test_visible_devices_narrow_the_grid(
    available: int, mesh_device: str | None, visible: str, grid: tuple[int, int]
) -> None:
    assert grid_on(available, mesh_device, visible) == grid


@pytest.mark.feature(28)
@pytest.mark.parametrize(
    ("available", "mesh_device", "visible", "said"),
    [
        (2, "T3K", None, "MESH_DEVICE=T3K needs 8 devices (1 x 8), but ttnn finds 2;"),
        (8, "(3,3)", None, "needs 9 devices (3 x 3), but ttnn finds 8"),
        (1, None, "0,1", "finds 1 with TT_VISIBLE_DEVICES=0,1"),
        (0, None, None, "the mesh needs 1 devices (1 x 0), but ttnn finds 0"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(
    available: int, mesh_device: str | None, visible: str | None, said: str
) -> None:
    with pytest.raises(StartupError) as refused:
        grid_on(available, mesh_device, visible)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.feature(30)
@pytest.mark.edge(53)
@pytest.mark.parametrize(
    ("cluster", "fabric"),
    [
        (ClusterType.BLACKHOLE_GALAXY, FabricConfig.FABRIC_2D_TORUS_XY),
        (ClusterType.GALAXY, FabricConfig.FABRIC_1D_RING),
        (ClusterType.T3K, FabricConfig.FABRIC_1D),
        (ClusterType.N300, FabricConfig.FABRIC_1D),
    ],
)
def test_the_default_fabric(cluster: ClusterType, fabric: FabricConfig) -> None:
    assert default_fabric(HostTtnn(), cluster) is fabric
    arguments = fabric_arguments(RecordingTtnn(8, cluster), 8, None, TTOptions())
    assert arguments == {"config": fabric, "reliability_mode": STRICT}


@pytest.mark.feature(30)
def test_one_device_has_no_fabric_whoever_asks() -> None:
    asked = TTOptions(fabric_config="FABRIC_2D", fabric_reliability_mode="RELAXED_INIT")
    model = {"config": FabricConfig.FABRIC_1D_RING}
    # The strict stand-in: not even the kind of cluster is asked for.
    assert fabric_arguments(HostTtnn(), 1, model, asked) == {}


@pytest.mark.feature(31, 33)
@pytest.mark.parametrize(
    ("model", "tt", "config", "mode"),
    [
        ({"config": FabricConfig.FABRIC_2D}, {}, FabricConfig.FABRIC_2D, STRICT),
        (
            {"config": FabricConfig.FABRIC_2D, "reliability_mode": RELAXED},
            {"fabric_config": "CUSTOM"},
            FabricConfig.CUSTOM,
            RELAXED,
        ),
        (
            {"config": FabricConfig.FABRIC_2D, "reliability_mode": RELAXED},
            {"fabric_reliability_mode": "STRICT_INIT"},
            FabricConfig.FABRIC_2D,
            STRICT,
        ),
        (
            None,
            {"fabric_reliability_mode": "RELAXED_INIT"},
            FabricConfig.FABRIC_1D,
            RELAXED,
        ),
        (None, {"fabric_config": "DISABLED"}, FabricConfig.DISABLED, STRICT),
    ],
)
def test_the_operator_wins_over_the_model_and_the_model_over_the_default(
    model: dict[str, Any] | None,
    tt: dict[str, Any],
    config: FabricConfig,
    mode: FabricReliabilityMode,
) -> None:
    ttnn = RecordingTtnn(8, ClusterType.T3K)
    arguments = fabric_arguments(ttnn, 8, model, TTOptions(**tt))
    assert arguments == {"config": config, "reliability_mode": mode}


@pytest.mark.feature(32)
def test_more_arguments_of_a_model_are_handed_on_as_they_are() -> None:
    router = object()
    model = MappingProxyType({"num_planes": 2, "router_config": router})
    ttnn = RecordingTtnn(8, ClusterType.T3K)
    tt = TTOptions(fabric_config="FABRIC_2D")
    arguments = fabric_arguments(ttnn, 8, model, tt)
    assert arguments.pop("router_config") is router
    assert arguments == {
        "config": FabricConfig.FABRIC_2D,
        "reliability_mode": STRICT,
        "num_planes": 2,
    }


@pytest.mark.feature(31, 33)
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"fabric_config": "FABRIC_3D"}, "fabric_config: 'FABRIC_3D' is not one of"),
        (
            {"fabric_reliability_mode": "LAX"},
            "fabric_reliability_mode: 'LAX' is not one of STRICT_INIT, RELAXED_INIT",
        ),
    ],
)
def test_names_that_ttnn_does_not_know_are_refused(
    devices: int, option: dict[str, Any], said: str
) -> None:
    with pytest.raises(StartupError, match=said):
        fabric_arguments(HostTtnn(), devices, None, TTOptions(**option))


@pytest.mark.feature(34)
@pytest.mark.parametrize(
    ("tt", "arguments"),
    [
        ({}, {"trace_region_size": 50_000_000}),
        ({"trace_mode": "decode_only"}, {"trace_region_size": 50_000_000}),
        ({"trace_mode": "none"}, {}),
        ({"trace_region_size": 0}, {"trace_region_size": 0}),
        (
            {"trace_region_size": 216580672, "worker_l1_size": 1344544},
            {"trace_region_size": 216580672, "worker_l1_size": 1344544},
        ),
        ({"trace_mode": "none", "l1_small_size": 768}, {"l1_small_size": 768}),
        (
            {"trace_mode": "none", "dispatch_core_axis": "col"},
            {"dispatch_core_config": DispatchCoreConfig(axis=DispatchCoreAxis.COL)},
        ),
        (
            {"trace_mode": "none", "dispatch_core_axis": "row"},
            {"dispatch_core_config": DispatchCoreConfig(axis=DispatchCoreAxis.ROW)},
        ),
    ],
)
def test_only_what_is_given_is_passed_on(
    tt: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert open_arguments(HostTtnn(), TTOptions(**tt)) == arguments
