"""Options: ours, vLLM's, and those that belong elsewhere."""

from __future__ import annotations

import pytest

from frontend import options
from frontend.address import parse_device_address
from frontend.config import read_command_line, unaccepted_option
from frontend.vllm_options import parse_server_options, server_option_names
from ttserve.errors import StartupError

DEVICE = ("--device-service", "device:50051")


def test_defaults() -> None:
    config = read_command_line(DEVICE, {})
    assert str(config.device) == "device:50051"
    assert config.http.host == "127.0.0.1"
    assert config.http.port == 8000
    assert config.http.api_keys == ()
    assert config.device_timeout is None
    assert (config.liveness.ping_interval, config.liveness.lost_after) == (0.5, 1.5)
    assert config.http.shutdown_seconds == 30


def test_spellings_and_the_rest() -> None:
    config = read_command_line(
        (*DEVICE, "--api_key", "a", "b", "--chat_template", "t", "--ssl-keyfile=k"), {}
    )
    assert config.http.api_keys == ("a", "b")
    assert config.http.tls.keyfile == "k"
    assert config.vllm_arguments == ("--chat-template", "t")


def test_keys_from_the_environment() -> None:
    environ = {"VLLM_API_KEY": "e"}
    assert read_command_line(DEVICE, environ).http.api_keys == ("e",)
    given = read_command_line((*DEVICE, "--api-key", "o"), environ)
    assert given.http.api_keys == ("o",)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--device-service", "x"),
        (*DEVICE, "--port", "70000"),
        (*DEVICE, "--lost-after", "0.1"),
        (*DEVICE, "--ping-interval", "0"),
        (*DEVICE, "--shutdown-timeout", "-1"),
        (*DEVICE, "--max-body-bytes", "10"),
        (*DEVICE, "--name", "n" * 64),
        (*DEVICE, "--uvicorn-log-level", "loud"),
    ],
)
def test_malformed(arguments: tuple[str, ...]) -> None:
    with pytest.raises(StartupError):
        read_command_line(arguments, {})


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("a:1", "a", 1), ("127.0.0.1:65535", "127.0.0.1", 65535), ("[::1]:5", "::1", 5)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = parse_device_address(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "a", ":1", "a:", "a:0", "::1:5", "a:1,b:2", "a b:1"]
)
def test_malformed_addresses(text: str) -> None:
    with pytest.raises(StartupError):
        parse_device_address(text)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), None),
        (("--chat-template", "--x"), "--x"),
        (("--chat-template", "t"), None),
        (("--no-enable-auto-tool-choice",), None),
        (("--default-chat-template-kwargs.a", "1"), None),
        (("--model", "m"), "--model"),
        (("m",), "m"),
        (("-tp", "2"), "-tp"),
        (("--max-log-len", "-1"), None),
    ],
)
def test_strangers(arguments: tuple[str, ...], found: str | None) -> None:
    assert unaccepted_option(arguments) == found


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--max-model-len=5", "--max-model-len is not for a frontend"),
        ("--no-enable-prefix-caching", "tt-device-service"),
        ("--lora-modules", "LoRA"),
        ("a-model", "comes from the device service"),
        ("--foo", "unknown option --foo (see --help)"),
    ],
)
def test_refusals(argument: str, said: str) -> None:
    assert said in options.refusal(argument)


def test_every_option_of_vllm_is_decided() -> None:
    """A new one must be put on a list."""
    assert options.check_complete(server_option_names()) == []


def test_lists_do_not_overlap_or_name_what_is_gone() -> None:
    ours = [*options.ACCEPTED, *options.EARLY, *options.REFUSED]
    assert len(ours) == len(set(ours))
    assert set(ours) <= server_option_names() | options.engine_options()


def test_vllms_parser_takes_every_accepted_option() -> None:
    parsed = parse_server_options(())
    assert options.ACCEPTED.keys() <= vars(parsed).keys()
    assert parsed.sse_keep_alive_interval == 15


@pytest.mark.parametrize(
    "arguments",
    [
        ("--chat-template-content-format", "odd"),
        ("--enable-auto-tool-choice",),
        ("--chat-template", "/no/such/file"),
        ("--stream-interval", "x"),
        ("--allowed-origins", "["),
    ],
)
def test_bad_values_are_one_line(arguments: tuple[str, ...]) -> None:
    with pytest.raises(StartupError) as refusal:
        parse_server_options(arguments)
    assert "\n" not in str(refusal.value).strip()
