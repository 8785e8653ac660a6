"""All stages and tensor-parallel ranks in one process: for tests and small offline runs.

The ranks are the same objects as in a deployment of many processes; only the roads between them differ.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from threading import BrokenBarrierError
from typing import TypeVar

import torch
from torch import Tensor

from gllm.core.batch import BatchResult, EncodeBatch, MicroBatch, Payload
from gllm.core.request import MMItem
from gllm.layers.comm import SINGLE, TensorParallel, ThreadTensorParallel
from gllm.layers.placement import CPU
from gllm.runtime.item_encoder import ItemEncoder, num_frames
from gllm.runtime.links import QueueLink
from gllm.runtime.loading import ModelPlan, load_encoder, load_stage, make_runner, rank_place
from gllm.runtime.messages import StageBatch
from gllm.runtime.model_runner import ModelRunner
from gllm.runtime.pixel_store import PixelStore
from gllm.runtime.prompts import with_prompts

T = TypeVar("T")
R = TypeVar("R")


class LocalExecutor:
    """Runs each micro-batch through all stages at once, TP ranks of a stage as threads.

    runners: one for each stage and TP rank. encoders: one for each TP rank of stage 0, or none.
    give_up: breaks the barriers between the TP ranks, called when one of them failed.
    """

    def __init__(
        self,
        runners: Sequence[Sequence[ModelRunner]],
        encoders: Sequence[ItemEncoder] = (),
        pixels: PixelStore | None = None,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._runners = runners
        self._encoders = encoders
        self.pixels = pixels or PixelStore()
        self._give_up = give_up
        size = len(runners[0])
        self._threads = ThreadPoolExecutor(size) if size > 1 else None

    def submit(
        self, batch: MicroBatch, tokens_of: Callable[[int], Sequence[int]], after_input: Callable[[], None]
    ) -> BatchResult:
        """Run a micro-batch through the whole pipeline and return its result."""
        delta = with_prompts(StageBatch.of(batch), tokens_of)
        (driver, *followers), *later = self._runners
        result = self._together(
            lambda: driver.run_first(batch, delta, after_input),
            [partial(runner.run, delta) for runner in followers],
        )
        for first, *others in later:
            result = self._together(
                partial(first.run, delta), [partial(runner.run, delta) for runner in others]
            )
        if result is None:
            raise RuntimeError("the last stage gave no result")
        return result

    def tell(self, on_progress: Callable[[], None]) -> None:
        """Called after each layer of TP rank 0."""
        for first, *_ in self._runners:
            first.tell(on_progress)
        for encoder in self._encoders[:1]:
            encoder.tell(on_progress)

    def encode(self, batch: EncodeBatch, items: Sequence[MMItem]) -> list[Payload]:
        """Encode items whose pixels are in `pixels`."""
        pixels = self.pixels.take(batch.request_id, batch.items)
        grids, frames = [item.grid for item in items], [num_frames(p) for p in pixels]
        first, *followers = self._encoders
        return self._together(
            lambda: list(first.encode(pixels, grids)),
            [partial(encoder.follow, grids, frames) for encoder in followers],
        )

    def rest(self) -> None:
        """There is nobody to report to."""

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()

    def _together(self, first: Callable[[], T], others: Sequence[Callable[[], object]]) -> T:
        """Run the parts of one stage's TP ranks at the same time; the first one's value.

        Raises what one of them raised: the barrier they meet at is broken, so that nobody waits for it.
        """
        if self._threads is None:
            return first()
        leader = self._threads.submit(self._guarded, first)
        followers = [self._threads.submit(self._guarded, call) for call in others]
        done, _ = wait((leader, *followers))
        errors = [e for future in done if (e := future.exception()) is not None]
        for error in sorted(errors, key=lambda e: type(e) is BrokenBarrierError):
            raise error
        return leader.result()

    def _guarded(self, call: Callable[[], R]) -> R:
        try:
            return call()
        except BaseException:
            self._give_up()
            raise


def load_local(
    plan: ModelPlan, num_blocks: int, with_vision: bool = True, device: torch.device = CPU
) -> LocalExecutor:
    """Load all ranks of a deployment into this process, on one device."""
    pp, tp = plan.config.parallel.pp, plan.config.parallel.tp
    hops = [[deque[Tensor]() for _ in range(tp)] for _ in range(pp + 1)]
    threads = [ThreadTensorParallel.create(tp) for _ in range(pp)] if tp > 1 else []
    groups: list[Sequence[TensorParallel]] = [*threads] or [[SINGLE]] * pp
    runners = []
    for stage in range(pp):
        ranks = []
        for group, incoming, outgoing in zip(groups[stage], hops[stage], hops[stage + 1]):
            place = plan.placement(device, group)
            model = load_stage(plan, stage, place)
            rank = rank_place(plan, stage, group, QueueLink(incoming, outgoing))
            ranks.append(make_runner(plan, model, rank, place, num_blocks))
        runners.append(ranks)
    encoders = []
    if with_vision and plan.shape.vision is not None:
        encoders = [load_encoder(plan, plan.placement(device, group)) for group in groups[0]]

    def give_up() -> None:
        for group in threads:
            group[0].abort()

    return LocalExecutor(runners, encoders, give_up=give_up)
