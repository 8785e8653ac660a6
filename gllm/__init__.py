"""A small, fast runtime for large multimodal models: `from gllm import LLM`."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """LLM is imported when it is asked for: `gllm.core` needs neither torch nor a server."""
    if name == "LLM":
        from gllm.entrypoints.llm import LLM

        return LLM
    raise AttributeError(f"module 'gllm' has no attribute {name!r}")
