"""Tests against the real `ttnn` package on a cluster that is not there.

They need `ttnn`, and TT_METAL_MOCK_CLUSTER_DESC_PATH naming the description of a
cluster. `ttnn` then opens meshes and sets fabrics and computes nothing, so these
tests show that names, arguments and order are right for the real package. Each
scenario is a process of its own: a fabric that was refused, and the devices that
are visible, stay with a process.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

MOCK = "TT_METAL_MOCK_CLUSTER_DESC_PATH"
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300

Run = Callable[..., str]

PRELUDE = """
import logging, sys
import ttnn
from device_service.mesh.ttnn_mesh import TtnnMesh
from device_service.options import TTOptions
from ttserve.errors import StartupError
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
F = ttnn.FabricConfig

def mesh(mesh_device=None, visible=None, **tt):
    return TtnnMesh(ttnn, TTOptions(**tt), mesh_device, visible)

def seen(made):
    print(made.grid, tuple(made.device.shape), made.device.get_num_devices())
"""


@pytest.fixture(scope="session")
def cluster() -> str:
    """The kind of the mock cluster, a name of ttnn's; skips where there is none."""
    if importlib.util.find_spec("ttnn") is None:
        pytest.skip("the ttnn package is not installed")
    if not os.environ.get(MOCK):
        pytest.skip(f"{MOCK} names no mock cluster; devices are left alone")
    return _run("print(ttnn.cluster.get_cluster_type().name)").split()[-1]


@pytest.fixture
def run(cluster: str) -> Run:
    """Runs a scenario after the prelude; what it wrote to stdout."""
    return _run


def _run(code: str, **environment: str | None) -> str:
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    with tempfile.TemporaryDirectory() as folder:  # ttnn leaves files behind
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
            env={name: value for name, value in given.items() if value is not None},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout
