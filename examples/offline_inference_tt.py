"""Offline inference: prompts from a file through a running device service.

    tt-device-service --model MODEL              # in another terminal, or tt-serve
    python examples/offline_inference_tt.py

A thin client: it speaks gRPC (`Device.GetModel`, `GetTokenizer`, `Generate`), and
knows the model only from what the service tells. Exit status: 0, 1 when the service
refused or failed something, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from frontend.address import parse_device_address
from frontend.device.bundle import fetch_bundle
from frontend.device.channel import Patience, ask_patiently, is_serving, open_channel
from ttserve.client_security import add_channel_options, channel_security
from ttserve.errors import StartupError, TTServeError
from ttserve.status import from_rpc_error, from_status
from ttserve.v1.device_pb2 import GenerateRequest, GetModelRequest
from ttserve.v1.device_pb2_grpc import DeviceStub
from ttserve.v1.generation_pb2 import Sampling, StopRules
from ttserve.v1.model_pb2 import Model

PROMPTS = Path(__file__).with_name("prompts.json")
TOKENIZER_MODES = ("", "auto", "hf")
IMAGES = ("--multi-modal", "--multi-image", "--mm-processor-kwargs")

NUMBERS = (
    ("--num-repeat-prompts", 1, "how often the list is gone through (%(default)s)"),
    ("--max-tokens", 128, "most tokens of an answer (%(default)s)"),
    ("--max-seqs-in-batch", None, "requests at a time (as many as there are rows)"),
    ("--perf-prompt-len", 128, "with --measure-perf: tokens of a prompt (%(default)s)"),
)
SWITCHES = (
    ("--greedy-sampling", "the most likely tokens (else the model's own defaults)"),
    ("--chat", "apply the model's chat template"),
    ("--trust-remote-code", "run a tokenizer's code that the service sends"),
    ("--measure-perf", "measure one batch, of one request per row"),
)
EPILOG = """\
Which model runs, on which mesh and with which options is decided where the device
service is started: --model, --max-model-len, --additional-config and all other
options of the engine go to tt-device-service or tt-serve. Images are not served
yet, so --multi-modal, --multi-image and --mm-processor-kwargs are refused.

examples:
  offline_inference_tt.py --prompts-json examples/prompts_overlapping.json
      prompts that begin alike: all but the first ones find that in the prefix cache
  offline_inference_tt.py --chat --greedy-sampling --max-tokens 64
      prompts as chat messages, the most likely tokens
  offline_inference_tt.py --measure-perf --max-seqs-in-batch 32
      one batch of prompts of equal length; prints times instead of texts
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request produced. Times are seconds from its submission on."""

    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    first: float
    total: float


async def generate(stub: Any, asked: GenerateRequest, prompt: Sequence[int]) -> Answer:
    """One request, to its end: all that is `asked` for, about this prompt.

    Raises TTServeError when it is refused or fails.
    """
    request = GenerateRequest(prompt_token_ids=prompt)
    request.MergeFrom(asked)
    token_ids: list[int] = []
    cached = 0
    first = None
    began = time.perf_counter()
    try:
        async for part in stub.Generate(request):
            token_ids += part.token_ids
            cached = max(cached, part.cached_prompt_tokens)
            if token_ids and first is None:
                first = time.perf_counter() - began
            if part.HasField("finish") and part.finish.HasField("error"):
                raise from_status(part.finish.error)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    total = time.perf_counter() - began
    return Answer(tuple(token_ids), len(prompt), cached, first or total, total)


async def generate_all(
    stub: Any, asked: GenerateRequest, prompts: Sequence[Sequence[int]], at_a_time: int
) -> list[Answer]:
    """All prompts, in their order, so many at a time: more would only wait."""
    free = asyncio.Semaphore(at_a_time)

    async def one(prompt: Sequence[int]) -> Answer:
        async with free:
            return await generate(stub, asked, prompt)

    return await asyncio.gather(*map(one, prompts))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; `_` in an option's name counts as `-`."""
    parser = argparse.ArgumentParser(
        prog="offline_inference_tt.py",
        description="Run the prompts of a file through a device service that is "
        "running, and print the answers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--device-service", metavar="HOST:PORT", default="127.0.0.1:50051")
    wait = "seconds to wait for it (%(default)s)"
    add("--device-timeout", metavar="S", type=float, default=600.0, help=wait)
    add_channel_options(parser)
    texts = "a JSON list of texts (examples/prompts.json)"
    add("--prompts-json", metavar="FILE", type=Path, default=PROMPTS, help=texts)
    for name, default, text in NUMBERS:
        add(name, metavar="N", type=_count, default=default, help=text)
    for name, text in SWITCHES:
        add(name, action="store_true", help=text)
    own, rest = parser.parse_known_args([_dashed(word) for word in argv])
    if images := [word for word in rest if word.partition("=")[0] in IMAGES]:
        parser.error(f"{images[0]}: images are not served yet; leave it out")
    if rest:
        whose = "options of the model and the mesh are given to tt-device-service"
        parser.error(f"{rest[0]} is no option of this client; {whose} (see --help)")
    return own


def read_prompts(path: Path, repeat: int) -> list[str]:
    """The texts of a JSON list, gone through `repeat` times. Raises StartupError."""
    try:
        prompts: list[str] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StartupError(f"--prompts-json {path}: {error}") from None
    are_texts = isinstance(prompts, list) and all(isinstance(p, str) for p in prompts)
    if not are_texts or not prompts or not all(prompts):
        raise StartupError(f"--prompts-json {path}: must be a JSON list of texts")
    return prompts * repeat


def counted(answers: Sequence[Answer]) -> str:
    """How much work it was."""
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    cached_tokens = sum(answer.cached_tokens for answer in answers)
    outputs = sum(len(answer.token_ids) for answer in answers)
    return (
        f"{len(answers)} requests, {prompt_tokens} prompt tokens ({cached_tokens} from "
        f"the prefix cache), {outputs} output tokens"
    )


def measured(answers: Sequence[Answer], seconds: float) -> list[str]:
    """What a batch of equal requests took, a line each; `seconds` for all of it."""
    outputs = sum(len(answer.token_ids) for answer in answers)
    first = [answer.first for answer in answers]
    steps = sum(len(answer.token_ids) - 1 for answer in answers)
    lines = [
        f"{counted(answers)} in {seconds:.2f} s",
        f"time to first token: mean {sum(first) / len(first):.3f} s, "
        f"longest {max(first):.3f} s",
    ]
    if steps:
        each = sum(answer.total - answer.first for answer in answers) / steps
        lines.append(f"time per output token: mean {each * 1000:.2f} ms")
    return [*lines, f"throughput: {outputs / seconds:.1f} output tokens/s"]


async def run(arguments: argparse.Namespace) -> list[str]:
    """Do what was asked; the lines to print. Raises StartupError, TTServeError."""
    prompts = read_prompts(arguments.prompts_json, arguments.num_repeat_prompts)
    address = parse_device_address(arguments.device_service)
    security = channel_security(arguments, os.environ)
    async with open_channel(address, security) as channel:
        stub = DeviceStub(channel)
        patience = Patience(address, arguments.device_timeout)
        answer = await ask_patiently(lambda: stub.GetModel(GetModelRequest()), patience)
        model: Model = answer.model
        tokenizer = await _tokenizer(stub, model, trust=arguments.trust_remote_code)
        while not await is_serving(channel):
            await patience.pause("it is not serving yet")
        ids = [_encode(tokenizer, text, chat=arguments.chat) for text in prompts]
        rows = model.scheduling.lanes * model.scheduling.rows_per_lane
        at_a_time = arguments.max_seqs_in_batch or rows
        asked = GenerateRequest(
            sampling=Sampling(temperature=0.0) if arguments.greedy_sampling else None,
            stop=StopRules(max_output_tokens=arguments.max_tokens),
            ignore_eos=arguments.measure_perf,
        )
        if arguments.measure_perf:
            ids = _drawn(ids, at_a_time, arguments.perf_prompt_len)
        began = time.perf_counter()
        answers = await generate_all(stub, asked, ids, at_a_time)
        seconds = time.perf_counter() - began
    if arguments.measure_perf:
        return measured(answers, seconds)
    lines = [
        f"{_quoted(prompt)}\n  -> {_quoted(_decode(tokenizer, answer))}"
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return [*lines, counted(answers)]


def _drawn(ids: Sequence[Sequence[int]], count: int, length: int) -> list[list[int]]:
    """Prompts of one length, drawn anew from the tokens of the file's, so that no
    run finds those of the one before in the prefix cache.
    """
    known = sorted({token for prompt in ids for token in prompt})
    draw = random.Random()
    return [draw.choices(known, k=length) for _ in range(count)]


async def _tokenizer(stub: DeviceStub, model: Model, *, trust: bool) -> Any:
    from transformers import AutoTokenizer

    mode = model.settings.tokenizer_mode
    if mode not in TOKENIZER_MODES:
        raise StartupError(f"tokenizer mode {mode} is vLLM's own; use a frontend")
    with tempfile.TemporaryDirectory(prefix="offline-inference-") as directory:
        try:
            await fetch_bundle(stub, Path(directory), python_files=trust)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        return AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust
        )


def _encode(tokenizer: Any, text: str, *, chat: bool) -> list[int]:
    if not chat:
        return list(tokenizer.encode(text))
    if not tokenizer.chat_template:
        raise StartupError("the model has no chat template; leave out --chat")
    messages = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer.encode(rendered, add_special_tokens=False))


def _decode(tokenizer: Any, answer: Answer) -> str:
    return str(tokenizer.decode(answer.token_ids, skip_special_tokens=True))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, at least 1")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    try:
        lines = asyncio.run(run(arguments))
    except StartupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except TTServeError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
