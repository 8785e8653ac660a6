"""`rserve serve | bench | simulate | paper | calibrate | timeline`: chooses all implementations."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gllm import __version__
from gllm.command_line import Parser

Run = Callable[[list[str]], int]
"""From the arguments behind the command's name to an exit code."""


@dataclass(frozen=True)
class Command:
    """One word behind `rserve`. What it needs is imported when it runs, so that `--help` is quick."""

    about: str
    run: Run


def serve(argv: list[str]) -> int:
    """Serve a model until a signal comes."""
    from gllm.config import ConfigError, engine_config
    from gllm.entrypoints.api_server import warn_when_open
    from gllm.entrypoints.serve import serve as serve_until_signal
    from rserve.config import RServeConfig
    from rserve.entrypoints.serve import EpdScheme

    parser = serve_parser()
    try:
        config = engine_config(parser.parse_args(argv), RServeConfig)
    except ConfigError as error:
        parser.error(str(error))
    warn_when_open(config)
    return serve_until_signal(config, EpdScheme(config).scheme())


def serve_parser() -> argparse.ArgumentParser:
    """The flags of `rserve serve`: MODEL, and one per field of the configuration."""
    from gllm.config import add_engine_flags
    from rserve.config import RServeConfig

    parser = Parser(
        prog="rserve serve",
        description="Serve a model behind an OpenAI-compatible HTTP API.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help="checkpoint folder, or tiny | small | small-vision (default: tiny)",
    )
    add_engine_flags(parser, cls=RServeConfig)
    return parser


def bench(argv: list[str]) -> int:
    """Send a workload to a running server and measure it."""
    from benchmarks.client.cli import main as run_client

    return run_client(argv, "rserve bench")


def calibrate(argv: list[str]) -> int:
    """Measure this machine for the simulator."""
    from rserve.calibration.command import calibrate as measure_machine

    return measure_machine(argv)


def timeline(argv: list[str]) -> int:
    """Draw a trace file."""
    from plots.timeline import main as draw

    return draw(argv, "rserve timeline")


def simulation(name: str) -> Run:
    """A command of the simulator, which brings its own flags."""

    def run(argv: list[str]) -> int:
        from rserve.sim.cli import add_parsers

        parser = Parser(prog="rserve", allow_abbrev=False)
        add_parsers(parser.add_subparsers(dest="command", required=True))
        args = parser.parse_args([name, *argv])
        return int(args.run(args))

    return run


COMMANDS = {
    "serve": Command("serve a model over HTTP", serve),
    "bench": Command("send a workload to a running server and measure it", bench),
    "simulate": Command("run the scheduler on a simulated machine", simulation("simulate")),
    "paper": Command("simulate the paper's experiments", simulation("paper")),
    "calibrate": Command("measure this machine for the simulator", calibrate),
    "timeline": Command("draw a trace of a server or a simulation", timeline),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of one command."""
    words = list(sys.argv[1:] if argv is None else argv)
    listing = "\n".join(f"  {name:10} {command.about}" for name, command in COMMANDS.items())
    parser = Parser(
        prog="rserve",
        usage="rserve COMMAND ... (rserve COMMAND --help tells its flags)",
        description=f"Serves large multimodal models.\n\ncommands:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the above")
    name = parser.parse_args(words[:1]).command
    return COMMANDS[name].run(words[1:])


if __name__ == "__main__":
    sys.exit(main())
