"""The launcher's own flags."""

from __future__ import annotations

import pytest

from ttserve.errors import StartupError
from ttserve.launcher.config import parse, wants_colour


def test_defaults() -> None:
    config = parse([])
    assert (config.model, config.host, config.port) == (None, "127.0.0.1", 8000)
    assert (config.grpc_port, config.metrics_port, config.frontends) == (50051, 9100, 1)
    assert config.http_url == "http://127.0.0.1:8000"


def test_a_whole_command_line() -> None:
    line = "./model --frontends 3 --port 1 --mesh cpu --ssl-certfile c --ssl-keyfile k"
    config = parse(line.split())
    assert (config.model, config.frontends, config.port) == ("./model", 3, 1)
    assert config.device_flags == ("--mesh", "cpu")
    assert config.frontend_flags == ("--ssl-certfile", "c", "--ssl-keyfile", "k")
    assert config.http_url == "https://127.0.0.1:1"


def test_the_model_has_two_spellings() -> None:
    assert parse(["--model", "m"]).model == parse(["m"]).model == "m"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--port 8000x", "'8000x' is not a whole number from 0 to 65535"),
        ("--port 65536", "not a whole number"),
        ("--port ²", "not a whole number"),
        ("--grpc-port 0", "not a whole number from 1 to"),
        ("--frontends 0", "not a whole number from 1 to 64"),
        ("--frontends", "--frontends needs a value"),
        ("--shutdown-timeout soon", "'soon' is not a number of seconds"),
        ("--shutdown-timeout nan", "not a number of seconds"),
        ("--port 9000 --grpc-port 9000", "--port 9000 is one of --grpc-port 9000"),
        (
            "--port 50052 --data-parallel-size 2",
            "--port 50052 is one of the 2 ports from --grpc-port 50051 on",
        ),
        (
            "--grpc-port 9099 -dp 2",
            "the 2 ports from --grpc-port 9099 on and --metrics-port 9100 share some",
        ),
        ("--port 9101 --frontends 2", "--port 9101 is one of the 2 ports from --metr"),
        ("--grpc-port 65535 -dp 2", "no 2 ports from --grpc-port 65535 on"),
        ("--data-parallel-size 0", "not a whole number from 1 to"),
        (
            "--metrics-port 65535 --frontends 2",
            "no 2 ports from",
        ),
        ("--help=all", "tt-device-service"),
        ("a b", "one model at a time, but got: a b"),
        ("a --model b", "one model at a time, but got: a b"),
    ],
)
def test_refused_in_one_line(line: str, message: str) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        parse(line.split())
    assert "\n" not in str(caught.value)


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert "tt-serve ./my-model --port 8080 --frontends 3" in text


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("10.0.0.1", "http://10.0.0.1:8000"),
    ],
)
def test_the_url_is_one_that_works_here(host: str, url: str) -> None:
    assert parse(["--host", host]).http_url == url


@pytest.mark.parametrize(
    ("is_terminal", "environment", "colour"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (False, {}, False),
    ],
)
def test_colour(
    *, is_terminal: bool, environment: dict[str, str], colour: bool
) -> None:
    assert wants_colour(environment, is_terminal=is_terminal) is colour


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", False),
        ("--log-format json", True),
        ("--log-format=json", True),
        ("--log_format json", True),
        ("--log-format json --log-format text", False),
    ],
)
def test_json_logs_are_recognised(line: str, *, expected: bool) -> None:
    assert parse(line.split()).logs_json is expected
