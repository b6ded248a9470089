"""Groups of devices on each mock cluster, found by a process of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., str]

# tt-metal's checkout is not there: its function, in few words.
SUBMESHES = """
import pathlib
pathlib.Path("models/tt_transformers/tt").mkdir(parents=True)
pathlib.Path("models/tt_transformers/tt/generator.py").write_text(
    "import ttnn\\n"
    "def create_submeshes(mesh, count):\\n"
    "    rows, columns = mesh.shape\\n"
    "    shape = ttnn.MeshShape(1, rows * columns // count)\\n"
    "    return mesh.create_submeshes(shape)\\n"
)
sys.path.insert(0, ".")
from device_service.mesh.device_groups import discover
"""
DISCOVER = (
    SUBMESHES
    + """
try:
    for group in discover({count}, {device!r}):
        print("group", *group.environment().values())
except StartupError as error:
    print("refused:", error)
"""
)

T3K = {
    2: ["4,0,2,6 (1,4)", "7,3,1,5 (1,4)"],
    4: ["4,0 (1,2)", "2,6 (1,2)", "7,3 (1,2)", "1,5 (1,2)"],
}
# The rows of its 4 x 8 grid, in the order 0, 2, 3, 1.
GALAXY = [
    "0,4,8,12,13,9,5,1 (1,8)",
    "18,22,26,30,31,27,23,19 (1,8)",
    "2,6,10,14,15,11,7,3 (1,8)",
    "16,20,24,28,29,25,21,17 (1,8)",
]


def groups(out: str) -> list[str]:
    lines = [line for line in out.splitlines() if line.startswith("group ")]
    return [line.removeprefix("group ") for line in lines]


@pytest.mark.feature(93)
@pytest.mark.parametrize("count", [2, 4])
def test_groups_of_a_t3k(cluster: str, run: Run, count: int) -> None:
    if cluster != "T3K":
        pytest.skip("the devices of a T3K are listed")
    assert groups(run(DISCOVER.format(count=count, device="T3K"))) == T3K[count]


@pytest.mark.feature(94)
def test_groups_of_a_galaxy(cluster: str, run: Run) -> None:
    if cluster != "GALAXY":
        pytest.skip("the devices of a Galaxy are listed")
    assert groups(run(DISCOVER.format(count=4, device="TG"))) == GALAXY


@pytest.mark.feature(93)
@pytest.mark.parametrize("count", [3, 8])
def test_groups_that_cannot_be(cluster: str, run: Run, count: int) -> None:
    if cluster != "T3K":
        pytest.skip("shown where there are devices without a host link")
    out = run(DISCOVER.format(count=count, device=None))
    assert "refused: " in out
    says = {3: "made 4 groups of devices for 3", 8: "no device that the host"}
    assert says[count] in out


@pytest.mark.edge(49, 50)
@pytest.mark.feature(95, 96)
@pytest.mark.parametrize("group", [0, 1])
def test_a_group_opens_as_what_was_found(cluster: str, run: Run, group: int) -> None:
    if cluster != "T3K":
        pytest.skip("shown where there is something to hide")
    visible, grid = T3K[2][group].split()
    code = """
    made = mesh({grid!r}, {visible!r})
    made.open()
    seen(made)
    made.close()
    """
    out = run(code.format(grid=grid, visible=visible), TT_VISIBLE_DEVICES=visible)
    assert "(1, 4) (1, 4) 4" in out
