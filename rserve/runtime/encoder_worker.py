"""An encoder rank: vision tower only; encodes what the dispatcher sends, in order, until Shutdown."""

import time
import traceback
from collections.abc import Sequence

import torch

from gllm.core.step_spans import ItemWork
from gllm.runtime.channels import Inbox
from gllm.runtime.item_encoder import ItemEncoder
from gllm.runtime.messages import Shutdown
from gllm.runtime.pixel_inbox import as_pictures
from gllm.runtime.rank_main import one_line
from gllm.runtime.recorder import REST_AFTER_MS, Send, StepRecorder
from rserve.runtime.embedding_channel import EmbeddingSender
from rserve.runtime.messages import BatchFailed, EmbeddingsSent, EncodeRequest, EncoderWorks

TELL_EVERY_S = 1.0


class EncoderWorker:
    """Pixels in, embeddings out. A batch that can't be encoded ends its request, not the encoder.

    A device that failed ends it.
    """

    def __init__(
        self,
        encoder: ItemEncoder,
        sender: EmbeddingSender,
        recorder: StepRecorder,
        to_api: Send,
        identity: tuple[int, int, int],
    ) -> None:
        """sender: tells driver and API server of each batch. to_api: for batches that failed or take long.

        identity: this encoder's number, its epoch, and the patch size of its pixels.
        """
        self._encoder = encoder
        self._sender = sender
        self._recorder = recorder
        self._to_api = to_api
        self._index, self._epoch, self._patch_size = identity
        self._told_at = time.monotonic()
        encoder.tell(self._still_works)

    def run(self, inbox: Inbox) -> None:
        """Until Shutdown."""
        while (received := self._next(inbox)) is not None:
            message, frames = received
            match message:
                case Shutdown():
                    break
                case EncodeRequest():
                    self._serve(message, frames)
                case _:
                    raise ValueError(f"an encoder does not understand {type(message).__name__}")
        self._sender.close()
        self._recorder.close()

    def _next(self, inbox: Inbox) -> tuple[object, Sequence[memoryview]] | None:
        received = inbox.receive_frames(REST_AFTER_MS)
        if received is None:
            self._recorder.rest()
            received = inbox.receive_frames()
        return received

    def _still_works(self) -> None:
        if (now := time.monotonic()) - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            self._to_api(EncoderWorks(self._index))

    def _serve(self, message: EncodeRequest, frames: Sequence[memoryview]) -> None:
        try:
            self._encode(message, frames)
        except torch.AcceleratorError:
            raise  # nothing works on this device any more: a new process starts with a new context
        except (RuntimeError, ValueError) as error:
            traceback.print_exc()
            self._to_api(BatchFailed(self._index, message.batch_id, one_line(error)))

    def _encode(self, message: EncodeRequest, frames: Sequence[memoryview]) -> None:
        begin = self._recorder.begin()
        pixels = [as_pictures(frame, grid, self._patch_size) for frame, grid in zip(frames, message.grids)]
        embeddings = self._encoder.encode(pixels, message.grids)
        self._recorder.encode(ItemWork(message.request_id, message.items, message.counts), begin)
        sent = EmbeddingsSent(
            self._index,
            self._epoch,
            message.request_id,
            message.items,
            message.attempts,
            message.rows,
            message.counts,
            self._recorder.now(),
            message.batch_id,
        )
        self._sender.send(sent, embeddings)
