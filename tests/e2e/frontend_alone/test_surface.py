"""What is mounted, and the endpoints around generation."""

from __future__ import annotations

import httpx
import pytest

from tests.support.fake_device import SERVED_NAME, FakeDevice
from tests.support.frontend_process import wait_for

DESCRIBED = {
    "/detokenize": {"post"},
    "/tokenize": {"post"},
    "/v1/chat/completions": {"post"},
    "/v1/completions": {"post"},
    "/v1/messages": {"post"},
    "/v1/messages/count_tokens": {"post"},
    "/v1/models": {"get"},
    "/v1/responses": {"post"},
    "/version": {"get"},
    "/metrics": {"get"},
}
ALSO_SERVED = {
    *("/live", "/ready", "/health"),
    *("/openapi.json", "/docs", "/redoc"),
    "/inspect",
}

NOT_SERVED = [
    "/invocations",
    "/ping",
    "/load",
    "/server_info",
    "/start_profile",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/sleep",
    "/wake_up",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/generative_scoring",
    "/inference/v1/generate",
    "/pooling",
    "/score",
    "/rerank",
    "/classify",
    "/tokenizer_info",
    "/v1/embeddings",
    "/v1/audio/transcriptions",
    "/v1/chat/completions/batch",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/load_lora_adapter",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    "/cohere/v2/chat",
]


def test_what_is_described(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert {path: set(methods) for path, methods in paths.items()} == DESCRIBED


@pytest.mark.parametrize("path", sorted(ALSO_SERVED))
def test_what_is_served_besides(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200


@pytest.mark.parametrize("path", NOT_SERVED)
def test_what_is_not(http: httpx.Client, path: str) -> None:
    for method in ("GET", "POST"):
        assert http.request(method, path, json={}).status_code == 404


def test_versions(http: httpx.Client, device: FakeDevice) -> None:
    versions = http.get("/version").json()
    assert versions["version"] == device.model.vllm_version
    assert versions["ttserve"]
    assert versions["device_instance"].startswith("fake-")


def test_ready_report(http: httpx.Client) -> None:
    report = http.get("/health").json()
    assert report["status"] == "ready"
    assert report["reasons"] == []


def test_request_ids(http: httpx.Client, device: FakeDevice) -> None:
    def ask(headers: dict[str, str]) -> httpx.Response:
        body = {"prompt": "x", "max_tokens": 1}
        return http.post("/v1/completions", json=body, headers=headers)

    mine = ask({"x-request-id": "mine-1"})
    assert mine.headers["x-request-id"] == "mine-1"
    assert mine.json()["id"] == "cmpl-mine-1"
    made_up = ask({}).headers["x-request-id"]
    unusable = ask({"x-request-id": "x" * 5000})
    assert unusable.headers["x-request-id"] != "x" * 5000
    external = [s.external_request_id for s in device.seen.submissions]
    assert external == ["mine-1", made_up, unusable.headers["x-request-id"]]


def test_one_fingerprint_for_all_frontends(http: httpx.Client) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    answer = http.post("/v1/completions", json=body).json()
    assert answer["system_fingerprint"] == "ttserve-0123456789ab"


def test_metrics(http: httpx.Client, device: FakeDevice, metrics_port: int) -> None:
    http.post(
        "/v1/completions", json={"model": SERVED_NAME, "prompt": "x" * 100}
    ).raise_for_status()
    wait_for(lambda: "ttserve_heartbeat_seconds" in http.get("/metrics").text)
    own_port = httpx.get(f"http://127.0.0.1:{metrics_port}/metrics").text
    for text in (http.get("/metrics").text, own_port):
        for name in (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
            "vllm:time_to_first_token_seconds_count",
            "vllm:request_queue_time_seconds_count",
            "vllm:cache_config_info",
            "ttserve_ready 1.0",
            "ttserve_device_sessions_total",
            'ttserve_request_failures_total{reason="QUEUE_FULL"}',
        ):
            assert name in text
    assert httpx.get(f"http://127.0.0.1:{metrics_port}/ready").status_code == 200
    assert httpx.get(f"http://127.0.0.1:{metrics_port}/v1/models").status_code == 404
