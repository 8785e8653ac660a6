"""Byte-level BPE tokenizers with Qwen's special tokens and chat template, of a few kilobytes.

Text is split by the published Qwen2 pattern, every byte has a token, and the most frequent pairs of a sample
text are merged. The special tokens stand at any ids wanted: right after the merges (tiny), or at the ids of
the real Qwen2.5-VL (151643 ...), with a gap of unused ids before them (small, small-vision).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

SPECIAL_TOKENS: tuple[str, ...] = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
ADDED_TOKENS: tuple[str, ...] = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
QWEN_SPECIAL_START = 151643
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# The structure of Qwen2.5-VL's template: a default system turn, <|im_start|>role ... <|im_end|> turns, one
# pad token for each image between vision marks, and "Picture k: " before it when add_vision_id is set.
CHAT_TEMPLATE = """\
{%- set images = namespace(count=0) -%}
{%- set videos = namespace(count=0) -%}
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] or [] -%}
{%- if part['type'] == 'image' or part['type'] == 'image_url' or 'image' in part or 'image_url' in part -%}
{%- set images.count = images.count + 1 -%}
{%- if add_vision_id -%}{{- 'Picture ' + images.count|string + ': ' -}}{%- endif -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part['type'] == 'video' or 'video' in part -%}
{%- set videos.count = videos.count + 1 -%}
{%- if add_vision_id -%}{{- 'Video ' + videos.count|string + ': ' -}}{%- endif -%}
{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- elif 'text' in part -%}
{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def learn_merges(texts: Iterable[str], num_merges: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary (256 bytes, then a token for each merge) and at most num_merges merges of a sample text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=256 + num_merges,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(pair) if type(pair) is list else tuple(pair.split(" ")) for pair in model["merges"]]
    return model["vocab"], merges


def write_tokenizer(
    folder: Path, vocab: dict[str, int], merges: list[tuple[str, str]], special_start: int
) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; specials start at special_start.

    Raises ValueError when a special id would collide with the vocabulary.
    """
    if special_start <= max(vocab.values()):
        raise ValueError(f"special tokens at {special_start} collide with {len(vocab)} vocabulary entries")
    names = SPECIAL_TOKENS + ADDED_TOKENS
    ids = {name: special_start + i for i, name in enumerate(names)}
    folder.mkdir(parents=True, exist_ok=True)
    document = _tokenizer_document({**vocab, **ids}, merges, ids)
    _write_json(folder / "tokenizer.json", document, indent=None)
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "model_max_length": 32768,
        "added_tokens_decoder": {str(i): _added_token(name) for name, i in ids.items()},
    }
    _write_json(folder / "tokenizer_config.json", config, indent=1)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf8")


def _added_token(name: str) -> dict:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": name, **flags, "special": name in SPECIAL_TOKENS}


def _tokenizer_document(vocab: dict[str, int], merges: list[tuple[str, str]], ids: dict[str, int]) -> dict:
    """tokenizer.json as a dictionary; special tokens are vocabulary entries too, so they may leave a gap."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {
        "type": "Split",
        "pattern": {"Regex": SPLIT_PATTERN},
        "behavior": "Isolated",
        "invert": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **_added_token(name)} for name, i in ids.items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [" ".join(pair) for pair in merges],
        },
    }


def _write_json(path: Path, document: dict, indent: int | None) -> None:
    separators = (",", ":") if indent is None else None
    text = json.dumps(document, ensure_ascii=False, indent=indent, separators=separators)
    path.write_text(text + "\n", encoding="utf8")


def write_preprocessor(folder: Path, min_pixels: int = 3136, max_pixels: int = 12845056) -> None:
    """Write preprocessor_config.json: Qwen2.5-VL's patches of 14 pixels merged 2x2, CLIP normalisation."""
    config = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": min_pixels,
        "max_pixels": max_pixels,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
    }
    _write_json(folder / "preprocessor_config.json", config, indent=1)
