"""A prompt whose positions are known, and the images behind it, whose pixels come later."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from gllm.core.request import MMItem
from gllm.multimodal.decode import decode
from gllm.multimodal.errors import located
from gllm.multimodal.fetch import FetchedMedia
from gllm.multimodal.hashes import item_digest
from gllm.multimodal.header import ImageHeader
from gllm.multimodal.pool import MediaPool


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """One item: the part of the request it comes from, and the (height, width) it will be resized to."""

    part: str
    media: FetchedMedia
    header: ImageHeader
    target: tuple[int, int]
    resample: int
    pool: MediaPool

    async def pixels(self) -> np.ndarray:
        """Resized pixels, uint8 [height, width, 3], RGB. Raises BadInput naming the part."""
        with located(self.part):
            data = await self.media.read()
            return await self.pool.decode(decode, data, self.header, self.target, self.resample)

    async def digest(self) -> bytes:
        """See item_digest. Raises BadInput naming the part."""
        with located(self.part):
            data = await self.media.read()
            orientation = self.header.orientation
            return await self.pool.short(item_digest, data, self.target, orientation, self.resample)


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt ready for the engine, and the source of its pixels until release().

    token_ids: expanded. items: offsets, token counts and grids in prompt order; images: one per item.
    """

    token_ids: list[int]
    items: tuple[MMItem, ...] = ()
    images: tuple[PreparedImage, ...] = ()

    async def pixels(self, item: int) -> np.ndarray:
        """The item's resized pixels, uint8 [height, width, 3], RGB; decoded anew by each call.

        Raises BadInput, naming the part, if the image cannot be fetched or decoded.
        """
        return await self.images[item].pixels()

    async def digest(self, item: int) -> bytes:
        """16 bytes that tell the item's pixels from others'; needs the whole file. Raises as pixels()."""
        return await self.images[item].digest()

    async def release(self) -> None:
        """Stop fetching and forget all compressed bytes; pixels() and digest() fail from now on."""
        await asyncio.gather(*(image.media.release() for image in self.images))
