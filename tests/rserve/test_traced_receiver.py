"""Transfers in a trace last from the encoder's send until the whole batch has landed."""

import pytest
import torch

from gllm.core.trace import Span
from gllm.runtime.messages import TraceSpans
from gllm.runtime.recorder import StepRecorder
from gllm.runtime.step_timer import StepTimer
from rserve.runtime.messages import EmbeddingsSent, EncoderLost
from rserve.runtime.shared_memory import SharedMemoryReceiver
from rserve.runtime.traced_receiver import TracedReceiver

BATCH = EmbeddingsSent(1, 0, "r", (0, 1), (0, 0), (0, 4), (4, 2), sent_at=100.0)


class Core:
    """Accepts everything."""

    def __init__(self) -> None:
        self.landed: list[int] = []
        self.lost: list[tuple[str, int, int]] = []

    def on_embeddings(self, request_id: str, item: int, attempt: int, payload: torch.Tensor) -> bool:
        self.landed.append(item)
        return True

    def on_encoder_lost(self, items: list[tuple[str, int, int]]) -> None:
        self.lost += items


@pytest.fixture
def ends() -> tuple[TracedReceiver, StepRecorder, list[object]]:
    sent: list[object] = []
    recorder = StepRecorder("rank0", "stage 0", None, sent.append, StepTimer(lambda: 100.25))
    return TracedReceiver(SharedMemoryReceiver(torch.zeros(8, 2)), recorder), recorder, sent


def test_a_batch_is_one_transfer_of_its_encoder(ends: tuple[TracedReceiver, StepRecorder, list[object]]):
    receiver, recorder, sent = ends
    core = Core()
    receiver.on_sent(BATCH)
    receiver.drain(core)
    recorder.flush()
    assert core.landed == [0, 1]
    facts = {"items": [0, 1], "counts": [4, 2], "tokens": 6}
    span = Span("encoder 1", "transfer 6", "transfer", 100.0, 0.25, "r", facts)
    assert sent == [TraceSpans((span,))]


def test_a_loss_is_passed_on_and_leaves_nothing(ends: tuple[TracedReceiver, StepRecorder, list[object]]):
    receiver, recorder, sent = ends
    core = Core()
    receiver.on_lost(EncoderLost(1, (("r", 0, 0),)))
    receiver.drain(core)
    recorder.flush()
    assert core.lost == [("r", 0, 0)]
    assert sent == []
