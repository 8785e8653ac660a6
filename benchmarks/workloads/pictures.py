"""Random images and encoded files of them: distinct for every request, the same for the same seed."""

from __future__ import annotations

import io
import random

import numpy as np
from PIL import Image as PilImage

from benchmarks.workloads.prompt import Image

PRESETS = {
    "4k": (3840, 2160),
    "2k": (2560, 1440),
    "1080p": (1920, 1080),
    "720p": (1280, 720),
    "360p": (640, 360),
}
FORMATS = {"jpeg": "image/jpeg", "png": "image/png"}
CONTENTS = ("random", "blank")


def parse_resolution(text: str) -> tuple[int, int]:
    """Width and height in pixels of "1080p" or of SGLang's "HEIGHTxWIDTH", e.g. "1080x1920".

    Raises ValueError with the accepted forms.
    """
    if text.lower() in PRESETS:
        return PRESETS[text.lower()]
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and width.isdigit() and int(height) and int(width)):
        raise ValueError(f"resolution {text!r}: expected HEIGHTxWIDTH or one of {', '.join(PRESETS)}")
    return int(width), int(height)


def random_picture(rng: random.Random, width: int, height: int) -> PilImage.Image:
    """Noise over the whole picture: distinct per call and nearly incompressible, as in SGLang's image set."""
    pixels = np.frombuffer(rng.randbytes(width * height * 3), dtype=np.uint8)
    return PilImage.fromarray(pixels.reshape(height, width, 3))


def blank_picture(width: int, height: int) -> PilImage.Image:
    """A white picture."""
    return PilImage.new("RGB", (width, height), (255, 255, 255))


def encode_picture(picture: PilImage.Image, image_format: str = "jpeg") -> Image:
    """A picture as a JPEG (quality 85) or PNG file in memory. Raises ValueError for another format."""
    if image_format not in FORMATS:
        raise ValueError(f"image format {image_format!r}: expected one of {', '.join(FORMATS)}")
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, format=image_format, quality=85)
    return Image(buffer.getvalue(), FORMATS[image_format], picture.width, picture.height)


def resize_to_area(picture: PilImage.Image, width: int, height: int) -> PilImage.Image:
    """Scale to the area of width × height with the picture's own aspect ratio.

    1000×500 to the area of 1920×1080 gives 2036×1018: so every image costs about the tokens of the setting.
    """
    scale = (width * height / (picture.width * picture.height)) ** 0.5
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, PilImage.Resampling.BICUBIC)
