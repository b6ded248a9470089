"""Writes ttserve/launcher/flag_table.py: which command owns which flag.

    python tools/flag_table.py            write it anew
    python tools/flag_table.py --check    fail when it is out of date

It is read from the parsers of the two commands and of vLLM, which take seconds
to import; `tt-serve` reads the table instead.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from ttserve.environment import prepare_device_service

TABLE = Path(__file__).parents[1] / "ttserve" / "launcher" / "flag_table.py"
HEAD = '''\
"""Which command owns which flag, and how many values follow it.

Written by tools/flag_table.py from the parsers themselves; do not edit.
"""

TABLE: dict[tuple[str, str], str] = {
'''


def arity(action: argparse.Action) -> str:
    """The value of `ttserve.launcher.flags.Arity` that describes the action."""
    match action.nargs:
        case 0:
            return "none"
        case None:
            return "one"
        case "?":
            return "maybe"
        case "+":
            return "some"
    raise ValueError(f"{action.option_strings[0]} takes {action.nargs} values")


def actions(parser: argparse.ArgumentParser) -> Iterable[argparse.Action]:
    # argparse has no public way to list what was added.
    return [a for a in parser._actions if a.option_strings]  # noqa: SLF001


def owners() -> dict[str, tuple[str, str]]:
    """Flag → (owner, arity).

    A flag that the frontend accepts is the frontend's. One that neither accepts
    goes to the command that can say why: the one whose parser knows it.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from device_service.arguments import make_parser as device_parser
    from frontend import command_line, options

    frontends = options.ACCEPTED.keys() | options.EARLY
    table: dict[str, tuple[str, str]] = {}
    for action in actions(make_arg_parser(FlexibleArgumentParser())):
        for flag in action.option_strings:
            table[flag] = ("frontend", arity(action))
    for action in actions(device_parser()):
        if action.dest not in frontends:
            for flag in action.option_strings:
                table[flag] = ("device", arity(action))
    for action in actions(command_line.parser()):
        for flag in action.option_strings:
            table[flag] = ("frontend", arity(action))
    return table


def render() -> str:
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for flag, group in owners().items():
        groups[group].append(flag)
    entries = [
        f'    ("{owner}", "{values}"): """\n'
        + textwrap.fill(" ".join(sorted(flags)), 84, break_on_hyphens=False)
        + '\n""",\n'
        for (owner, values), flags in sorted(groups.items())
    ]
    return HEAD + "".join(entries) + "}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    wants_check = parser.parse_args().check
    prepare_device_service(None)
    table = render()
    if not wants_check:
        TABLE.write_text(table)
    elif TABLE.read_text() != table:
        sys.exit(f"{TABLE.name} is out of date: run python tools/flag_table.py")


if __name__ == "__main__":
    main()
