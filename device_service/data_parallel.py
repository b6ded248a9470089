"""What `--data-parallel-size` means for a model (contract 2.17).

Some models run it as lanes of one mesh, in one device service. For the others
`tt-serve` starts a device service per group of devices, as planned here; frontends
use them together, and no two of them share anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PretrainedConfig
from vllm.transformers_utils.config import get_config, get_hf_text_config
from vllm.transformers_utils.model_arch_config_convertor import (
    ModelArchConfigConvertorBase,
)

from device_service.config import DeviceConfig, Environment
from device_service.kv.sizing import DEFAULT_HOST_FRACTION
from device_service.mesh.device_groups import DeviceGroup, discover
from device_service.model_source import Progress, find_description
from ttserve.errors import StartupError
from ttserve.service_plan import PlannedService


def lanes_of(config: DeviceConfig, directory: Path) -> int:
    """Lanes of this device service. Raises StartupError where there are none to be.

    directory: the model's.
    """
    size = int(config.engine["data_parallel_size"])
    if size == 1:
        return 1
    model = _model(config, directory)
    architecture = _architecture(model)
    if runs_as_lanes(architecture, config.environment):
        return size
    _refuse_experts(model, size)
    raise StartupError(
        f"--data-parallel-size {size}: {architecture} does not run as lanes of one "
        f"mesh; use tt-serve --data-parallel-size {size}, which starts a device "
        "service per group of devices, or start them yourself as --plan FILE says"
    )


def plan_services(
    config: DeviceConfig, progress: Progress
) -> tuple[PlannedService, ...]:
    """The device services that `--data-parallel-size` takes, in order of their rank.

    Looks for groups of devices on mesh ttnn, which takes seconds; elsewhere there
    are none. Raises StartupError.
    """
    size = int(config.engine["data_parallel_size"])
    model = _model(config, find_description(config, progress))
    if size == 1 or runs_as_lanes(_architecture(model), config.environment):
        return (PlannedService(("--data-parallel-size", str(size))),)
    _refuse_experts(model, size)
    _refuse_fitting(config, size)
    flags = ("--data-parallel-size", "1", *_share(config, size))
    if config.mesh != "ttnn":
        return (PlannedService(flags),) * size
    return tuple(
        PlannedService(flags, group.environment())
        for group in _groups(config, size, progress)
    )


def runs_as_lanes(architecture: str, environment: Environment) -> bool:
    """Whether one mesh runs several lanes of a model."""
    llama = environment.llama_version == "llama3_70b_galaxy"
    qwen3 = environment.qwen3_version == "qwen3_32b_galaxy"
    return (
        (architecture.startswith("Llama") and llama)
        or (architecture.startswith("Qwen3") and qwen3)
        or architecture == "GptOssForCausalLM"
    )


def _groups(
    config: DeviceConfig, size: int, progress: Progress
) -> Sequence[DeviceGroup]:
    visible = config.environment.visible_devices
    if visible is not None:
        # Seen through it, devices have other numbers than for who sees them all.
        raise StartupError(
            f"TT_VISIBLE_DEVICES={visible} contradicts --data-parallel-size {size}, "
            "which gives each device service a group of its own; unset it, and choose "
            "fewer devices with MESH_DEVICE"
        )
    progress(f"looking for {size} groups of devices")
    groups = discover(size, config.environment.mesh_device)
    for rank, group in enumerate(groups):
        rows, columns = group.grid
        ids = ", ".join(map(str, group.device_ids))
        progress(f"device{rank} gets {rows} x {columns}: {ids}")
    return groups


def _refuse_fitting(config: DeviceConfig, size: int) -> None:
    """Frontends want one length of all; free memory gives each service another."""
    fixed = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
    fits = config.engine["max_model_len"] == -1
    if config.mesh == "cpu" and fits and not any(map(config.is_explicit, fixed)):
        raise StartupError(
            f"--max-model-len -1 with --data-parallel-size {size}: each device service "
            "would fit another length to the memory that it finds; give a number, or "
            "set --kv-cache-memory-bytes"
        )


def _share(config: DeviceConfig, size: int) -> tuple[str, ...]:
    """One service's part of what the machine has once."""
    threads = ("--threads", str(max(1, config.threads // size)))
    if config.mesh != "cpu":
        return threads
    fraction = (config.kv_cache_fraction or DEFAULT_HOST_FRACTION) / size
    return (*threads, "--kv-cache-fraction", f"{fraction:.6g}")


def _model(config: DeviceConfig, directory: Path) -> PretrainedConfig:
    return get_config(directory, trust_remote_code=config.engine["trust_remote_code"])


def _architecture(model: PretrainedConfig) -> str:
    return str((model.architectures or [""])[0])


def _refuse_experts(model: PretrainedConfig, size: int) -> None:
    text = get_hf_text_config(model)
    if ModelArchConfigConvertorBase(model, text).get_num_experts():
        raise StartupError(
            f"--data-parallel-size {size}: {_architecture(model)} is a mixture of "
            "experts, which does not run in several device services; leave it out"
        )
