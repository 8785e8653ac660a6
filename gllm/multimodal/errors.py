"""The one error that bad client input raises in this package."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager


class BadInput(Exception):
    """A client's input cannot be served; str() says what is wrong, the limit and the way out.

    part: where it stands in the request, such as ``messages[2].content[1]``, or None while unknown.
    status: the HTTP status; code: a stable word for programs, in the style of OpenAI's error codes.
    """

    def __init__(self, message: str, part: str | None = None, status: int = 400, code: str = "invalid_input"):
        super().__init__(f"{part}: {message}" if part else message)
        self.message = message
        self.part = part
        self.status = status
        self.code = code

    def copy(self) -> BadInput:
        """An equal error with a traceback of its own, to raise once more."""
        return BadInput(self.message, self.part, self.status, self.code)

    def at(self, part: str) -> BadInput:
        """The same error, naming the part unless it names one already."""
        return BadInput(self.message, self.part or part, self.status, self.code)


@contextmanager
def located(part: str) -> Iterator[None]:
    """Errors raised below name this part of the request; layers below need not know of requests."""
    try:
        yield
    except BadInput as error:
        raise error.at(part) from error


def excerpt(value: object) -> str:
    """A value for an error message, short whatever its length or depth: a data URL would fill the answer."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxlevel = 3
