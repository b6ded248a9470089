"""Server reflection, v1 and v1alpha, over one pool of descriptors.

grpcio-reflection serves v1alpha only. v1 is the same protocol byte for byte
under another package name, so its descriptor is v1alpha's with the name
replaced, and the same servicer answers under both names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1ALPHA = "grpc.reflection.v1alpha"
V1 = "grpc.reflection.v1"
SERVICE = "ServerReflection"


def reflection_handlers(
    services: Iterable[str],
) -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
    """Handlers that describe `services`, and reflection itself."""
    names = [*services, f"{V1ALPHA}.{SERVICE}", f"{V1}.{SERVICE}"]
    pool = descriptor_pool.DescriptorPool()
    known: set[str] = set()
    _add(_v1_file(), pool, known)
    # No file of ours imports the details of a status: they travel as Any.
    _add_with_dependencies(error_details_pb2.DESCRIPTOR, pool, known)
    for name in names[:-1]:
        found = descriptor_pool.Default().FindFileContainingSymbol(name)
        _add_with_dependencies(found, pool, known)
    servicer = reflection.aio.ReflectionServicer(  # type: ignore[attr-defined]
        names, pool=pool
    )
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return tuple(
        grpc.method_handlers_generic_handler(
            f"{package}.{SERVICE}", {"ServerReflectionInfo": method}
        )
        for package in (V1ALPHA, V1)
    )


def _v1_file() -> descriptor_pb2.FileDescriptorProto:
    v1alpha = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(v1alpha)
    text = text_format.MessageToString(v1alpha).replace(V1ALPHA, V1)
    v1 = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    v1.name = "grpc/reflection/v1/reflection.proto"
    return v1


def _add_with_dependencies(
    file: FileDescriptor, pool: descriptor_pool.DescriptorPool, known: set[str]
) -> None:
    for dependency in file.dependencies:
        _add_with_dependencies(dependency, pool, known)
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    _add(proto, pool, known)


def _add(
    proto: descriptor_pb2.FileDescriptorProto,
    pool: descriptor_pool.DescriptorPool,
    known: set[str],
) -> None:
    if proto.name not in known:
        known.add(proto.name)
        pool.AddSerializedFile(proto.SerializeToString())
