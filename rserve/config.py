"""Configuration of RServe: the scheme and the encoder ranks, in addition to gLLM's groups."""

from dataclasses import dataclass, field

from gllm.config import ConfigError, EngineConfig, option
from rserve.core.epd_core import INTRA_READINGS, SCHEMES, Scheme


def batch_size(text: str) -> float:
    """'1024' -> 1024.0, 'inf' -> inf."""
    return float(text)


@dataclass(frozen=True)
class EpdConfig:
    """The paper's schemes, and encoder ranks (all but gllm)."""

    scheme: str = option("rserve", "who encodes, and when prefill may start", choices=SCHEMES)
    encoders: int = option(1, "encoder ranks", low=1, high=64)
    embedding_batch_size: float = option(
        1024.0, "least embeddings of an encoder batch (C), or inf", low=1, parse=batch_size
    )
    intra_reading: str = option(
        "serial",
        "rserve-intra: one request's prefill in the pipeline at a time, or one a micro-batch",
        choices=INTRA_READINGS,
    )
    embedding_gib: float = option(0.5, "memory for embeddings that wait for prefill, in GiB", low=0.0)
    embedding_channel: str = option(
        "auto",
        "how embeddings reach the driver: shared memory, CUDA IPC, torch.distributed, NIXL (extra [nixl]); "
        "auto: on one host shm on CPUs and cuda-ipc on GPUs, else p2p",
        choices=("auto", "shm", "cuda-ipc", "p2p", "nixl"),
        flags=("--channel",),
    )
    encoder_restarts: int = option(3, "times a lost encoder is started again within ten minutes", low=0)
    encoder_fallback: str = option(
        "fail", "without encoders: stage 0 encodes, or requests with images fail", choices=("driver", "fail")
    )
    encoder_timeout: float = option(
        60.0, "seconds in which an encoder does not finish a layer before it is killed", low=0.1
    )


@dataclass(frozen=True)
class RServeConfig(EngineConfig):
    """Everything an RServe deployment needs."""

    epd: EpdConfig = field(default_factory=EpdConfig)

    @property
    def scheme(self) -> Scheme:
        return Scheme(self.epd.scheme, self.epd.intra_reading)

    @property
    def num_encoders(self) -> int:
        """Encoder ranks of this deployment; none when stage 0 encodes."""
        return self.epd.encoders if self.scheme.has_encoder_ranks else 0

    @property
    def stage_zero_encodes(self) -> bool:
        """Whether the first stage has a vision tower too: always, or when encoders are gone."""
        return not self.scheme.has_encoder_ranks or self.epd.encoder_fallback == "driver"

    def embedding_rows(self, hidden_size: int, dtype_bytes: int) -> int:
        """Embeddings that fit into --embedding-gib. Raises ConfigError when that is not one."""
        rows = int(self.epd.embedding_gib * 2**30) // (hidden_size * dtype_bytes)
        if rows < 1:
            need = hidden_size * dtype_bytes / 2**30
            raise ConfigError(
                f"--embedding-gib {self.epd.embedding_gib:g}: one embedding takes {need:.2g} GiB"
            )
        return rows
