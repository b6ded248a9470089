"""The messages in the file of a recording. Needs neither vLLM nor torch."""

from __future__ import annotations

import io
from collections.abc import Iterator

from google.protobuf.message import DecodeError
from google.protobuf.proto import parse_length_prefixed

from ttserve.v1 import recording_pb2 as pb

FORMAT = 1
"""What this version writes and reads."""


class NotARecording(ValueError):
    """A file that is no recording, or one that this version cannot read."""


def entries(data: bytes) -> Iterator[pb.RecordingEntry]:
    """The messages of a file. Raises NotARecording where it is none."""
    file, first = io.BytesIO(data), True
    while file.tell() < len(data) or first:
        try:
            entry = parse_length_prefixed(pb.RecordingEntry, file)
        except (DecodeError, ValueError) as error:
            what = "this is no recording" if first else "the recording is cut short"
            raise NotARecording(what) from error
        if first:
            _check_header(entry)
        yield entry
        first = False


def _check_header(entry: pb.RecordingEntry | None) -> None:
    if entry is None or entry.WhichOneof("entry") != "header":
        raise NotARecording("this is no recording")
    if entry.header.format != FORMAT:
        raise NotARecording(
            f"the recording has format {entry.header.format}; this version reads "
            f"{FORMAT}"
        )
