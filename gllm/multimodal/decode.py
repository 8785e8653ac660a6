"""Compressed bytes to resized RGB pixels."""

from __future__ import annotations

import numpy as np
from PIL import Image

from gllm.multimodal.errors import BadInput
from gllm.multimodal.header import ImageHeader, open_image

TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
WHITE = (255, 255, 255, 255)


def decode(data: bytes, header: ImageHeader, target: tuple[int, int], resample: int = 3) -> np.ndarray:
    """Decode a whole file and resize it to target (height, width): uint8 [height, width, 3], RGB.

    The first frame of an animation; the header's orientation applied; transparency over white; 16-bit grey
    by its upper byte; resampled on 8-bit RGB as PIL does (3 is bicubic). Raises BadInput if the file is
    truncated, corrupt, of a pixel type without a rule, or not of the size that its header told.
    """
    try:
        with open_image(data, header.format) as image:
            image.load()
            if image.size != (header.stored_width, header.stored_height):
                raise BadInput(
                    f"the pixels are {image.size[0]} x {image.size[1]}, but the header says "
                    f"{header.stored_width} x {header.stored_height}; save the image again",
                    code="invalid_image",
                )
            rgb = to_rgb(image)
    except BadInput:
        raise
    except Exception as error:  # plugins raise anything from struct.error to TypeError on damaged bytes
        raise BadInput(
            f"the image ({header.format}, {len(data)} bytes) is truncated or corrupt: {error}; send it again",
            code="invalid_image",
        ) from error
    if header.orientation in TRANSPOSE:
        rgb = rgb.transpose(TRANSPOSE[header.orientation])
    height, width = target
    return np.array(rgb.resize((width, height), Image.Resampling(resample)), dtype=np.uint8)


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB: transparency over white, 16-bit grey by its upper byte, the rest as PIL converts."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        return _from_wide_grey(image)
    if image.mode == "F":
        raise BadInput("pixels are floating-point numbers; convert the image to 8 bits", code="invalid_image")
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    canvas = Image.new("RGBA", rgba.size, WHITE)
    canvas.alpha_composite(rgba)
    return canvas.convert("RGB")


def _from_wide_grey(image: Image.Image) -> Image.Image:
    if image.mode == "I" and image.format == "TIFF":
        raise BadInput("pixels are 32-bit numbers; convert the image to 8 or 16 bits", code="invalid_image")
    values = np.asarray(image)
    grey = (np.clip(values, 0, 65535) >> 8).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey).convert("RGB")
