import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gllm.multimodal.data_url import parse_data_url, to_data_url
from gllm.multimodal.errors import BadInput
from tests.multimodal.pictures import rgb


@given(st.binary(min_size=1, max_size=99), st.integers(0, 5), st.booleans(), st.booleans())
def test_base64_is_read_with_and_without_padding_spaces_and_escapes(data, width, padded, url_safe):
    text = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(data).decode()
    text = text if padded else text.rstrip("=")
    if width:
        text = "\r\n ".join(text[i : i + width] for i in range(0, len(text), width))
    for head in ("data:image/png;base64,", "DATA:;BASE64,", "data:text/plain;charset=x;base64,"):
        assert parse_data_url(head + text, 1000) == data
    assert parse_data_url("data:;base64," + text.replace("+", "%2B").replace("=", "%3D"), 1000) == data


def test_percent_encoded_bytes_are_read():
    assert parse_data_url("data:image/bmp,BM%00%ff", 10) == b"BM\0\xff"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,", "no bytes"),
        ("data:,", "no bytes"),
        ("data:image/png;base64,@@@@", "not valid base64"),
        ("data:image/png;base64,AAAAA", "not valid base64"),
        ("data:image/png;base64,é", "not valid base64"),
    ],
)
def test_malformed_urls_are_refused(url, says):
    with pytest.raises(BadInput, match=says):
        parse_data_url(url, 1000)


def test_the_size_limit_is_exact_and_checked_before_decoding():
    data = b"x" * 100
    url = "data:;base64," + base64.b64encode(data).decode()
    assert parse_data_url(url, 100) == data
    with pytest.raises(BadInput, match="100 bytes, above the limit of 99"):
        parse_data_url(url, 99)
    with pytest.raises(BadInput, match="above the limit of 99"):
        parse_data_url("data:;base64," + "!" * 10**6, 99)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "1", "P", "CMYK"])
def test_a_pil_image_becomes_a_lossless_url(mode):
    image = rgb().convert(mode)
    data = parse_data_url(to_data_url(image), 10**6)
    assert np.array_equal(Image.open(io.BytesIO(data)).convert("RGB"), image.convert("RGB"))
