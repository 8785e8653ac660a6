"""The small and small-vision configurations: shape, tokenizer and the share of encoding."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from evaluation.tiny_vlm import small
from evaluation.tiny_vlm.tokenizer import learn_merges

MODELS = Path(__file__).resolve().parents[2] / "gllm" / "models_data"
COMMON_WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "with",
    "be",
    "by",
    "on",
    "not",
)


@pytest.mark.parametrize("name", ["small", "small-vision"])
def test_the_small_models_have_no_weights_and_few_bytes(name):
    folder = MODELS / name
    assert not list(folder.glob("*.safetensors"))
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 200_000
    assert json.loads((folder / "config.json").read_text()) == small.config(small.TOWERS[name])


def test_small_has_the_shape_that_published_comparisons_use():
    config = AutoConfig.from_pretrained(MODELS / "small")
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(config)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    assert 270 < millions < 285


def test_256_common_words_take_about_as_many_tokens_as_with_qwens_own_tokenizer():
    rng = random.Random(0)
    words = [rng.choice(COMMON_WORDS) for _ in range(256)]
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "small")
    assert 256 <= len(tokenizer(" ".join(words)).input_ids) <= 270


@pytest.mark.parametrize("num_images", [6, 7, 8])
def test_encoding_is_a_third_of_an_image_rich_request_of_small_vision(num_images):
    assert 0.30 <= small.encode_share(small.TOWERS["small-vision"], num_images) <= 0.40


def test_the_share_of_encoding_predicts_what_was_measured_for_small():
    assert small.encode_share(small.TOWERS["small"], 4) == pytest.approx(640 / 2675, abs=0.02)


def test_the_text_that_merges_are_learnt_from_is_english_in_a_fixed_order():
    first, again = (list(islice(small.docstrings(), 100)) for _ in range(2))
    assert first == again
    assert " ".join(first).count(" the ") > 20


def test_writing_a_small_model_gives_the_stored_files(tmp_path: Path):
    vocab, merges = learn_merges(["the red circle"] * 9, 20)
    small.write_model(tmp_path, small.TOWERS["small"], vocab, merges)
    stored = {path.name for path in (MODELS / "small").iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == stored
