import io

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from gllm.multimodal.errors import BadInput
from gllm.multimodal.header import read_header
from tests.multimodal.pictures import encoded, noise, rgb, with_orientation

LIMIT = 10**6
PREFIX_FORMATS = [
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("PNG", {}),
    ("GIF", {}),
    ("BMP", {}),
    ("PPM", {}),
    ("WEBP", {"quality": 80}),
    ("WEBP", {"lossless": True}),
]


def first_length_that_tells(data: bytes) -> int:
    return next(n for n in range(len(data) + 1) if read_header(data[:n], n == len(data), LIMIT) is not None)


@pytest.mark.parametrize(("format", "options"), PREFIX_FORMATS)
def test_the_first_bytes_tell_the_size_and_never_another(format, options):
    data = encoded(rgb(123, 457), format, **options)
    told = first_length_that_tells(data)
    assert told < len(data) / 4
    for length in range(told, len(data), 997):
        header = read_header(data[:length], False, LIMIT)
        assert (header.height, header.width) == (123, 457)


@pytest.mark.parametrize("format", ["TIFF", "AVIF"])
def test_formats_whose_metadata_comes_last_wait_for_the_whole_file(format):
    if format == "AVIF" and not features.check("avif"):
        pytest.skip("this PIL reads no AVIF")
    data = encoded(rgb(33, 47), format)
    assert read_header(data[:-1], False, LIMIT) is None
    header = read_header(data, True, LIMIT)
    assert (header.height, header.width) == (33, 47)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_is_that_of_the_upright_image(format, orientation):
    data = with_orientation(orientation, 30, 40, format)
    header = read_header(data, True, LIMIT)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert (header.width, header.height) == upright.size
    assert header.orientation == (1 if format == "TIFF" else orientation), "PIL turns a TIFF itself"


def test_a_webp_with_exif_at_its_end_is_not_measured_too_early():
    data = with_orientation(6, 300, 400, "WEBP")
    assert read_header(data[: len(data) // 2], False, LIMIT) is None
    assert read_header(data, True, LIMIT).height == 400


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_an_orientation_out_of_range_means_upright(orientation):
    assert read_header(with_orientation(orientation, format="JPEG"), True, LIMIT).orientation == 1


def test_animations_have_the_size_of_their_canvas():
    frames = [Image.fromarray(noise(20, 31, 3, seed)) for seed in range(3)]
    for format in ("GIF", "WEBP", "PNG"):
        data = encoded(frames[0], format, save_all=True, append_images=frames[1:])
        header = read_header(data, True, LIMIT)
        assert (header.height, header.width) == (20, 31)


def test_a_bomb_is_refused_by_its_header():
    small = io.BytesIO()
    Image.new("1", (5000, 5000)).save(small, "PNG")
    with pytest.raises(
        BadInput, match=r"5000 x 5000 = 25000000 pixels, above the limit of 1000000"
    ) as caught:
        read_header(small.getvalue()[:100], False, LIMIT)
    assert caught.value.code == "image_too_large"


def test_a_bomb_above_the_own_limit_of_pil_is_the_same_error():
    header = bytearray(encoded(Image.new("L", (1, 1)), "BMP"))
    header[18:26] = np.array([60000, 60000], "<i4").tobytes()
    with pytest.raises(BadInput) as caught:
        read_header(bytes(header), True, LIMIT)
    assert caught.value.code == "image_too_large"


def test_an_image_of_exactly_the_limit_is_served():
    assert read_header(encoded(rgb(20, 50)), True, 1000).width == 50
    with pytest.raises(BadInput):
        read_header(encoded(rgb(20, 50)), True, 999)


@pytest.mark.parametrize(
    "data",
    [
        b"<!DOCTYPE html><html><head><title>404 Not Found</title>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        b"\0" * 100,
    ],
)
def test_what_is_no_image_is_refused_at_once(data):
    with pytest.raises(BadInput, match="no known image format"):
        read_header(data, False, LIMIT)


def test_an_empty_file_is_refused():
    with pytest.raises(BadInput, match="empty"):
        read_header(b"", True, LIMIT)
    assert read_header(b"", False, LIMIT) is None


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_a_file_that_ends_in_its_header_is_refused(format):
    data = encoded(rgb(), format)
    with pytest.raises(BadInput, match=r"truncated or corrupt|no known"):
        read_header(data[:9], True, LIMIT)
