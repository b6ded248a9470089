"""How errors are put to people."""

from __future__ import annotations

_MESSAGE_LIMIT = 400


def one_line(error: BaseException) -> str:
    """What an exception says, in one line of bounded length."""
    listed = getattr(error, "errors", None)
    if callable(listed) and (details := listed()):
        first = details[0]
        where = ".".join(str(part) for part in first.get("loc", ()))
        text = str(first.get("msg", error)).removeprefix("Value error, ")
        text = f"{where}: {text}" if where and where not in text else text
    elif isinstance(error, KeyError) and error.args:
        text = str(error.args[0])  # a KeyError prints its argument in quotes
    else:
        text = str(error) or type(error).__name__
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"
