"""Times of encoder batches by the number and size of their items."""

from collections.abc import Sequence

import torch

from gllm.config import EngineConfig
from rserve.calibration.measure_stage import Tell
from rserve.calibration.stopwatch import Step, Stopwatch
from rserve.runtime.step_bench import EncoderBench
from rserve.sim.calibrate import EncodePoint

BATCHES = (
    *((16,), (16,) * 4, (64,), (64,) * 2, (64,) * 4, (256,), (64,) * 8, (256,) * 2),
    *((256,) * 4, (1024,), (64,) * 16),
)


def measure_encoder(
    config: EngineConfig, device: torch.device, watch: Stopwatch, tell: Tell
) -> list[EncodePoint]:
    """Square items of 112 to 896 pixels a side, alone and together."""
    bench = EncoderBench(config, device)

    def step(items: Sequence[int]) -> Step:
        return lambda: bench.run(items)

    def done(index: int, seconds: float) -> None:
        items = BATCHES[index]
        tell(f"encoder: {len(items)} x {items[0]}: {seconds * 1e3:.2f} ms")

    times = watch.medians([step(items) for items in BATCHES], done)
    return [EncodePoint(items, seconds) for items, seconds in zip(BATCHES, times)]
