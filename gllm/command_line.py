"""What all commands have in common: a wrong flag is one line that says what to do, and exit code 2."""

import argparse
import difflib
from collections.abc import Callable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse without the usage of all flags before each error, and with the flag that was meant."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2."""
        self.exit(2, f"{self.prog}: error: {message}{self._meant(message)} (--help lists the flags)\n")

    def _meant(self, message: str) -> str:
        prefix = "unrecognized arguments: "
        if not message.startswith(prefix):
            return ""
        wrong = message.removeprefix(prefix).split()[0].split("=")[0]
        close = difflib.get_close_matches(wrong, self._option_string_actions, n=1)
        return f": did you mean {close[0]}?" if close else ""


class WithDefaults(argparse.HelpFormatter):
    """Adds the default to the help of each flag that has one and does not tell it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        is_told = "default" in text or action.default in (None, False, [], argparse.SUPPRESS)
        return text if is_told else f"{text} (default: %(default)s)".strip()


def at_least(low: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """A type for argparse: a number that is not below `low`."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
        if not value >= low:
            raise argparse.ArgumentTypeError(f"{text}: must be at least {low:g}")
        return value

    return parse
