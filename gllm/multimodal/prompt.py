"""Expansion of placeholders: one image token per item becomes as many as the item has embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gllm.core.request import MMItem
from gllm.multimodal.resize import Grid, num_tokens_of


@dataclass(frozen=True, slots=True)
class ExpandedPrompt:
    """The prompt as the model sees it, and its items in prompt order."""

    token_ids: list[int]
    items: tuple[MMItem, ...] = ()


def expand(ids: Sequence[int], grids: Sequence[Grid], image_token_id: int, merge_size: int) -> ExpandedPrompt:
    """Repeat the i-th image token as often as the i-th grid has tokens after the merger.

    Raises ValueError if the number of image tokens differs from the number of grids.
    ids [7, IMG, 8], grid (1, 4, 4), merge 2: [7, IMG, IMG, IMG, IMG, 8] with an item at offset 1 of 4 tokens.
    """
    placeholders = [index for index, token in enumerate(ids) if token == image_token_id]
    if len(placeholders) != len(grids):
        raise ValueError(f"{len(placeholders)} image tokens in the prompt, {len(grids)} images")
    token_ids: list[int] = []
    items: list[MMItem] = []
    copied = 0
    for index, grid in zip(placeholders, grids):
        token_ids.extend(ids[copied:index])
        item = MMItem(len(token_ids), num_tokens_of(grid, merge_size), grid)
        items.append(item)
        token_ids.extend([image_token_id] * item.num_tokens)
        copied = index + 1
    token_ids.extend(ids[copied:])
    return ExpandedPrompt(token_ids, tuple(items))
