"""The tiny model's tokenizer, dialogues, and a model of its shape that learnt nothing."""

import pytest
from transformers import AutoTokenizer

from evaluation.tiny_vlm import dialogues
from evaluation.tiny_vlm.model import MODEL_FOLDER, new_model


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL_FOLDER)


@pytest.fixture(scope="module")
def maker(tokenizer):
    return dialogues.DialogueMaker(tokenizer)


@pytest.fixture(scope="module")
def untrained():
    return new_model(MODEL_FOLDER, seed=0).eval()
