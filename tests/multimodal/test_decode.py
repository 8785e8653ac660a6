import io

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from gllm.multimodal.decode import decode
from gllm.multimodal.errors import BadInput
from gllm.multimodal.header import read_header
from gllm.multimodal.preprocessor import ImagePreprocessor
from tests.multimodal.pictures import encoded, noise, rgb, with_orientation

LIMIT = 10**7


def pixels(data: bytes, target: tuple[int, int] | None = None) -> np.ndarray:
    header = read_header(data, True, LIMIT)
    return decode(data, header, target or (header.height, header.width))


@pytest.fixture(scope="module")
def reference():
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained("gllm/models_data/tiny")


def patches_of(image: np.ndarray, rule: ImagePreprocessor) -> np.ndarray:
    """The vision tower's input for resized pixels, in float64: [patches, 3 * 2 * 14 * 14]."""
    values = (image / 255.0 - np.array(rule.image_mean)) / np.array(rule.image_std)
    height, width, _ = image.shape
    p, m = rule.patch_size, rule.merge_size
    grid = values.reshape(height // p // m, m, p, width // p // m, m, p, 3)
    patches = grid.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None].repeat(2, axis=5)
    return patches.reshape(-1, 3 * 2 * p * p)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "CMYK", "YCbCr"])
@pytest.mark.parametrize("size", [(56, 56), (75, 100), (333, 77), (1, 1), (1, 200), (29, 1001), (640, 481)])
def test_pixels_equal_those_of_the_image_processor_of_transformers(reference, mode, size):
    rule = ImagePreprocessor()
    image = rgb(*size).convert(mode)
    data = encoded(image, "TIFF" if mode in ("CMYK", "YCbCr") else "PNG")
    target = rule.target_size(*size)
    loaded = Image.open(io.BytesIO(data))
    expected = reference(
        loaded.convert("RGB"), return_tensors="np", size={"shortest_edge": 3136, "longest_edge": 1003520}
    )
    own = pixels(data, target)
    assert own.dtype == np.uint8 and own.shape == (*target, 3)
    assert tuple(expected["image_grid_thw"][0]) == rule.grid(*target)
    difference = np.abs(patches_of(own, rule) - expected["pixel_values"]).max()
    assert difference < 1e-5, "a difference of one in uint8 would be 0.014"


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientations_are_applied_before_resizing(orientation, format):
    data = with_orientation(orientation, 30, 40, format)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert np.array_equal(pixels(data), np.asarray(upright))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_lies_over_white(mode):
    image = Image.fromarray(noise(20, 30, 4)).convert(mode)
    values = np.asarray(image.convert("RGBA")).astype(float)
    alpha = values[..., 3:] / 255
    expected = values[..., :3] * alpha + 255 * (1 - alpha)
    assert np.abs(pixels(encoded(image)) - expected).max() <= 1


def test_a_transparent_colour_of_a_palette_or_an_rgb_image_is_white():
    palette = Image.new("P", (10, 10), 0)
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((3, 4), 1)
    data = encoded(palette, transparency=0)
    assert pixels(data)[0, 0].tolist() == [255, 255, 255]
    assert pixels(data)[4, 3].tolist() == [200, 100, 50]
    colour = Image.new("RGB", (10, 10), (1, 2, 3))
    assert pixels(encoded(colour, transparency=(1, 2, 3)))[5, 5].tolist() == [255, 255, 255]


def test_sixteen_bit_grey_keeps_its_upper_byte():
    values = noise(20, 30, 1, dtype=np.uint16)
    for format in ("PNG", "TIFF", "PPM"):
        data = encoded(Image.fromarray(values), format)
        assert np.array_equal(pixels(data), np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=2))


def test_a_transparent_value_of_sixteen_bit_grey_is_white():
    values = np.full((4, 4), 300, np.uint16)
    values[1, 1] = 777
    data = encoded(Image.fromarray(values), transparency=777)
    assert pixels(data)[1, 1].tolist() == [255] * 3
    assert pixels(data)[0, 0].tolist() == [1] * 3


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixel_types_without_a_rule_are_refused(mode):
    data = encoded(Image.fromarray(noise(8, 8, 1)).convert(mode), "TIFF")
    with pytest.raises(BadInput, match="convert the image to 8"):
        pixels(data)


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF", "MPO"])
def test_an_animation_shows_its_first_frame(format):
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if format == "WEBP" else {}
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert np.abs(pixels(data)[10, 10].astype(int) - [255, 0, 0]).max() <= 1, "JPEG frames are lossy"


def test_interlaced_progressive_and_bottom_up_files_are_read():
    image = rgb(64, 48)
    assert np.array_equal(pixels(encoded(image, "BMP")), np.asarray(image))
    progressive = encoded(image, "JPEG", progressive=True, quality=95)
    assert np.array_equal(pixels(progressive), np.asarray(Image.open(io.BytesIO(progressive))))


@pytest.mark.skipif(not features.check("avif"), reason="this PIL reads no AVIF")
def test_avif_is_read():
    assert pixels(encoded(Image.new("RGB", (40, 30), "red"), "AVIF")).shape == (30, 40, 3)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_a_truncated_file_is_refused(format):
    data = encoded(rgb(64, 64), format)
    with pytest.raises(BadInput, match="truncated or corrupt"):
        cut = data[: len(data) * 2 // 3]
        header = read_header(data, True, LIMIT)
        decode(cut, header, (56, 56))


def test_a_corrupt_png_is_refused():
    data = bytearray(encoded(rgb(64, 64)))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(BadInput, match="truncated or corrupt"):
        pixels(bytes(data))


def test_pixels_of_another_size_than_the_header_told_are_refused():
    header = read_header(encoded(rgb(64, 64)), True, LIMIT)
    with pytest.raises(BadInput, match="header says 64 x 64"):
        decode(encoded(rgb(64, 65)), header, (56, 56))
