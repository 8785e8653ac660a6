"""The numbers a scheduling core is built from."""

from dataclasses import dataclass

from gllm.core.budget import Budget, ChunkedPrefill, TokenThrottling

ENCODE_TOKENS = 16384


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Sizes and limits of one deployment, as the core sees them.

    num_blocks, block_size: the KV cache. max_in_flight: micro-batches inside the pipeline at once.
    encode_tokens: most embeddings of one encode batch on stage 0. embedding_tokens: stage 0 does not
    encode ahead while it holds this many.
    watermark: share of the KV blocks that text prefixes of requests far back in the encoder's queue
    leave free.
    """

    num_blocks: int
    block_size: int = 16
    num_stages: int = 1
    max_in_flight: int = 2
    schedule_method: str = "chunked_prefill"
    maxp: int = 2048
    maxd: int = 2048
    minp: int = 32
    iterp: int = 8
    kvthresh: float = 0.05
    prefix_caching: bool = False
    encode_tokens: int = ENCODE_TOKENS
    embedding_tokens: int = 65536
    watermark: float = 0.25

    @property
    def num_kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def budget(self) -> Budget:
        """The scheduling method named by schedule_method."""
        if self.schedule_method == "token_throttling":
            return TokenThrottling(
                maxp=self.maxp,
                maxd=self.maxd,
                minp=self.minp,
                iterp=self.iterp,
                kvthresh=self.kvthresh,
                num_stages=self.num_stages,
                block_size=self.block_size,
            )
        return ChunkedPrefill(self.maxp, self.maxd)
