"""httptools' parser, for a server that never leaves HTTP/1.1."""

from __future__ import annotations

from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser


class StayingParser:
    """Ignores a client's offer to go on in another protocol, as a server may.

    Java's client and `curl --http2` offer HTTP/2 with their first request. httptools
    ends that request with its head and leaves its body to the other protocol, so
    the body would be lost. Here such a head is skipped, and parsed again without
    the offer. All else is as httptools has it.
    """

    def __init__(self, callbacks: Any) -> None:
        self._callbacks = callbacks
        self._head = b""
        self._parser = self._fresh()

    @property
    def skipping(self) -> bool:
        """Whether the message that is being parsed will come a second time."""
        return bool(self._head)

    def skips_head(self, url: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
        """To be asked when a head is complete; it must be ignored if so.

        Names of headers are in lower case.
        """
        method = self.get_method()
        if not self.should_upgrade() or method == b"CONNECT":
            return False
        start = b"%s %s HTTP/%s\r\n" % (method, url, self.get_http_version().encode())
        kept = (b"%s: %s\r\n" % pair for pair in headers if pair[0] != b"upgrade")
        self._head = start + b"".join(kept) + b"\r\n"
        return True

    def feed_data(self, data: bytes) -> None:
        """Parse what came; calls back."""
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except HttpParserUpgrade as offer:
                if not self.skipping:
                    raise
                (end,) = offer.args
                rest = rest[end:]
            # The old one takes nothing more after a head that asks to close.
            self._parser = self._fresh()
            head, self._head = self._head, b""
            self._parser.feed_data(head)

    def get_method(self) -> bytes:
        """Of the message that is being parsed."""
        return self._parser.get_method()

    def get_http_version(self) -> str:
        """Of the message that is being parsed, as 1.1."""
        return self._parser.get_http_version()

    def should_keep_alive(self) -> bool:
        """Whether the connection may serve another request after this one."""
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        """Whether the message offers another protocol."""
        return self._parser.should_upgrade()

    def _fresh(self) -> HttpRequestParser:
        parser = HttpRequestParser(self._callbacks)
        # As uvicorn sets it: the first of several requests is answered, whatever
        # follows one that asks to close.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser
