"""Wrong flags: one line that names the flag and the way out, exit code 2."""

from pathlib import Path

import pytest

from gllm.command_line import Parser, WithDefaults, at_least
from gllm.config import ConfigError, engine_config_of
from rserve import cli


def parser() -> Parser:
    made = Parser(prog="a command", formatter_class=WithDefaults)
    made.add_argument("--port", type=at_least(0), default=80, help="where")
    made.add_argument("--share", type=at_least(0.5, float), help="how much")
    return made


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--prot", "1"], "a command: error: unrecognized arguments: --prot 1: did you mean --port?"),
        (["--xyz"], "a command: error: unrecognized arguments: --xyz"),
        (["--port", "-1"], "a command: error: argument --port: -1: must be at least 0"),
        (["--port", "x"], "a command: error: argument --port: 'x' is no number"),
        (["--share", "nan"], "a command: error: argument --share: nan: must be at least 0.5"),
    ],
)
def test_a_wrong_flag_is_one_line(flags: list[str], line: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(flags)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{line} (--help lists the flags)\n"


def test_defaults_stand_in_the_help():
    shown = parser().format_help()
    assert "where (default: 80)" in shown and "how much\n" in shown


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"api_key": ""}, "--api-key: is empty"),
        ({"trace": "/no such folder/t.json"}, "--trace /no such folder/t.json"),
        ({"allowed_media_path": "/no such folder"}, "--allowed-media-path /no such folder"),
        ({"ssl_keyfile": "/no key", "ssl_certfile": "/no certificate"}, "--ssl-keyfile /no key"),
    ],
)
def test_what_a_server_would_miss_later_is_missed_at_once(options: dict[str, str], text: str):
    with pytest.raises(ConfigError, match=text):
        engine_config_of(options)


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "--num-requests", "0"],
        ["simulate", "--sweep", "request-rate=a,b"],
        ["simulate", "--sweep", "pp=1:x:2"],
        ["calibrate", "--threads", "100000", "-o", "never written"],
        ["bench", "--max-concurrency", "0"],
        ["bench", "--goodput", "ttft"],
    ],
)
def test_commands_refuse_what_cannot_be(words: list[str], capsys: pytest.CaptureFixture[str]):
    try:
        code = cli.main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rserve {words[0]}: ")
    assert not Path("never written").exists()


def test_a_simulation_that_serves_nothing_says_why(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["simulate", "--kv-tokens", "100", "--num-requests", "2"]) == 0
    assert "no request served: prompt and output are" in capsys.readouterr().err
