"""People who watch every step: `python -m bench.workers.watchers HOST:PORT`.

A question says how many are to watch from now on; the answer, how many records
they have got since the last one, and how many they were too slow for.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import grpc

from bench.workers.serve import serve, take_stdout
from ttserve.v1 import inspector_pb2, inspector_pb2_grpc


class _Watcher:
    """One stream, read by a thread of its own until `stop`."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.records = self.lost = 0
        stub = inspector_pb2_grpc.InspectorStub(channel)
        self._stream = stub.WatchSteps(inspector_pb2.WatchStepsRequest())
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def stop(self) -> None:
        self._stream.cancel()
        self._thread.join()

    def _read(self) -> None:
        try:
            for message in self._stream:
                if message.WhichOneof("event") == "step":
                    self.records += 1
                else:
                    self.lost += message.lost_steps
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise


def main() -> None:
    pipe = take_stdout()
    watchers: list[_Watcher] = []
    with grpc.insecure_channel(sys.argv[1]) as channel:

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            for watcher in watchers:
                watcher.stop()
            seen = {
                "records": sum(w.records for w in watchers),
                "lost": sum(w.lost for w in watchers),
            }
            watchers[:] = [_Watcher(channel) for _ in range(question["watchers"])]
            return seen

        try:
            serve(pipe, answer, {})
        finally:
            answer({"watchers": 0})


if __name__ == "__main__":
    main()
