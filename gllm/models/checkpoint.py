"""Tensors of a Hugging Face checkpoint: names, shapes, and slices read on demand."""

from __future__ import annotations

import json
import re
from pathlib import Path

from safetensors import safe_open

from gllm.layers.weights import SafeSlice

INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

_RENAMED = (
    (re.compile(r"^model\.visual\."), "visual."),
    (re.compile(r"^model\.language_model\."), "model."),
    (re.compile(r"^language_model\.lm_head\."), "lm_head."),
    (re.compile(r"^language_model\.model\."), "model."),
)

_IGNORED = re.compile(r"(^|\.)rotary_emb\.inv_freq$|(^|\.)rotary_pos_emb\.inv_freq$")


class CheckpointError(ValueError):
    """A checkpoint lacks tensors, has others, or has them in another shape."""


def hub_name(name: str) -> str:
    """The Hub-layout name of a tensor.

    transformers 5 saves `model.language_model.norm.weight`: here `model.norm.weight`.
    """
    for pattern, replacement in _RENAMED:
        name, replaced = pattern.subn(replacement, name)
        if replaced:
            break
    return name


class Checkpoint:
    """All safetensors files of a folder, opened memory-mapped; nothing is read before it is indexed."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError where files are missing or broken."""
        self._stored: dict[str, tuple[str, str]] = {}  # Hub name -> file, name in the file
        self._files = {file.name: _open(file) for file in _safetensors(folder)}
        for file, handle in self._files.items():
            for stored in handle.keys():  # noqa: SIM118 (not a dict)
                if not _IGNORED.search(stored):
                    self._add(stored, file)

    def _add(self, stored: str, file: str) -> None:
        name = hub_name(stored)
        if name in self._stored:
            other, other_file = self._stored[name][1], self._stored[name][0]
            raise CheckpointError(f"{file}: {stored} is also in {other_file} as {other}")
        self._stored[name] = (file, stored)

    @property
    def names(self) -> set[str]:
        """Hub-layout names of all tensors."""
        return set(self._stored)

    def slice(self, name: str) -> SafeSlice:
        """The tensor of this Hub-layout name, to be indexed."""
        file, stored = self._stored[name]
        return self._files[file].get_slice(stored)

    def where(self, name: str) -> str:
        """The file that holds this tensor."""
        return self._stored[name][0]


def _open(file: Path) -> safe_open:
    try:
        return safe_open(str(file), framework="pt", device="cpu")
    except Exception as error:  # safetensors raises its own type, OSError and others
        raise CheckpointError(f"{file}: cannot be read as safetensors: {error}") from error


def _safetensors(folder: Path) -> list[Path]:
    """The files of a checkpoint: those in the index, else the only one, else all."""
    index = folder / INDEX
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(f"{folder}: {INDEX} names files that are missing: {', '.join(missing)}")
        return [folder / name for name in names]
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: no *.safetensors file (for random weights: --load-format dummy)")
    return files
