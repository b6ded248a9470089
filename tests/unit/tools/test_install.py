"""What the installer does again, and what it leaves alone; pip itself is not run."""

from __future__ import annotations

import dataclasses
import stat
import threading
from pathlib import Path

import pytest

from tools.install import InstallError, Step, install, plan, read_groups

ROOT = Path(__file__).resolve().parents[3]
STEP = Step("one", "a step", ("pin==1",), "pin==1")
OTHER = Step("two", "another step", ("--no-deps", "other==2"), "other==2")

# Stands for .venv/bin/python: writes down each call of pip, and fails on demand.
FAKE_PYTHON = """\
#!/bin/sh
here=$(dirname "$0")
shift 2
[ "$1" = --version ] && exit 0
echo "$VLLM_TARGET_DEVICE $*" >> "$here/calls"
echo "Collecting something"
[ ! -e "$here/fail" ] || { echo "no such package"; exit 1; }
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment whose Python is the fake one."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE_PYTHON)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "venv"


def calls(venv: Path) -> list[str]:
    """The pip calls so far, without the options common to all."""
    file = venv / "bin" / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.partition("--progress-bar=off ")[2] for line in lines]


def test_a_step_is_run_once(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(venv, [STEP, OTHER])
    assert calls(venv) == ["pin==1", "--no-deps other==2"]
    assert "[1/2] installing a step" in capsys.readouterr().out
    install(venv, [STEP, OTHER])
    assert len(calls(venv)) == 2
    assert capsys.readouterr().out == ""


def test_a_changed_step_alone_is_run_again(venv: Path) -> None:
    install(venv, [STEP, OTHER])
    install(venv, [STEP, dataclasses.replace(OTHER, inputs="other==3")])
    assert calls(venv)[2:] == ["--no-deps other==2"]


def test_after_a_failure_everything_is_put_in_place_again(venv: Path) -> None:
    fail = venv / "bin" / "fail"
    fail.touch()
    with pytest.raises(InstallError, match="no such package"):
        install(venv, [STEP, OTHER])
    fail.unlink()
    install(venv, [STEP, OTHER])
    assert calls(venv) == ["pin==1", "--force-reinstall pin==1", "--no-deps other==2"]
    install(venv, [STEP, OTHER])
    assert len(calls(venv)) == 3


def test_two_at_once_take_turns(venv: Path) -> None:
    threads = [threading.Thread(target=install, args=(venv, [STEP])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls(venv) == ["pin==1"]


def test_vllm_is_built_for_no_device(venv: Path) -> None:
    steps = plan("serve", ROOT / "constraints.txt", ROOT)
    (vllm,) = [step for step in steps if step.name == "vllm"]
    install(venv, [vllm])
    (line,) = (venv / "bin" / "calls").read_text().splitlines()
    assert line.startswith("empty install")
    assert "--no-binary=vllm vllm==0.30.0" in line


def test_serving_needs_no_test_tools() -> None:
    serve = plan("serve", ROOT / "constraints.txt", ROOT)
    test = plan("test", ROOT / "constraints.txt", ROOT)
    assert [step.name for step in test] == [*(step.name for step in serve), "test"]
    assert "pytest" not in "".join(
        step.inputs for step in serve if step.name != "ttserve"
    )


def test_only_torch_is_asked_of_the_second_index() -> None:
    """Out of reach, that index costs seconds for each package."""
    steps = plan("test", ROOT / "constraints.txt", ROOT)
    asking = [step for step in steps if any("index" in word for word in step.arguments)]
    assert [step.name for step in asking] == ["torch"]
    assert asking[0].arguments[-1] == "torch==2.13.0"


def test_groups_are_read_under_their_headings() -> None:
    text = (
        "# why\n\n# [one] first\na==1\nb==2; python_version < '3.11'\n\n# [two]\nc==3\n"
    )
    assert read_groups(text) == {
        "one": ["a==1", "b==2; python_version < '3.11'"],
        "two": ["c==3"],
    }
