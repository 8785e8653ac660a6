"""An image's size from its first bytes, before anything is decoded."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from gllm.multimodal.errors import BadInput

# Importing the plugins registers them; PIL offers no other format to a client (EPS would start Ghostscript).
PLUGINS = (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")
# Bytes after which a file without a known signature is refused rather than waited for.
SIGNATURE_BYTES = 32
ORIENTATION_TAG = 0x0112
# Metadata of these formats may stand behind the pixels, so only the whole file tells.
WHOLE_FILE_FORMATS = ("TIFF", "AVIF")

# What is damaged or too large is refused by errors of this package; PIL's warnings would only fill logs.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What the first bytes of a file tell. Sizes in pixels, as stored; orientation is EXIF's 1 to 8."""

    format: str
    mode: str
    stored_height: int
    stored_width: int
    orientation: int = 1

    @property
    def height(self) -> int:
        """Height as seen, with the orientation applied."""
        return self.stored_width if self.orientation >= 5 else self.stored_height

    @property
    def width(self) -> int:
        """Width as seen, with the orientation applied."""
        return self.stored_height if self.orientation >= 5 else self.stored_width


def sniff(prefix: bytes) -> str | None:
    """The format by its signature, whatever type the sender declared; None if none is recognised."""
    signatures = (
        (b"\xff\xd8\xff", "JPEG"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"GIF87a", "GIF"),
        (b"GIF89a", "GIF"),
        (b"BM", "BMP"),
        (b"II*\0", "TIFF"),
        (b"MM\0*", "TIFF"),
        (b"II+\0", "TIFF"),
        (b"MM\0+", "TIFF"),
    )
    for signature, name in signatures:
        if prefix.startswith(signature):
            return name
    if prefix[:4] == b"RIFF" and prefix[8:12] == b"WEBP":
        return "WEBP"
    if prefix[4:8] == b"ftyp" and (b"avif" in prefix[8:64] or b"avis" in prefix[8:64]):
        return "AVIF"
    if prefix[:1] == b"P" and prefix[1:2] in b"123456" and prefix[2:3].isspace():
        return "PPM"
    return None


def read_header(data: bytes, complete: bool, max_pixels: int) -> ImageHeader | None:
    """The header in the first bytes of a file, or None if more bytes are needed (never when complete).

    Raises BadInput for what is no image, a corrupt header, and an image of more than max_pixels.
    """
    name = sniff(data)
    if name is None:
        if complete or len(data) >= SIGNATURE_BYTES:
            raise BadInput(_not_an_image(data), code="invalid_image")
        return None
    header = _early_webp(data) if name == "WEBP" else None
    if header is None:
        if not complete and name in (*WHOLE_FILE_FORMATS, "WEBP"):
            return None
        header = _open_header(data, name, complete, max_pixels)
    if header is not None:
        _check_size(header, max_pixels)
    return header


def open_image(data: bytes, format_name: str) -> Image.Image:
    """PIL's lazy image over these bytes, opened by this one plugin."""
    return Image.open(io.BytesIO(data), formats=[format_name])


def _open_header(data: bytes, name: str, complete: bool, max_pixels: int) -> ImageHeader | None:
    try:
        with open_image(data, name) as image:
            width, height = image.size
            return ImageHeader(name, image.mode, height, width, _orientation(image))
    except Image.DecompressionBombError:
        raise BadInput(
            f"the image has more than {max_pixels} pixels, the limit of this server (--max-image-pixels); "
            "send a smaller one",
            code="image_too_large",
        ) from None
    except Exception as error:  # plugins raise anything from struct.error to TypeError on damaged bytes
        if not complete:
            return None
        raise BadInput(
            f"the image ({name}, {len(data)} bytes) is truncated or corrupt: {error}; send it again",
            code="invalid_image",
        ) from error


def _orientation(image: Image.Image) -> int:
    """EXIF's orientation; 1, upright, when it is absent or out of range.

    In a PNG only what precedes the pixels counts, as its standard (third edition) demands. A TIFF is turned
    by PIL itself, which also tells its size as turned.
    """
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return 1
    value = image.getexif().get(ORIENTATION_TAG, 1)
    return value if value in range(1, 9) else 1


def _early_webp(data: bytes) -> ImageHeader | None:
    """Size from the first 30 bytes of a WebP file; None if they do not tell (EXIF or XMP come last in it)."""
    if len(data) < 30:
        return None
    kind = data[12:16]
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width = int.from_bytes(data[26:28], "little") & 0x3FFF
        height = int.from_bytes(data[28:30], "little") & 0x3FFF
        return ImageHeader("WEBP", "RGB", height, width)
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        mode = "RGBA" if bits >> 28 & 1 else "RGB"
        return ImageHeader("WEBP", mode, (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1)
    if kind == b"VP8X":
        flags = data[20]
        if flags & 0x0C:
            return None
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
        mode = "RGBA" if flags & 0x10 else "RGB"
        return ImageHeader("WEBP", mode, height, width)
    return None


def _check_size(header: ImageHeader, max_pixels: int) -> None:
    width, height = header.width, header.height
    if width < 1 or height < 1:
        raise BadInput(f"the image is {width} x {height} pixels; it is empty", code="invalid_image")
    if width * height > max_pixels:
        raise BadInput(
            f"the image is {width} x {height} = {width * height} pixels, above the limit of {max_pixels} "
            "(--max-image-pixels); send a smaller one",
            code="image_too_large",
        )


def _not_an_image(data: bytes) -> str:
    if not data:
        return "the image is empty (0 bytes)"
    return f"no known image format (starts with {data[:12]!r}); supported: {', '.join(FORMATS)}"
