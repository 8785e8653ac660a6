"""Pictures and files become data URLs; what is a URL already stays one."""

import base64
import io

import pytest
from PIL import Image

from gllm.entrypoints.offline_media import with_data_urls


def part(value, key="image") -> dict:
    return with_data_urls({"role": "user", "content": [{"type": "image", key: value}]})["content"][0]


def bytes_of(url: str) -> bytes:
    return base64.b64decode(url.split(",", 1)[1])


def test_a_picture_keeps_its_pixels():
    picture = Image.radial_gradient("L").convert("RGB")
    decoded = Image.open(io.BytesIO(bytes_of(part(picture)["image"])))
    assert decoded.tobytes() == picture.tobytes()


@pytest.mark.parametrize("as_text", [True, False])
def test_a_file_is_read_as_it_is(tmp_path, as_text):
    path = tmp_path / "picture.bin"
    path.write_bytes(b"\x00\x01anything")
    assert bytes_of(part(str(path) if as_text else path)["image"]) == b"\x00\x01anything"


def test_a_missing_file_is_an_error():
    with pytest.raises(FileNotFoundError):
        part("/no/such/file.png")


def test_urls_and_text_stay_as_they_are():
    for url in ("http://host/a.png", "https://host/a.png", "data:image/png;base64,AA", "FILE:///a.png"):
        assert part(url)["image"] == url
        assert part({"url": url, "detail": "low"}, "image_url")["image_url"] == {"url": url, "detail": "low"}
    message = {"role": "user", "content": "plain"}
    assert with_data_urls(message) == message
    assert (
        with_data_urls({"content": [{"type": "text", "text": "/a/path"}]})["content"][0]["text"] == "/a/path"
    )
