"""Finds the adapter class of an architecture (contract 2.19).

Frontends and vLLM know the upstream architecture names; the TT-prefixed names
of the model contract are made here and never leave the device service. The first
that has a name serves it:

    TT_MODEL_CLASS_OVERRIDES   Arch=module.path:Class, comma-separated; on any mesh
    EXTRA_MODELS_DIR           bundles, in the order of their folders' names
    built-in table             tt-metal's; TT_VLLM_BUILTIN_MODELS=0 turns it off

The last two name hardware adapters. On the `cpu` mesh one adapter over transformers
serves every architecture instead, on `sim` a simulated one.
"""

from __future__ import annotations

import enum
import importlib
import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from device_service.models import builtin
from device_service.models.bundles import is_class_path, read_bundles
from device_service.wording import one_line
from ttserve.errors import StartupError

if TYPE_CHECKING:
    from device_service.config import Environment

logger = logging.getLogger(__name__)

TT_PREFIX = "TT"


class Origin(enum.Enum):
    """Who named an adapter class, in words."""

    OVERRIDE = "TT_MODEL_CLASS_OVERRIDES"
    BUNDLE = "EXTRA_MODELS_DIR"
    BUILT_IN = "the built-in table"


@dataclass(frozen=True, slots=True)
class Target:
    """An adapter class that has not been imported: `module.path:ClassName`."""

    path: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class AdapterRegistry:
    """The adapters of one launch, by TT-prefixed architecture. Equal launches have
    equal registries.

    `folders` are those of bundles. `notes` and `warnings` are for the log.
    """

    targets: Mapping[str, Target]
    folders: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        """The upstream names, without TT."""
        return tuple(name.removeprefix(TT_PREFIX) for name in self.targets)

    def activate(self) -> None:
        """Make bundles importable, and log what was chosen.

        Folders go to the end of the import path, so an installed package of the
        same name wins. Twice does no more than once.
        """
        for folder in map(str, self.folders):
            if folder not in sys.path:
                sys.path.append(folder)
        for note in self.notes:
            logger.info("%s", note)
        for warning in self.warnings:
            logger.warning("%s", warning)


HOST_ADAPTERS = AdapterRegistry(MappingProxyType({}))
"""Nobody named an adapter: only the host meshes have theirs."""


def adapter_registry(
    environment: Environment, *, test_models: bool = False
) -> AdapterRegistry:
    """What the environment asks for; reads directories, imports nothing.

    `test_models` adds tt-metal's models without weights. Raises StartupError for
    an unknown version and for a malformed override.
    """
    overrides = _overrides(environment.model_class_overrides)
    bundles = read_bundles(environment.extra_models_dir)
    targets = {name: Target(path, Origin.OVERRIDE) for name, path in overrides.items()}
    folders, notes, warnings = [], _applied(overrides), list(bundles.warnings)
    for bundle in bundles.found:
        name = tt_name(bundle.architecture)
        if name in targets:
            warnings.append(
                f"bundle {bundle.folder.name}: {name} is already served by "
                f"{targets[name].path} of {targets[name].origin.value}; bundle skipped"
            )
            continue
        targets[name] = Target(bundle.path, Origin.BUNDLE)
        folders.append(bundle.folder)
        notes.append(f"bundle {bundle.folder.name}: {name} -> {bundle.path}")
    for name, path in _built_in(environment, test_models=test_models):
        targets.setdefault(tt_name(name), Target(path, Origin.BUILT_IN))
    return AdapterRegistry(
        MappingProxyType(targets), tuple(folders), tuple(notes), tuple(warnings)
    )


def resolve_adapter(
    architecture: str, mesh_kind: str, registry: AdapterRegistry = HOST_ADAPTERS
) -> type[Any]:
    """The adapter class that serves `architecture` on a mesh of `mesh_kind`.

    Imports its module, for hardware that of tt-metal. Does not open the mesh or
    load weights. Raises StartupError.
    """
    target = registry.targets.get(tt_name(architecture))
    if target and (mesh_kind == "ttnn" or target.origin is Origin.OVERRIDE):
        return _load(architecture, target)
    if mesh_kind == "cpu":
        from device_service.models.refusals import refuse_architecture
        from device_service.models.transformers_adapter import TransformersAdapter

        refuse_architecture(architecture.removeprefix(TT_PREFIX))
        return TransformersAdapter
    if mesh_kind == "sim":
        from device_service.models.sim_adapter import SimAdapter

        return SimAdapter
    raise StartupError(
        f"no adapter serves {tt_name(architecture)} on mesh {mesh_kind}; known are "
        f"{', '.join(sorted(registry.targets))}. Name one of your own in "
        "TT_MODEL_CLASS_OVERRIDES or EXTRA_MODELS_DIR"
    )


def tt_name(architecture: str) -> str:
    """The name of the model contract; one that has the prefix keeps it."""
    return TT_PREFIX + architecture.removeprefix(TT_PREFIX)


def _overrides(value: str | None) -> dict[str, str]:
    """`Arch=module.path:Class,...` by TT-prefixed architecture."""
    found: dict[str, str] = {}
    for entry in filter(None, map(str.strip, (value or "").split(","))):
        name, _, path = (part.strip() for part in entry.partition("="))
        if not name.isidentifier() or not is_class_path(path):
            raise StartupError(
                f"TT_MODEL_CLASS_OVERRIDES: {entry!r} is not "
                "Architecture=module.path:ClassName"
            )
        if found.setdefault(tt_name(name), path) != path:
            raise StartupError(
                f"TT_MODEL_CLASS_OVERRIDES names {tt_name(name)} twice; leave out "
                f"{found[tt_name(name)]} or {path}"
            )
    return found


def _applied(overrides: Mapping[str, str]) -> list[str]:
    return [
        f"Applied TT_MODEL_CLASS_OVERRIDES: {name} -> {path}"
        for name, path in overrides.items()
    ]


def _built_in(
    environment: Environment, *, test_models: bool
) -> Iterable[tuple[str, str]]:
    versions = (
        (builtin.LLAMA, environment.llama_version),
        (builtin.QWEN3, environment.qwen3_version),
        (builtin.QWEN35, environment.qwen35_version),
    )
    chosen = {family.architecture: family.choose(value) for family, value in versions}
    if environment.builtin_models:
        yield from chosen.items()
        yield from builtin.MODELS.items()
    yield from builtin.ALWAYS.items()
    if test_models:
        yield from builtin.TEST_MODELS.items()


def _load(architecture: str, target: Target) -> type[Any]:
    """Import a class. An adapter's module may raise whatever it likes."""
    module, _, name = target.path.partition(":")
    where = f"{tt_name(architecture)}: {target.path} of {target.origin.value}"
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        hint = "; is tt-metal on PYTHONPATH?" if isinstance(error, ImportError) else ""
        raise StartupError(
            f"{where} cannot be imported: {one_line(error)}{hint}"
        ) from error
    if not isinstance(found, type):
        raise StartupError(f"{where} is not a class")
    return found
