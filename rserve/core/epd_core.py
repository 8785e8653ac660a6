"""The paper's schemes, composed from one engine: which tracker, which scheduler, who encodes."""

from dataclasses import dataclass

from gllm.core.core_config import CoreConfig
from gllm.core.embeddings import EmbeddingStore
from gllm.core.engine_core import EngineCore
from gllm.core.stage_encoder import StageEncoder
from rserve.core.scheduler import scheduler_of
from rserve.core.tracker import EmbeddingTracker

SCHEMES = ("gllm", "gllm-epd", "rserve-intra", "rserve")
INTRA_READINGS = ("serial", "per-micro-batch")


@dataclass(frozen=True, slots=True)
class Scheme:
    """One row of the paper's ablation.

    encoder ranks or stage 0; prefill starts with a ready prefix or with the whole request; a
    micro-batch mixes requests or not.
    """

    name: str
    intra_reading: str = "serial"

    @property
    def has_encoder_ranks(self) -> bool:
        return self.name != "gllm"

    @property
    def overlaps(self) -> bool:
        """True when prefill starts before all items of a request are encoded."""
        return self.name in ("rserve", "rserve-intra")

    def batch_tokens(self, embedding_batch_size: float) -> float:
        """C of Algorithm 1: infinite for schemes that wait for whole requests."""
        return embedding_batch_size if self.overlaps else float("inf")


def make_core(
    scheme: Scheme, config: CoreConfig, bytes_per_token: int = 0, fallback: bool = False
) -> EngineCore:
    """The engine of a scheme. fallback: stage 0 can encode when no encoder rank is left."""
    tracker = EmbeddingTracker(bytes_per_token) if scheme.overlaps else EmbeddingStore(bytes_per_token)
    encodes = fallback or not scheme.has_encoder_ranks
    return EngineCore(
        config,
        tracker=tracker,
        make_scheduler=scheduler_of(scheme.name, scheme.intra_reading),
        stage_encoder=StageEncoder(config.encode_tokens) if encodes else None,
    )
