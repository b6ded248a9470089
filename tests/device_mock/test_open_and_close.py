"""The `ttnn` mesh on each mock cluster: opening, sizes, submeshes, closing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., str]

DEVICES = {"N150": 1, "P150": 1, "N300": 2, "T3K": 8, "GALAXY": 32}
DEFAULT_FABRIC = {
    "N150": "none",
    "P150": "none",
    "N300": "config FABRIC_1D,",
    "T3K": "config FABRIC_1D,",
    "GALAXY": "config FABRIC_1D_RING,",
}
PRESET = {"N150": "N150", "P150": "P150", "N300": "N300", "T3K": "T3K", "GALAXY": "TG"}
GRID = {
    "N150": (1, 1),
    "P150": (1, 1),
    "N300": (1, 2),
    "T3K": (1, 8),
    "GALAXY": (8, 4),
}
# With its usual graph the mock Galaxy has no links that close rings, so that its
# default fabric is refused there; it opens without a graph, as one line.
OPENS: dict[str, list[str | None]] = {
    "N150": [None],
    "P150": [None],
    "N300": [None, "FABRIC_1D", "FABRIC_2D"],
    "T3K": [None, "FABRIC_1D", "FABRIC_2D"],
    "GALAXY": ["FABRIC_1D", "FABRIC_2D"],
}
OPEN_AND_CLOSE = """
made = mesh({device!r}, **{tt!r})
made.open()
seen(made)
print(*made.found(), sep="\\n")
made.close()
made.close()
assert ttnn.get_fabric_config() == F.DISABLED
"""


def options(fabric: str | None, **tt: object) -> dict[str, object]:
    """`tt` options with a fabric; None leaves the default."""
    return tt if fabric is None else {**tt, "fabric_config": fabric}


@pytest.mark.feature(27, 30, 31, 35)
def test_opens_with_each_fabric_and_closes(cluster: str, run: Run) -> None:
    rows, columns = GRID[cluster]
    for fabric in OPENS[cluster]:
        out = run(OPEN_AND_CLOSE.format(device=PRESET[cluster], tt=options(fabric)))
        devices = DEVICES[cluster]
        assert f"({rows}, {columns}) ({rows}, {columns}) {devices}" in out
        expected = DEFAULT_FABRIC[cluster] if fabric is None else f"config {fabric},"
        assert f"fabric {expected}" in out
        assert "failed" not in out


@pytest.mark.feature(33, 34)
@pytest.mark.parametrize("axis", ["row", "col"])
def test_opens_with_sizes_axis_and_reliability(
    cluster: str, run: Run, axis: str
) -> None:
    tt = options(
        OPENS[cluster][-1],
        trace_region_size=216580672,
        worker_l1_size=1344544,
        l1_small_size=768,
        dispatch_core_axis=axis,
        fabric_reliability_mode="RELAXED_INIT",
    )
    if cluster == "P150" and axis == "row":
        pytest.skip("the product has no such axis, see below")
    out = run(
        OPEN_AND_CLOSE.format(device=None if DEVICES[cluster] < 32 else "TG", tt=tt)
    )
    assert "trace_region_size 216580672, worker_l1_size 1344544" in out
    assert "failed" not in out


@pytest.mark.feature(35)
@pytest.mark.edge(57)
def test_a_second_open_after_an_exception_in_between(cluster: str, run: Run) -> None:
    code = """
    for attempt in range(2):
        made = mesh({device!r}, **{tt!r})
        made.open()
        try:
            made.device.create_submesh(ttnn.MeshShape(1, 1))
            raise ValueError("in between")
        except ValueError:
            pass
        finally:
            made.close()
        assert ttnn.get_fabric_config() == F.DISABLED
        print("closed", attempt)
    """
    tt = options(OPENS[cluster][-1])
    out = run(code.format(device=PRESET[cluster], tt=tt))
    assert "closed 0" in out
    assert "closed 1" in out
    assert "failed" not in out


def test_events_of_the_devices(cluster: str, run: Run) -> None:
    code = """
    made = mesh({device!r}, **{tt!r})
    made.open()
    watched = [made.watch(ttnn.record_event(made.device, 0)) for _ in range(3)]
    made.synchronize(watched[-1])
    print("done", [made.is_done(event) for event in watched])
    made.close()
    """
    out = run(code.format(device=PRESET[cluster], tt=options(OPENS[cluster][-1])))
    assert "done [True, True, True]" in out


@pytest.mark.parametrize("groups", [2, 4])
def test_submeshes(cluster: str, run: Run, groups: int) -> None:
    if cluster not in ("T3K", "GALAXY"):
        pytest.skip("too few devices for groups")
    rows, columns = (1, 8 // groups) if cluster == "T3K" else (8 // groups, 4)
    code = """
    made = mesh({device!r}, **{tt!r})
    made.open()
    parts = made.device.create_submeshes(ttnn.MeshShape({rows}, {columns}))
    ids = [part.get_device_ids() for part in parts]
    print("groups", len(parts), {{tuple(part.shape) for part in parts}})
    print("devices", len(set(sum(ids, []))))
    made.close()
    """
    tt = options(OPENS[cluster][-1])
    out = run(code.format(device=PRESET[cluster], tt=tt, rows=rows, columns=columns))
    assert f"groups {groups} {{({rows}, {columns})}}" in out
    assert f"devices {DEVICES[cluster]}" in out
    assert "failed" not in out


@pytest.mark.feature(28)
@pytest.mark.parametrize("device", ["(9,9)", "(5,7)"])
def test_a_grid_of_more_devices_than_there_are(
    cluster: str, run: Run, device: str
) -> None:
    out = run(
        f"""
        try:
            mesh({device!r})
        except StartupError as error:
            print("refused:", error)
        """
    )
    assert f"refused: MESH_DEVICE={device} needs" in out
    assert f"ttnn finds {DEVICES[cluster]};" in out


@pytest.mark.feature(28, 35)
def test_a_shape_that_the_cluster_has_not(cluster: str, run: Run) -> None:
    if cluster != "GALAXY":
        pytest.skip("every shape of so few devices fits")
    out = run(
        """
        made = mesh("(2,16)", fabric_config="FABRIC_1D")
        try:
            made.open()
        except StartupError as error:
            print("refused:", error)
        made.close()
        assert ttnn.get_fabric_config() == F.DISABLED
        """
    )
    (line,) = [line for line in out.splitlines() if line.startswith("refused:")]
    assert line.startswith("refused: ttnn cannot open ")
    assert "equested mesh" in line


@pytest.mark.feature(30, 35)
def test_a_fabric_that_the_cluster_has_not(cluster: str, run: Run) -> None:
    if cluster != "GALAXY":
        pytest.skip("its default fabric opens")
    out = run(
        """
        made = mesh("TG")
        try:
            made.open()
        except StartupError as error:
            print("refused:", error)
        made.close()
        """
    )
    assert "fabric config FABRIC_1D_RING, reliability_mode STRICT_INIT" in out
    assert "refused: ttnn cannot open 8 x 4 devices: FabricConfig FABRIC_1D_RING" in out


@pytest.mark.feature(30, 35)
def test_the_default_fabric_of_a_galaxy(cluster: str, run: Run) -> None:
    if cluster != "GALAXY":
        pytest.skip("its default fabric is opened above")
    code = OPEN_AND_CLOSE.format(device="(1,32)", tt={})
    out = run(code, TT_MESH_GRAPH_DESC_PATH=None)
    assert "(1, 32) (1, 32) 32" in out
    assert "fabric config FABRIC_1D_RING, reliability_mode STRICT_INIT" in out
    assert "failed" not in out


@pytest.mark.feature(34, 35)
def test_an_axis_that_the_product_has_not(cluster: str, run: Run) -> None:
    if cluster != "P150":
        pytest.skip("this product has both axes")
    out = run(
        """
        made = mesh(dispatch_core_axis="row")
        try:
            made.open()
        except StartupError as error:
            print("refused:", error)
        made.close()
        """
    )
    assert "refused: ttnn cannot open 1 x 1 devices: ROW dispatch core axis" in out


@pytest.mark.feature(31)
def test_names_of_the_real_package(cluster: str, run: Run) -> None:
    out = run(
        """
        for option in ({"fabric_config": "RING"}, {"fabric_reliability_mode": "LAX"}):
            try:
                mesh(**option)
            except StartupError as error:
                print("refused:", error)
        """
    )
    assert "fabric_config: 'RING' is not one of DISABLED, FABRIC_1D," in out
    assert "fabric_reliability_mode: 'LAX' is not one of STRICT_INIT," in out


@pytest.mark.feature(29)
@pytest.mark.edge(49)
def test_visible_devices(cluster: str, run: Run) -> None:
    if cluster != "T3K":
        pytest.skip("shown where there is something to hide")
    code = """
    made = mesh({device!r}, {visible!r})
    made.open()
    seen(made)
    made.close()
    """
    # A board of a T3K holds two devices.
    for device, visible, grid in [
        ("T3K", "0,1", "(1, 2) (1, 2) 2"),
        ("(1,4)", "0,1", "(1, 4) (1, 4) 4"),
        (None, "0", "(1, 1) (1, 1) 1"),
    ]:
        out = run(
            code.format(device=device, visible=visible), TT_VISIBLE_DEVICES=visible
        )
        assert grid in out
