"""`python -m device_service.models.probe MODULE:CLASS`: is it a model adapter?

Exit status: 0 when every check passed, 1 when one broke, 2 when the adapter
could not be tried at all.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttserve.environment import prepare_device_service
from ttserve.errors import StartupError

PROGRAM = "python -m device_service.models.probe"
BROKEN_STATUS = 1
USAGE_STATUS = 2

DESCRIPTION = """\
Takes a model adapter through its whole life and holds every call, and every
answer of the adapter, to the model contract (docs/MODEL_CONTRACT.md): loading, KV
cache, warm-up, prefill, decode, readback, and what its model_capabilities
declare: chunks, cached prefixes, sampling and grammar masks on the device.
Requests that run beside others, in chunks or after a preemption must give the
logits that they give alone.

  the generic adapter of the cpu mesh, on a tiny model made for the purpose:
      %(prog)s device_service.models.transformers_adapter:TransformersAdapter
  your own, with a model of yours, traced in decode only:
      %(prog)s my_models.mine:MyForCausalLM --model DIR --trace-mode decode_only

A line per check: ok, BROKEN with the rule that was broken, or - where the adapter
does not declare what the check needs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    # Before vLLM is imported, which the driver's records do.
    prepare_device_service(arguments.model)
    for name in ("VLLM_LOGGING_LEVEL", "TRANSFORMERS_VERBOSITY"):
        os.environ.setdefault(name, "error")  # noqa: TID251 - see above
    try:
        with tempfile.TemporaryDirectory(prefix="ttserve-probe-") as scratch:
            return _probe(arguments, Path(scratch))
    except StartupError as error:
        sys.stderr.write(f"{PROGRAM}: error: {error}\n")
        return USAGE_STATUS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("adapter", metavar="MODULE:CLASS", help="The adapter class.")
    add("--model", metavar="DIR", help="Its model. Unset, a tiny Llama is made.")
    add("--mesh", choices=("cpu", "sim"), default="cpu", help="Default: cpu.")
    add("--rows", type=int, default=4, help="Rows of a lane. Default: 4.")
    add("--lanes", type=int, default=1, help="Default: 1.")
    add("--block-size", type=int, default=16, help="Tokens of a block. Default: 16.")
    add(
        "--max-model-len",
        type=int,
        default=128,
        help="Longest sequence, at least 64 tokens and 3 blocks. Default: 128.",
    )
    add(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="Of weights and KV cache. Default: float32.",
    )
    add(
        "--trace-mode",
        choices=("all", "decode_only", "none"),
        default="all",
        help="Which steps are captured. Default: all.",
    )
    add(
        "--tolerance",
        type=float,
        default=1e-3,
        help="How far probabilities may be apart, from 0 to 1. Default: 0.001; "
        "16-bit types need about 0.05.",
    )
    return parser


def _probe(arguments: argparse.Namespace, scratch: Path) -> int:
    # These import torch and vLLM, which read the environment once.
    import torch
    from transformers.utils.logging import disable_progress_bar

    from device_service.mesh.driver import TraceMode
    from device_service.mesh.factory import make_mesh
    from device_service.models.probe.report import Report, Setup, run_checks
    from device_service.models.probe.synthetic import model_config

    disable_progress_bar()
    adapter = _adapter(arguments.adapter)
    for name, least in (("rows", 1), ("lanes", 1), ("block_size", 1)):
        if getattr(arguments, name) < least:
            raise StartupError(f"--{name.replace('_', '-')} must be at least {least}")
    least = max(64, 3 * arguments.block_size)
    if arguments.max_model_len < least:
        raise StartupError(
            f"--max-model-len must be at least {least} for blocks of "
            f"{arguments.block_size}"
        )
    given = None if arguments.model is None else Path(arguments.model)
    hf_config, directory = model_config(given, scratch)
    mesh = make_mesh(arguments.mesh, {})
    setup = Setup(
        hf_config=hf_config,
        directory=directory,
        dtype=getattr(torch, arguments.dtype),
        rows=arguments.rows,
        lanes=arguments.lanes,
        block_size=arguments.block_size,
        max_model_len=arguments.max_model_len,
        trace_mode=TraceMode(arguments.trace_mode),
        tolerance=arguments.tolerance,
    )
    _tell(
        f"{arguments.adapter} on mesh {arguments.mesh}: {setup.lanes} lane(s) of "
        f"{setup.rows} rows, {setup.max_model_len} tokens in blocks of "
        f"{setup.block_size}, trace mode {arguments.trace_mode}"
    )
    report = Report(_tell)
    mesh.open()
    try:
        run_checks(adapter, mesh, setup, report)
    finally:
        mesh.close()
    _tell(report.summary())
    return BROKEN_STATUS if report.broken else 0


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _adapter(named: str) -> type[Any]:
    """Import MODULE:CLASS. Raises StartupError."""
    module_name, colon, class_name = named.partition(":")
    if not (colon and module_name and class_name):
        raise StartupError(f"{named!r} is not MODULE:CLASS, as my_models.mine:MyModel")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise StartupError(f"{named}: {error}") from None
    if not isinstance(found, type):
        raise StartupError(f"{named} is not a class")
    return found


if __name__ == "__main__":
    sys.exit(main())
