"""What the HTTP layer knows of the model it serves."""

import time
from dataclasses import dataclass, field

from gllm.entrypoints.detokenize import TokenBytes
from gllm.entrypoints.errors import ApiError
from gllm.entrypoints.sampling import SamplingDefaults, SamplingLimits


@dataclass(frozen=True)
class ServedModel:
    """Its name for clients, its tokens, its defaults and what the deployment can hold."""

    name: str
    tokens: TokenBytes
    defaults: SamplingDefaults
    limits: SamplingLimits
    created: int = field(default_factory=lambda: int(time.time()))

    def check_name(self, asked: str | None) -> None:
        """A request may leave the model out. Raises ApiError (404) for another name than the served one."""
        if asked is not None and asked != self.name:
            message = f"the model {asked!r} does not exist: this server has {self.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def card(self) -> dict[str, object]:
        """The entry of `GET /v1/models`."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "rserve",
            "max_model_len": self.limits.max_model_len,
        }
