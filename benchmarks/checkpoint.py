"""Write random weights beside a model's configuration, so that every engine can load the same ones.

python -m benchmarks.checkpoint small /tmp/small [--dtype float32]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from benchmarks.servers import model_folder


def write(source: Path, folder: Path, dtype: torch.dtype, seed: int = 0) -> None:
    """A copy of source with one safetensors file under the names that the Hub uses."""
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(source), dtype=dtype)
    model.save_pretrained(folder, max_shard_size="100GB")
    # transformers rewrites config.json in a newer layout; all engines read the model's own files.
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors*"))


def main(argv: list[str] | None = None) -> int:
    """Write one folder."""
    parser = argparse.ArgumentParser(prog="checkpoint", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a model that ships with us, or a folder")
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args(argv)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    write(model_folder(args.model), args.folder, dtypes[args.dtype])
    return 0


if __name__ == "__main__":
    sys.exit(main())
