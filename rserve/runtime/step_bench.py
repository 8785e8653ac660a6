"""Single steps of the engine, without a server: one micro-batch of chosen chunks, one encoder batch.

What `rserve calibrate` and the profile of a step are measured with; the ranks are those of a deployment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch

from gllm.config import EngineConfig
from gllm.core.batch import Chunk, MicroBatch, NewSequence, Sample, SampleTarget
from gllm.core.request import SamplingParams
from gllm.layers.comm import SINGLE
from gllm.layers.placement import CPU
from gllm.runtime.loading import ModelPlan, load_encoder
from gllm.runtime.local_executor import load_local

GREEDY = SamplingParams(temperature=0.0)
TOKEN = 7


@dataclass(frozen=True, slots=True)
class Span:
    """`length` tokens of a sequence after `start` cached ones."""

    start: int
    length: int


class StageBench:
    """All layers of the language model in this process; the cache holds whatever, times do not care."""

    def __init__(self, config: EngineConfig, most_tokens: int, device: torch.device = CPU) -> None:
        """most_tokens: of all sequences of one micro-batch together, cached ones included."""
        self._page = config.cache.page_size
        self._num_blocks = most_tokens // self._page + 1
        self._executor = load_local(ModelPlan.of(config), self._num_blocks, False, device)
        self._ids = count()
        self._known: tuple[int, ...] = ()

    def run(self, spans: Sequence[Span], sample: bool = True) -> None:
        """Run one micro-batch of a chunk for each span; sample: a token from each."""
        batch = self._batch(spans, sample)
        longest = max(span.start + span.length for span in spans)
        self._executor.submit(batch, lambda _: [TOKEN] * longest, lambda: None)

    def _batch(self, spans: Sequence[Span], sample: bool) -> MicroBatch:
        chunks, new, samples, block = [], [], [], 0
        for index, span in enumerate(spans):
            seq_id, total = next(self._ids), span.start + span.length
            blocks = -(-total // self._page)
            table = tuple((block + i) % self._num_blocks for i in range(blocks))
            block += blocks
            chunks.append(Chunk(seq_id, span.start, span.length))
            name = f"bench-{seq_id}"
            prompt = total if span.length > 1 else span.start
            new.append(NewSequence(seq_id, name, 0, max(prompt, 1), total, (), GREEDY, table))
            if sample:
                samples.append(Sample(index, GREEDY, (SampleTarget(seq_id, name, 0, total),)))
        finished, self._known = self._known, tuple(chunk.seq_id for chunk in chunks)
        return MicroBatch(
            batch_id=self._known[0],
            chunks=tuple(chunks),
            num_decodes=sum(span.length == 1 for span in spans),
            token_ids=(TOKEN,) * sum(span.length for span in spans),
            samples=tuple(samples),
            new=tuple(new),
            finished=finished,
        )


class EncoderBench:
    """The vision tower in this process."""

    def __init__(self, config: EngineConfig, device: torch.device = CPU) -> None:
        plan = ModelPlan.of(config)
        if plan.shape.vision is None:
            raise ValueError(f"{config.model.model} has no vision tower")
        self._vision = plan.shape.vision
        self._encoder = load_encoder(plan, plan.placement(device, SINGLE))
        self._rng = np.random.default_rng(0)

    def run(self, items: Sequence[int]) -> None:
        """Encode square items of so many embeddings each (square numbers), in one forward."""
        unit = self._vision.spatial_merge_size
        sides = [round(tokens**0.5) for tokens in items]
        pixels = [
            self._rng.integers(0, 256, (side * unit * self._vision.patch_size,) * 2 + (3,), dtype=np.uint8)
            for side in sides
        ]
        self._encoder.encode(pixels, [(1, side * unit, side * unit) for side in sides])
