"""In what a device service's model differs from the one that is served."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message

from ttserve.v1.model_pb2 import Model

MOST_NAMED = 4

_MAY_DIFFER = frozenset({"fingerprint", "num_blocks"})


def differences(expected: Model, found: Model) -> str:
    """The first few fields that differ, as `field is X here and Y there`.

    The fingerprint also covers files; where no field differs, those do.
    """
    named = list(_differing(expected, found, ""))
    if not named:
        return "its configuration or tokenizer files differ"
    rest = ", ..." if len(named) > MOST_NAMED else ""
    return ", ".join(named[:MOST_NAMED]) + rest


def _differing(expected: Message, found: Message, path: str) -> Iterator[str]:
    for field in expected.DESCRIPTOR.fields:
        ours, theirs = getattr(expected, field.name), getattr(found, field.name)
        if field.name in _MAY_DIFFER or ours == theirs:
            continue
        name = f"{path}{field.name}"
        if isinstance(ours, Message):
            yield from _differing(ours, theirs, f"{name}.")
        else:
            yield f"{name} is {_short(theirs)} there and {_short(ours)} here"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
