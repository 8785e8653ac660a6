"""RServe: overlapping encoding and prefill for large multimodal models, on top of gllm."""

from typing import Any


def __getattr__(name: str) -> Any:
    """LLM is imported when it is asked for: `rserve.core` needs neither torch nor a server."""
    if name == "LLM":
        from rserve.entrypoints.llm import LLM

        return LLM
    raise AttributeError(f"module 'rserve' has no attribute {name!r}")
