"""From a data set's name and options to prompts."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.workloads import custom, image, mmmu, peers, synthetic, vision
from benchmarks.workloads.mmmu_rows import MmmuRow, load_rows
from benchmarks.workloads.pictures import parse_resolution
from benchmarks.workloads.prompt import Prompt
from benchmarks.workloads.vision_tokens import VisionGrid
from benchmarks.workloads.words import Tokenizer

Named = tuple[str, list[Prompt]]
DEFAULT_OUTPUT_LEN = 1024


def build_prompts(args: Namespace, tokenizer: Tokenizer | None) -> Named:
    """The workload's name and its prompts, from the options of the command line (benchmarks.client.cli).

    Raises ValueError, FileNotFoundError or ConnectionError with what to do.
    """
    name, prompts = DATASETS[args.dataset_name](args, tokenizer)
    if not prompts:
        raise ValueError(f"the data set {args.dataset_name!r} gave no prompts: check --num-prompts")
    return name, prompts


def _image(args: Namespace, tokenizer: Tokenizer | None) -> Named:
    width, height = parse_resolution(args.image_resolution or "1080p")
    spec = image.ImageSpec(
        image_count=args.image_count,
        width=width,
        height=height,
        image_format=args.image_format,
        image_content=args.image_content,
        random_image_count=args.random_image_count,
        input_len=args.random_input_len,
        output_len=_output_len(args, DEFAULT_OUTPUT_LEN),
        range_ratio=args.random_range_ratio,
    )
    return "image", image.prompts(args.num_prompts, args.seed, spec, tokenizer)


def _random(args: Namespace, tokenizer: Tokenizer | None) -> Named:
    spec = image.ImageSpec(
        image_count=0,
        input_len=args.random_input_len,
        output_len=_output_len(args, DEFAULT_OUTPUT_LEN),
        range_ratio=args.random_range_ratio,
    )
    return "random", image.prompts(args.num_prompts, args.seed, spec, tokenizer)


def _custom(args: Namespace, tokenizer: Tokenizer | None) -> Named:
    if not args.dataset_path:
        raise ValueError("--dataset-name custom needs --dataset-path, a JSON-lines file")
    output_len = _output_len(args, DEFAULT_OUTPUT_LEN)
    return Path(args.dataset_path).stem, custom.prompts(args.dataset_path, args.num_prompts, output_len)


def _mmmu(args: Namespace, tokenizer: Tokenizer | None) -> Named:
    return _questions(load_rows(args.dataset_path), args, tokenizer)


def _synthetic(args: Namespace, tokenizer: Tokenizer | None) -> Named:
    return _questions(synthetic.rows(args.num_prompts, args.seed), args, tokenizer)


def _questions(rows: list[MmmuRow], args: Namespace, tokenizer: Tokenizer | None) -> Named:
    resolution = (args.image_resolution or "").lower()
    if resolution in mmmu.AREAS:
        spec = mmmu.paper_spec(resolution)
    else:
        spec = mmmu.MmmuSpec(area=parse_resolution(resolution) if resolution else None)
    spec = mmmu.MmmuSpec(
        area=spec.area,
        min_images=spec.min_images,
        passage_tokens=spec.passage_tokens if args.passage_tokens is None else args.passage_tokens,
        image_format=args.image_format,
        output_len=_output_len(args, 1),
    )
    return mmmu.workload_name(rows, spec), mmmu.prompts(rows, args.num_prompts, args.seed, spec, tokenizer)


def _peers(args: Namespace, tokenizer: Tokenizer | None) -> Named:
    return "peers", peers.prompts(args.num_prompts, args.seed, _output_len(args, 1))


def _peers_text(args: Namespace, tokenizer: Tokenizer | None) -> Named:
    return "peers-text", peers.prompts(args.num_prompts, args.seed, _output_len(args, 1), num_images=0)


def _vision(args: Namespace, tokenizer: Tokenizer | None) -> Named:
    return "vision", vision.prompts(args.num_prompts, args.seed, _output_len(args, 1))


def _output_len(args: Namespace, default: int) -> int:
    return default if args.random_output_len is None else int(args.random_output_len)


DATASETS: dict[str, Callable[[Namespace, Tokenizer | None], Named]] = {
    "image": _image,
    "mmmu": _mmmu,
    "random": _random,
    "custom": _custom,
    "synthetic": _synthetic,
    "peers": _peers,
    "peers-text": _peers_text,
    "vision": _vision,
}


def load_tokenizer(name: str | None) -> Tokenizer | None:
    """The tokenizer of a folder or Hub name; None for None: lengths are then in words.

    Raises ValueError when it cannot be loaded.
    """
    if name is None:
        return None
    from transformers import AutoTokenizer  # takes seconds to import, and most runs do without

    try:
        found: Any = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"--tokenizer {name}: {error}") from error
    tokenizer: Tokenizer = found
    return tokenizer


def load_vision_grid(name: str | None) -> VisionGrid:
    """The resize rule in a checkpoint folder's preprocessor_config.json; Qwen2.5-VL's own without one."""
    path = Path(name or "") / "preprocessor_config.json"
    if not name or not path.exists():
        return VisionGrid()
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    size = config.get("size") or {}
    default = VisionGrid()
    return VisionGrid(
        factor=config.get("patch_size", 14) * config.get("merge_size", 2),
        min_pixels=config.get("min_pixels") or size.get("shortest_edge") or default.min_pixels,
        max_pixels=config.get("max_pixels") or size.get("longest_edge") or default.max_pixels,
    )
