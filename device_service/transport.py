"""What the gRPC transport is told: bounds, keepalive, who may ping how often."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message that the transport takes.

Far above what a request may be, so that one which is too large is refused with
a reason; the bound exists because the transport holds a message whole.
"""

MAX_METADATA_BYTES = 16 << 10
MAX_STREAMS_PER_CONNECTION = 4096
MAX_CALLS = 16_384
"""Calls at a time, of all connections; one more is RESOURCE_EXHAUSTED."""

CHANNEL_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a shared port
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # else a hanging client stays for a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Beyond these, calls wait at the client, or are refused, and a connection that
    # does not finish its handshake is closed.
    ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Clients may ping every second, also without a call.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
)
