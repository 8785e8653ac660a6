"""The entry point of a rank's process: `main` for scheme gllm; others give `run_rank` their own core."""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gllm.config import EngineConfig
from gllm.core.engine_core import EngineCore
from gllm.core.stage_encoder import StageEncoder
from gllm.runtime.codec import Codec
from gllm.runtime.driver import Driver, EventSource, MoreEvents
from gllm.runtime.executor import DrivenCore
from gllm.runtime.messages import RankFailed
from gllm.runtime.parallel import is_lost_peer
from gllm.runtime.pixel_inbox import PixelInbox
from gllm.runtime.pixel_store import PixelStore
from gllm.runtime.post import Post
from gllm.runtime.rank import Rank
from gllm.runtime.rank_spec import RankSpec


@dataclass(frozen=True, slots=True)
class DriverParts:
    """What a scheme adds to rank 0.

    pixels: where stage 0 finds what it encodes. sources, handlers: more events for the core.
    embedding_tokens: embeddings that fit into this deployment's memory for them, 0 where there is none.
    embedding_channel: by which they come from encoders, if they do.
    """

    core: DrivenCore
    pixels: PixelStore | None = None
    sources: Sequence[EventSource] = ()
    handlers: Mapping[type, Callable[[Any], object]] = field(default_factory=dict)
    embedding_tokens: int = 0
    embedding_channel: str | None = None


@dataclass(frozen=True, slots=True)
class RankProgram:
    """A scheme: does stage 0 encode, what is rank 0's core, and which messages are there."""

    stage_zero_encodes: bool
    assemble: Callable[[Rank, Sequence[int]], DriverParts]
    codec: Codec = field(default_factory=Codec)


def run_rank(spec: RankSpec, config: EngineConfig, fds: Sequence[int], program: RankProgram) -> int:
    """A rank's whole life; its exit code.

    fds: on rank 0, the rendezvous socket where there are several ranks; then the scheme's own.
    """
    post = Post(spec.addresses, program.codec)

    def live() -> None:
        listen, rest = (fds[0], fds[1:]) if spec.rank == 0 and config.parallel.world_size > 1 else (None, fds)
        rank = Rank(spec, config, post, program.stage_zero_encodes, listen)
        if spec.rank == 0:
            _drive(rank, program.assemble(rank, rest))
        else:
            rank.announce()
            rank.work()
        rank.close()

    return run_guarded(spec, post, live)


def run_guarded(spec: RankSpec, post: Post, live: Callable[[], None]) -> int:
    """Run a process's life with its threads and cores set; a failure goes to the API server as one line."""
    logging.basicConfig(level="INFO", format=f"%(asctime)s %(levelname)s {spec.name}: %(message)s")
    torch.set_num_threads(spec.threads)
    if spec.cores:
        os.sched_setaffinity(0, spec.cores)
    try:
        live()
    except (ValueError, OSError) as error:
        post.outbox("api").send(RankFailed(spec.name, one_line(error)))
    except Exception as error:
        if not is_lost_peer(error):
            traceback.print_exc()
            post.outbox("api").send(RankFailed(spec.name, one_line(error)))
    else:
        return 0
    sys.stderr.flush()
    post.close()
    return 1


def one_line(error: BaseException) -> str:
    """An error's first line, with the way out where memory ran short."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "can't allocate memory" in text or "out of memory" in text or isinstance(error, MemoryError):
        return f"out of memory ({text}): lower --kv-cache-gib or --gpu-memory-util, or use a smaller model"
    return text


def _drive(rank: Rank, parts: DriverParts) -> None:
    executor = rank.executor(parts.pixels)
    more = MoreEvents(parts.sources, parts.handlers)
    driver = Driver(parts.core, executor, rank.inbox, rank.post.outbox("api"), more)
    rank.announce(parts.embedding_tokens, parts.embedding_channel)
    driver.run()
    rank.recorder.close()
    executor.close()


def assemble(rank: Rank, fds: Sequence[int]) -> DriverParts:
    """Scheme gllm: stage 0 encodes items between micro-batches."""
    vision = rank.plan.shape.vision
    config = rank.core_config()
    if vision is None:
        return DriverParts(EngineCore(config))
    pixels = PixelStore()
    inbox = PixelInbox(rank.post.inbox("rank0-pixels"), pixels, vision.patch_size)
    core = EngineCore(config, stage_encoder=StageEncoder(config.encode_tokens))
    return DriverParts(core, pixels, (inbox,))


def main(spec_json: str, fds: Sequence[int]) -> int:
    """Called in a forked process; its exit code."""
    spec = RankSpec.from_json(spec_json)
    program = RankProgram(stage_zero_encodes=True, assemble=assemble)
    return run_rank(spec, EngineConfig.from_json(spec.config), fds, program)
