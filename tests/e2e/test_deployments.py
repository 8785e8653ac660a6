"""Real deployments over HTTP: every scheme and layout gives transformers' greedy tokens."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image

from evaluation.tiny_vlm.reference import Reference, load_tokenizer, reference_generate
from gllm.multimodal.data_url import to_data_url
from tests.checkpoints import make_random_checkpoint
from tests.e2e.server import running

TIE = 1e-3
NUM_KV_BLOCKS = ("--num-kv-blocks", "256")

DEPLOYMENTS = {
    "gllm": ("--scheme", "gllm"),
    "gllm-pp4": ("--scheme", "gllm", "--pp", "4", "--maxp", "32"),
    "gllm-tp2": ("--scheme", "gllm", "--tp", "2"),
    "gllm-pp2-tp2": ("--scheme", "gllm", "--pp", "2", "--tp", "2", "--maxp", "13", "--minp", "8"),
    "gllm-preempting": ("--scheme", "gllm", "--num-kv-blocks", "44", "--page-size", "8"),
    "epd": ("--scheme", "gllm-epd", "--pp", "2"),
    "intra": ("--scheme", "rserve-intra", "--pp", "2", "--embedding-batch-size", "1"),
    "rserve": ("--embedding-batch-size", "16"),
    "rserve-pp4": ("--pp", "4", "--maxp", "16", "--minp", "8", "--embedding-batch-size", "1"),
    "rserve-tp2-p2p": ("--scheme", "rserve", "--tp", "2", "--embedding-channel", "p2p", "--encoders", "2"),
    "rserve-throttled": ("--pp", "2", "--schedule-method", "token_throttling", "--minp", "8"),
    "rserve-prefix": ("--scheme", "rserve", "--enable-prefix-caching", "--page-size", "4"),
}  # fmt: skip


def picture(seed: int, size: tuple[int, int]) -> Image.Image:
    rng = random.Random(seed)
    return Image.frombytes("RGB", size, rng.randbytes(size[0] * size[1] * 3))


def user(*parts: str | Image.Image) -> dict:
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}
        for part in parts
    ]
    return {"role": "user", "content": content}


def conversations() -> list[tuple[list[dict], int]]:
    """Text; images first, last, in the middle, consecutive; several turns; 1 to 8 images of mixed sizes."""
    a, b, c = picture(1, (56, 56)), picture(2, (140, 84)), picture(3, (97, 203))
    many = [picture(10 + i, (28 * (1 + i % 4), 56)) for i in range(8)]
    return [
        ([user("Hello there, how are you?")], 12),
        ([user(a, "What is this?")], 8),
        ([user("Compare", a, "with", b, "please.")], 8),
        ([user("Look:", b, c)], 1),
        ([user(a, "First."), {"role": "assistant", "content": "Yes."}, user(c, b, "And now?")], 8),
        ([user(*many, "Count.")], 4),
        ([user(picture(5, (560, 448)), "Large.")], 4),
        ([{"role": "system", "content": "Be brief."}, user("Say something long.")], 40),
    ]


def images_of(messages: list[dict]) -> list[Image.Image]:
    contents = [m["content"] for m in messages if isinstance(m["content"], list)]
    return [part["image"] for content in contents for part in content if part["type"] == "image"]


def as_request(messages: list[dict], max_tokens: int) -> dict:
    """The same conversation for the server: images as PNG data URLs."""

    def part(value: dict) -> dict:
        if value["type"] == "text":
            return value
        return {"type": "image_url", "image_url": {"url": to_data_url(value["image"])}}

    plain = [
        {**m, "content": [part(p) for p in m["content"]] if isinstance(m["content"], list) else m["content"]}
        for m in messages
    ]
    return {
        "messages": plain,
        "max_tokens": max_tokens,
        "temperature": 0,
        "logprobs": True,
        "skip_special_tokens": False,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_checkpoint(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def references(folder: Path) -> list[Reference]:
    return [
        reference_generate(folder, messages, images_of(messages), max_tokens)
        for messages, max_tokens in conversations()
    ]


def tokens_of(answer: dict) -> list[bytes]:
    return [bytes(entry["bytes"]) for entry in answer["choices"][0]["logprobs"]["content"]]


def spelled(tokenizer: object, ids: tuple[int, ...]) -> list[bytes]:
    """The bytes of each token."""
    pieces = tokenizer.convert_ids_to_tokens(list(ids))  # type: ignore[attr-defined]
    return [tokenizer.convert_tokens_to_string([p]).encode() for p in pieces]  # type: ignore[attr-defined]


def check_answers(folder: Path, answers: list[dict], references: list[Reference]) -> None:
    """Every token as transformers', up to where its two best logits are too close to tell."""
    tokenizer = load_tokenizer(str(folder))
    for index, (answer, reference) in enumerate(zip(answers, references)):
        assert "choices" in answer, answer
        assert answer["usage"]["prompt_tokens"] == len(reference.prompt_ids)
        ours, theirs = tokens_of(answer), spelled(tokenizer, reference.token_ids)
        for position, (got, wanted) in enumerate(zip(ours, theirs)):
            if got != wanted:
                assert reference.logit_gaps[position] < TIE, f"request {index}, token {position}"
                break
        else:
            assert len(ours) == len(theirs), f"request {index}"


@pytest.mark.slow
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_answers_as_transformers(
    name: str, folder: Path, references: list[Reference], tmp_path: Path
) -> None:
    asked = [as_request(messages, n) for messages, n in conversations()]
    flags = DEPLOYMENTS[name]
    blocks = () if "--num-kv-blocks" in flags else NUM_KV_BLOCKS
    with (
        running(tmp_path, str(folder), *flags, *blocks) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
        ThreadPoolExecutor(len(asked)) as pool,
    ):
        answers = list(pool.map(lambda body: client.post("/v1/chat/completions", json=body).json(), asked))
        if name == "rserve-prefix":
            answers = [client.post("/v1/chat/completions", json=body).json() for body in asked]
        health = client.get("/health")
        assert server.stop() == 0
    assert health.status_code == 200
    check_answers(folder, answers, references)
