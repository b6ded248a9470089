"""Which flag goes where.

`tt-serve` takes the flags of both commands. The table beside this file lists
them as their own parsers know them, so a command line can be sorted, and a
typing error refused, without importing what takes seconds to import. A flag
that its command refuses is sorted like any other: the command says why.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ttserve.errors import StartupError
from ttserve.launcher.flag_table import TABLE


class Owner(enum.Enum):
    LAUNCHER = "launcher"
    DEVICE = "device"
    FRONTEND = "frontend"


class Arity(enum.Enum):
    """How many values follow a flag."""

    NONE = "none"
    MAYBE = "maybe"
    ONE = "one"
    SOME = "some"


OWN_FLAGS = {
    "-h": Arity.NONE,
    "--help": Arity.NONE,
    "--version": Arity.NONE,
    "--model": Arity.ONE,
    "--frontends": Arity.ONE,
    "--host": Arity.ONE,
    "--port": Arity.ONE,
    "--grpc-port": Arity.ONE,
    "--data-parallel-size": Arity.ONE,
    "-dp": Arity.ONE,
    "--metrics-port": Arity.ONE,
    "--device-metrics-port": Arity.ONE,
    "--shutdown-timeout": Arity.ONE,
}
# Flags of the two commands that the launcher alone can set, and what to use.
SET_BY_LAUNCHER = {
    "--listen": "use --grpc-port",
    "--shutdown-grace": "use --shutdown-timeout",
    "--device-service": "it starts the device services",
    "--plan": "use --data-parallel-size",
    "--name": "frontends are named frontend0, frontend1, ...",
    "--fd": "use --host and --port",
    "--uds": "use --host and --port",
    "--accept-when-ready": "frontends that start again get it",
}
# Flags that both commands have, and that mean the same to them.
FOR_BOTH = frozenset(
    {
        "--log-format",
        "--enable-log-requests",
        "--no-enable-log-requests",
        "--otlp-traces-endpoint",
    }
)
# Flags with which a command does something else than serve.
ALONE = {"--check": "run tt-device-service --check"}

_KNOWN: dict[str, tuple[Owner, Arity]] = {
    flag: (Owner(owner), Arity(arity))
    for (owner, arity), flags in TABLE.items()
    for flag in flags.split()
} | {flag: (Owner.LAUNCHER, arity) for flag, arity in OWN_FLAGS.items()}

_NEGATIVE_NUMBER = re.compile(r"-\d*\.?\d+$")


@dataclass(frozen=True)
class SortedFlags:
    """A command line by owner, each part in its old order and spelling."""

    positional: list[str] = field(default_factory=list)
    by_owner: dict[Owner, list[str]] = field(
        default_factory=lambda: {owner: [] for owner in Owner}
    )


def sort_flags(argv: Sequence[str]) -> SortedFlags:
    """Give every flag, with its values, to the command it belongs to."""
    result = SortedFlags()
    words = list(argv)
    while words:
        word = words.pop(0)
        if not _looks_like_flag(word):
            result.positional.append(word)
            continue
        flag = _Flag.read(word)
        if flag.name in SET_BY_LAUNCHER:
            advice = SET_BY_LAUNCHER[flag.name]
            raise StartupError(f"tt-serve sets {flag.name} itself: {advice}")
        if flag.name in ALONE:
            raise StartupError(f"tt-serve has no {flag.name}: {ALONE[flag.name]}")
        if flag.name not in _KNOWN:
            raise StartupError(_unknown(flag.name))
        owner, arity = _KNOWN[flag.name]
        given = [word, *_take_values(flag, arity, words)]
        both = (Owner.DEVICE, Owner.FRONTEND)
        for part in both if flag.name in FOR_BOTH else (owner,):
            result.by_owner[part] += given
    return result


@dataclass(frozen=True)
class _Flag:
    """One flag as it was typed: `--a_b`, `--a-b=1`, `--json.key 1`, `-O3`."""

    name: str
    holds_value: bool
    is_dotted: bool

    @classmethod
    def read(cls, word: str) -> _Flag:
        if word.startswith("-O"):
            return cls("--optimization-level", len(word) > 2, is_dotted=False)
        key, equals, _ = word.partition("=")
        base, dot, _ = key.partition(".")
        # Both commands take either spelling of a long flag.
        name = base.replace("_", "-") if base.startswith("--") else base
        return cls(name, bool(equals), bool(dot))


def _take_values(flag: _Flag, arity: Arity, words: list[str]) -> list[str]:
    """Remove the flag's values from the front of `words` and return them."""
    if flag.holds_value:
        return []
    if flag.is_dotted:
        arity = Arity.ONE
    most = {Arity.NONE: 0, Arity.MAYBE: 1, Arity.ONE: 1, Arity.SOME: len(words)}[arity]
    values: list[str] = []
    while words and len(values) < most and not _looks_like_flag(words[0]):
        values.append(words.pop(0))
    if not values and arity in (Arity.ONE, Arity.SOME):
        raise StartupError(f"{flag.name} needs a value")
    return values


def _looks_like_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not _NEGATIVE_NUMBER.match(word)


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, _KNOWN, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"unknown flag {name}{hint}"
