"""The device service explains itself to grpcurl and to buf, no proto at hand.

grpcurl 1.8 speaks reflection v1alpha only, `buf curl` asks for v1.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.support.wire import Service

SERVICES = {
    "grpc.channelz.v1.Channelz",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "ttserve.v1.Device",
    "ttserve.v1.Inspector",
}


def tool(name: str) -> str:
    """A command beside the running Python or on the path; skips where it is not."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


async def output_of(*command: str) -> str:
    """What a command prints; it has to succeed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def grpcurl(service: Service, *verb: str, data: str = "") -> str:
    """Run grpcurl against the service."""
    flags = ["-d", data] if data else []
    return await output_of(
        tool("grpcurl"), "-plaintext", *flags, service.address, *verb
    )


@pytest.mark.parametrize("package", ["grpc.reflection.v1", "grpc.reflection.v1alpha"])
class TestReflection:
    """Both versions, spoken directly."""

    async def ask(self, service: Service, package: str, **question: Any) -> Any:
        channel: Any = service.channel()
        call = channel.stream_stream(
            f"/{package}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(**question))
        answer = await call.read()
        call.cancel()
        return answer

    async def test_lists_exactly_what_is_served(
        self, service: Service, package: str
    ) -> None:
        answer = await self.ask(service, package, list_services="*")
        names = {entry.name for entry in answer.list_services_response.service}
        assert names == SERVICES

    @pytest.mark.parametrize("name", sorted(SERVICES))
    async def test_describes_every_service(
        self, service: Service, package: str, name: str
    ) -> None:
        answer = await self.ask(service, package, file_containing_symbol=name)
        files = [
            descriptor_pb2.FileDescriptorProto.FromString(data)
            for data in answer.file_descriptor_response.file_descriptor_proto
        ]
        services = {f"{file.package}.{s.name}" for file in files for s in file.service}
        assert name in services
        known = {file.name for file in files}
        assert all(set(file.dependency) <= known for file in files)

    async def test_unknown_symbol(self, service: Service, package: str) -> None:
        answer = await self.ask(service, package, file_containing_symbol="no.Such")
        assert answer.error_response.error_code == 5


async def test_grpcurl_list(service: Service) -> None:
    assert set((await grpcurl(service, "list")).split()) == SERVICES


async def test_grpcurl_describe(service: Service) -> None:
    text = await grpcurl(service, "describe", "ttserve.v1.GenerateRequest")
    assert "repeated uint32 prompt_token_ids = 1" in text


async def test_grpcurl_generate(service: Service) -> None:
    with service.engine.ticking():
        text = await grpcurl(
            service, "ttserve.v1.Device/Generate", data='{"prompt_token_ids": [1]}'
        )
    answer = json.loads(text)
    assert answer["token_ids"] == [2]
    assert answer["finish"] == {"reason": "FINISH_REASON_STOP"}


async def test_grpcurl_get_model_and_state(service: Service) -> None:
    model = json.loads(await grpcurl(service, "ttserve.v1.Device/GetModel"))
    assert model["model"]["served_names"] == ["tiny", "tiny-alias"]
    state = json.loads(await grpcurl(service, "ttserve.v1.Inspector/GetState"))
    assert state["lanes"][0]["total_rows"] == 8


async def test_grpcurl_shows_the_details_of_an_error(service: Service) -> None:
    process = await asyncio.create_subprocess_exec(
        tool("grpcurl"),
        "-plaintext",
        service.address,
        "ttserve.v1.Device/Generate",
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    text = err.decode()
    assert process.returncode != 0
    assert "Code: InvalidArgument" in text
    assert '"reason":"INVALID_FIELD"' in text
    assert '"field":"prompt_token_ids"' in text


async def test_grpcurl_health(service: Service) -> None:
    text = await grpcurl(service, "grpc.health.v1.Health/Check")
    assert json.loads(text) == {"status": "SERVING"}


async def test_grpcurl_channelz(service: Service) -> None:
    text = await grpcurl(service, "grpc.channelz.v1.Channelz/GetServers")
    assert json.loads(text)["server"]


async def buf_curl(service: Service, method: str, data: str) -> Any:
    """Call through buf, which finds the schema by reflection v1."""
    text = await output_of(
        tool("buf"),
        "curl",
        "--protocol",
        "grpc",
        "--http2-prior-knowledge",
        "--reflect-protocol",
        "grpc-v1",
        "-d",
        data,
        f"http://{service.address}/{method}",
    )
    return json.loads(text)


async def test_buf_curl_get_model(service: Service) -> None:
    answer = await buf_curl(service, "ttserve.v1.Device/GetModel", "{}")
    assert answer["model"]["architecture"] == "LlamaForCausalLM"


async def test_buf_curl_generate(service: Service) -> None:
    with service.engine.ticking():
        answer = await buf_curl(
            service, "ttserve.v1.Device/Generate", '{"prompt_token_ids": [1]}'
        )
    assert answer["tokenIds"] == [2]
