"""The `tt` options: what `--additional-config '{"tt": {...}}'` may say.

The names, values and defaults are those of the Tenstorrent plugin for vLLM, so
a launch line carries over. One field is one option; its `Option` says what the
value must be, what it does and whether only hardware has a use for it. Help
texts, docs/OPTIONS.md and the checks are made from the same entries.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ttserve.errors import StartupError

MeshKind = Literal["cpu", "sim", "ttnn"]
SampleOnDeviceMode = Literal["all", "decode_only"]
TraceMode = Literal["all", "decode_only", "none"]

MESH_KINDS: tuple[MeshKind, ...] = ("cpu", "sim", "ttnn")

SEVERAL_HOSTS = frozenset(
    {
        "rank_binding",
        "mpi_args",
        "extra_ttrun_args",
        "config_pkl_dir",
        "env_passthrough",
    }
)
"""Options of the plugin's launcher that starts a model over hosts by MPI."""


@dataclass(frozen=True, slots=True)
class Option:
    """What an option accepts, in words and as a test, and what it does."""

    expected: str
    accepts: Callable[[object], bool]
    help: str
    hardware_only: bool = False


def _choice(*names: str) -> tuple[str, Callable[[object], bool]]:
    words = " or ".join(f'"{name}"' for name in names)
    return words, lambda value: isinstance(value, str) and value in names


def _boolean() -> tuple[str, Callable[[object], bool]]:
    return "true or false", lambda value: isinstance(value, bool)


def _integer(least: int) -> tuple[str, Callable[[object], bool]]:
    def accepts(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return f"a whole number, at least {least}", accepts


def _name() -> tuple[str, Callable[[object], bool]]:
    return "a name", lambda value: isinstance(value, str) and value.isidentifier()


def _object() -> tuple[str, Callable[[object], bool]]:
    return "an object", lambda value: isinstance(value, Mapping)


def _option(
    default: Any,
    rule: tuple[str, Callable[[object], bool]],
    text: str,
    *,
    hardware_only: bool = False,
) -> Any:
    expected, accepts = rule
    option = Option(expected, accepts, text, hardware_only)
    return dataclasses.field(default=default, metadata={"option": option})


@dataclass(frozen=True, slots=True, kw_only=True)
class TTOptions:
    """The `tt` options of one launch. None means: not set, the mesh decides."""

    mesh: MeshKind | None = _option(
        None, _choice(*MESH_KINDS), "Mesh that runs the model; same as `--mesh`."
    )
    sim: Mapping[str, Any] | None = _option(
        None,
        _object(),
        "Latency profile of the `sim` mesh: `decode_ms`, `prefill_ms`, "
        "`prefill_us_per_token`, and faults.",
    )
    sample_on_device_mode: SampleOnDeviceMode | None = _option(
        None,
        _choice("all", "decode_only"),
        "Sample on the device: all tokens, or those of decode steps. "
        "Unset means on the host.",
    )
    seeded_sampling_policy: Literal["auto", "host"] = _option(
        "auto",
        _choice("auto", "host"),
        "`host` samples every step that holds a seeded request on the host.",
    )
    always_compat_sampling: bool = _option(
        False, _boolean(), "Always sample with vLLM's sampler. Only false is served."
    )
    trace_mode: TraceMode = _option(
        "all",
        _choice("all", "decode_only", "none"),
        "Steps that run from a captured trace. `none` also ends decode overlap.",
    )
    enable_model_warmup: bool = _option(
        True, _boolean(), "Run every servable shape once before SERVING."
    )
    decode_interleave_enabled: bool = _option(
        True, _boolean(), "Insert decode steps into a run of prefill steps."
    )
    decode_interleave_prefill_steps: int = _option(
        2, _integer(1), "Consecutive prefill steps before one insertion."
    )
    decode_interleave_decode_steps: int = _option(
        1, _integer(1), "Decode steps that one insertion runs."
    )
    register_test_models: bool = _option(
        False, _boolean(), "Register tt-metal's models for tests. Only on hardware."
    )
    optimizations: Literal["performance", "accuracy"] | None = _option(
        None,
        _choice("performance", "accuracy"),
        "Optimization profile that the model adapter is built with.",
        hardware_only=True,
    )
    trace_region_size: int | None = _option(
        None,
        _integer(0),
        "Bytes of device memory for traces. Unset means 50000000 when tracing.",
        hardware_only=True,
    )
    worker_l1_size: int | None = _option(
        None, _integer(0), "Bytes of L1 per worker core.", hardware_only=True
    )
    l1_small_size: int | None = _option(
        None, _integer(0), "Bytes of the small L1 region.", hardware_only=True
    )
    fabric_config: str | None = _option(
        None,
        _name(),
        "Any name of ttnn.FabricConfig. Overrides the model's own.",
        hardware_only=True,
    )
    fabric_reliability_mode: str | None = _option(
        None,
        _name(),
        "Any name of ttnn.FabricReliabilityMode. Unset means STRICT_INIT.",
        hardware_only=True,
    )
    dispatch_core_axis: Literal["row", "col"] | None = _option(
        None,
        _choice("row", "col"),
        "Axis along which dispatch cores lie.",
        hardware_only=True,
    )

    def hardware_only(self) -> list[str]:
        """Names of the options set here that only hardware has a use for."""
        return [
            name
            for name, option in catalogue().items()
            if option.hardware_only and getattr(self, name) is not None
        ]


def catalogue() -> dict[str, Option]:
    """Every option by name, in the order in which people read about them."""
    return {
        field.name: field.metadata["option"] for field in dataclasses.fields(TTOptions)
    }


def defaults() -> dict[str, object]:
    """The default of every option."""
    return {field.name: field.default for field in dataclasses.fields(TTOptions)}


def parse_tt_options(additional_config: object) -> TTOptions:
    """Read the `tt` object; an unknown name or a wrong type is an error."""
    if not isinstance(additional_config, Mapping):
        raise StartupError(
            f"--additional-config: {additional_config!r} is not a JSON object, such as "
            '\'{"tt": {"mesh": "cpu"}}\''
        )
    for key in additional_config:
        if key != "tt":
            raise StartupError(
                f"--additional-config: unknown key {key!r}; "
                'the only one is "tt", as in \'{"tt": {"mesh": "cpu"}}\''
            )
    values = additional_config.get("tt", {})
    if not isinstance(values, Mapping):
        raise StartupError(
            '--additional-config: "tt" must be an object, '
            f'not {values!r}: \'{{"tt": {{"mesh": "cpu"}}}}\''
        )
    known = catalogue()
    for name, value in values.items():
        _check(str(name), value, known)
    return TTOptions(**values)


def _check(name: str, value: object, known: Mapping[str, Option]) -> None:
    option = known.get(name)
    if name in SEVERAL_HOSTS:
        raise StartupError(
            f"--additional-config: tt option {name} is not implemented: MPI does not "
            "start device services; start one on each host, and give frontends all of "
            "them: tt-frontend --device-service hostA:50051,hostB:50051"
        )
    if option is None:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise StartupError(
            f"--additional-config: unknown tt option {name!r}; "
            f"{hint}known are {', '.join(known)}"
        )
    unset = value is None and defaults()[name] is None
    if not unset and not option.accepts(value):
        raise StartupError(
            f"--additional-config: tt option {name} must be {option.expected}, "
            f"not {value!r}"
        )
