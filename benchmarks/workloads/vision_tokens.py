"""How many tokens Qwen2.5-VL makes of an image: used where the server does not report them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.workloads.prompt import Prompt


@dataclass(frozen=True)
class VisionGrid:
    """The resize rule of a model: both sides become multiples of `factor` (patch × merge) within two areas.

    The defaults are those of the published Qwen2.5-VL checkpoints (patch 14, merge 2).
    """

    factor: int = 28
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 16384

    def num_tokens(self, width: int, height: int) -> int:
        """Tokens of one image. 1920×1080 → 69 · 39 = 2691; 448×448 → 16 · 16 = 256; 4×4 → 4."""
        rows = max(self.factor, round(height / self.factor) * self.factor)
        columns = max(self.factor, round(width / self.factor) * self.factor)
        if rows * columns > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            rows = max(self.factor, math.floor(height / shrink / self.factor) * self.factor)
            columns = max(self.factor, math.floor(width / shrink / self.factor) * self.factor)
        elif rows * columns < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            rows = math.ceil(height * grow / self.factor) * self.factor
            columns = math.ceil(width * grow / self.factor) * self.factor
        return (rows // self.factor) * (columns // self.factor)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens of all images of a prompt, with the start and end markers around each left to the text."""
        return sum(self.num_tokens(image.width, image.height) for image in prompt.images)
