"""Collects what all processes did, for one trace file."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import zmq

from gllm.core.request_life import RequestLife
from gllm.core.trace import Span
from gllm.core.trace_file import trace_json
from gllm.runtime.channels import Inbox
from gllm.runtime.codec import Codec
from gllm.runtime.messages import TraceSpans


class TraceInbox(Inbox):
    """An inbox that keeps the spans among its messages; other messages pass."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, codec: Codec) -> None:
        """As for an Inbox."""
        super().__init__(context, address, codec)
        self.spans: list[Span] = []

    def receive(self, timeout_ms: int | None = None) -> object | None:
        """The next message that is no spans; None when none came within the time."""
        while isinstance(message := super().receive(timeout_ms), TraceSpans):
            self.spans += message.spans
        return message

    def drain(self) -> Iterator[object]:
        """All messages that are there now, without spans."""
        for message in super().drain():
            if isinstance(message, TraceSpans):
                self.spans += message.spans
            else:
                yield message

    def write(self, path: str, lives: Sequence[RequestLife] = ()) -> None:
        """Write a Chrome trace of all spans so far, in order of their start; one row for each rank."""
        spans = sorted(self.spans, key=lambda span: span.start)
        tracks = sorted({span.rank for span in spans})
        Path(path).write_text(trace_json(spans, tracks, lives))
