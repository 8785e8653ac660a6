"""The entry point of an encoder rank's process."""

import os
from collections.abc import Sequence

from gllm.layers.comm import SINGLE
from gllm.runtime.device import pick_encoder_device
from gllm.runtime.hosts import reachable
from gllm.runtime.loading import ModelPlan, load_encoder
from gllm.runtime.messages import RankReady
from gllm.runtime.post import Post
from gllm.runtime.rank_main import run_guarded
from gllm.runtime.rank_spec import RankSpec
from gllm.runtime.recorder import StepRecorder, trace_clock
from gllm.runtime.step_timer import StepTimer, device_events
from rserve.config import RServeConfig
from rserve.runtime.channels import ChannelEnd, arena_shape, open_sender
from rserve.runtime.encoder_worker import EncoderWorker
from rserve.runtime.messages import BatchEncoded, EmbeddingsSent, epd_codec


def main(spec_json: str, fds: Sequence[int]) -> int:
    """Called in a forked process; its exit code."""
    spec = RankSpec.from_json(spec_json)
    config = RServeConfig.from_json(spec.config)
    post = Post(spec.addresses, epd_codec())
    return run_guarded(spec, post, lambda: _live(spec, config, post, fds))


def _live(spec: RankSpec, config: RServeConfig, post: Post, fds: Sequence[int]) -> None:
    inbox = post.inbox(spec.name)
    plan = ModelPlan.of(config)
    index = spec.extra["index"]
    device = pick_encoder_device(config.parallel.device, spec.gpu)
    encoder = load_encoder(plan, plan.placement(device, SINGLE))
    to_api, to_driver = post.outbox("api").send, post.outbox("rank0").send
    announcements = Post(spec.addresses, epd_codec())  # for the thread that announces

    def announce(message: EmbeddingsSent) -> None:
        announcements.outbox("rank0").send(message)
        announcements.outbox("api").send(BatchEncoded(index, message.batch_id))

    sender = open_sender(ChannelEnd(config, arena_shape(config, plan), device, fds), spec, announce)
    to_trace = to_api if config.server.trace else None
    timer = StepTimer(trace_clock(config.parallel), device_events(device))
    recorder = StepRecorder(spec.name, f"encoder {index}", to_driver, to_trace, timer)
    patch_size = plan.shape.vision.patch_size if plan.shape.vision else 0
    worker = EncoderWorker(encoder, sender, recorder, to_api, (index, spec.extra["epoch"], patch_size))
    to_api(RankReady(spec.name, os.getpid(), reachable(inbox.address, config.parallel)))
    worker.run(inbox)
    announcements.close()
    post.close()
