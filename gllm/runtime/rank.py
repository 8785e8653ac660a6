"""One rank of a deployment: its sockets, groups, model, cache and runner."""

import os

from gllm.config import EngineConfig
from gllm.core.batch import BatchResult
from gllm.core.core_config import CoreConfig
from gllm.models.registry import Model
from gllm.runtime.device import pick_device
from gllm.runtime.host_memory import free_cpu_bytes
from gllm.runtime.hosts import reachable
from gllm.runtime.kv_sizing import blocks_on_cpu, blocks_on_gpu
from gllm.runtime.loading import ModelPlan, load_encoder, load_stage, make_runner, rank_place
from gllm.runtime.messages import RankReady
from gllm.runtime.model_runner import RankPlace
from gllm.runtime.parallel import HiddenShape, ParallelContext, RankLayout, Rendezvous
from gllm.runtime.pipeline import Peers, PipelineExecutor
from gllm.runtime.pixel_store import PixelStore
from gllm.runtime.post import Post
from gllm.runtime.profiling import peak_gpu_bytes
from gllm.runtime.rank_spec import RankSpec
from gllm.runtime.recorder import StepRecorder, trace_clock
from gllm.runtime.step_timer import StepTimer, device_events
from gllm.runtime.worker import Worker


class Rank:
    """Loads in the constructor, together with all other ranks; afterwards it drives or works."""

    def __init__(
        self,
        spec: RankSpec,
        config: EngineConfig,
        post: Post,
        stage_zero_encodes: bool,
        listen_fd: int | None = None,
    ) -> None:
        """stage_zero_encodes: load the vision tower there. listen_fd: rank 0's socket for the rendezvous.

        Raises ValueError (one line that says what to do) and RuntimeError.
        """
        self.spec, self.config, self.post = spec, config, post
        self.plan = ModelPlan.of(config)
        self.layout = RankLayout(spec.rank, config.parallel.pp, config.parallel.tp)
        self.inbox = post.inbox(spec.name)
        self.device = pick_device(config.parallel.device, spec.gpu)
        self.parallel = ParallelContext(self.layout, self.device, Rendezvous(spec.host, spec.port, listen_fd))
        self.inbox_address = reachable(self.inbox.address, config.parallel)
        if not config.parallel.is_on_one_host:
            self._find_others()
        self.place = self.plan.placement(self.device, self.parallel.tp)
        model = load_stage(self.plan, self.layout.stage, self.place)
        encodes = stage_zero_encodes and self.layout.stage == 0 and self.plan.shape.vision is not None
        self.encoder = load_encoder(self.plan, self.place) if encodes else None
        num_local = len(config.parallel.ranks or range(self.layout.world_size))
        self.num_blocks = self.parallel.smallest(self._affordable_blocks(model, num_local))
        self.runner = make_runner(self.plan, model, self._rank_place(), self.place, self.num_blocks)
        self.recorder = self._make_recorder()

    @property
    def max_model_len(self) -> int:
        """Longest prompt + output: what the model allows and the cache holds."""
        return min(self.plan.max_model_len, self.num_blocks * self.config.cache.page_size)

    def core_config(self) -> CoreConfig:
        """What the core has to know of this deployment."""
        scheduler, cache = self.config.scheduler, self.config.cache
        method = "chunked_prefill" if scheduler.use_cp_schedule else scheduler.schedule_method
        return CoreConfig(
            num_blocks=self.num_blocks,
            block_size=cache.page_size,
            num_stages=self.layout.pp,
            max_in_flight=self.config.max_in_flight,
            schedule_method=method,
            maxp=scheduler.maxp,
            maxd=scheduler.maxd,
            minp=scheduler.minp,
            iterp=scheduler.iterp,
            kvthresh=scheduler.kvthresh,
            prefix_caching=cache.enable_prefix_caching,
        )

    def executor(self, pixels: PixelStore | None) -> PipelineExecutor:
        """Rank 0: the executor of the whole pipeline."""
        outboxes = [self.post.outbox(f"rank{rank}") for rank in range(1, self.layout.world_size)]
        peers = Peers(outboxes, self.layout.tp, self.layout.sampler)
        return PipelineExecutor(self.runner, peers, self.recorder, self.encoder, pixels)

    def announce(self, embedding_tokens: int = 0, embedding_channel: str | None = None) -> None:
        """Tell the API server that this rank is ready."""
        tokens = self.num_blocks * self.config.cache.page_size
        ready = RankReady(
            self.spec.name,
            os.getpid(),
            self.inbox_address,
            self.num_blocks,
            tokens,
            self.max_model_len,
            embedding_tokens,
            embedding_channel,
        )
        self.post.outbox("api").send(ready)

    def work(self) -> None:
        """Any rank but 0: do what rank 0 says until it says Shutdown."""
        Worker(self.runner, self.inbox, self.recorder, self._on_result, self.encoder).run()

    def close(self) -> None:
        """Deliver what is queued and leave the groups."""
        self.post.close()
        self.parallel.close()

    def _find_others(self) -> None:
        for rank, address in enumerate(self.parallel.inboxes(self.inbox_address)):
            self.post.relocate(f"rank{rank}", address)

    def _on_result(self, result: BatchResult) -> None:
        if result.tokens:
            self.post.outbox("api").send(result)
        self.post.outbox("rank0").send(result)

    def _rank_place(self) -> RankPlace:
        hidden = HiddenShape(self.plan.shape.text.hidden_size, self.place.dtype, self.device)
        link = self.parallel.link(hidden, self.config.max_in_flight)
        return rank_place(self.plan, self.layout.stage, self.parallel.tp, link)

    def _affordable_blocks(self, model: Model, num_local: int) -> int:
        layers = self.plan.kv_layers(self.layout.stage, self.parallel.tp)
        if self.device.type == "cuda":
            used, total = peak_gpu_bytes(self.plan, model, self.place, self.encoder)
            return blocks_on_gpu(self.config.cache, layers, used, total)
        self.parallel.smallest(0)  # all weights are loaded when memory is measured
        free = free_cpu_bytes() // num_local
        return blocks_on_cpu(self.config.cache, layers, free, self.plan.max_model_len)

    def _make_recorder(self) -> StepRecorder:
        track = f"stage {self.layout.stage}"
        if self.layout.tp > 1:
            track += f" tp {self.layout.tp_rank}"
        send_trace = self.post.outbox("api").send if self.config.server.trace else None
        timer = StepTimer(trace_clock(self.config.parallel), device_events(self.device))
        return StepRecorder(self.spec.name, track, self.post.outbox("rank0").send, send_trace, timer)
