"""Errors over the wire: every reason there and back, and what others send."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from ttserve.errors import CONSEQUENCES, GrpcCode, Reason, TTServeError
from ttserve.status import from_rpc_error, from_status, to_grpc_status, to_status
from ttserve.v1 import errors_pb2


def test_reasons_are_those_of_the_protocol() -> None:
    on_the_wire = {
        name.removeprefix("ERROR_REASON_"): number
        for name, number in errors_pb2.ErrorReason.items()
        if number
    }
    assert on_the_wire == {reason.name: reason.value for reason in Reason}


def test_every_reason_has_a_consequence() -> None:
    assert set(CONSEQUENCES) == set(Reason)


def test_codes_are_those_of_grpc() -> None:
    numbers = {code.name: code.value[0] for code in grpc.StatusCode}
    assert all(numbers[code.name] == code.value for code in GrpcCode)


@given(
    reason=st.sampled_from(Reason),
    message=st.text(max_size=50),
    metadata=st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3),
    retry_after=st.none() | st.integers(0, 10**6).map(lambda ms: ms / 1000),
)
def test_errors_round_trip(
    reason: Reason,
    message: str,
    metadata: dict[str, str],
    retry_after: float | None,
) -> None:
    error = TTServeError(reason, message, metadata=metadata, retry_after=retry_after)
    status = status_pb2.Status.FromString(to_status(error).SerializeToString())
    back = from_status(status)
    assert back.reason is reason
    assert back.message == message
    assert back.metadata == metadata
    assert back.retry_after == retry_after
    assert status.code == CONSEQUENCES[reason].code


def test_status_has_exactly_one_error_info() -> None:
    status = to_status(TTServeError(Reason.QUEUE_FULL, "full", retry_after=1.5))
    kinds = [detail.TypeName() for detail in status.details]
    assert kinds == ["google.rpc.ErrorInfo", "google.rpc.RetryInfo"]


def test_unknown_reason_is_read_by_its_code() -> None:
    """A newer service may have reasons that we do not know."""
    status = status_pb2.Status(code=GrpcCode.RESOURCE_EXHAUSTED, message="new")
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(
            reason="TOO_NEW", domain="ttserve", metadata={"a": "b"}
        )
    )
    error = from_status(status)
    assert (error.reason, error.metadata) == (Reason.QUEUE_FULL, {"a": "b"})


def test_reason_of_another_domain_is_not_ours() -> None:
    status = status_pb2.Status(code=GrpcCode.UNAVAILABLE)
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason="INVALID_FIELD", domain="other")
    )
    assert from_status(status).reason is Reason.DEVICE_LOST


def rpc_error(
    code: grpc.StatusCode, details: str, *trailers: tuple[str, str | bytes]
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details, ""
    )


def test_status_in_trailers() -> None:
    sent = to_grpc_status(
        TTServeError(Reason.PROMPT_TOO_LONG, "long", metadata={"promptTokens": "9"})
    )
    error = from_rpc_error(rpc_error(sent.code, sent.details, *sent.trailing_metadata))
    assert error.reason is Reason.PROMPT_TOO_LONG
    assert error.metadata == {"promptTokens": "9"}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, Reason.DEVICE_LOST),
        (grpc.StatusCode.CANCELLED, Reason.INTERNAL),
        (grpc.StatusCode.UNIMPLEMENTED, Reason.INTERNAL),
    ],
)
def test_bare_code(code: grpc.StatusCode, reason: Reason) -> None:
    error = from_rpc_error(rpc_error(code, "connection refused"))
    assert (error.reason, error.message) == (reason, "connection refused")


def test_trailers_that_contradict_the_call() -> None:
    sent = to_grpc_status(TTServeError(Reason.QUEUE_FULL, "full"))
    error = from_rpc_error(
        rpc_error(grpc.StatusCode.UNAVAILABLE, "gone", *sent.trailing_metadata)
    )
    assert error.reason is Reason.DEVICE_LOST
