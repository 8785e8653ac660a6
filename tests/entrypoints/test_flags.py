"""Command lines: gLLM's flags and defaults, MODEL as a word, wrong values refused with what is allowed."""

import json
import subprocess
import sys

import pytest

from gllm.config import ConfigError, EngineConfig, engine_config, engine_config_of
from gllm.entrypoints.api_server import make_parser, warn_when_open
from gllm.entrypoints.serve import bind, media_limits
from rserve import cli


def parse(*argv: str) -> EngineConfig:
    return engine_config(make_parser().parse_args(argv))


def test_the_defaults_are_those_of_gllm():
    config = parse("--model-path", "tiny")
    assert config.model.model == "tiny" and config.model.load_format == "auto"
    assert (config.server.host, config.server.port) == ("0.0.0.0", 8000)
    assert (config.parallel.pp, config.parallel.tp, config.parallel.launch_mode) == (1, 1, "normal")
    assert (config.cache.gpu_memory_util, config.cache.page_size) == (0.9, 16)
    assert config.cache.enable_prefix_caching is False
    scheduler = config.scheduler
    assert (scheduler.maxd, scheduler.maxp, scheduler.minp) == (2048, 2048, 32)
    assert (scheduler.iterp, scheduler.kvthresh) == (8, 0.05)


def test_all_flags_of_gllm_are_there():
    config = parse(
        *("--model-path", "m", "--host", "h", "--port", "1", "--master-addr", "a", "--master-port", "2"),
        *("--zmq-port-base", "3", "--load-format", "dummy", "--gpu-memory-util", "0.5"),
        *("--enable-prefix-caching", "--page-size", "8", "--pp", "2", "--tp", "1"),
        *("--assigned-layers", "3,1", "--maxd", "5", "--maxp", "64", "--minp", "7", "--iterp", "8"),
        *("--kvthresh", "0.1", "--use-cp-schedule", "--launch-mode", "master", "--ranks", "0"),
    )
    assert config.parallel.assigned_layers == (3, 1) and config.parallel.ranks == (0,)
    assert config.scheduler.use_cp_schedule and config.cache.enable_prefix_caching


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--maxp", "0"], "--maxp 0: must be at least 1"),
        (["--gpu-memory-util", "2"], "--gpu-memory-util 2.0: must be between 0.05 and 0.99"),
        (["--pp", "2", "--assigned-layers", "4"], "one number per stage"),
        (["--ssl-keyfile", "k"], "give both or neither"),
        (["--minp", "5000"], "--minp 5000"),
        (["--ranks", "3"], "between 0 and 0"),
        (["--launch-mode", "slave"], "--master-port"),
    ],
)
def test_values_that_cannot_work_are_refused_with_what_is_allowed(argv, words):
    with pytest.raises(ConfigError, match=words.replace("(", ".")):
        parse(*argv)


def test_help_has_a_line_for_every_flag():
    text = make_parser().format_help()
    for flag in ("--maxp", "--token-budget", "--model-path", "--limit-mm-per-prompt", "--kv-cache-gib"):
        assert flag in text


def test_options_by_name_make_the_same_configuration_as_flags():
    assert engine_config_of({"model": "small", "pp": 2}) == engine_config(
        make_parser().parse_args(["--model", "small", "--pp", "2", "--host", "127.0.0.1"])
    )
    with pytest.raises(ConfigError, match="unknown option 'ppp'"):
        engine_config_of({"ppp": 2})


def test_a_configuration_survives_its_trip_to_the_ranks():
    config = parse("--pp", "2", "--assigned-layers", "2,2", "--media-hosts", "a.example, *.b.example")
    assert EngineConfig.from_json(config.to_json()) == config
    assert json.loads(config.to_json())["media"]["media_hosts"] == ["a.example", "*.b.example"]


def test_an_open_address_without_a_key_is_warned_about(capsys):
    warn_when_open(parse())
    assert "--api-key" in capsys.readouterr().err
    warn_when_open(parse("--api-key", "k"))
    warn_when_open(parse("--host", "127.0.0.1"))
    assert capsys.readouterr().err == ""


def test_rserve_serve_takes_the_model_as_a_word_and_listens_on_the_loopback_address():
    assert vars(cli.serve_parser().parse_args(["small"]))["model"] == "small"
    assert vars(cli.serve_parser().parse_args([]))["model"] == "tiny"
    args = cli.serve_parser().parse_args(["--model-path", "small-vision"])
    assert (args.model, args.host) == ("small-vision", "127.0.0.1")


def test_rserve_lists_its_commands_without_importing_torch():
    code = (
        "import sys; from rserve import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in cli.COMMANDS)


def test_a_taken_port_is_an_error_before_anything_is_loaded():
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}"):
            bind("127.0.0.1", port)


def test_flags_about_images_reach_the_multimodal_package():
    limits = media_limits(parse("--limit-mm-per-prompt", "image=3", "--media-threads", "5").media)
    assert (limits.max_images, limits.decode_workers, limits.media_hosts) == (3, 5, ("public",))
    with pytest.raises(ValueError, match="image=N"):
        media_limits(parse("--limit-mm-per-prompt", "3").media)
