"""Workloads: prompts for every benchmark, deterministic by seed, distinct from request to request.

Each module gives `prompts(...) -> list[Prompt]`; a Prompt can be sent to any OpenAI-compatible server
(`messages()`), and its images can be opened with PIL (`io.BytesIO(image.data)`) for engines without HTTP.
"""

from benchmarks.workloads.prompt import Image, Prompt, Text

__all__ = ["Image", "Prompt", "Text"]
