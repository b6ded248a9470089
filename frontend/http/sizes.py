"""How much a body may hold: what vLLM would take seconds for is refused first.

vLLM reads bodies on the event loop. While it reads one, the heartbeats of the
session wait, and after some seconds of silence a device service ends it with all
requests of this frontend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frontend.http.errors import BadField

MAX_ITEMS = 4096
"""Messages of a chat, items of a response's input: each costs up to 0.2 ms twice."""

MAX_VALUES = 1 << 16
"""Of a field, at all depths, but for numbers in lists of numbers."""

MAX_NUMBERS = 1 << 20
"""Of a field, in lists of numbers: token ids."""

MIN_TEXT, TEXT_PER_TOKEN = 1 << 20, 8
"""Characters of a field: so many, or so many for each token that the model takes."""

MAX_BAD_WORDS, MAX_BAD_TEXT = 1024, 1 << 16
"""vLLM tokenizes each of them twice, on the event loop."""

_NUMBERS = {int, float, bool, type(None)}
_MEDIA = frozenset({"data", "file_data"})
"""Keys of base64, which is not text."""


@dataclass(slots=True)
class Size:
    """What a value holds at all depths."""

    values: int = 0
    numbers: int = 0
    characters: int = 0

    @classmethod
    def of(cls, value: object) -> Size:
        """Count; media in base64 have no characters."""
        size = cls()
        rest = [value]
        while rest:
            size._add(rest.pop(), rest)
        return size

    def _add(self, value: object, rest: list[object]) -> None:
        if isinstance(value, str):
            self.characters += 0 if value.startswith("data:") else len(value)
        elif isinstance(value, dict):
            self.values += len(value)
            self.characters += sum(map(len, value))
            rest.extend(item for key, item in value.items() if key not in _MEDIA)
        elif isinstance(value, list):
            if set(map(type, value)) <= _NUMBERS:
                self.numbers += len(value)
            else:
                self.values += len(value)
                rest.extend(value)


def check_sizes(fields: Mapping[str, object], max_model_len: int) -> None:
    """Raise BadField for what is too much of anything."""
    for name in ("messages", "input"):
        _limit(name, _length(fields.get(name)), MAX_ITEMS, "items")
    words = fields.get("bad_words")
    _limit("bad_words", _length(words), MAX_BAD_WORDS, "words")
    _limit("bad_words", Size.of(words).characters, MAX_BAD_TEXT, "characters")
    max_text = max(MIN_TEXT, TEXT_PER_TOKEN * max_model_len)
    for name, value in fields.items():
        size = Size.of(value)
        _limit(name, size.values, MAX_VALUES, "values")
        _limit(name, size.numbers, MAX_NUMBERS, "numbers")
        _limit(name, size.characters, max_text, "characters")


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def _limit(name: str, count: int, most: int, what: str) -> None:
    if count > most:
        raise BadField(name, f"{name} holds {count} {what}; at most {most} are read")
