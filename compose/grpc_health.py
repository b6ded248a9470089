"""Exits 0 if the gRPC service at ADDRESS says that it is serving."""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def obstacle(address: str) -> str | None:
    """None when it is serving, else what it answered."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=4)
        except grpc.RpcError as error:
            return f"{address}: {error.code().name}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return f"{address}: not serving"


if __name__ == "__main__":
    sys.exit(obstacle(sys.argv[1]))
