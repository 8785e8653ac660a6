"""The entry point of a language-model rank under RServe's schemes."""

from collections.abc import Callable, Sequence
from typing import Any

from gllm.runtime.driver import EventSource
from gllm.runtime.pixel_inbox import PixelInbox
from gllm.runtime.pixel_store import PixelStore
from gllm.runtime.rank import Rank
from gllm.runtime.rank_main import DriverParts, RankProgram, run_rank
from gllm.runtime.rank_spec import RankSpec
from rserve.config import RServeConfig
from rserve.core.epd_core import make_core
from rserve.runtime.channels import ChannelEnd, arena_shape, open_receiver
from rserve.runtime.messages import EmbeddingsSent, EncoderJoined, EncoderLost, epd_codec
from rserve.runtime.traced_receiver import TracedReceiver


def assemble(config: RServeConfig, rank: Rank, fds: Sequence[int]) -> DriverParts:
    """Rank 0's core, embedding channel and, where stage 0 can encode, its pixels."""
    vision = rank.plan.shape.vision
    shape = arena_shape(config, rank.plan)
    has_fallback = config.epd.encoder_fallback == "driver" and vision is not None
    core = make_core(config.scheme, rank.core_config(), shape.num_bytes // shape.rows, has_fallback)
    sources: list[EventSource] = []
    pixels, channel = None, None
    if vision is not None and core.stage_encoder is not None:
        pixels = PixelStore()
        sources.append(PixelInbox(rank.post.inbox("rank0-pixels"), pixels, vision.patch_size))
    handlers: dict[type, Callable[[Any], object]] = {}
    if config.num_encoders and vision is not None:
        end = ChannelEnd(config, shape, rank.device, fds)
        channel, receiver = end.kind, open_receiver(end)
        if config.server.trace:
            receiver = TracedReceiver(receiver, rank.recorder)
        sources.append(receiver)
        handlers = {
            EmbeddingsSent: receiver.on_sent,
            EncoderJoined: receiver.on_joined,
            EncoderLost: receiver.on_lost,
        }
    return DriverParts(core, pixels, sources, handlers, shape.rows, channel)


def main(spec_json: str, fds: Sequence[int]) -> int:
    """Called in a forked process; its exit code."""
    spec = RankSpec.from_json(spec_json)
    config = RServeConfig.from_json(spec.config)
    program = RankProgram(
        config.stage_zero_encodes, lambda rank, rest: assemble(config, rank, rest), epd_codec()
    )
    return run_rank(spec, config, fds, program)
