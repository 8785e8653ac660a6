"""Server-sent events from a byte stream, whatever the network's chunk boundaries."""

from __future__ import annotations


class EventStream:
    """Collects bytes and gives back the `data` of each complete event.

    Events end with an empty line; lines end with \\n, \\r\\n or \\r; several `data:` lines of one event are
    joined with \\n; comments (`: ping`) and other fields are skipped. A chunk may end anywhere, also in the
    middle of a UTF-8 character or between \\r and \\n.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[str]:
        """Add bytes; return the payloads of the events that are now complete."""
        text = self._pending + chunk
        held_cr = text.endswith(b"\r")  # may be the first half of \r\n
        text = (text[:-1] if held_cr else text).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._pending = rest + (b"\r" if held_cr else b"")
        return [event for line in lines if (event := self._take(line)) is not None]

    def close(self) -> list[str]:
        """The last event of a server that ends without an empty line."""
        events = self.feed(b"\n\n") if self._pending or self._data else []
        self._pending, self._data = b"", []
        return events

    def _take(self, line: bytes) -> str | None:
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        if not self._data:
            return None
        data, self._data = b"\n".join(self._data), []
        return data.decode("utf-8", errors="replace")
