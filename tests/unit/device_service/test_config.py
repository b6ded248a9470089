"""What a command line says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import ttserve
from device_service.arguments import make_parser
from device_service.config import DeviceConfig, Environment, default_threads, parse_args
from device_service.engine_flags import CHECKED, REFUSED, SERVED, flag
from device_service.options import TTOptions, catalogue, parse_tt_options
from ttserve.errors import StartupError


def parse(*arguments: str, **environ: str) -> DeviceConfig:
    return parse_args(["--mesh", "cpu", *arguments], environ)


def test_defaults() -> None:
    config = parse()
    assert config.model is None
    assert str(config.listen) == "127.0.0.1:50051"
    assert config.engine["max_num_seqs"] == 32
    assert config.engine["block_size"] == 64
    assert config.queue_bound(64) == 256
    assert config.heartbeat_timeout == 5.0
    assert config.shutdown_grace == 30.0
    assert config.step_ring == 4096
    assert not config.enable_step_control
    assert config.tt == TTOptions()
    assert config.environment == Environment()


def test_vllm_options_keep_their_names() -> None:
    config = parse("--model", "/m", "--max-model-len", "4k", "--max_num_seqs=8")
    assert config.model == "/m"
    assert config.engine["max_model_len"] == 4000
    assert config.engine["max_num_seqs"] == 8


def test_a_host_for_metrics_needs_their_port() -> None:
    with pytest.raises(StartupError, match="--metrics-host needs --metrics-port"):
        parse("--metrics-host", "0.0.0.0")


def test_recordings_need_a_directory_that_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        parse("--recording-dir", str(tmp_path / "file" / "below"))
    [line] = capsys.readouterr().err.strip().splitlines()[-1:]
    assert "--recording-dir" in line
    assert "nothing can be written to" in line
    assert parse("--recording-dir", str(tmp_path / "new")).recording_dir.is_dir()


@pytest.mark.parametrize(
    ("arguments", "field", "explicit"),
    [
        ([], "enable_prefix_caching", False),
        (["--enable-prefix-caching"], "enable_prefix_caching", True),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", True),
        ([], "structured_outputs_config", False),
        (["--max-model-len", "-1"], "max_model_len", True),
    ],
)
def test_explicit_is_what_differs_from_the_default(
    arguments: list[str], field: str, *, explicit: bool
) -> None:
    assert parse(*arguments).is_explicit(field) is explicit


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:1", "127.0.0.1", 1),
        ("0.0.0.0:65535", "0.0.0.0", 65535),
        ("localhost:0", "localhost", 0),
        ("[::1]:50051", "::1", 50051),
    ],
)
def test_listen_addresses(text: str, host: str, port: int) -> None:
    listen = parse("--listen", text).listen
    assert (listen.host, listen.port) == (host, port)
    assert str(listen) == text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--listen", "50051"], "'50051' is not HOST:PORT"),
        (["--listen", ":50051"], "is not HOST:PORT"),
        (["--listen", "localhost:"], "is not HOST:PORT"),
        (["--listen", "localhost:65536"], "is not HOST:PORT"),
        (["--listen", "localhost:-1"], "is not HOST:PORT"),
        (["--listen", "::1:50051"], "is not HOST:PORT"),
        (["--listen", "http://h:1"], "is not HOST:PORT"),
        (["--mesh", "gpu"], "invalid choice: 'gpu'"),
        (["--threads", "0"], "'0' is not a whole number, at least 1"),
        (["--step-ring", "many"], "'many' is not a whole number"),
        (["--heartbeat-timeout", "-1"], "'-1' is not a number of seconds"),
        (["--shutdown-grace", "nan"], "'nan' is not a number of seconds"),
        (["--kv-cache-fraction", "1.5"], "'1.5' is not above 0.0 and up to 1.0"),
        (
            ["--max-modle-len", "9"],
            "option --max-modle-len; did you mean --max",
        ),
        (["--frobnicate"], "unknown option --frobnicate; see --help"),
        (["--max-model", "9"], "unknown option --max-model"),
        (["--max-num-seqs", "several"], "--max-num-seqs"),
    ],
)
def test_bad_values_are_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("tt-device-service: error: ")
    assert error.count("\n") == 1


@pytest.mark.feature(1)
def test_mesh_by_either_name() -> None:
    assert parse_args(["--additional-config.tt.mesh", "sim"], {}).mesh == "sim"
    assert parse_args([], {}).mesh == "cpu"  # ttnn is not installed here
    with pytest.raises(StartupError, match="--mesh cpu contradicts tt option mesh sim"):
        parse("--additional-config", '{"tt": {"mesh": "sim"}}')


@pytest.mark.feature(13)
def test_tt_options_in_both_forms() -> None:
    as_json = parse(
        "--additional-config",
        '{"tt": {"trace_mode": "none", "enable_model_warmup": false}}',
    )
    by_key = parse(
        "--additional-config.tt.trace_mode",
        "none",
        "--additional_config.tt.enable_model_warmup=false",
    )
    assert (
        as_json.tt
        == by_key.tt
        == TTOptions(trace_mode="none", enable_model_warmup=False)
    )


BOTH_FORMS: list[tuple[str, str, object]] = [
    ("mesh", "sim", "sim"),
    ("sim.decode_ms", "12.5", {"decode_ms": 12.5}),
    ("sample_on_device_mode", "decode_only", "decode_only"),
    ("seeded_sampling_policy", "host", "host"),
    ("always_compat_sampling", "false", False),
    ("trace_mode", "decode_only", "decode_only"),
    ("enable_model_warmup", "false", False),
    ("decode_interleave_enabled", "false", False),
    ("decode_interleave_prefill_steps", "4", 4),
    ("decode_interleave_decode_steps", "3", 3),
    ("register_test_models", "false", False),
    ("optimizations", "accuracy", "accuracy"),
    ("trace_region_size", "216580672", 216580672),
    ("worker_l1_size", "1344544", 1344544),
    ("l1_small_size", "768", 768),
    ("fabric_config", "FABRIC_1D", "FABRIC_1D"),
    ("fabric_reliability_mode", "RELAXED_INIT", "RELAXED_INIT"),
    ("dispatch_core_axis", "col", "col"),
]


@pytest.mark.feature(13)
@pytest.mark.parametrize(("key", "text", "value"), BOTH_FORMS)
def test_every_tt_option_has_both_forms(key: str, text: str, value: object) -> None:
    name = key.partition(".")[0]
    by_key = parse_args([f"--additional-config.tt.{key}", text], {})
    as_json = parse_args(["--additional-config", json.dumps({"tt": {name: value}})], {})
    assert by_key.tt == as_json.tt
    assert getattr(by_key.tt, name) == value


def test_the_table_of_both_forms_is_complete() -> None:
    assert {key.partition(".")[0] for key, _, _ in BOTH_FORMS} == set(catalogue())


def test_both_forms_at_once_would_lose_one() -> None:
    with pytest.raises(StartupError, match="as JSON and key by key"):
        parse("--additional-config", '{"tt": {}}', "--additional-config.tt.mesh", "cpu")


@pytest.mark.parametrize("option", ["--additional-config.tt.mesh"])
def test_a_dotted_option_without_value(option: str) -> None:
    with pytest.raises(StartupError, match=f"{option} needs a value"):
        parse(option)


@pytest.mark.parametrize("form", ["--config={}", "--config {}"])
def test_a_file_of_options(form: str, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(
        "max-num-seqs: 4\nheartbeat-timeout: 2\n"
        "additional-config:\n  tt:\n    trace_mode: none\n"
    )
    config = parse(*form.format(file).split(), "--heartbeat-timeout", "3")
    assert config.engine["max_num_seqs"] == 4
    assert config.heartbeat_timeout == 3.0
    assert config.tt.trace_mode == "none"


@pytest.mark.parametrize("content", ["a: [", "just text", None])
def test_a_bad_file_of_options(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(StartupError, match=r"^--config: .+") as caught:
        parse("--config", str(file))
    assert "\n" not in str(caught.value)


def test_the_environment() -> None:
    config = parse(MESH_DEVICE="T3K", TT_LLAMA_TEXT_VER="", TT_QWEN3_TEXT_VER="x")
    assert config.environment == Environment(mesh_device="T3K", qwen3_version="x")


@pytest.mark.parametrize(
    ("variable", "field", "value"),
    [
        ("TT_LLAMA_TEXT_VER", "llama_version", "v"),
        ("TT_QWEN35_TEXT_VER", "qwen35_version", "v"),
        ("TT_MODEL_CLASS_OVERRIDES", "model_class_overrides", "A=m:A"),
        ("EXTRA_MODELS_DIR", "extra_models_dir", "/somewhere"),
    ],
)
def test_the_environment_chooses_models(variable: str, field: str, value: str) -> None:
    assert parse(**{variable: value}).environment == Environment(**{field: value})  # type: ignore[arg-type]
    assert parse(**{variable: ""}).environment == Environment()


def test_the_configuration_is_frozen() -> None:
    config = parse()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.mesh = "sim"  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.engine["seed"] = 1  # type: ignore[index]


@pytest.mark.parametrize(("cores", "threads"), [(1, 2), (2, 2), (3, 2), (8, 7)])
def test_threads(cores: int, threads: int) -> None:
    assert default_threads(cores) == threads


# -- tt options ---------------------------------------------------------------


def tt(**values: Any) -> TTOptions:
    return parse_tt_options({"tt": values})


@pytest.mark.feature(13, 68)
@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("mesh", ["cpu", "sim", "ttnn"], ["gpu", 1]),
        ("sim", [{}, {"decode_ms": 1}], ["fast", 1]),
        ("sample_on_device_mode", ["all", "decode_only", None], ["none", True]),
        ("seeded_sampling_policy", ["auto", "host"], ["device", None]),
        ("trace_mode", ["all", "decode_only", "none"], [False, None, "some"]),
        ("enable_model_warmup", [True, False], [1, "true", None]),
        ("always_compat_sampling", [True, False], [0, "false"]),
        ("decode_interleave_enabled", [True, False], [1, "yes"]),
        ("decode_interleave_prefill_steps", [1, 7], [0, True, 1.0, "2", None]),
        ("decode_interleave_decode_steps", [1, 7], [0, True, 1.0, "2", None]),
        ("register_test_models", [True, False], [1, None]),
        ("optimizations", ["performance", "accuracy", None], ["fast", 1]),
        ("trace_region_size", [0, 5, None], [-1, True, "5", 1.5]),
        ("worker_l1_size", [0, 5, None], [-1, True, "5"]),
        ("l1_small_size", [0, 5, None], [-1, True, "5"]),
        ("fabric_config", ["FABRIC_1D", "X", None], ["", "A B", 1]),
        ("fabric_reliability_mode", ["STRICT_INIT", None], ["", 1]),
        ("dispatch_core_axis", ["row", "col", None], ["ROW", 0]),
    ],
)
def test_each_option_checks_its_value(
    name: str, good: list[object], bad: list[object]
) -> None:
    for value in good:
        assert getattr(tt(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(StartupError) as caught:
            tt(**{name: value})
        assert f"tt option {name} must be {catalogue()[name].expected}" in str(
            caught.value
        )


def test_the_table_above_is_complete() -> None:
    marks = test_each_option_checks_its_value.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for row in marks[0].args[1]} == set(catalogue())


@pytest.mark.feature(13, 14)
@pytest.mark.parametrize(
    ("additional", "says"),
    [
        ("{", "'{' is not a JSON object"),
        ([], "[] is not a JSON object"),
        ({"TT": {}}, "unknown key 'TT'"),
        ({"tt": "all"}, "\"tt\" must be an object, not 'all'"),
        ({"tt": None}, '"tt" must be an object'),
        ({"tt": {"trace_mod": "all"}}, "'trace_mod'; did you mean trace_mode? known"),
    ],
)
def test_unknown_names(additional: object, says: str) -> None:
    with pytest.raises(StartupError) as caught:
        parse_tt_options(additional)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.edge(52)
@pytest.mark.feature(98)
@pytest.mark.parametrize(
    "name",
    # What the plugin's multi-host launcher takes, contract 2.17.
    [
        "rank_binding",
        "mpi_args",
        "extra_ttrun_args",
        "config_pkl_dir",
        "env_passthrough",
    ],
)
def test_options_of_several_hosts(name: str) -> None:
    says = f"tt option {name} is not implemented: .* tt-frontend --device-service"
    with pytest.raises(StartupError, match=says) as caught:
        parse_tt_options({"tt": {name: "x"}})
    assert "\n" not in str(caught.value)


def test_options_for_hardware_only() -> None:
    assert TTOptions().hardware_only() == []
    given = TTOptions(fabric_config="FABRIC_1D", trace_region_size=0)
    assert given.hardware_only() == ["trace_region_size", "fabric_config"]


# -- help ---------------------------------------------------------------------


def test_help_names_every_option_that_is_served() -> None:
    text = make_parser().format_help()
    for field in SERVED - {"model_weights"}:
        assert f"{flag(field)} " in f"{text} ".replace("\n", " "), field
    for name in catalogue():
        assert f"\n  {name}\n" in text
    for field in CHECKED | REFUSED.keys():
        assert f" {flag(field)} " not in text.replace("\n", " "), field
    assert max(map(len, text.splitlines())) <= 90


def test_the_version_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{ttserve.__version__}\n"


def test_help_teaches_ours_first() -> None:
    text = make_parser().format_help()
    order = ["usage:", "examples:", "--listen", "tt options (", "vLLM engine options:"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
