"""Reads a model's shape from its folder; no torch, so that every process may."""

import json
from pathlib import Path

from gllm.core.config_reader import ConfigError
from gllm.core.model_shape import ModelShape


def read_shape(model_dir: Path) -> ModelShape:
    """The shape that a folder's config.json and generation_config.json tell. Raises ConfigError."""
    config = _read_json(model_dir / "config.json")
    if config is None:
        raise ConfigError(f"{model_dir}: config.json is missing")
    try:
        return ModelShape.from_config(config, _read_json(model_dir / "generation_config.json"))
    except ConfigError as error:
        raise ConfigError(f"{model_dir}: {error}") from None


def _read_json(file: Path) -> dict[str, object] | None:
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}: is not JSON: {error}") from error
