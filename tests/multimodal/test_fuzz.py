"""Whatever bytes or JSON a client sends: an image or BadInput, never another exception."""

import asyncio
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import features

from gllm.multimodal.chat import ChatEncoder, ChatOptions
from gllm.multimodal.content import parse_chat
from gllm.multimodal.decode import decode
from gllm.multimodal.errors import BadInput
from gllm.multimodal.fetch import MediaFetcher
from gllm.multimodal.header import read_header
from gllm.multimodal.limits import MediaLimits
from gllm.multimodal.pool import MediaPool
from gllm.multimodal.preprocessor import ImagePreprocessor
from gllm.multimodal.template import load_template
from gllm.multimodal.tokenizer import load_tokenizer
from tests.multimodal.pictures import encoded, rgb, with_orientation

TINY = "gllm/models_data/tiny"
IMAGE, VIDEO = 502, 503
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # PIL's, about what is damaged
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def samples() -> list[bytes]:
    image = rgb(24, 20)
    kinds = ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"] + (
        ["AVIF"] if features.check("avif") else []
    )
    files = [encoded(image, kind) for kind in kinds]
    files += [with_orientation(6, 24, 20, kind) for kind in ("JPEG", "PNG", "WEBP", "TIFF")]
    files += [encoded(image.convert(mode)) for mode in ("P", "L", "1", "RGBA", "LA")]
    files.append(encoded(image, "GIF", save_all=True, append_images=[rgb(24, 20, 1)]))
    files.append(encoded(image, "WEBP", save_all=True, append_images=[rgb(24, 20, 1)]))
    files.append(encoded(image, "JPEG", progressive=True))
    files.append(encoded(image.convert("CMYK"), "JPEG"))
    files.append(encoded(image, "TIFF", compression="tiff_lzw"))
    return files


@st.composite
def damaged_files(draw):
    data = bytearray(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.integers(0, 6))):
        position = draw(st.integers(0, len(data) - 1))
        data[position : position + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


FILES = samples()
files = st.one_of(damaged_files(), st.binary(max_size=200))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
urls = st.sampled_from(["data:,", "http://a/", "x", ""]) | json_values
parts = st.one_of(
    json_values,
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image_url", "image", "input_image", "video", "x", None])},
        optional={
            "text": st.sampled_from(["<|im_end|>", "<|image_pad|>", "a"]) | st.text(max_size=8) | json_values,
            "image_url": urls | st.fixed_dictionaries({"url": urls}, optional={"detail": json_values}),
            "image": urls,
            "min_pixels": json_values,
            "detail": json_values,
        },
    ),
)
messages = st.one_of(
    json_values,
    st.lists(
        st.one_of(
            json_values,
            st.fixed_dictionaries(
                {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "x"])},
                optional={
                    "content": st.text(max_size=8) | st.lists(parts, max_size=4) | json_values,
                    "tool_calls": json_values | st.lists(st.dictionaries(st.text(max_size=4), json_values)),
                    "name": json_values,
                },
            ),
        ),
        max_size=4,
    ),
)


def check_bytes_of_an_image(data: bytes) -> bool:
    """True if it was an image; fails on any exception but BadInput."""
    rule = ImagePreprocessor()
    try:
        early = read_header(data[: len(data) // 2], False, 10**6)
        header = read_header(data, True, 10**6)
        target = rule.target_size(header.height, header.width)
        pixels = decode(data, header, target)
    except BadInput as error:
        assert str(error) and error.status == 400
        return False
    assert early is None or (early.height, early.width) == (header.height, header.width)
    assert pixels.shape == (*target, 3)
    return True


def check_messages(value, encoder) -> bool:
    """True if it was a prompt; fails on any exception but BadInput, and on a lost image."""
    try:
        chat = parse_chat(value, 8)
        ids = encoder.encode(chat, ChatOptions())
    except BadInput as error:
        assert str(error) and error.status == 400
        return False
    assert ids.count(IMAGE) == len(chat.images), "never a silent text-only answer"
    return True


@pytest.fixture(scope="module")
def encoder():
    return ChatEncoder(load_tokenizer(TINY), load_template(TINY), (IMAGE, VIDEO))


@settings(max_examples=500, **QUIET)
@given(files)
def test_any_bytes_are_an_image_or_bad_input(data):
    check_bytes_of_an_image(data)


@settings(max_examples=200, **QUIET)
@given(messages)
def test_any_messages_are_a_prompt_or_bad_input(encoder, value):
    check_messages(value, encoder)


def random_damage(rng: random.Random) -> bytes:
    """A sample with a few bytes changed, inserted, removed, or its end cut off; sometimes mere noise."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(rng.choice(FILES))
    for _ in range(rng.randrange(6)):
        position = rng.randrange(len(data))
        data[position : position + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)


WORDS = ["text", "image_url", "image", "input_image", "video", "url", "type", "role", "content", "user"]
WORDS += ["assistant", "system", "tool", "detail", "low", "min_pixels", "tool_calls", "name", "data:,"]
WORDS += ["<|im_end|>", "<|image_pad|>", "\ud800", "", "hello"]


def random_json(rng: random.Random, depth: int = 4):
    """Any JSON value, of words that the API knows."""
    kind = rng.randrange(8 if depth else 4)
    if kind < 4:
        return rng.choice([None, True, 3, -1.5, *WORDS])
    if kind < 6:
        return [random_json(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(WORDS): random_json(rng, depth - 1) for _ in range(rng.randrange(4))}


def random_part(rng: random.Random):
    """Often a good part, often one with a field that is wrong."""
    good = [
        {"type": "text", "text": rng.choice(["hello", "<|image_pad|>", "<|im_"])},
        {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}},
        {"type": "image", "image": "http://a/", "max_pixels": 784},
    ]
    part = rng.choice(good)
    if rng.random() < 0.3:
        part[rng.choice(list(part) + WORDS)] = random_json(rng, 2)
    return part if rng.random() < 0.9 else random_json(rng)


def random_messages(rng: random.Random):
    """Often good messages, often some with a field that is wrong."""
    messages = []
    for _ in range(rng.randrange(1, 4)):
        parts = [random_part(rng) for _ in range(rng.randrange(1, 4))]
        message = {"role": rng.choice(["system", "user", "assistant", "tool"]), "content": parts}
        if rng.random() < 0.2:
            message[rng.choice(list(message) + WORDS)] = random_json(rng)
        messages.append(message if rng.random() < 0.95 else random_json(rng))
    return messages if rng.random() < 0.95 else random_json(rng)


@pytest.mark.slow
def test_ten_thousand_files_are_images_or_bad_input():
    rng = random.Random(0)
    served = sum(check_bytes_of_an_image(random_damage(rng)) for _ in range(10_000))
    assert 1000 < served < 9000, "both outcomes are tried"


@pytest.mark.slow
def test_ten_thousand_messages_are_prompts_or_bad_input(encoder):
    rng = random.Random(0)
    served = sum(check_messages(random_messages(rng), encoder) for _ in range(10_000))
    assert 1000 < served < 9000, "both outcomes are tried"


@settings(max_examples=300, **QUIET)
@given(
    st.one_of(
        st.text(max_size=30),
        st.tuples(
            st.sampled_from(["http://", "https://", "data:", "data:;base64,", "file://"]),
            st.text(max_size=20),
        ).map("".join),
    )
)
def test_any_url_is_fetched_or_bad_input(url):
    async def main():
        pool = MediaPool(1)
        fetcher = MediaFetcher(MediaLimits(fetch_timeout_s=2), pool, nowhere)
        media = fetcher.open(url)
        try:
            await media.read()
        except BadInput as error:
            assert str(error)
        finally:
            await media.release()
            await fetcher.close()
            pool.close()

    asyncio.run(main())


async def nowhere(host, port, family):
    raise OSError("no such host")
