"""`LLM("tiny", scheme="rserve")`: offline use of all schemes, by the same processes as the server's."""

from typing import Any

from gllm.config import engine_config_of
from gllm.entrypoints.llm import LLM as StageZeroLLM
from rserve.config import RServeConfig
from rserve.entrypoints.serve import EpdScheme


class LLM(StageZeroLLM):
    """A model with its processes; use it in a `with` block, or call close().

    options: any flag of `rserve serve` by its name with underscores (scheme="gllm-epd", pp=2).
    """

    def __init__(self, model: str = "tiny", **options: Any) -> None:
        """Raises ConfigError for a wrong option, LaunchError when the model cannot be loaded."""
        config = engine_config_of({"model": model, **options}, RServeConfig)
        self._begin(config, EpdScheme(config).scheme())
