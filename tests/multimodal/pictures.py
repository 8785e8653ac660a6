"""Pictures of every kind for the tests of this folder."""

import io

import numpy as np
from PIL import Image


def noise(height: int, width: int, channels: int = 3, seed: int = 0, dtype=np.uint8) -> np.ndarray:
    """Random values over a gradient: rough enough that any error in resampling shows."""
    rng = np.random.default_rng(seed)
    shape = (height, width, channels) if channels > 1 else (height, width)
    return rng.integers(0, np.iinfo(dtype).max, shape, endpoint=True).astype(dtype)


def rgb(height: int = 30, width: int = 40, seed: int = 0) -> Image.Image:
    return Image.fromarray(noise(height, width, 3, seed))


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def with_orientation(value: int, height: int = 30, width: int = 40, format: str = "PNG", **options) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = value
    return encoded(rgb(height, width), format, exif=exif, **options)
