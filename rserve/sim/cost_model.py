"""Seconds for everything that a machine does: stages, encoders, links, the driver.

All coefficients are computed once per stage; one micro-batch then costs a few float operations per chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .costs import Constants
from .hardware import Machine
from .vision_cost import EncoderCost, all_reduce_time


@dataclass(frozen=True, slots=True)
class StageCoefficients:
    """What one stage costs, per tp device.

    gemm_flops: per token. pair_flops: per (query, key) pair of attention. weight_bytes, kv_bytes (per
    cached token): memory traffic. head_flops, head_bytes: vocabulary projection, last stage only.
    """

    gemm_flops: float
    pair_flops: float
    weight_bytes: float
    kv_bytes: float
    head_flops: float
    head_bytes: float
    all_reduces: int


def attention_pairs(start: int, length: int) -> int:
    """(query, key) pairs of a causal chunk [start, start + length): each token sees all before it and itself.

    A chunk of 3 tokens after 10: 11 + 12 + 13 = 36.
    """
    return length * start + length * (length + 1) // 2


def stage_coefficients(machine: Machine) -> list[StageCoefficients]:
    """Coefficients of every stage from the model's shape; biases and norms are left out of the FLOPs."""
    text, size, tp = machine.model.text, machine.dtype_bytes, machine.tp
    q, kv = text.num_heads * text.head_dim, text.num_kv_heads * text.head_dim
    params = text.hidden_size * (2 * q + 2 * kv + 3 * text.intermediate_size)
    kv_per_device = max(kv / tp, text.head_dim)
    stages = []
    for stage, layers in enumerate(machine.layers_per_stage()):
        head = text.embedding_params if stage == machine.pp - 1 else 0
        stages.append(
            StageCoefficients(
                gemm_flops=2.0 * params * layers / tp,
                pair_flops=4.0 * q * layers / tp,
                weight_bytes=float(params * layers * size) / tp,
                kv_bytes=2.0 * kv_per_device * layers * size,
                head_flops=2.0 * head / tp,
                head_bytes=float(head * size) / tp,
                all_reduces=2 * layers if tp > 1 else 0,
            )
        )
    return stages


class CostModel:
    """Times of one machine under one set of constants.

    Chunks are (start, length) pairs: `length` tokens after `start` cached ones. least_times: what each
    stage needs for the smallest micro-batch that samples a token.
    """

    def __init__(self, machine: Machine, constants: Constants) -> None:
        self.machine = machine
        self.constants = constants
        self.stages = stage_coefficients(machine)
        self.encoder = self._encoder()
        self._encode_times: dict[tuple[int, ...], float] = {}
        hardware, c = machine.hardware, constants
        self._bandwidth = hardware.memory_bandwidth * c.memory_efficiency
        bodies = [replace(stage, head_flops=0.0, head_bytes=0.0) for stage in self.stages]
        self._twins = [bodies.index(body) for body in bodies]
        self._token_bytes = machine.model.text.hidden_size * machine.dtype_bytes
        self.least_times = tuple(self.stage_times([(0, 1)], 1))

    def stage_time(self, stage: int, chunks: Sequence[tuple[int, int]], num_samples: int) -> float:
        """Seconds that a stage is occupied by a micro-batch, its CPU work included.

        num_samples: rows for which the last stage computes logits.
        """
        return self._body_time(self.stages[stage], chunks) + self._head(self.stages[stage], num_samples)

    def stage_times(self, chunks: Sequence[tuple[int, int]], num_samples: int) -> list[float]:
        """`stage_time` of every stage; the layers of stages alike are computed once."""
        bodies: list[float] = []
        for stage, twin in enumerate(self._twins):
            bodies.append(bodies[twin] if twin < stage else self._body_time(self.stages[stage], chunks))
        return [body + self._head(k, num_samples) for body, k in zip(bodies, self.stages)]

    def _body_time(self, k: StageCoefficients, chunks: Sequence[tuple[int, int]]) -> float:
        """Layers and CPU work of a stage, without the vocabulary projection."""
        c, peak = self.constants, self.machine.hardware.peak_flops
        num_tokens = sum(length for _, length in chunks)
        gemm = max(
            num_tokens * k.gemm_flops / (peak * c.gemm_utilisation.at(num_tokens)),
            k.weight_bytes / self._bandwidth,
        )
        attention = sum(self._attention(k, start, length) for start, length in chunks)
        layers = (gemm + attention) / (1.0 - c.elementwise_share)
        overhead = c.iteration_overhead + c.chunk_overhead * len(chunks)
        return layers + self._all_reduces(k, num_tokens) + overhead

    def encode_time(self, items: Sequence[int]) -> float:
        """Seconds that an encoder is occupied by one batch of items (embedding tokens of each)."""
        key = tuple(items)
        if key not in self._encode_times:
            self._encode_times[key] = self.encoder.time(key)
        return self._encode_times[key]

    def preprocess_delay(self, items: Sequence[int]) -> float:
        """Seconds between a request's arrival and its items being ready to encode (0 when done in line)."""
        return 0.0 if self.constants.preprocess_inline else self.encoder.preprocess_time(items)

    def transfer_time(self, num_tokens: int) -> float:
        """Seconds for a micro-batch's activations (hidden states and residual) to reach the next stage."""
        c = self.constants
        bandwidth = self.machine.hardware.link_bandwidth * c.link_efficiency
        return c.link_latency + 2 * num_tokens * self._token_bytes / bandwidth

    def embedding_bytes(self, num_tokens: int) -> int:
        return num_tokens * self._token_bytes

    def embedding_send_time(self, num_tokens: int) -> float:
        """Seconds that the channel from an encoder to the driver is occupied."""
        return self.embedding_bytes(num_tokens) / self.constants.embedding_bandwidth

    def embedding_transfer_time(self, num_tokens: int) -> float:
        """Seconds from the end of an encode to its embeddings being in the driver's memory."""
        return self.constants.embedding_latency + self.embedding_send_time(num_tokens)

    def driver_time(self, num_requests: int, embedding_tokens: int) -> float:
        """Seconds of stage 0 that the driver spends on new requests and on received embeddings."""
        c = self.constants
        received = self.embedding_bytes(embedding_tokens)
        return c.driver_request_time * num_requests + c.driver_embedding_time * received

    def least_compute_time(self, stage: int, start: int, end: int) -> float:
        """Lower bound on a stage's computing for tokens [start, end) of a request, over all chunkings.

        W(p, L) with the best utilisation anywhere in the tables; no weight streaming, latency or fixed cost.
        """
        k, c, peak = self.stages[stage], self.constants, self.machine.hardware.peak_flops
        num_tokens = end - start
        gemm = num_tokens * k.gemm_flops / (peak * c.gemm_utilisation.best)
        attention = attention_pairs(start, num_tokens) * k.pair_flops / (peak * c.attention_utilisation.best)
        reduce = k.all_reduces * num_tokens * self._token_bytes * self._all_reduce_per_byte()
        return (gemm + attention) / (1.0 - c.elementwise_share) + reduce

    @property
    def distinct_stages(self) -> list[int]:
        """The stages whose layers differ from all before them, and the last one, which has the head."""
        return sorted({*self._twins, self.machine.pp - 1})

    @property
    def fixed_time(self) -> float:
        """Seconds that any micro-batch costs a stage before it computes: `a` in the bounds."""
        return self.constants.iteration_overhead + self.constants.chunk_overhead

    def _attention(self, k: StageCoefficients, start: int, length: int) -> float:
        """Compute-bound for prefill, bound by reading the cached keys and values for decode."""
        utilisation = self.constants.attention_utilisation.at(length)
        compute = (
            attention_pairs(start, length) * k.pair_flops / (self.machine.hardware.peak_flops * utilisation)
        )
        return max(compute, (start + length) * k.kv_bytes / self._bandwidth)

    def _head(self, k: StageCoefficients, num_samples: int) -> float:
        if num_samples == 0 or k.head_bytes == 0:
            return 0.0
        utilisation = self.constants.head_utilisation.at(num_samples)
        compute = num_samples * k.head_flops / (self.machine.hardware.peak_flops * utilisation)
        return max(compute, k.head_bytes / self._bandwidth)

    def _all_reduces(self, k: StageCoefficients, num_tokens: int) -> float:
        size, machine = num_tokens * self._token_bytes, self.machine
        return k.all_reduces * all_reduce_time(size, machine.tp, machine.hardware, self.constants)

    def _all_reduce_per_byte(self) -> float:
        machine, gigabyte = self.machine, 1e9
        times = [
            all_reduce_time(size, machine.tp, machine.hardware, self.constants) for size in (0.0, gigabyte)
        ]
        return (times[1] - times[0]) / gigabyte

    def _encoder(self) -> EncoderCost:
        machine = self.machine
        if machine.model.vision is None:
            raise ValueError("the simulator needs a model with a vision tower")
        tp = 1 if machine.encoders else machine.tp
        return EncoderCost(machine.hardware, machine.model.vision, self.constants, tp, machine.dtype_bytes)
