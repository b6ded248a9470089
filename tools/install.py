"""Makes .venv hold what constraints.txt says. Called by `make`; needs no packages.

`python3 tools/install.py serve` installs what serving needs, `... test` that and
the tools of tests and checks. A group whose pins have not changed costs nothing.
Two calls at once take turns, and a call that was killed is taken up by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
SUPPORTED = ((3, 11), (3, 13))
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
REPORT_SECONDS = 5.0

SERVE = ("build", "torch", "vllm", "serve", "ttserve")
TARGETS = {"serve": SERVE, "test": (*SERVE, "test")}


class InstallError(Exception):
    """Printed as one message; exit status 1."""


@dataclass(frozen=True)
class Step:
    """One call of pip. `inputs` is what makes it necessary when it changes."""

    name: str
    title: str
    arguments: tuple[str, ...]
    inputs: str
    environment: Mapping[str, str] = field(default_factory=dict)


def read_groups(text: str) -> dict[str, list[str]]:
    """The pins under each `# [name]` heading of constraints.txt, in order."""
    groups: dict[str, list[str]] = {}
    for line in text.splitlines():
        heading = re.match(r"# \[(\w+)\]", line)
        if heading:
            groups[heading[1]] = []
        elif line and not line.startswith("#"):
            groups[next(reversed(groups))].append(line)
    return groups


def plan(target: str, constraints: Path, project: Path) -> list[Step]:
    """The steps of a target, in the order in which they must run."""
    groups = read_groups(constraints.read_text())
    steps = {
        "build": _pins("build", groups["build"], "what torch and building vLLM need"),
        "torch": _torch(groups["torch"], constraints),
        "vllm": _vllm(groups["vllm"]),
        "serve": _pins("serve", groups["serve"], "vLLM's requirements and ours"),
        "ttserve": _ttserve(project),
        "test": _pins("test", groups["test"], "tools for tests and checks"),
    }
    return [steps[name] for name in TARGETS[target]]


def _torch(pins: Sequence[str], constraints: Path) -> Step:
    # Alone, because an index that is out of reach costs ten seconds per package.
    # With dependencies, because without that index pip takes the build it finds,
    # which may need more than the CPU build, all of whose needs are there by now.
    return Step(
        "torch",
        "torch for the CPU (about 200 MB)",
        (
            f"--extra-index-url={TORCH_CPU_INDEX}",
            "--retries=2",
            f"--constraint={constraints}",
            *pins,
        ),
        "\n".join(pins),
    )


def _vllm(pins: Sequence[str]) -> Step:
    # Built for no device: the wheels bring CUDA. pip would take a wheel that
    # somebody built for another device from its cache, and leave ours in it.
    build = ("--no-cache-dir", "--no-deps", "--no-build-isolation", "--no-binary=vllm")
    environment = {
        "VLLM_TARGET_DEVICE": "empty",
        "VLLM_VERSION_OVERRIDE": pins[0].partition("==")[2],
        # Optional Rust parts would take minutes where there is a compiler.
        "CARGO": "no-cargo",
    }
    return Step(
        "vllm",
        "vLLM from its source, for no device (about 45 MB)",
        (*build, *pins),
        "\n".join(pins),
        environment,
    )


def _pins(name: str, pins: Sequence[str], title: str) -> Step:
    # The list is complete; left to itself pip would add CUDA's compilers.
    options = ("--no-deps", "--no-build-isolation")
    return Step(
        name, f"{title}: {len(pins)} packages", (*options, *pins), "\n".join(pins)
    )


def _ttserve(project: Path) -> Step:
    options = ("--no-deps", "--no-build-isolation", "--editable", os.fspath(project))
    inputs = (project / "pyproject.toml").read_text() + os.fspath(project)
    return Step("ttserve", "ttserve itself, from this directory", options, inputs)


def install(venv: Path, steps: Sequence[Step]) -> None:
    """Bring `venv` up to date; prints nothing if it is."""
    with _locked(venv.with_name(f"{venv.name}.lock")):
        if not _works(venv):
            _create(venv)
        stamps = venv / "installed"
        stamps.mkdir(exist_ok=True)
        due = [step for step in steps if _read(_done(stamps, step)) != _digest(step)]
        for number, step in enumerate(due, start=1):
            _say(f"[{number}/{len(due)}] installing {step.title}")
            _run_step(venv, stamps, step)


def _run_step(venv: Path, stamps: Path, step: Step) -> None:
    """Run pip, with a stamp before and one after.

    A package that a killed pip has half written looks installed to the next one,
    so a step that was begun and not ended puts everything in place again.
    """
    begun, done = stamps / f"{step.name}.begun", _done(stamps, step)
    again = ("--force-reinstall",) if begun.exists() else ()
    done.unlink(missing_ok=True)
    begun.touch()
    started = time.monotonic()
    _pip(venv, (*again, *step.arguments), step.environment)
    done.write_text(_digest(step))
    begun.unlink()
    _say(f"      done in {time.monotonic() - started:.0f} s")


def _pip(venv: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    command = [
        *(os.fspath(venv / "bin" / "python"), "-m", "pip", "install"),
        *("--disable-pip-version-check", "--no-input", "--progress-bar=off"),
        *arguments,
    ]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **environment},
        close_fds=False,
    ) as process:
        assert process.stdout is not None
        lines = _follow(process.stdout, _reporter())
    if process.returncode != 0:
        raise InstallError("pip failed; its last words:\n" + "".join(lines[-30:]))


def _follow(output: Iterator[str], report: Callable[[str], None]) -> list[str]:
    lines = []
    for line in output:
        lines.append(line)
        if line.startswith(("Collecting", "  Downloading", "Building", "Installing")):
            report(line.strip())
    return lines


def _reporter() -> Callable[[str], None]:
    """Prints at most one of pip's lines every few seconds."""
    last = time.monotonic()

    def report(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_SECONDS:
            last = time.monotonic()
            _say(f"      {line[:100]}")

    return report


def _works(venv: Path) -> bool:
    """Whether a previous `_create` came to its end, and the Python still exists."""
    try:
        command = [os.fspath(venv / "bin" / "python"), "-m", "pip", "--version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _create(venv: Path) -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    if not SUPPORTED[0] <= sys.version_info[:2] <= SUPPORTED[1]:
        raise InstallError(
            f"ttserve needs Python 3.11 to 3.13, and this is {version}; "
            "name another one, as in `make serve PYTHON=python3.11`"
        )
    _say(f"creating {venv.name} with Python {version}")
    if venv.exists():
        shutil.rmtree(venv)
    result = subprocess.run(
        [sys.executable, "-m", "venv", os.fspath(venv)],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise InstallError(f"python3 -m venv failed:\n{result.stdout}{result.stderr}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another installation is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        # pip inherits it, and so holds the lock if only this process is killed.
        os.set_inheritable(file.fileno(), True)
        yield


def _done(stamps: Path, step: Step) -> Path:
    return stamps / step.name


def _read(stamp: Path) -> str:
    return stamp.read_text() if stamp.exists() else ""


def _digest(step: Step) -> str:
    recipe = "\0".join([*step.arguments, step.inputs, repr(step.environment)])
    return hashlib.sha256(recipe.encode()).hexdigest()


def _say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Install the target named by the one argument."""
    if len(arguments) != 1 or arguments[0] not in TARGETS:
        _say(f"usage: python3 tools/install.py {'|'.join(TARGETS)}")
        return 2
    try:
        install(VENV, plan(arguments[0], ROOT / "constraints.txt", ROOT))
    except InstallError as error:
        _say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
