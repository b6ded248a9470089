"""Makes tests/recordings/chats.ttrec: chats and single prompts, as they were served.

    python tools/record_chats.py FILE

It starts the default model on the `cpu` mesh, lets people talk to four assistants
and to none over HTTP, and keeps what the flight recorder has of it: when requests
came, how long they ran and which beginnings they shared, and no text. What people
say is written here; answers, templates and times are those of the run, of some
minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import httpx
import openai

from ttserve.v1 import inspector_pb2, inspector_pb2_grpc

SEED = 1
SECONDS = 240.0
CHATS = 36
SINGLE_PROMPTS = 48
START_SECONDS = 600.0

ASSISTANTS = (
    """You answer for the help desk of a public library. Be brief and kind. Say the \
opening hours when somebody asks for them: Monday to Friday from nine to seven, \
Saturday from ten to four, closed on Sunday. A card is free for residents, and \
costs twelve a year for others. Books may be kept for four weeks and renewed \
twice, unless somebody waits for them; films for one week. Fines are ten cents a \
day for each item and end at five. Rooms can be reserved two weeks ahead, for \
three hours at most, and not for parties. Computers need a card; printing costs \
five cents a page. If a question has nothing to do with the library, say so in one \
sentence and offer the telephone of the town hall. Never invent a title, an author \
or a shelf; say that the catalogue knows. Do not speak of other visitors. When \
somebody is angry, apologise once, and then help.""",
    """You are a tutor for physics in the last two years of school. Lead to the answer \
with questions; give it only when the pupil has tried twice. Use SI units, write \
quantities with their unit, and say which law you use before you use it. Keep to \
what is taught at school: mechanics, electricity, waves, heat, and the beginnings \
of atoms. Point out one common mistake where there is one. Do not solve marked \
homework; ask what has been tried so far. Two or three sentences are enough for \
one turn.""",
    """You review small changes of Python programs. Name at most three points, the \
most important first: wrong results, then what breaks under load or with empty input, \
then names and structure. Quote the line you speak of. Leave style to the \
formatter. When a change is good, say only that. Ask for a test when behaviour \
changes and none is there. Prefer the standard library to a new dependency. Do not \
rewrite the whole program, show the few lines that you would change. If you are \
not sure, say what you would measure. Types are checked by a tool, so do not \
repeat what it says; comments should give reasons. Mention security where input \
from outside reaches a path, a command or a query.""",
    """You plan meals for a family of four. One of them eats no meat, one must avoid \
nuts. Cook at most forty minutes on weekdays. Use what the season offers.""",
)
POPULAR = (0, 1, 0, 2, 0, 1, 3)  # who is asked how often
TURNS = (2, 5, 3, 1, 6, 4)
OPENINGS = (
    "Hello! I have a question about {}.",
    "Can you help me with {}?",
    "I do not understand {}. Where should I begin?",
    "What is the most important thing about {}?",
)
FOLLOWING = (
    "Why is that so?",
    "Could you give me an example?",
    "And if it does not work that way, what would you do next?",
    "I have tried that already. What else is there?",
    "Please say it again in simpler words.",
    "Thank you. One more thing: how long does it take?",
)
TOPICS = (
    "opening hours in the holidays",
    "a book that is lost",
    "the swing of a pendulum",
    "the current in two lamps in a row",
    "a loop that reads a large file",
    "a cache that never forgets",
    "soup for a cold evening",
    "lunch without bread",
)


async def _ask(client: openai.AsyncOpenAI, messages: list[dict[str, str]]) -> str:
    answer = await client.chat.completions.create(
        model="default",
        messages=messages,  # type: ignore[arg-type]
        max_tokens=48,
        temperature=0.7,
        seed=SEED,
    )
    return answer.choices[0].message.content or ""


async def _chat(client: openai.AsyncOpenAI, number: int) -> None:
    """One person and an assistant; the person thinks between the turns."""
    chance = random.Random(f"{SEED} chat {number}")
    await asyncio.sleep(chance.uniform(0, 0.7 * SECONDS))
    assistant = ASSISTANTS[POPULAR[number % len(POPULAR)]]
    opening = chance.choice(OPENINGS).format(chance.choice(TOPICS))
    messages = [
        {"role": "system", "content": assistant},
        {"role": "user", "content": opening},
    ]
    for turn in itertools.count(1):
        said = await _ask(client, messages)
        if turn == TURNS[number % len(TURNS)]:
            return
        await asyncio.sleep(chance.expovariate(1 / 12))
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": chance.choice(FOLLOWING)})


async def _single(client: openai.AsyncOpenAI, number: int) -> None:
    chance = random.Random(f"{SEED} single {number}")
    await asyncio.sleep(chance.uniform(0, SECONDS))
    topics = chance.sample(TOPICS, chance.randint(1, len(TOPICS)))
    question = f"Note {number}. Write some sentences about {', '.join(topics)}."
    await _ask(client, [{"role": "user", "content": question}])


async def _talk(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        await asyncio.gather(
            *(_chat(client, number) for number in range(CHATS)),
            *(_single(client, number) for number in range(SINGLE_PROMPTS)),
        )


def _wait_until_ready(url: str, service: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and service.poll() is None:
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise SystemExit("error: the services did not start; see above")


def _recording(address: str) -> bytes:
    with grpc.insecure_channel(address) as channel:
        stub = inspector_pb2_grpc.InspectorStub(channel)
        pieces = stub.DumpRecording(inspector_pb2.DumpRecordingRequest())
        return b"".join(piece.data for piece in pieces)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--port", type=int, default=8731)
    parser.add_argument("--grpc-port", type=int, default=50731)
    args = parser.parse_args()
    url = f"http://127.0.0.1:{args.port}"
    command = [
        *(sys.executable, "-m", "ttserve.launcher", "--served-model-name", "default"),
        *("--port", str(args.port), "--grpc-port", str(args.grpc_port)),
        *("--step-ring", "100000"),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        command += ["--recording-dir", scratch]
        service = subprocess.Popen(command)
        try:
            _wait_until_ready(url, service)
            asyncio.run(_talk(url))
            args.file.write_bytes(_recording(f"127.0.0.1:{args.grpc_port}"))
        finally:
            service.terminate()
            service.wait()
    print(f"{args.file}: {args.file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
