"""What the API server reads of a checkpoint itself: end tokens, vocabulary, number format. No torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gllm.entrypoints.sampling import SamplingDefaults


@dataclass(frozen=True)
class CheckpointFacts:
    """defaults: of sampling. vocab_size: rows of the output layer. dtype: of the weights as stored."""

    defaults: SamplingDefaults
    vocab_size: int
    dtype: str

    @classmethod
    def read(cls, folder: Path) -> "CheckpointFacts":
        """Raises ValueError, naming the file, when config.json is no model's configuration."""
        path = folder / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            text = config.get("text_config") or config
            vocab_size = int(text["vocab_size"])
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} cannot be read as a model's configuration: {error!r}") from error
        dtype = (
            config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
        )
        defaults = SamplingDefaults.from_folder(folder, _end_tokens(config, text))
        return cls(defaults, vocab_size, str(dtype or "bfloat16"))


def _end_tokens(config: dict[str, Any], text: dict[str, Any]) -> tuple[int, ...]:
    found = text.get("eos_token_id", config.get("eos_token_id"))
    if found is None:
        return ()
    return tuple(found) if found.__class__ is list else (int(found),)
