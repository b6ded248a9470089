"""Writes docs/OPTIONS.md: what `tt-device-service` takes, from the code itself.

python tools/options_doc.py            write it anew
python tools/options_doc.py --check    fail when it is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from ttserve.environment import prepare_device_service

DOCUMENT = Path(__file__).parents[1] / "docs" / "OPTIONS.md"
HEAD = """\
# Options of tt-device-service

Written by tools/options_doc.py from the code; do not edit.

An option that was set and cannot be honoured is an error at start, in one line
that says what to do instead. A default that the model cannot have is adjusted,
and the block that is printed at start says so.
"""
ENVIRONMENT = (
    (
        "MESH_DEVICE",
        "Grid of the mesh: a product name such as T3K, or `(1,8)`. Unset means one "
        "row of all devices on hardware, one device elsewhere.",
    ),
    (
        "TT_VISIBLE_DEVICES",
        "Devices that `ttnn` may use, comma-separated. A grid that does not cover "
        "them becomes one row of them.",
    ),
    (
        "TT_LLAMA_TEXT_VER",
        "Version of tt-metal's Llama adapter: `tt_transformers` (unset), "
        "`llama3_70b_galaxy`, `llama2_70b` or `llama31_8b_qb2`. `llama3_70b_galaxy` "
        "runs `--data-parallel-size` as lanes, on any mesh.",
    ),
    (
        "TT_QWEN3_TEXT_VER",
        "Version of tt-metal's Qwen3 adapter: `tt_transformers` (unset) or "
        "`qwen3_32b_galaxy`, which runs `--data-parallel-size` as lanes, on any mesh.",
    ),
    (
        "TT_QWEN35_TEXT_VER",
        "Version of tt-metal's Qwen3.5 adapter: `qwen36_blackhole` (unset).",
    ),
    (
        "TT_MODEL_CLASS_OVERRIDES",
        "`Architecture=module.path:Class`, comma-separated: adapters that serve these "
        "architectures, before all others.",
    ),
    (
        "EXTRA_MODELS_DIR",
        "Directory of adapters for hardware, a folder each with `vllm_metadata.json`.",
    ),
    (
        "TT_VLLM_BUILTIN_MODELS",
        "0, false, no or off leaves out the table of tt-metal's adapters.",
    ),
    (
        "TTSERVE_GRPC_TOKEN",
        "A token, instead of `--grpc-token-file`. `tt-frontend` sends the same one.",
    ),
    ("TTSERVE_INSPECTOR_TOKEN", "A token, instead of `--inspector-token-file`."),
    ("TTSERVE_STEP_CONTROL_TOKEN", "A token, instead of `--step-control-token-file`."),
    ("XDG_CACHE_HOME", "Where the default model is kept, under `ttserve`."),
    ("VLLM_LOGGING_LEVEL", "What vLLM itself logs. Unset means ERROR."),
    ("HF_HUB_OFFLINE", "0 lets a local model use the hub. Unset means 1 for those."),
)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows] + [""]


def own_options() -> list[str]:
    from device_service.arguments import make_parser, own_options

    rows = [
        (f"`{action.option_strings[0]}`", default(action.default), action.help or "")
        for action in own_options(make_parser())
    ]
    return ["## ttserve options", "", *table(("option", "default", "meaning"), rows)]


def tt_options() -> list[str]:
    from device_service.options import catalogue, defaults

    preset = defaults()
    rows = [
        (
            f"`{name}`",
            option.expected,
            default(preset[name]),
            option.help + (" Hardware only." if option.hardware_only else ""),
        )
        for name, option in catalogue().items()
    ]
    return [
        "## tt options",
        "",
        '`--additional-config \'{"tt": {"NAME": VALUE}}\'`, or one by one: '
        "`--additional-config.tt.NAME VALUE`.",
        "",
        *table(("option", "takes", "default", "meaning"), rows),
    ]


def engine_options() -> list[str]:
    from device_service.arguments import engine_groups, make_parser
    from device_service.engine_flags import REFUSED, SERVED, flag

    served = [
        (title, " ".join(f"`{flag(field)}`" for field in sorted(fields & SERVED)))
        for title, fields in engine_groups(make_parser())
        if fields & SERVED
    ]
    refused = [
        (
            reason,
            " ".join(f"`{flag(f)}`" for f in sorted(REFUSED) if REFUSED[f] == reason),
        )
        for reason in dict.fromkeys(REFUSED.values())
    ]
    return [
        "## vLLM engine options",
        "",
        "They keep their names and meanings; `tt-device-service --help=NAME` explains "
        "one. Defaults differ for two: `--max-num-seqs` is 32, `--block-size` 64.",
        "",
        *table(("group", "served"), served),
        "Refused when set to anything but vLLM's default:",
        "",
        *table(("because", "options"), refused),
    ]


def checks() -> list[str]:
    from device_service.startup_checks import ADJUSTMENTS, LAUNCH_CHECKS, MODEL_CHECKS

    rejected = [(check.name, check.say) for check in (*LAUNCH_CHECKS, *MODEL_CHECKS)]
    adjusted = [(a.name, a.say) for a in ADJUSTMENTS if a.say]
    return [
        "## Checks at start",
        "",
        "Nothing is opened before all of these have passed. Braces stand for what was "
        "given, or for what the model is.",
        "",
        *table(("rejected", "message"), rejected),
        *table(("adjusted", "note in the block that is printed at start"), adjusted),
    ]


def default(value: object) -> str:
    if value is None:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def render() -> str:
    lines = [HEAD, *own_options(), *tt_options(), *engine_options(), *checks()]
    rows = [(f"`{name}`", meaning) for name, meaning in ENVIRONMENT]
    lines += ["## Environment", "", *table(("variable", "meaning"), rows)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    wants_check = parser.parse_args().check
    prepare_device_service(None)
    text = render()
    if not wants_check:
        DOCUMENT.write_text(text)
    elif not DOCUMENT.is_file() or DOCUMENT.read_text() != text:
        sys.exit("docs/OPTIONS.md is out of date: run python tools/options_doc.py")


if __name__ == "__main__":
    main()
