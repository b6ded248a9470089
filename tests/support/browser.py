"""A real browser: headless Chromium, over its DevTools protocol."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.frontend_process import wait_for

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_SECONDS = 60.0
ANSWER_SECONDS = 30.0


class Browser:
    """One tab. `complaints` are its console errors, exceptions and CSP violations."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.complaints: list[str] = []
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the DevTools protocol, and its result."""
        number = next(self._ids)
        self._socket.send(
            json.dumps({"id": number, "method": method, "params": params})
        )
        while True:
            message = json.loads(self._socket.recv(timeout=ANSWER_SECONDS))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def open(self, url: str) -> None:
        """Go to an address, until the page and its scripts are loaded."""
        self.call("Page.navigate", url=url)
        wait_for(
            lambda: bool(self.evaluate("document.readyState === 'complete'")),
            ANSWER_SECONDS,
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """What an element says; empty if there is none."""
        found = f"document.querySelector({json.dumps(selector)})"
        return str(self.evaluate(f"{found}?.textContent ?? ''"))

    def texts(self, selector: str) -> list[str]:
        """What all such elements say."""
        found = f"document.querySelectorAll({json.dumps(selector)})"
        texts: list[str] = self.evaluate(f"[...{found}].map(e => e.textContent)")
        return texts

    def enter(self, selector: str, value: str) -> None:
        """Give a field a value, as a person would."""
        self.evaluate(
            f"{{ const field = document.querySelector({json.dumps(selector)});"
            f"field.value = {json.dumps(value)};"
            "field.dispatchEvent(new Event('input', {bubbles: true}));"
            "field.dispatchEvent(new Event('change', {bubbles: true})); }"
        )

    def click(self, selector: str) -> None:
        """Press a button."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def wait_for(self, expression: str, seconds: float = 30.0) -> None:
        """Until a JavaScript expression is true; fails with what the page shows."""
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            shown = self.evaluate("document.body?.innerText ?? ''")
            assert time.monotonic() < end, f"not {expression}:\n{shown[:3000]}"
            time.sleep(0.05)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message["method"]:
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                self.complaints.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")


@contextlib.contextmanager
def browsing(directory: Path) -> Iterator[Browser]:
    """A browser with a profile in `directory`; skips where there is no Chromium."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    with (directory / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(program, "--headless", "--no-sandbox", "--disable-gpu"),
                *("--remote-debugging-port=0", f"--user-data-dir={directory}"),
                *("--no-first-run", "--disable-background-networking"),
                *("--disable-dev-shm-usage", "--no-proxy-server"),
                *("--window-size=1400,1200", "about:blank"),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        with connect(_address_of_tab(directory), proxy=None, max_size=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(20)


def _address_of_tab(directory: Path) -> str:
    port_file = directory / "DevToolsActivePort"
    wait_for(lambda: port_file.exists() and port_file.read_text() != "", START_SECONDS)
    port = port_file.read_text().split()[0]
    tabs: list[dict[str, str]] = []

    def has_tab() -> bool:
        with httpx.Client(trust_env=False) as client:
            tabs[:] = client.get(f"http://127.0.0.1:{port}/json/list").json()
        return any(tab["type"] == "page" for tab in tabs)

    wait_for(has_tab, START_SECONDS)
    return next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
