"""`python -m gllm.entrypoints.api_server --model-path MODEL ...`: gLLM's command line, scheme gllm."""

import argparse
import sys
from collections.abc import Sequence

from gllm.command_line import Parser
from gllm.config import ConfigError, EngineConfig, add_engine_flags, engine_config
from gllm.entrypoints.serve import serve

ANY_HOST = "0.0.0.0"


def make_parser() -> argparse.ArgumentParser:
    """gLLM's flags with its defaults: it listens on all addresses."""
    parser = Parser(
        prog="python -m gllm.entrypoints.api_server",
        description="Serve a model behind an OpenAI-compatible HTTP API.",
        allow_abbrev=False,
    )
    add_engine_flags(parser)
    parser.set_defaults(host=ANY_HOST)
    return parser


def warn_when_open(config: EngineConfig) -> None:
    """Whoever reaches an address without a key can use the model; say so."""
    if config.server.api_key is None and config.server.host not in ("127.0.0.1", "localhost", "::1"):
        print(
            f"warning: the server listens on {config.server.host} and asks for no key: "
            "set --api-key, or --host 127.0.0.1",
            file=sys.stderr,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 after a signal, 1 after a failure, 2 for wrong flags."""
    parser = make_parser()
    try:
        config = engine_config(parser.parse_args(argv))
    except ConfigError as error:
        parser.error(str(error))
    warn_when_open(config)
    return serve(config)


if __name__ == "__main__":
    sys.exit(main())
