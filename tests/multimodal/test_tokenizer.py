import json
import shutil
from pathlib import Path

import pytest

from gllm.multimodal.tokenizer import load_tokenizer

TINY = "gllm/models_data/tiny"
MIXED = "<|im_start|>user\nhi <tool_call> é 🙂 12<|im_end|>"


@pytest.fixture(scope="module")
def whole():
    return load_tokenizer(TINY)


def test_special_tokens_are_hidden_and_others_shown(whole):
    ids = whole.encode_trusted(MIXED)
    assert whole.decode(ids) == "user\nhi <tool_call> é 🙂 12"
    assert whole.decode(ids, skip_special_tokens=False) == MIXED
    assert whole.special_ids == set(range(490, 504)) and whole.vocab_size == 512


def test_control_tokens_that_only_the_config_declares_are_added(tmp_path, whole):
    fields = json.loads(Path(TINY, "tokenizer.json").read_text())
    fields["added_tokens"] = [token for token in fields["added_tokens"] if token["id"] < 504]
    (tmp_path / "tokenizer.json").write_text(json.dumps(fields))
    shutil.copy(f"{TINY}/tokenizer_config.json", tmp_path)
    assert load_tokenizer(tmp_path).encode_trusted(MIXED) == whole.encode_trusted(MIXED)


def test_a_declared_id_that_is_not_free_is_refused(tmp_path):
    shutil.copy(f"{TINY}/tokenizer.json", tmp_path)
    declared = {"added_tokens_decoder": {"600": {"content": "<new>", "special": True}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(declared))
    with pytest.raises(ValueError, match="'<new>' the id 600"):
        load_tokenizer(tmp_path)


def test_a_checkpoint_with_vocabulary_and_merges_is_converted(tmp_path, whole):
    model = json.loads(Path(TINY, "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    shutil.copy(f"{TINY}/tokenizer_config.json", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    assert load_tokenizer(tmp_path).encode_trusted(MIXED) == whole.encode_trusted(MIXED)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
