"""A whole device service over the contract probe: real weights, every site."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import probed_service
from tests.support.stack import DeviceProcess
from tests.tiny_models import write_tiny_model
from ttserve.v1 import device_pb2, inspector_pb2, step_pb2

OPTIONS = (
    *("--max-model-len", "256", "--max-num-seqs", "4", "--block-size", "16"),
    # Prompts come in chunks, and four requests do not fit: some are preempted.
    *("--max-num-batched-tokens", "32", "--num-gpu-blocks-override", "20"),
    *("--additional-config.tt.sample_on_device_mode", "decode_only"),
)
TOKENS = 60

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceProcess]:
    directory = tmp_path_factory.mktemp("probed")
    model = directory / "llama"
    model.mkdir()
    write_tiny_model("llama", model)
    service = DeviceProcess(
        directory / "device.log",
        *("--model", str(model), *OPTIONS),
        mesh="cpu",
        program=(str(probed_service.__file__),),
    )
    service.start()
    service.wait_until_serving()
    yield service
    service.close()


def _request(first: int) -> device_pb2.GenerateRequest:
    prompt = [first + i % 7 for i in range(30 + first % 40)]
    request = device_pb2.GenerateRequest(prompt_token_ids=prompt)
    request.stop.max_output_tokens = TOKENS
    request.sampling.temperature = 1.0 if first % 2 else 0.0
    request.sampling.seed = first
    request.ignore_eos = True
    if first % 3 == 0:
        request.logprobs.top_count = 2
    return request


@pytest.mark.feature(38, 39, 41, 42, 56)
def test_every_call_of_a_busy_service_is_as_the_contract_says(
    service: DeviceProcess,
) -> None:
    def generate(first: int) -> tuple[int, int]:
        answers = list(service.device.Generate(_request(first), timeout=100))
        tokens = sum(len(answer.token_ids) for answer in answers)
        return tokens, answers[-1].finish.reason

    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(generate, range(40, 52)))
    assert found == [(TOKENS, step_pb2.FINISH_REASON_LENGTH)] * 12
    steps = service.steps()
    sites = {step.sampling_site for step in steps}
    assert {
        inspector_pb2.SAMPLING_SITE_DEVICE,
        inspector_pb2.SAMPLING_SITE_HOST,
    } <= sites
    assert any(step.preempted_request_ids for step in steps)
    rows = [row for step in steps for lane in step.lanes for row in lane.rows]
    assert any(row.intermediate_chunk for row in rows)
    service.signal(signal.SIGTERM)
    assert service.process.wait(30) == 0
    assert "contract" not in service.log
    assert "was not warmed up" not in service.log
