"""Secrets that open something: API keys and the tokens of the gRPC port.

They come from a file, one a line, or from the environment or a command line.
Several are valid at a time, so that one can be replaced without a gap: add the
new one, change the callers, remove the old one. A file is read again when it
changes, a pipe once. Nothing here shows a secret: not in `repr`, not in an error.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ttserve.errors import StartupError

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20
_USABLE = re.compile(r"[\x21-\x7e]+")
_Stamp = tuple[int, int, int]


class Tokens:
    """What is accepted, or presented. Empty means: nothing is asked for.

    Any thread. `source` names the option or variable in messages.
    """

    def __init__(
        self, values: Iterable[str] = (), *, file: Path | None = None, source: str = ""
    ) -> None:
        self._file = file
        self._source = source
        self._stamp: _Stamp | None = None
        self._values: tuple[str, ...] = ()
        self._digests: tuple[bytes, ...] = ()
        self._complained: _Stamp | None = None
        if file is None:
            self._start(source, lambda: self._take([v for v in values if v]))
        else:
            self._start(f"{source} {file}", lambda: self._read(file))

    def __repr__(self) -> str:
        return f"<{len(self._values)} secrets>"

    def __bool__(self) -> bool:
        return bool(self._values)

    def accept(self, given: str) -> bool:
        """Whether it is one of them. Takes as long for any that is not."""
        self._refresh()
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)

    def newest(self) -> str | None:
        """The last one, which is what to present to others; None if there is none."""
        self._refresh()
        return self._values[-1] if self._values else None

    def _start(self, where: str, read: Callable[[], None]) -> None:
        try:
            read()
        except (OSError, ValueError) as error:
            raise StartupError(f"{where}: {_why(error)}") from error

    def _refresh(self) -> None:
        """Read the file again if it has changed; keep what is known if it is bad."""
        if self._file is None:
            return
        stamp: _Stamp | None = None
        try:
            stamp = _stamp_of(self._file)
            if stamp not in (self._stamp, self._complained):
                self._read(self._file)
                logger.info("%s %s was read again", self._source, self._file)
        except (OSError, ValueError) as error:
            stamp = stamp or (0, 0, 0)
            if stamp != self._complained:
                logger.warning(
                    "%s %s: %s; what it held before still counts",
                    self._source,
                    self._file,
                    _why(error),
                )
            self._complained = stamp

    def _read(self, file: Path) -> None:
        stamp = _stamp_of(file)
        if stamp[2] > MAX_FILE_BYTES:
            raise ValueError(f"has more than {MAX_FILE_BYTES} bytes")
        lines = (line.strip() for line in file.read_text("ascii").splitlines())
        values = [line for line in lines if line]
        if not values:
            raise ValueError("holds no token")
        self._take(values)
        self._stamp, self._complained = stamp, None
        if not file.is_file():  # a pipe: opening it once more may wait for ever
            self._file = None

    def _take(self, values: Sequence[str]) -> None:
        if not all(_USABLE.fullmatch(value) for value in values):
            raise ValueError("a token is printable ASCII without spaces")
        self._values = tuple(values)
        self._digests = tuple(map(_digest, values))


def bearer(header: str) -> str:
    """The token of `Authorization: Bearer TOKEN`; "" if it says something else."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _digest(token: str) -> bytes:
    """Equal lengths, so that a comparison says nothing of a length either."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _stamp_of(file: Path) -> _Stamp:
    found = file.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _why(error: Exception) -> str:
    """What is wrong with a file, without what is in it."""
    if isinstance(error, UnicodeDecodeError):
        return "is not ASCII text"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)
