"""Pixels wait for the core in a store that their thread fills, and do not stay for ever."""

import select
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gllm.core.core_config import CoreConfig
from gllm.core.effects import RequestFailed, RequestFinished, SkipItems
from gllm.core.engine_core import EngineCore
from gllm.core.request import SamplingParams
from gllm.core.stage_encoder import StageEncoder
from gllm.runtime.codec import Codec
from gllm.runtime.messages import PixelBatch
from gllm.runtime.pixel_inbox import PixelInbox, as_pictures
from gllm.runtime.pixel_store import PixelStore
from gllm.runtime.post import Post
from tests.runtime.local_server import ask, make_plan

PICTURE = np.arange(28 * 28 * 3, dtype=np.uint8).reshape(28, 28, 3)


def test_taken_pixels_are_gone():
    store = PixelStore()
    store.put("a", 0, PICTURE)
    store.put("a", 1, PICTURE)
    assert len(store.take("a", [1])) == 1
    with pytest.raises(KeyError):
        store.take("a", [1])
    assert len(store) == 1


def test_pixels_of_an_ended_request_are_dropped_even_when_they_come_late():
    store = PixelStore()
    store.put("a", 0, PICTURE)
    store.end("a")
    assert not store.put("a", 1, PICTURE)
    assert len(store) == 0


def test_pixels_of_skipped_items_are_dropped():
    store = PixelStore()
    store.put("a", 0, PICTURE)
    store.put("a", 1, PICTURE)
    store.skip("a", [0])
    assert len(store.take("a", [1])) == 1
    assert len(store) == 0


def test_bytes_become_an_image_or_frames_of_a_video():
    assert np.array_equal(as_pictures(PICTURE.data, (1, 2, 2), 14), PICTURE)
    frames = np.stack((PICTURE, PICTURE))
    assert as_pictures(memoryview(frames.tobytes()), (1, 2, 2), 14).shape == (2, 28, 28, 3)
    with pytest.raises(ValueError, match="reshape"):
        as_pictures(memoryview(b"short"), (1, 2, 2), 14)


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    made = Post({"rank0-pixels": f"ipc://{tmp_path}/pixels"}, Codec())
    yield made
    made.close()


def test_pixels_wake_the_loop_and_reach_the_core_and_bad_ones_fail_their_request(post: Post):
    store = PixelStore()
    source = PixelInbox(post.inbox("rank0-pixels"), store, patch_size=14)
    core = EngineCore(CoreConfig(64), stage_encoder=StageEncoder(1024))
    asked = ask(make_plan(Path("gllm/models_data/tiny")), "a", [1, 2], [(1, 1)], SamplingParams())
    core.on_request(asked.request)
    assert core.step() is None
    post.outbox("rank0-pixels").send(PixelBatch(0, "a", (0,), (0,), ((1, 2, 2),)), [asked.pixels[0].data])
    assert select.select([source.wakes], [], [], 10.0)[0]
    source.drain(core)
    assert not select.select([source.wakes], [], [], 0.0)[0]
    encode = core.step()
    assert encode is not None
    assert np.array_equal(store.take("a", [0])[0], asked.pixels[0])
    post.outbox("rank0-pixels").send(PixelBatch(1, "a", (0,), (0,), ((1, 2, 2),)), [b"short"])
    assert select.select([source.wakes], [], [], 10.0)[0]
    source.drain(core)
    assert [e.status for e in core.take_effects() if isinstance(e, RequestFailed)] == [500]
    source.on_effect(SkipItems("a", (0,)))
    source.on_effect(RequestFinished("a", "stop"))
    assert not store.put("a", 0, PICTURE)
    source.close()
