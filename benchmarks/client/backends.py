"""The servers this client knows: where they listen and how their requests are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.workloads.prompt import Prompt


@dataclass(frozen=True)
class Backend:
    """One kind of server that speaks OpenAI's chat completions."""

    default_port: int
    length_field: str = "max_completion_tokens"
    has_ignore_eos: bool = True


BACKENDS: dict[str, Backend] = {
    "rserve": Backend(8000),
    "gllm": Backend(8000, length_field="max_tokens"),
    "vllm-chat": Backend(8000),
    "sglang-oai-chat": Backend(30000),
    "openai": Backend(8000, has_ignore_eos=False),
}


@dataclass(frozen=True)
class RequestOptions:
    """What is the same in every request of a run."""

    model: str
    backend: str = "rserve"
    stream: bool = True
    ignore_eos: bool = True
    extra_body: Mapping[str, Any] | None = None

    def body(self, prompt: Prompt) -> bytes:
        """The HTTP body, serialised ahead of the run so that nothing heavy happens while it is timed."""
        backend = BACKENDS[self.backend]
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": prompt.messages(),
            backend.length_field: prompt.output_len,
            "temperature": 0.0,
            "stream": self.stream,
        }
        if self.stream:
            fields["stream_options"] = {"include_usage": True}
        if backend.has_ignore_eos:
            fields["ignore_eos"] = self.ignore_eos
        return json.dumps(fields | dict(self.extra_body or {})).encode("utf-8")
