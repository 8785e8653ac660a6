"""Offline use: the same answers as the server's, from pictures, paths and URLs."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

import rserve
from gllm import LLM
from gllm.config import ConfigError
from gllm.entrypoints.errors import ApiError
from gllm.multimodal.data_url import to_data_url
from gllm.multimodal.errors import BadInput


@pytest.fixture(scope="module", params=["gllm", "rserve"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    """Both kinds: with the encoder on stage 0, and with an encoder rank."""
    make = LLM if request.param == "gllm" else partial(rserve.LLM, scheme="rserve")
    with make("tiny", kv_cache_gib=0.1, threads_per_rank=1) as llm:
        yield llm


def conversation(image: object) -> list[dict]:
    parts = [{"type": "image", "image": image}, {"type": "text", "text": "What colour is the object?"}]
    return [{"role": "user", "content": parts}]


def test_pictures_paths_and_urls_give_the_same_answer(llm: LLM, tmp_path: Path):
    picture = Image.new("RGB", (60, 80), "red")
    path = tmp_path / "red.png"
    picture.save(path)
    asked = [conversation(image) for image in (picture, path, str(path), to_data_url(picture))]
    outputs = llm.chat(asked, max_tokens=6, use_tqdm=False)
    texts = {output.outputs[0].text for output in outputs}
    assert len(outputs) == 4 and len(texts) == 1
    assert len({output.prompt_token_ids for output in outputs}) == 1


def test_one_conversation_and_several_are_told_apart(llm: LLM):
    hello = [{"role": "user", "content": "Hello"}]
    (alone,) = llm.chat(hello, max_tokens=5, use_tqdm=False)
    both = llm.chat([hello, hello], max_tokens=5, n=2, use_tqdm=False)
    assert [len(output.outputs) for output in both] == [2, 2]
    assert both[0].outputs[0].token_ids == both[1].outputs[1].token_ids == alone.outputs[0].token_ids
    assert alone.outputs[0].finish_reason in ("stop", "length")


def test_text_and_token_ids_are_continued_alike(llm: LLM):
    (text,) = llm.generate("Hello", max_tokens=5, logprobs=1, use_tqdm=False)
    (ids,) = llm.generate([list(text.prompt_token_ids)], max_tokens=5, use_tqdm=False)
    assert ids.outputs[0].token_ids == text.outputs[0].token_ids
    assert len(text.outputs[0].logprobs) == len(text.outputs[0].token_ids)


def test_what_the_server_refuses_is_refused_here_and_the_model_goes_on(llm: LLM):
    with pytest.raises(ApiError, match="max_tokens"):
        llm.generate("x", max_tokens=10**9, use_tqdm=False)
    with pytest.raises(ApiError, match="unknown field 'max_toks'"):
        llm.generate("x", max_toks=1, use_tqdm=False)
    with pytest.raises(BadInput, match=r"messages\[0\].content\[0\]"):
        llm.chat(conversation("data:image/png;base64,AAAA"), use_tqdm=False)
    assert llm.generate("x", max_tokens=1, use_tqdm=False)[0].outputs[0].token_ids


def test_the_progress_bar_counts_requests(llm: LLM, capsys):
    llm.generate(["a", "b"], max_tokens=1)
    assert "2/2" in capsys.readouterr().err


def test_wrong_options_and_models_are_refused_before_anything_starts():
    with pytest.raises(ConfigError, match="unknown option"):
        LLM("tiny", kv_cache_gb=1)
    with pytest.raises(ValueError, match="no such folder"):
        LLM("no-such-model")
