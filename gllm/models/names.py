"""What MODEL on a command line means."""

from __future__ import annotations

from pathlib import Path

PACKAGED = ("tiny", "small", "small-vision")
_PACKAGED_FOLDER = Path(__file__).resolve().parent.parent / "models_data"


class UnknownModelError(ValueError):
    """MODEL is neither a folder with a model nor the name of a packaged one."""


def resolve_model(model: str) -> Path:
    """The folder of MODEL: a folder with a config.json, or a model that ships with the package.

    A folder wins over a packaged name: `./tiny` and an existing `tiny/` mean the folder.
    """
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if model in PACKAGED:
        return _PACKAGED_FOLDER / model
    if folder.is_dir():
        raise UnknownModelError(f"model {model!r}: the folder has no config.json")
    raise UnknownModelError(
        f"model {model!r}: no such folder, and not one of {', '.join(PACKAGED)}. Models are not downloaded: "
        "give the folder of a checkpoint in the Hugging Face format"
    )
