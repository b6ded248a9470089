"""/inspect in a real browser, over a device service on the `sim` mesh."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.browser import Browser, browsing
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(400)

KEY = "letmein"
PREFIX = "/behind/a/proxy"
ROWS = 4
PROMPT_TOKENS = 160
"""More than two chunks of 64."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def stack(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    with running_stack(
        tmp_path_factory.mktemp("inspect"),
        sim={"decode_ms": 20, "prefill_us_per_token": 100},
        device_options=[
            *("--max-num-seqs", str(ROWS), "--max-num-batched-tokens", "64"),
        ],
        frontend_options=["--api-key", KEY, "--root-path", PREFIX],
    ) as made:
        yield made


@pytest.fixture
def page(browser: Browser, stack: Stack) -> Iterator[Browser]:
    """The page, looking. Whatever a test does, the browser must not complain."""
    browser.complaints.clear()
    # Before it asks for anything: the browser may be late to tell what was refused.
    keyed = browser.call(
        "Page.addScriptToEvaluateOnNewDocument",
        source=f"sessionStorage.setItem('ttserve-inspect-key', '{KEY}')",
    )
    browser.open(f"{stack.urls[0]}{PREFIX}/inspect")
    browser.call("Page.removeScriptToEvaluateOnNewDocument", **keyed)
    wait_until_live(browser)
    yield browser
    assert browser.complaints == []


@contextlib.contextmanager
def asking(stack: Stack, *names: str) -> Iterator[None]:
    """Requests of these ids that run until the context ends."""

    def ask(name: str, leave: threading.Event) -> None:
        body = {
            "prompt": list(name.encode()) * (PROMPT_TOKENS // len(name)),
            "max_tokens": 4000,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"x-request-id": name, "authorization": f"Bearer {KEY}"}
        url = f"{stack.urls[0]}/v1/completions"
        with httpx.stream(
            "POST", url, json=body, headers=headers, timeout=60
        ) as answer:
            for _ in answer.iter_lines():
                if leave.is_set():
                    return

    leave = threading.Event()
    threads = [threading.Thread(target=ask, args=(name, leave)) for name in names]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        leave.set()
        for thread in threads:
            thread.join(60)


def wait_until_live(page: Browser) -> None:
    page.wait_for("document.querySelector('#link')?.dataset.link === 'live'", 60)


def wait_for_rows(page: Browser, number: int) -> None:
    page.wait_for(f"document.querySelector('#rows tbody').rows.length === {number}")


def test_requests_come_and_go(page: Browser, stack: Stack) -> None:
    assert page.text("#rows-held") == f"0/{ROWS}"
    with asking(stack, *(f"mine-{n}" for n in range(ROWS + 1))):
        wait_for_rows(page, ROWS)
        page.wait_for("document.querySelector('#waiting tbody').rows.length === 1")
        page.wait_for("document.querySelector('#steps tbody').rows.length > 8")
        held = set(page.texts("#rows tbody tr td:nth-child(2)"))
        assert held < {f"mine-{n}" for n in range(ROWS + 1)}
        assert page.text("#rows-held") == f"{ROWS}/{ROWS}"
        assert page.text("#waiting tbody td:nth-child(3)") == "capacity"
        # The steps are those that the device service recorded, with its reasons.
        shown = int(page.text("#steps tbody td:first-child"))
        recorded = {step.number: step for step in stack.device.steps()}[shown]
        row = page.evaluate(
            f"[...document.querySelectorAll('#steps tbody tr')]"
            f".find(row => row.cells[0].textContent === '{shown}').innerText"
        )
        for reason in (
            recorded.phase_reason,
            recorded.sampling_reason,
            recorded.overlap_reason,
        ):
            assert reason in row
        assert f"{recorded.device_us / 1000:.2f}" in row
    wait_for_rows(page, 0)
    page.wait_for(f"document.querySelector('#rows-held').textContent === '0/{ROWS}'")


def test_filters_and_pause(page: Browser, stack: Stack) -> None:
    with asking(stack, "apple", "pear"):
        wait_for_rows(page, 2)
        page.enter("#filter-request", "app")
        wait_for_rows(page, 1)
        assert page.texts("#rows tbody td:nth-child(2)") == ["apple"]
        page.enter("#filter-phase", "prefill")
        page.wait_for(
            "!document.querySelector('#steps tbody').innerText.includes('decode')"
        )
        page.wait_for("document.querySelector('#steps tbody').rows.length >= 2")
        page.click("#filter button")
        wait_for_rows(page, 2)
        page.click("#pause")
        newest = page.text("#steps tbody td:first-child")
        before = len(stack.device.steps())
        page.wait_for("new Promise(r => setTimeout(() => r(true), 500))")
        assert len(stack.device.steps()) > before
        assert page.text("#steps tbody td:first-child") == newest
        page.click("#pause")
        page.wait_for(f"document.querySelector('#steps td').textContent !== '{newest}'")


def test_a_key_is_asked_for(browser: Browser, stack: Stack) -> None:
    browser.open(f"{stack.urls[0]}{PREFIX}/inspect")
    browser.evaluate("sessionStorage.clear()")
    browser.open(f"{stack.urls[0]}{PREFIX}/inspect")
    browser.wait_for("!document.querySelector('#key-form').hidden")
    assert stack.device.address not in browser.evaluate("document.body.innerText")
    browser.enter("#key", KEY)
    browser.click("#key-form button")
    wait_until_live(browser)
    assert browser.evaluate("document.querySelector('#key-form').hidden")


def test_loss_and_return_of_the_device(page: Browser, stack: Stack) -> None:
    stack.device.kill()
    page.wait_for("document.querySelector('#link').dataset.link === 'lost'")
    assert page.text("#link") == "cannot connect"
    stack.device.start()
    wait_until_live(page)
    stack.device.wait_until_serving()
    stack.frontends[0].wait_until_ready()
    with asking(stack, "after"):
        wait_for_rows(page, 1)


def test_the_end_of_the_frontend(page: Browser, stack: Stack, tmp_path: Path) -> None:
    """Last, because nothing serves after it."""
    stack.frontends[0].terminate()
    page.wait_for("document.querySelector('#link').dataset.link === 'lost'")
    assert stack.frontends[0].exit_status() == 0
    page.complaints[:] = [c for c in page.complaints if "ERR_CONNECTION" not in c]
