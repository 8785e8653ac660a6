"""FLOPs and time of the Qwen2.5-VL vision tower."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gllm.core.model_shape import VisionShape

from .costs import Constants
from .hardware import Hardware


@dataclass(frozen=True, slots=True)
class VisionFlops:
    """FLOPs of encoder work: matrix products, and attention inside windows and over whole items."""

    gemm: float
    attention: float

    @property
    def total(self) -> float:
        return self.gemm + self.attention


@lru_cache(maxsize=4096)
def item_flops(vision: VisionShape, num_tokens: int) -> VisionFlops:
    """FLOPs to encode one item of num_tokens embeddings (merge_unit patches each).

    A block multiplies 4 h^2 (q, k, v, out) + 3 h m (gated MLP) weights per patch; attention costs
    4 h FLOPs per (query, key) pair: pairs within windows in most blocks, all pairs in `fullatt_layers`.
    Qwen2.5-VL-72B: 1,024 tokens 5.7 TFLOP, 2,691 (1080p) 16.4, 4,641 (1440p) 31.3, 10,549 (4K) 91.6.
    """
    h, patches = vision.hidden_size, num_tokens * vision.merge_unit
    wide = h * vision.merge_unit
    blocks = vision.depth * (4 * h * h + 3 * h * vision.intermediate_size)
    merger = wide * wide + wide * vision.out_hidden_size
    gemm = 2.0 * (patches * (vision.patch_dim * h + blocks) + num_tokens * merger)
    window = min((vision.window_size // vision.patch_size) ** 2, patches)
    full = len(vision.fullatt_layers)
    pairs = patches * (full * patches + (vision.depth - full) * window)
    return VisionFlops(gemm, 4.0 * h * pairs)


@dataclass(frozen=True, slots=True)
class EncoderCost:
    """How long an encoder (or stage 0, with its tp devices) needs for a batch of items."""

    hardware: Hardware
    vision: VisionShape
    constants: Constants
    tp: int = 1
    dtype_bytes: int = 2

    def device_time(self, items: Sequence[int]) -> float:
        """Seconds that the device computes for items of the given embedding tokens, in one forward.

        Never less than the launch floor, which small batches hit.
        """
        c, peak = self.constants, self.hardware.peak_flops * self.tp
        batch = sum(items)
        flops = [item_flops(self.vision, tokens) for tokens in items]
        gemm = sum(f.gemm for f in flops) / (peak * c.vision_gemm_utilisation.at(batch))
        attention = sum(
            f.attention / (peak * c.vision_attention_utilisation.at(tokens))
            for f, tokens in zip(flops, items)
        )
        busy = (gemm + attention) / (1.0 - c.elementwise_share) + self._all_reduce(batch)
        return max(busy, c.encoder_launch_floor)

    def time(self, items: Sequence[int]) -> float:
        """Seconds that the encoder is occupied: device time, and preprocessing where it runs in line."""
        inline = self.preprocess_time(items) if self.constants.preprocess_inline else 0.0
        return self.device_time(items) + inline

    def preprocess_time(self, items: Sequence[int]) -> float:
        """Seconds of CPU work (resize, patches) that items need before the device can start."""
        return self.constants.preprocess_per_token * sum(items)

    def least_time(self, items: Sequence[int]) -> float:
        """A lower bound on `time` over all ways to cut `items` into batches."""
        c, peak = self.constants, self.hardware.peak_flops * self.tp
        if not items:
            return 0.0
        flops = [item_flops(self.vision, tokens) for tokens in items]
        gemm = sum(f.gemm for f in flops) / (peak * c.vision_gemm_utilisation.best)
        attention = sum(f.attention for f in flops) / (peak * c.vision_attention_utilisation.best)
        inline = self.preprocess_time(items) if c.preprocess_inline else 0.0
        return max((gemm + attention) / (1.0 - c.elementwise_share), c.encoder_launch_floor) + inline

    def _all_reduce(self, num_tokens: int) -> float:
        if self.tp == 1:
            return 0.0
        size = num_tokens * self.vision.merge_unit * self.vision.hidden_size * self.dtype_bytes
        return 2 * self.vision.depth * all_reduce_time(size, self.tp, self.hardware, self.constants)


def all_reduce_time(size: float, tp: int, hardware: Hardware, c: Constants) -> float:
    """Seconds of a ring all-reduce of `size` bytes over tp devices: 2(tp-1) steps of size/tp each.

    On an H100 with 4 devices and no factor: 18 us + size / 223 GB/s.
    """
    if tp == 1:
        return 0.0
    steps = 2 * (tp - 1)
    bandwidth = hardware.link_bandwidth * c.all_reduce_efficiency
    return c.all_reduce_factor * (steps * c.all_reduce_step_latency + steps / tp * size / bandwidth)
