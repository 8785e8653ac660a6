"""From the images a request names to items: all headers first, all pixels later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from gllm.multimodal.content import ImageSource
from gllm.multimodal.errors import BadInput, located
from gllm.multimodal.fetch import Allowance, FetchedMedia, MediaFetcher
from gllm.multimodal.limits import MediaLimits
from gllm.multimodal.pixel_options import PixelOptions
from gllm.multimodal.pool import MediaPool
from gllm.multimodal.prepared import PreparedImage
from gllm.multimodal.preprocessor import ImagePreprocessor
from gllm.multimodal.resize import PixelBounds


class ImageLoader:
    """Opens images for one checkpoint's preprocessor under one server's limits.

    Raises ValueError for bounds of an image's area that cannot be.
    """

    def __init__(
        self, preprocessor: ImagePreprocessor, limits: MediaLimits, fetcher: MediaFetcher, pool: MediaPool
    ):
        self._preprocessor = preprocessor
        self._max_request_bytes = limits.max_request_bytes
        self._options = PixelOptions(preprocessor.bounds, preprocessor.factor, limits.max_image_pixels)
        try:
            bounds = self._options.of_request(limits.mm_processor_kwargs)
        except BadInput as error:
            raise ValueError(f"--mm-processor-kwargs: {error.message}") from error
        self._options = replace(self._options, bounds=bounds)
        self._fetcher = fetcher
        self._pool = pool

    async def open(self, sources: Sequence[ImageSource], kwargs: object) -> tuple[PreparedImage, ...]:
        """Wait for all headers; kwargs are the request's mm_processor_kwargs. Equal URLs are fetched once.

        Raises BadInput naming the part as soon as one image fails; then, and when cancelled, all fetches end.
        """
        bounds = self._bounds(sources, kwargs)
        allowance = Allowance(self._max_request_bytes)
        urls = dict.fromkeys(source.url for source in sources)
        media = {url: self._fetcher.open(url, allowance) for url in urls}
        tasks = [
            asyncio.ensure_future(self._open_one(source.part, media[source.url], own))
            for source, own in zip(sources, bounds, strict=True)
        ]
        try:
            return tuple(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(entry.release() for entry in media.values()))
            raise

    def _bounds(self, sources: Sequence[ImageSource], kwargs: object) -> list[PixelBounds]:
        """The bounds of each image, checked before anything is fetched."""
        of_request = self._options.of_request(kwargs)
        bounds = []
        for source in sources:
            with located(source.part):
                bounds.append(self._options.of_image(source, of_request))
        return bounds

    async def _open_one(self, part: str, media: FetchedMedia, bounds: PixelBounds) -> PreparedImage:
        with located(part):
            header = await media.header()
            target = self._preprocessor.target_size(header.height, header.width, bounds)
        return PreparedImage(part, media, header, target, self._preprocessor.resample, self._pool)
