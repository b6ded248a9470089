"""Messages that no frontend would send."""

from __future__ import annotations

import asyncio
import string
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from bench.progress import say
from bench.results import Result, result
from tests.chaos.fuzzing import Found, search, still_right
from tests.chaos.registry import Setting, case
from tests.chaos.streams import TRACES, all_right
from tests.chaos.system import running
from ttserve.v1 import device_pb2, inspector_pb2

CALL_SECONDS = 1.0
SMALL = ("--max-num-seqs", "16", "--max-model-len", "256")
# They hold the engine still until somebody lets it go on.
LEFT_ALONE = frozenset({"Pause", "Step"})
# gRPC says of bytes that are no message: INTERNAL.
NO_MESSAGE = "Exception deserializing request!"
OURS_TO_SAY = frozenset(grpc.StatusCode) - {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DATA_LOSS,
}


@case("fuzz-grpc", shows="malformed protobuf gets a status that says why")
def fuzz_grpc(setting: Setting) -> Iterator[Result]:
    """Every method of ours, with bytes that are no message and strange messages."""
    services = [
        *device_pb2.DESCRIPTOR.services_by_name.values(),
        *inspector_pb2.DESCRIPTOR.services_by_name.values(),
    ]
    methods = [
        method
        for service in services
        for method in service.methods
        if method.name not in LEFT_ALONE
    ]
    with running(setting.directory, decode_ms=0, device_options=SMALL) as system:
        asyncio.run(all_right(system.ports, 16))
        before = system.holdings()
        answers: Counter[str] = Counter()
        with grpc.insecure_channel(system.devices[0].address) as channel:
            calls = st.sampled_from(methods).flatmap(
                lambda method: st.tuples(
                    st.just(method),
                    st.lists(
                        st.binary(max_size=60) | _serialized(method.input_type),
                        min_size=1,
                        max_size=4 if method.client_streaming else 1,
                    ),
                )
            )

            def try_one(sent: tuple[MethodDescriptor, list[bytes]]) -> None:
                answers[_call(channel, *sent)] += 1

            found = search(calls, try_one, setting.seed)
        say(f"  {dict(answers)}")
        yield result("fuzz-grpc.calls", answers.total(), "calls")
        yield result("fuzz-grpc.wrong", found, "kinds", "<= 0")
        yield from still_right("fuzz-grpc", system)
        yield system.settle("fuzz-grpc", before)


def _serialized(kind: Descriptor) -> st.SearchStrategy[bytes]:
    return _messages(kind, depth=3).map(lambda made: made.SerializePartialToString())


@st.composite
def _messages(draw: st.DrawFn, kind: Descriptor, depth: int) -> Any:
    """A message with any of its fields set to anything of their type."""
    made: Any = GetMessageClass(kind)()
    fields = [f for f in kind.fields if depth or f.message_type is None]
    chosen = draw(st.lists(st.sampled_from(fields), max_size=5)) if fields else []
    for each in chosen:
        if _is_map(each):
            continue
        if each.message_type is not None:
            inner = draw(_messages(each.message_type, depth - 1))
            target = getattr(made, each.name)
            (target.add() if each.is_repeated else target).CopyFrom(inner)
        elif each.is_repeated:
            getattr(made, each.name).extend(draw(st.lists(_scalars(each), max_size=5)))
        else:
            setattr(made, each.name, draw(_scalars(each)))
    return made


def _is_map(each: FieldDescriptor) -> bool:
    kind = each.message_type
    return kind is not None and kind.GetOptions().map_entry


def _scalars(each: FieldDescriptor) -> st.SearchStrategy[Any]:
    signed32, signed64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
    match each.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_ENUM:
            return st.integers(-2, 40) | st.integers(*signed32)
        case FieldDescriptor.CPPTYPE_INT64:
            return st.integers(-2, 40) | st.integers(*signed64)
        case FieldDescriptor.CPPTYPE_UINT32:
            return st.integers(0, 40) | st.integers(0, 2**32 - 1)
        case FieldDescriptor.CPPTYPE_UINT64:
            return st.integers(0, 40) | st.integers(0, 2**64 - 1)
        case FieldDescriptor.CPPTYPE_STRING if each.type == FieldDescriptor.TYPE_BYTES:
            return st.binary(max_size=20)
        case FieldDescriptor.CPPTYPE_STRING:
            return st.text(string.printable, max_size=20)
        case _:
            return st.floats(width=32)


def _call(channel: grpc.Channel, method: MethodDescriptor, sent: list[bytes]) -> str:
    """The status; raises Found for one that does not say what is wrong."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    start: Any = channel.stream_stream(path, None, None)
    answers = start(iter(sent), timeout=CALL_SECONDS)
    try:
        for _, _answer in zip(range(300), answers, strict=False):
            pass
    except grpc.RpcError:
        pass  # its status is looked at below
    answers.cancel()
    code, said = answers.code(), str(answers.details())
    if code not in OURS_TO_SAY and said != NO_MESSAGE:
        raise Found(f"{path} {sent}: {code.name} {said!r}")
    if any(trace.decode() in said for trace in TRACES):
        raise Found(f"{path} {sent}: it shows its insides: {said!r}")
    return str(code.name)
