"""`bench.host_sampling` in a process with the device service's environment."""

from __future__ import annotations

from bench.worker import THREADS
from bench.workers.serve import serve, take_stdout


def main() -> None:
    pipe = take_stdout()
    from ttserve.environment import prepare_device_service

    prepare_device_service(None)
    import torch

    from bench.host_sampling import measure

    torch.set_num_threads(THREADS)
    serve(pipe, lambda _: {"figures": measure()}, {})


if __name__ == "__main__":
    main()
