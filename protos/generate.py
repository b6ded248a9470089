"""Writes ttserve/v1 from protos/ttserve/v1; `--check` only compares.

The generated code is committed, so that installing needs no compiler. Stubs are
kept for the files that hold a service; elsewhere they would be empty modules.
"""

from __future__ import annotations

import filecmp
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
ROOT = PROTOS.parent
PACKAGE = Path("ttserve", "v1")
# What protoc writes into the package; the rest of it is written by hand.
GENERATED = "*_pb2*.py*"


def main(arguments: list[str]) -> int:
    """Generate, or with `--check` say what differs; the exit code tells."""
    if arguments not in ([], ["--check"]):
        print("usage: python protos/generate.py [--check]")
        return 2
    with tempfile.TemporaryDirectory() as directory:
        fresh = generate(Path(directory))
        if arguments:
            return report(drift(fresh, ROOT / PACKAGE))
        replace(fresh, ROOT / PACKAGE)
    return 0


def generate(directory: Path) -> Path:
    """Run protoc into `directory`; return the package in it."""
    sources = sorted((PROTOS / PACKAGE).glob("*.proto"))
    includes = [f"--proto_path={PROTOS}", f"--proto_path={_well_known_types()}"]
    outputs = [f"--{kind}_out={directory}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", *includes, *outputs, *map(str, sources)]) != 0:
        raise SystemExit("protoc failed")
    package = directory / PACKAGE
    for stub in package.glob("*_pb2_grpc.py"):
        if "class " not in stub.read_text():
            stub.unlink()
    return package


def drift(fresh: Path, committed: Path) -> list[str]:
    """Names of generated files that differ, are missing or are left over."""
    names = {file.name for side in (fresh, committed) for file in side.glob(GENERATED)}
    same, _, _ = filecmp.cmpfiles(fresh, committed, names, shallow=False)
    return sorted(names.difference(same))


def replace(fresh: Path, committed: Path) -> None:
    """Put the generated files in place, and remove those of dropped protos."""
    for old in committed.glob(GENERATED):
        old.unlink()
    for new in fresh.glob(GENERATED):
        shutil.copyfile(new, committed / new.name)


def report(names: list[str]) -> int:
    """Say which files have drifted from protos/."""
    for name in names:
        print(f"{PACKAGE / name} is not what protos/ says: run `make proto`")
    return 1 if names else 0


def _well_known_types() -> Path:
    """The google/protobuf/*.proto files that come with grpcio-tools."""
    return Path(protoc.__file__).parent / "_proto"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
