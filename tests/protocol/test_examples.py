"""The examples against a device service over the sim mesh.

The prompts' tokens are the bytes of their text, and the answers a pure function of
them, so what the offline example prints is known without it.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from device_service.bundle import Bundle, build_bundle
from examples import offline_inference_tt, server_example_tt
from examples.offline_inference_tt import Answer, main, measured, parse, run
from frontend.config import read_command_line, unaccepted_option
from tests.support.frontend_process import FrontendProcess
from tests.support.real_service import BLOCK, RealService, real_service
from ttserve.errors import StartupError, TTServeError
from ttserve.model_info import MODEL_INFO_FILE, collect_model_info
from ttserve.sim_model import sim_model_dir
from ttserve.v1 import inspector_pb2

EXAMPLES = Path(server_example_tt.__file__).parent


def sim_bundle() -> Bundle:
    """What the device service of a sim mesh hands to frontends."""
    extra = {MODEL_INFO_FILE: collect_model_info(["LlamaForCausalLM"])}
    return build_bundle(sim_model_dir(), extra, trust_remote_code=False)


def prompt_file(directory: Path, content: Any) -> str:
    path = directory / "prompts.json"
    path.write_text(json.dumps(content))
    return str(path)


async def offline(service: RealService, *arguments: str) -> list[str]:
    return await run(parse(["--device-service", service.address, *arguments]))


def said(service: RealService, prompt: list[int], count: int) -> str:
    return json.dumps(bytes(service.expected(prompt, count)).decode("ascii"))


async def test_offline_prompts_get_their_own_answers_in_order(tmp_path: Path) -> None:
    prompts = ["one", "two and more", "drei"]
    file = prompt_file(tmp_path, prompts)
    async with real_service(sim_bundle()) as service:
        lines = await offline(
            service,
            *("--prompts_json", file, "--num_repeat_prompts", "2"),
            *("--max_tokens=6", "--greedy_sampling", "--max_seqs_in_batch", "2"),
        )
    assert lines == [
        f'"{prompt}"\n  -> {said(service, list(prompt.encode()), 6)}'
        for prompt in prompts * 2
    ] + ["6 requests, 38 prompt tokens (0 from the prefix cache), 36 output tokens"]


async def test_offline_chat_applies_the_template(tmp_path: Path) -> None:
    im_start, im_end = 258, 259
    rendered = [im_start, *b"user\nhi", im_end, *b"\n", im_start, *b"assistant\n"]
    file = prompt_file(tmp_path, ["hi"])
    async with real_service(sim_bundle()) as service:
        lines = await offline(
            service, "--chat", "--prompts-json", file, "--max-tokens", "4",
            "--greedy-sampling",
        )  # fmt: skip
    assert lines[0] == f'"hi"\n  -> {said(service, rendered, 4)}'


async def test_prompts_that_begin_alike_are_found_in_the_cache(tmp_path: Path) -> None:
    lead = "a" * (2 * BLOCK) + "bc"
    file = prompt_file(tmp_path, [f"{lead}{number}" for number in range(4)])
    async with real_service(sim_bundle()) as service:
        lines = await offline(
            service, "--prompts-json", file, "--max-tokens", "2",
            "--max-seqs-in-batch", "1",
        )  # fmt: skip
    # Whole blocks only, and the first prompt finds none.
    assert f"140 prompt tokens ({3 * 2 * BLOCK} from the prefix cache)" in lines[-1]


async def test_offline_measures_one_batch() -> None:
    arguments = ("--measure_perf", "--max-tokens", "5", "--perf-prompt-len", "24")
    async with real_service(sim_bundle(), decode_ms=20.0) as service:
        inspector = service.inspector()
        # Until all of them are there, so that they run side by side.
        await inspector.Pause(inspector_pb2.PauseRequest())
        measuring = asyncio.create_task(offline(service, *arguments))
        await all_are_there(inspector, 8)
        await inspector.Resume(inspector_pb2.ResumeRequest())
        lines = await measuring
        listed = await inspector.ListSteps(inspector_pb2.ListStepsRequest(limit=100))
    work, first, each, throughput = lines
    # As many requests as there are rows, and none of them is cached.
    assert work.startswith(
        "8 requests, 192 prompt tokens (0 from the prefix cache), 40 output tokens in "
    )
    seconds = float(work.split()[-2])
    # A prefill step gives the first token, four decode steps the others.
    assert [len(step.lanes[0].rows) for step in listed.steps] == [8] * 5
    assert seconds >= 4 * 0.02
    assert float(each.split()[-2]) >= 20.0
    assert first.startswith("time to first token: mean ")
    rate = re.fullmatch(r"throughput: (\S+) output tokens/s", throughput)
    assert rate is not None
    assert float(rate[1]) == pytest.approx(40 / seconds, rel=0.1)


async def all_are_there(inspector: Any, count: int) -> None:
    for _ in range(500):
        state = await inspector.GetState(inspector_pb2.GetStateRequest())
        if len(state.lanes[0].waiting) == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(state)


def test_what_is_measured() -> None:
    answers = [Answer((1, 2, 3), 4, 0, 0.5, 1.0), Answer((1, 2, 3), 6, 2, 1.5, 3.0)]
    assert measured(answers, 4.0) == [
        "2 requests, 10 prompt tokens (2 from the prefix cache), 6 output tokens "
        "in 4.00 s",
        "time to first token: mean 1.000 s, longest 1.500 s",
        "time per output token: mean 500.00 ms",
        "throughput: 1.5 output tokens/s",
    ]


async def test_offline_says_why_a_request_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = prompt_file(tmp_path, ["x" * 600])
    async with real_service(sim_bundle()) as service:
        with pytest.raises(TTServeError, match="512"):
            await offline(service, "--prompts-json", file)
        arguments = ["--device-service", service.address, "--prompts-json", file]
        assert await asyncio.to_thread(main, arguments) == 1
        await service.assert_nothing_is_held()
    assert re.fullmatch(r"error: .*512.*\n", capsys.readouterr().err)


async def test_offline_says_when_a_step_fails(tmp_path: Path) -> None:
    file = prompt_file(tmp_path, ["one"])
    async with real_service(sim_bundle(), fail_steps=[2]) as service:
        with pytest.raises(TTServeError, match="step"):
            await offline(service, "--prompts-json", file)


def test_offline_without_a_service(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device-service", "127.0.0.1:1", "--device-timeout", "0"]) == 2
    assert "127.0.0.1:1 not ready after 0 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "reason"),
    [([], "list of texts"), (["a", 1], "list of texts"), ([""], "list of texts")],
)
def test_offline_prompts_must_be_texts(
    content: Any, reason: str, tmp_path: Path
) -> None:
    file = Path(prompt_file(tmp_path, content))
    with pytest.raises(StartupError, match=reason):
        offline_inference_tt.read_prompts(file, 1)


@pytest.mark.parametrize(
    "line",
    [
        ["--multi_modal"],
        ["--mm_processor_kwargs", '{"use_fast": true}'],
        ["--mm-processor-kwargs={}"],
    ],
)
def test_offline_refuses_images(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(line)
    assert "images are not served yet" in capsys.readouterr().err


def test_offline_sends_options_of_the_model_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(["--model", "Qwen/Qwen3-32B"])
    message = capsys.readouterr().err
    assert "--model is no option of this client" in message
    assert "tt-device-service" in message


@pytest.mark.parametrize("name", ["prompts.json", "prompts_overlapping.json"])
def test_the_prompts_that_come_along(name: str) -> None:
    prompts = offline_inference_tt.read_prompts(EXAMPLES / name, 1)
    assert len(prompts) == len(set(prompts)) == 8


def test_server_example_takes_the_frontends_options() -> None:
    arguments = server_example_tt.frontend_arguments(["--port=8123", "--api-key", "k"])
    config = read_command_line(arguments)
    assert [str(d) for d in config.devices] == ["127.0.0.1:50051"]
    assert config.http.port == 8123
    assert server_example_tt.port_of(["--host", "h", "--port", "8123"]) == "8123"
    for given in (["--device_service", "d:1"], ["--device-service=d:1"]):
        config = read_command_line(server_example_tt.frontend_arguments(given))
        assert [str(d) for d in config.devices] == ["d:1"]
        assert unaccepted_option(config.vllm_arguments) is None


@pytest.mark.parametrize("example", [offline_inference_tt, server_example_tt])
def test_help_teaches(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = example.main(["--help"])
    except SystemExit as end:
        status = end.code
    assert status == 0
    text = capsys.readouterr().out
    assert "tt-device-service" in text
    assert "--device-service HOST:PORT" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.timeout(300)
async def test_server_example_serves_the_device_service(tmp_path: Path) -> None:
    program = [str(EXAMPLES / "server_example_tt.py")]
    async with real_service(sim_bundle()) as service:
        with FrontendProcess(
            service.address, tmp_path / "log", program=program
        ) as server:
            await asyncio.to_thread(server.wait_until_ready)
            assert f"curl {server.url}/v1/completions" in server.log
            body = {"prompt": "abc", "max_tokens": 8, "temperature": 0}
            async with httpx.AsyncClient(timeout=60) as client:
                answer = await client.post(f"{server.url}/v1/completions", json=body)
            text = answer.json()["choices"][0]["text"]
            assert json.dumps(text) == said(service, list(b"abc"), 8)
