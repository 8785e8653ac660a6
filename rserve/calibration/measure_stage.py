"""Times of micro-batches: prefill by tokens and context, several chunks together, decodes."""

from collections.abc import Callable

import torch

from gllm.config import EngineConfig
from rserve.calibration.stopwatch import Stopwatch
from rserve.runtime.step_bench import Span, StageBench
from rserve.sim.calibrate import StagePoint

PREFILLS = (32, 64, 128, 192, 256, 384, 512, 1024, 2048)
CONTEXTS = ((32, 1024), (128, 512), (128, 1024), (512, 1024))
TOGETHER = ((4, 32), (4, 64))
DECODES = (1, 2, 4, 8, 16)
DECODE_CONTEXTS = (256, 1024)

Tell = Callable[[str], None]


def measure_stage(
    config: EngineConfig, device: torch.device, budget: int, watch: Stopwatch, tell: Tell
) -> list[StagePoint]:
    """All layers and the head in one stage. budget: most tokens of a micro-batch to measure."""
    most = max(CONTEXTS[-1][0] + CONTEXTS[-1][1], DECODES[-1] * (DECODE_CONTEXTS[-1] + 1), budget)
    bench = StageBench(config, most + 64 * DECODES[-1], device)
    shapes: list[tuple[tuple[tuple[int, int], ...], bool]] = []
    shapes += [(((0, length),), False) for length in PREFILLS if length < budget] + [(((0, budget),), False)]
    shapes += [(((start, length),), False) for length, start in CONTEXTS]
    shapes += [(((0, length),) * count, False) for count, length in TOGETHER]
    shapes += [(((start, 1),) * count, True) for count in DECODES for start in DECODE_CONTEXTS]
    points = []
    for chunks, sample in shapes:
        spans = [Span(start, length) for start, length in chunks]
        seconds = watch.median(lambda spans=spans, sample=sample: bench.run(spans, sample))  # type: ignore[misc]
        points.append(StagePoint(chunks, len(chunks) if sample else 0, seconds))
        tell(f"stage: {len(chunks)} x {chunks[0][1]} after {chunks[0][0]}: {seconds * 1e3:.2f} ms")
    return points
