"""Options: ours, vLLM's, and those that belong elsewhere."""

from __future__ import annotations

import pytest

from frontend import options
from frontend.address import parse_device_address, parse_device_addresses
from frontend.config import read_command_line, unaccepted_option
from frontend.vllm_options import parse_server_options, server_option_names
from ttserve.errors import StartupError

DEVICE = ("--device-service", "device:50051")


def test_defaults() -> None:
    config = read_command_line(DEVICE, {})
    assert [str(device) for device in config.devices] == ["device:50051"]
    assert config.http.host == "127.0.0.1"
    assert config.http.port == 8000
    assert not config.http.api_keys
    assert config.device_timeout is None
    assert (config.liveness.ping_interval, config.liveness.lost_after) == (0.5, 1.5)
    assert config.http.shutdown_seconds == 30


def test_spellings_and_the_rest() -> None:
    config = read_command_line(
        (*DEVICE, "--api_key", "a", "b", "--chat_template", "t", "--ssl-keyfile=k"), {}
    )
    assert all(map(config.http.api_keys.accept, ("a", "b")))
    assert config.http.tls.keyfile == "k"
    assert config.vllm_arguments == ("--chat-template", "t")


def test_keys_from_the_environment() -> None:
    environ = {"VLLM_API_KEY": "e"}
    assert read_command_line(DEVICE, environ).http.api_keys.newest() == "e"
    given = read_command_line((*DEVICE, "--api-key", "o"), environ)
    assert given.http.api_keys.newest() == "o"
    assert not given.http.api_keys.accept("e")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--device-service", "x"),
        (*DEVICE, "--port", "70000"),
        (*DEVICE, "--lost-after", "0.1"),
        (*DEVICE, "--ping-interval", "0"),
        (*DEVICE, "--shutdown-timeout", "-1"),
        (*DEVICE, "--shutdown-timeout", "3", "--drain-delay", "4"),
        (*DEVICE, "--accept-when-ready", "9"),
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


def test_several_device_services() -> None:
    config = read_command_line(
        ("--device-service", "b:2,[::1]:3", "--device_service=10.0.0.1:1"), {}
    )
    assert [str(d) for d in config.devices] == ["b:2", "[::1]:3", "10.0.0.1:1"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a:1,b:2", "a:1"], "names a:1 twice"),
        (["a:1,"], "'' is not HOST:PORT"),
        (["a:1;b:2"], "is not HOST:PORT"),
        (["a:1,b"], "'b' is not HOST:PORT"),
    ],
)
def test_malformed_lists(texts: list[str], said: str) -> None:
    with pytest.raises(StartupError, match=said):
        parse_device_addresses(texts)


@pytest.mark.parametrize(
    ("text", "several"),
    [
        ("devices.example:1", True),
        ("devices:1", True),
        ("localhost:1", False),
        ("127.0.0.1:1", False),
        ("[::1]:1", False),
    ],
)
def test_names_that_may_stand_for_several(text: str, *, several: bool) -> None:
    assert parse_device_address(text).may_be_several is several


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
