"""The TTFT that no order of work can beat, from times measured in the same run.

One request alone, one encoder, one stage, with o the fixed cost of a request, e the encode time of an image
and W(p, L) = alpha (L - p) + beta (L² - p²) / 2 the prefill of tokens p … L:

    TTFT >= o + max( W(0, L), max over images j of [(j + 1) e + W(pos_j, L)] )

because the tokens from image j on cannot start before images 0 … j are encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np

from benchmarks.workloads import Prompt, Text

TEMPLATE_TOKENS = 5  # before the user's first word: <|im_start|>user and the like
MARKERS = 2  # around every image


@dataclass(frozen=True)
class Parts:
    """Measured costs in seconds: o, alpha (per token), beta (per pair of tokens), encode (per image)."""

    fixed: float
    per_token: float
    per_pair: float
    encode: float = 0.0

    def prefill(self, start: int, end: int) -> float:
        """W(start, end)."""
        return self.per_token * (end - start) + self.per_pair * (end * end - start * start) / 2

    def ttft(self, num_tokens: int) -> float:
        """Of a request of text alone."""
        return self.fixed + self.prefill(0, num_tokens)

    def bound(self, num_tokens: int, positions: Sequence[int]) -> float:
        """Seconds to first token, at best; positions: of each image's first token.

        Fixed 0.1 s, 1 ms a token, encode 0.2 s, 1,000 tokens, images at 0 and 250: nothing can start before
        the first image is there, 0.1 + 0.2 + 1.0 = 1.3 s; the second one would allow 0.1 + 0.4 + 0.75.
        """
        images = (
            (index + 1) * self.encode + self.prefill(pos, num_tokens) for index, pos in enumerate(positions)
        )
        return self.fixed + max((self.prefill(0, num_tokens), *images))

    def throughput(self, requests: Sequence[tuple[int, int]]) -> float:
        """Input tokens/s at best for requests of (tokens, images): the busier of stage and encoder."""
        tokens = sum(length for length, _ in requests)
        stage = sum(self.prefill(0, length) for length, _ in requests)
        return tokens / max(stage, sum(images for _, images in requests) * self.encode)

    def as_fields(self) -> dict[str, float]:
        return {f"part_{name}_ms": value * 1e3 for name, value in asdict(self).items()}


def fit_prefill(samples: Sequence[tuple[int, float]]) -> Parts:
    """Fixed, per-token and per-pair costs from (tokens, TTFT) of text requests on an idle server.

    Least squares on relative errors; what comes out negative is left out. Raises ValueError below two
    different lengths.
    """
    if len({tokens for tokens, _ in samples}) < 2:
        raise ValueError("two different lengths are needed to tell fixed costs from those of a token")
    tokens = np.array([n for n, _ in samples], dtype=float)
    seconds = np.array([t for _, t in samples], dtype=float)
    columns = np.stack([np.ones_like(tokens), tokens, tokens**2 / 2], axis=1) / seconds[:, None]
    best, best_error = np.zeros(3), float("inf")
    for size in (3, 2, 1):
        for kept in combinations(range(3), size):
            found, *_ = np.linalg.lstsq(columns[:, kept], np.ones_like(seconds), rcond=None)
            if (found < 0).any():
                continue
            error = float(((columns[:, kept] @ found - 1) ** 2).sum())
            if error < best_error - 1e-12:
                best, best_error = np.zeros(3), error
                best[list(kept)] = found
    return Parts(*(float(value) for value in best))


def image_positions(prompt: Prompt, num_tokens: int, image_tokens: int) -> list[int]:
    """Where each image's tokens start, when text tokens are spread evenly over the prompt's characters.

    num_tokens: of the whole prompt, as the server counts. image_tokens: of all images together.
    """
    count = len(prompt.images)
    if not count:
        return []
    text_tokens = max(0, num_tokens - image_tokens - MARKERS * count - 2 * TEMPLATE_TOKENS)
    characters = max(1, len(prompt.text))
    positions, here = [], float(TEMPLATE_TOKENS)
    for part in prompt.parts:
        match part:
            case Text(text):
                here += text_tokens * len(text) / characters
            case _:
                positions.append(round(here) + 1)
                here += image_tokens / count + MARKERS
    return positions
