"""Times of micro-batches: prefill by tokens and context, several chunks together, decodes."""

from collections.abc import Callable, Sequence
from itertools import product

import torch

from gllm.config import EngineConfig
from rserve.calibration.stopwatch import Step, Stopwatch
from rserve.runtime.step_bench import Span, StageBench
from rserve.sim.calibrate import StagePoint

PREFILLS = (20, 36, 68, 100, 136, 168, 200, 248, 328, 392, 520, 1016, 2040)
"""Kernels pad rows to multiples of 8 or 16: these numbers are padded as much as chunks are on average."""

CONTEXTS = ((36, 1024), (136, 512), (136, 1024), (520, 1024))
TOGETHER = ((2, 68), (4, 34), (4, 62))
DECODES = (1, 2, 4, 8, 16)
DECODE_CONTEXTS = (256, 1024)

Tell = Callable[[str], None]


def stage_shapes(budget: int) -> list[tuple[tuple[tuple[int, int], ...], int]]:
    """Micro-batches to measure: chunks (start, length), and how many tokens are sampled.

    budget: most tokens of one. Decodes come with and without sampling: the difference is what the head costs.
    """
    lengths = [*(length for length in PREFILLS if length < budget), budget]
    prefills = [((0, length),) for length in lengths]
    prefills += [((start, length),) for length, start in CONTEXTS]
    prefills += [((0, length),) * count for count, length in TOGETHER]
    decodes = [((start, 1),) * count for count, start in product(DECODES, DECODE_CONTEXTS)]
    return [
        *((chunks, 0) for chunks in prefills),
        *((chunks, samples) for chunks in decodes for samples in (0, len(chunks))),
    ]


def measure_stage(
    config: EngineConfig, device: torch.device, budget: int, watch: Stopwatch, tell: Tell
) -> list[StagePoint]:
    """All layers and the head in one stage, see `stage_shapes`."""
    most = max(CONTEXTS[-1][0] + CONTEXTS[-1][1], DECODES[-1] * (DECODE_CONTEXTS[-1] + 1), budget)
    bench = StageBench(config, most + 64 * DECODES[-1], device)
    shapes = stage_shapes(budget)

    def step(chunks: Sequence[tuple[int, int]], samples: int) -> Step:
        spans = [Span(start, length) for start, length in chunks]
        return lambda: bench.run(spans, samples > 0)

    def done(index: int, seconds: float) -> None:
        chunks, samples = shapes[index]
        logits = ", with logits" if samples else ""
        tell(f"stage: {len(chunks)} x {chunks[0][1]} after {chunks[0][0]}{logits}: {seconds * 1e3:.2f} ms")

    times = watch.medians([step(*shape) for shape in shapes], done)
    return [StagePoint(chunks, samples, seconds) for (chunks, samples), seconds in zip(shapes, times)]
