"""Shows that the composition works: builds it, starts it, and chats with it.

    python3 tools/compose_check.py            # three frontends, removed afterwards
    python3 tools/compose_check.py --keep     # leave them running

Needs a container engine with `docker compose` or `podman-compose`; nothing else
of the repository. It runs as a project of its own on a free port, so it disturbs
no composition that is up, and a run that was killed is cleared away by the next.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

COMPOSE_FILE = Path(__file__).resolve().parents[1] / "compose" / "docker-compose.yaml"
PROJECT = "ttserve-check"
FRONTENDS = 3
# The first start converts the default model.
READY_SECONDS = 600.0
QUESTION = "What is the capital of France?"
EXPECTED = "Paris"
# The proxy's image has no HTTP client, but its shell opens connections.
PROXY_METRICS = (
    "exec 3<>/dev/tcp/127.0.0.1/8404; "
    r"printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3"
)
# Prints what a container could do that it must not.
CONFINEMENT = (
    '[ "$(id -u)" != 0 ] || echo "it runs as root"; '
    "(: > /written) 2>/dev/null && echo 'its root can be written'; "
    'caps=$(sed -n "s/^CapEff:[[:space:]]*//p" /proc/self/status); '
    '[ "$((16#$caps))" = 0 ] || echo "it has capabilities: $caps"; true'
)
COMPILERS = "for c in cc gcc g++ clang rustc cargo make; do command -v $c; done; true"


class CheckFailed(Exception):
    """Printed as one line; exit status 1."""


class Composition:
    """The project under the engine's compose command."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = [*command, "-p", PROJECT, "-f", os.fspath(COMPOSE_FILE)]
        self._environment = {**os.environ, **environment}

    def run(self, *arguments: str) -> None:
        """With its output shown; raises CheckFailed."""
        result = subprocess.run(
            [*self._command, *arguments], env=self._environment, check=False
        )
        if result.returncode != 0:
            raise CheckFailed(f"compose {arguments[0]} failed: {result.returncode}")

    def output(self, *arguments: str) -> str:
        """What the command prints; empty if it fails."""
        result = subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return result.stdout if result.returncode == 0 else ""

    def in_container(self, service: str, script: str) -> str:
        """What `script` prints in a container of the service; empty if it fails."""
        return self.output("exec", "-T", service, "bash", "-c", script)

    def remove(self) -> None:
        """Stop and remove everything but the images; raises CheckFailed."""
        self.run("down", "--volumes")
        if left := self.output("ps", "-q").split():
            raise CheckFailed(f"{len(left)} containers are left")


def compose_command() -> Sequence[str]:
    docker = shutil.which("docker")
    if docker:
        version = subprocess.run([docker, "compose", "version"], capture_output=True)
        if version.returncode == 0:
            return [docker, "compose"]
    beside_us = Path(sys.executable).with_name("podman-compose")
    podman = shutil.which("podman-compose") or (beside_us.exists() and str(beside_us))
    if podman:
        return [podman]
    raise CheckFailed("neither `docker compose` nor `podman-compose` is here")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def wait_until(what: str, condition: Callable[[], bool], seconds: float) -> None:
    started = time.monotonic()
    next_report = started + 15.0
    while not condition():
        now = time.monotonic()
        if now - started > seconds:
            raise CheckFailed(f"{what}: not after {seconds:.0f} s")
        if now >= next_report:
            next_report = now + 15.0
            say(f"waiting since {now - started:.0f} s: {what}")
        time.sleep(1.0)
    say(f"{what}: after {time.monotonic() - started:.0f} s")


def get(url: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
    """Status and text; status 0 if there was no answer."""
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def chat(url: str, *, stream: bool) -> None:
    """Ask a question; raises CheckFailed if the answer makes no sense."""
    status, text = get(
        f"{url}/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 24,
            "temperature": 0,
            "stream": stream,
        },
    )
    if status != 200:
        raise CheckFailed(f"chat answered {status}: {text[:500]}")
    if stream:
        events = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
        deltas = [json.loads(event)["choices"] for event in events]
        answer = "".join(d[0]["delta"].get("content") or "" for d in deltas if d)
    else:
        answer = json.loads(text)["choices"][0]["message"]["content"]
    if EXPECTED not in answer:
        raise CheckFailed(f"{QUESTION} {answer!r}")


def check(composition: Composition, url: str) -> None:
    def metric(pattern: str) -> list[str]:
        return re.findall(pattern, composition.in_container("proxy", PROXY_METRICS))

    def frontends_up() -> bool:
        up = r'haproxy_server_status\{[^}]*"frontend\d+"[^}]*state="UP"\} 1'
        return len(metric(up)) == FRONTENDS

    def answered() -> int:
        ok = r'server_http_responses_total\{[^}]*"(frontend\d+)"[^}]*"2xx"\} [1-9]'
        return len(set(metric(ok)))

    wait_until("the proxy answers", lambda: get(f"{url}/ready")[0] != 0, 60)
    status, text = get(f"{url}/v1/models")
    if status != 200:
        json.loads(text)["error"]["message"]  # OpenAI's envelope from the first second
    wait_until(f"{FRONTENDS} frontends are ready", frontends_up, READY_SECONDS)
    for stream in (False, True) * FRONTENDS:
        chat(url, stream=stream)
    if answered() != FRONTENDS:
        raise CheckFailed(f"only {answered()} of {FRONTENDS} frontends were asked")
    say(f"{FRONTENDS} frontends answered: {QUESTION} {EXPECTED}")
    for service in ("device-service", "frontend", "proxy"):
        check_confinement(composition, service)
    say("no compiler, not root, nothing to write, no capabilities")


def check_confinement(composition: Composition, service: str) -> None:
    if found := composition.in_container(service, COMPILERS).split():
        raise CheckFailed(f"the image of {service} has compilers: {found}")
    if lines := composition.in_container(service, CONFINEMENT).splitlines():
        raise CheckFailed(f"{service} is not confined: {', '.join(lines)}")
    # A script that did not run found nothing either.
    if composition.in_container(service, "echo heard").split() != ["heard"]:
        raise CheckFailed(f"nothing can be run in {service}")


def say(line: str) -> None:
    print(f"compose-check: {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="leave it running")
    keep = parser.parse_args().keep
    try:
        port = free_port()
        # FRONTENDS for `down`: podman-compose does not remember what was scaled.
        settings = {"HTTP_PORT": str(port), "FRONTENDS": str(FRONTENDS)}
        composition = Composition(compose_command(), settings)
        composition.remove()
        try:
            composition.run("build")
            composition.run("up", "-d", "--scale", f"frontend={FRONTENDS}")
            check(composition, f"http://127.0.0.1:{port}")
        except CheckFailed:
            composition.run("logs", "--tail", "40")
            raise
        finally:
            if keep:
                say(f"left running on http://127.0.0.1:{port}")
            else:
                composition.remove()
    except CheckFailed as error:
        say(f"FAILED: {error}")
        return 1
    say("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
