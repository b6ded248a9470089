"""The server example: OpenAI's HTTP API for a running device service.

    tt-device-service --model MODEL              # in another terminal
    python examples/server_example_tt.py --port 8000

It is `tt-frontend` with an address given, and says what to ask it. `tt-serve` starts
both parts at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

DEVICE_SERVICE = "127.0.0.1:50051"
PORT = "8000"
OPTION = "--device-service"

HELP = """\
usage: server_example_tt.py [--device-service HOST:PORT] [options of tt-frontend]

Serves OpenAI's HTTP API for the model of a device service that is running, by
default at 127.0.0.1:50051. Every option of tt-frontend is taken (tt-frontend --help
explains them); those of the model and the mesh (--model, --max-num-seqs,
--data-parallel-size, --additional-config, ...) are given to tt-device-service:

  MESH_DEVICE=T3K tt-device-service --model meta-llama/Llama-3.1-8B-Instruct
  python examples/server_example_tt.py

or both parts are started by one command, which takes the options of both:

  MESH_DEVICE=T3K tt-serve meta-llama/Llama-3.1-8B-Instruct

Start as many of these as you like, on any host that reaches the device service.
"""

ASK = """\
when it is ready (GET /ready), ask it:
  curl http://127.0.0.1:{port}/v1/completions -H 'Content-Type: application/json' \\
    -d '{{"prompt": "San Francisco is a", "max_tokens": 32, "temperature": 0}}'
"""


def frontend_arguments(argv: Sequence[str]) -> list[str]:
    """The command line of `tt-frontend` for that of this example."""
    given = any(_name(word) == OPTION for word in argv)
    return [*argv] if given else [OPTION, DEVICE_SERVICE, *argv]


def port_of(argv: Sequence[str]) -> str:
    """Where it will listen, as typed; what is wrong with it is tt-frontend's to say."""
    port = PORT
    for index, word in enumerate(argv):
        if _name(word) == "--port":
            port = word.partition("=")[2] or "".join(argv[index + 1 : index + 2])
    return port


def _name(word: str) -> str:
    return word.partition("=")[0].replace("_", "-")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns only for `--help`."""
    arguments = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    print(ASK.format(port=port_of(arguments)), end="", flush=True)
    # Late: it is not needed for the help, and takes its time.
    from frontend.__main__ import main as serve

    serve(frontend_arguments(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
