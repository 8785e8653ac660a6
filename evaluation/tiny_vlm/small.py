"""Write the folders of small and small-vision: python -m evaluation.tiny_vlm.small [--out gllm/models_data]

Both have no weights; they are served with random ones (`--load-format dummy`) to compare speed. The language
model has 10 layers x 1024 and Qwen2.5-VL's vocabulary size and special ids. The tokenizer knows the bytes and
4,000 merges learnt from the standard library's docstrings, so that most common English words are one token,
as with Qwen's own.

small-vision has a wider vision tower: its share of a request of 6 to 8 images of 448x448 and 256 words is
30-40 % when one core does both. `encode_flops` and `prefill_flops` count it; a vision tower reaches about 0.8
of the language model's FLOP/s (4 images of small: 82 of 411 GFLOP, but 640 of 2675 ms on one thread), which
`encode_share` includes.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evaluation.tiny_vlm.tokenizer import (
    QWEN_SPECIAL_START,
    learn_merges,
    write_preprocessor,
    write_tokenizer,
)

NUM_MERGES = 4000
VISION_EFFICIENCY = 0.8
HIDDEN, LAYERS, HEADS, KV_HEADS, MLP = 1024, 10, 8, 2, 2816
PATCHES_448, TOKENS_448 = 1024, 256
WINDOW_PATCHES = 64
PROMPT_TEXT_TOKENS = 283


@dataclass(frozen=True)
class Tower:
    """A vision tower's shape; every head has 64 or 80 dimensions."""

    depth: int
    hidden: int
    heads: int
    mlp: int
    full_attention: tuple[int, ...]


TOWERS = {
    "small": Tower(6, 320, 5, 864, (2, 5)),
    "small-vision": Tower(5, 480, 6, 1296, (2, 4)),
}


def prefill_flops(num_tokens: int) -> float:
    """Floating-point operations of one prompt: linear layers, and causal attention at half of the square."""
    head_dim = HIDDEN // HEADS
    per_layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV_HEADS * head_dim + 3 * HIDDEN * MLP
    return 2 * per_layer * LAYERS * num_tokens + 2 * num_tokens**2 * HIDDEN * LAYERS


def encode_flops(tower: Tower, num_images: int) -> float:
    """Floating-point operations of encoding images of 448x448: patches, blocks, attention, merger."""
    per_layer = 4 * tower.hidden**2 + 3 * tower.hidden * tower.mlp
    patch_embed = 3 * 2 * 14 * 14 * tower.hidden
    merged = 4 * tower.hidden
    merger = (merged * merged + merged * HIDDEN) / 4
    linear = 2 * (per_layer * tower.depth + patch_embed + merger) * PATCHES_448
    full = len(tower.full_attention)
    seen = full * PATCHES_448 + (tower.depth - full) * WINDOW_PATCHES
    return num_images * (linear + 4 * PATCHES_448 * seen * tower.hidden)


def encode_share(tower: Tower, num_images: int) -> float:
    """Share of one core's time that encoding takes in a request of images of 448x448 and 256 words.

    small with 4 images: 82 GFLOP / 0.8 against 330 gives 0.24; small-vision with 7: 259 / 0.8 against 556
    gives 0.37.
    """
    encode = encode_flops(tower, num_images) / VISION_EFFICIENCY
    return encode / (encode + prefill_flops(num_images * TOKENS_448 + PROMPT_TEXT_TOKENS))


def docstrings() -> Iterator[str]:
    """Docstrings of the standard library's modules, in a fixed order."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield ast.get_docstring(node) or ""


def config(tower: Tower) -> dict:
    """config.json in the layout of the Hub: text fields at the top level, vision_config below."""
    start = QWEN_SPECIAL_START
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "torch_dtype": "bfloat16",
        "vocab_size": 151936,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "max_window_layers": LAYERS,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "bos_token_id": start,
        "eos_token_id": start + 2,
        "pad_token_id": start,
        "vision_start_token_id": start + 9,
        "vision_end_token_id": start + 10,
        "vision_token_id": start + 11,
        "image_token_id": start + 12,
        "video_token_id": start + 13,
        "vision_config": {
            "depth": tower.depth,
            "hidden_size": tower.hidden,
            "intermediate_size": tower.mlp,
            "num_heads": tower.heads,
            "hidden_act": "silu",
            "in_chans": 3,
            "patch_size": 14,
            "spatial_patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 112,
            "fullatt_block_indexes": list(tower.full_attention),
            "out_hidden_size": HIDDEN,
        },
    }


def write_model(folder: Path, tower: Tower, vocab: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Write one folder: everything of a checkpoint but the weights."""
    write_tokenizer(folder, vocab, merges, QWEN_SPECIAL_START)
    write_preprocessor(folder)
    (folder / "config.json").write_text(json.dumps(config(tower), indent=2) + "\n")
    start = QWEN_SPECIAL_START
    generation = {
        "eos_token_id": [start + 2, start],
        "bos_token_id": start,
        "pad_token_id": start,
        "do_sample": False,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def main() -> int:
    """Write both folders and print the shares of encoding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).resolve().parents[2] / "gllm" / "models_data"
    )
    options = parser.parse_args()
    vocab, merges = learn_merges(docstrings(), NUM_MERGES)
    for name, tower in TOWERS.items():
        write_model(options.out / name, tower, vocab, merges)
        shares = ", ".join(f"{n} images {encode_share(tower, n):.2f}" for n in (4, 6, 7, 8))
        print(f"{name}: encoding takes {shares} of a request")
    return 0


if __name__ == "__main__":
    sys.exit(main())
