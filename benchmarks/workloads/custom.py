"""Prompts from a JSON-lines file of one's own."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from PIL import Image as PilImage

from benchmarks.workloads.prompt import Image, Prompt, Text


def prompts(path: str | Path, num_prompts: int, output_len: int) -> list[Prompt]:
    """The first num_prompts lines, each one of:

    {"prompt": "…", "images": ["a.png", …], "output_len": 16}   images and output_len may be left out;
                                                                image paths are relative to the file
    {"conversations": [{"content": "…"}, …]}                    ShareGPT's form; the first turn is used

    Raises ValueError naming the line that is neither, or when the file holds no line.
    """
    path = Path(path)
    rows = [row for row in path.read_text(encoding="utf-8").splitlines() if row.strip()]
    if not rows:
        raise ValueError(f"{path} holds no prompts")
    found = []
    for number, row in enumerate(rows[:num_prompts], start=1):
        try:
            found.append(_prompt(json.loads(row), path.parent, output_len, f"custom-{number}"))
        except (KeyError, IndexError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}:{number} is not a prompt: {error!r}") from error
    return found


def _prompt(row: dict[str, Any], folder: Path, output_len: int, prompt_id: str) -> Prompt:
    if "conversations" in row:
        turn = row["conversations"][0]
        text = turn["content"] if "content" in turn else turn["value"]
    else:
        text = row["prompt"]
    images: list[Text | Image] = [_image(folder / name) for name in row.get("images", ())]
    return Prompt((*images, Text(text)), int(row.get("output_len", output_len)), None, prompt_id)


def _image(path: Path) -> Image:
    data = path.read_bytes()
    with PilImage.open(io.BytesIO(data)) as picture:
        return Image(data, PilImage.MIME[picture.format or "PNG"], picture.width, picture.height)
