"""Rank 0's executor: runs stage 0 here, and tells the other ranks what to run."""

from collections.abc import Callable, Sequence

from gllm.core.batch import BatchResult, EncodeBatch, MicroBatch, Payload
from gllm.core.request import MMItem
from gllm.core.step_spans import ItemWork
from gllm.runtime.channels import Outbox
from gllm.runtime.item_encoder import ItemEncoder, num_frames
from gllm.runtime.messages import Shutdown, StageBatch, StageEncode
from gllm.runtime.model_runner import ModelRunner
from gllm.runtime.pixel_store import PixelStore
from gllm.runtime.prompts import with_prompts
from gllm.runtime.recorder import StepRecorder


class Peers:
    """Control sockets to ranks 1 to n - 1, in their order."""

    def __init__(self, outboxes: Sequence[Outbox], tp: int, sampler: int) -> None:
        """sampler: the rank that samples; 0 is this one."""
        self._outboxes = outboxes
        self._tp_followers = outboxes[: tp - 1]
        self._sampler = sampler

    def send_batch(self, batch: StageBatch, with_prompts: StageBatch) -> None:
        """A micro-batch for every rank; with the prompts for the one that samples."""
        for rank, outbox in enumerate(self._outboxes, start=1):
            outbox.send(with_prompts if rank == self._sampler else batch)

    def send_encode(self, message: StageEncode) -> None:
        """An encoding, for the other TP ranks of stage 0."""
        for outbox in self._tp_followers:
            outbox.send(message)

    def shut_down(self) -> None:
        """All ranks end after what they were told before."""
        for outbox in self._outboxes:
            outbox.send(Shutdown())


class PipelineExecutor:
    """The other ranks learn of a micro-batch before stage 0 runs it, so that they are prepared."""

    def __init__(
        self,
        runner: ModelRunner,
        peers: Peers,
        recorder: StepRecorder,
        encoder: ItemEncoder | None = None,
        pixels: PixelStore | None = None,
    ) -> None:
        self._runner = runner
        self._peers = peers
        self._recorder = recorder
        self._encoder = encoder
        self._pixels = pixels

    def tell(self, on_progress: Callable[[], None]) -> None:
        """Have this called now and then while a step runs here."""
        self._runner.tell(on_progress)
        if self._encoder is not None:
            self._encoder.tell(on_progress)

    def submit(
        self, batch: MicroBatch, tokens_of: Callable[[int], Sequence[int]], after_input: Callable[[], None]
    ) -> BatchResult | None:
        """Run stage 0's part; the result where there is one stage, else None."""
        begin = self._recorder.begin()
        plain = StageBatch.of(batch)
        full = with_prompts(plain, tokens_of)
        self._peers.send_batch(plain, full)
        result = self._runner.run_first(batch, full, after_input)
        self._recorder.batch(plain, begin)
        return result

    def encode(self, batch: EncodeBatch, items: Sequence[MMItem]) -> list[Payload]:
        """Encode items whose pixels are here, together with this stage's other TP ranks."""
        if self._encoder is None or self._pixels is None:
            raise RuntimeError("this deployment's stage 0 has no vision tower")
        begin = self._recorder.begin()
        pixels = self._pixels.take(batch.request_id, batch.items)
        grids = tuple(item.grid for item in items)
        self._peers.send_encode(StageEncode(grids, tuple(num_frames(picture) for picture in pixels)))
        embeddings = self._encoder.encode(pixels, grids)
        counts = [item.num_tokens for item in items]
        self._recorder.encode(ItemWork(batch.request_id, batch.items, counts), begin)
        return list(embeddings)

    def rest(self) -> None:
        """Report what this rank did."""
        self._recorder.rest()

    def close(self) -> None:
        """Let the other ranks end, and wait until they have what was sent to them."""
        self._peers.shut_down()
        self._runner.close()
