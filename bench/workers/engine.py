"""Our engine in process: `python -m bench.workers.engine DEVICE-SERVICE-FLAGS...`."""

from __future__ import annotations

import sys
import time

from bench.workers.serve import serve_batches, take_stdout


def main() -> None:
    pipe = take_stdout()
    argv = sys.argv[1:]
    from ttserve.environment import prepare_device_service

    prepare_device_service(None)
    began = time.monotonic()
    import torch

    from bench.engine import InProcessEngine

    with InProcessEngine(argv) as engine:
        about = {
            "start_seconds": time.monotonic() - began,
            "threads": torch.get_num_threads(),
            "model": str(engine.resolved.source.directory),
            "max_model_len": engine.resolved.pool.max_model_len,
        }
        serve_batches(pipe, engine.run, about)


if __name__ == "__main__":
    main()
