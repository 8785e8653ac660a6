"""One server from its start to its end: port, processes, HTTP, signals, exit code."""

import asyncio
import contextlib
import math
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from gllm.config import ConfigError, EngineConfig, MediaConfig
from gllm.entrypoints import logs
from gllm.entrypoints.about import describe
from gllm.entrypoints.app import build_app
from gllm.entrypoints.checkpoint_facts import CheckpointFacts
from gllm.entrypoints.detokenize import TokenBytes
from gllm.entrypoints.engine_client import ClientLimits, EngineClient
from gllm.entrypoints.item_router import StageZeroRouter
from gllm.entrypoints.ports import DriverPort, ItemRouter, RouterFactory
from gllm.entrypoints.process_link import ProcessLink
from gllm.entrypoints.sampling import SamplingLimits
from gllm.entrypoints.served_model import ServedModel
from gllm.entrypoints.service import Service
from gllm.models.names import resolve_model
from gllm.multimodal.limits import MediaLimits, images_per_prompt
from gllm.multimodal.processor import PromptProcessor
from gllm.runtime.host_memory import obtainable_cpu_bytes
from gllm.runtime.launcher import Deployment, LaunchError
from gllm.runtime.memory_check import HostNeed, check_host_memory, need_of_ranks
from gllm.runtime.slave import SlaveHost

ERRORS_S = 2.0
"""Time to send an error to those whose answers were not finished within the drain time."""
SAME_SIGNAL_S = 0.5

MakeDeployment = Callable[[EngineConfig], Deployment]
MakeRouter = Callable[[Deployment, DriverPort], ItemRouter]


@dataclass(frozen=True)
class Scheme:
    """What a scheme brings: its processes, its way of pixels, and what it says of itself.

    about: fields that replace those of `describe`. problems: see Service. rank_module: what ranks run.
    need: memory of the processes on this host.
    """

    make_deployment: MakeDeployment
    make_router: MakeRouter
    about: Callable[[Deployment], dict[str, Any]] = lambda deployment: {}
    problems: Callable[[], list[str]] = list
    rank_module: str = "gllm.runtime.rank_main"
    need: Callable[[EngineConfig], HostNeed] = need_of_ranks

    def check_memory(self, config: EngineConfig) -> None:
        """Raise ConfigError when this host is too small. Call it before anything starts."""
        check_host_memory(config, self.need(config), obtainable_cpu_bytes())


def gllm_deployment(config: EngineConfig) -> Deployment:
    """Ranks only; not started."""
    return Deployment(config, config.to_json())


def gllm_router(deployment: Deployment, port: DriverPort) -> ItemRouter:
    """All pixels go to stage 0."""
    prefix_caching = deployment.config.cache.enable_prefix_caching
    return StageZeroRouter(port, deployment.outbox("rank0-pixels"), prefix_caching)


GLLM = Scheme(gllm_deployment, gllm_router)


def serve(config: EngineConfig, scheme: Scheme = GLLM) -> int:
    """Serve until a signal or a failure; the exit code. Failures are one line on stderr."""
    logs.set_up(config.server.log_level)
    signal.signal(signal.SIGTERM, _leave)
    try:
        return _serve(config, scheme)
    except (LaunchError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130


def _serve(config: EngineConfig, scheme: Scheme) -> int:
    scheme.check_memory(config)
    if config.parallel.launch_mode == "slave":
        return SlaveHost(config, config.to_json(), scheme.rank_module).run()
    folder = resolve_model(config.model.model)
    facts = CheckpointFacts.read(folder)
    limits = media_limits(config.media)
    listener = bind(config.server.host, config.server.port)
    with contextlib.closing(listener):
        deployment = scheme.make_deployment(config)
        try:
            deployment.start()
            processor = PromptProcessor(folder, limits)
            deployment.wait_ready()
            model = served_model(config, facts, processor, deployment)
            about = describe(config, facts.dtype, deployment.ready["rank0"], deployment.threads)
            about |= {"max_model_len": model.limits.max_model_len, **scheme.about(deployment)}
            return asyncio.run(_Run(config, scheme, deployment, listener).run(processor, model, about))
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # a few seconds, in which processes must be stopped
            deployment.stop()


@dataclass(frozen=True)
class _Run:
    """The time in which the server answers."""

    config: EngineConfig
    scheme: Scheme
    deployment: Deployment
    listener: socket.socket

    async def run(self, processor: PromptProcessor, model: ServedModel, about: dict[str, Any]) -> int:
        """Serve until a signal (exit code 0) or until a process is lost (1)."""
        limits = ClientLimits(
            self.config.scheduler.max_queued_requests,
            self.config.server.request_timeout,
            self.config.cache.enable_prefix_caching,
        )
        engine = make_engine(self.deployment, self.scheme, model, limits)
        service = Service(engine, processor, model, self.config.server, about, self.scheme.problems)
        server = HttpServer(_http_config(service, self.config), _url(self.config, self.listener), about)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.drain, service)
        watch(self.deployment, engine, server.leave)
        await server.serve(sockets=[self.listener])
        if server.force_exit:
            await server.lifespan.shutdown()
        if engine.failure is not None and not service.is_draining:
            print(f"error: {engine.failure}", file=sys.stderr, flush=True)
            return 1
        return 0


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process before its ranks."""

    def __init__(self, config: uvicorn.Config, url: str, about: dict[str, Any]) -> None:
        super().__init__(config)
        self._url = url
        self._about = about
        self._drain_began = 0.0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled where the whole server is."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say that requests are welcome, once they are."""
        await super().startup(sockets)
        if self.started:
            fields = ("model", "scheme", "pp", "tp", "num_kv_tokens", "max_model_len")
            words = ", ".join(f"{name} {self._about[name]}" for name in fields)
            print(f"RServe is ready at {self._url} ({words})", flush=True)

    def leave(self) -> None:
        """Nothing can be served any more: end as soon as waiting clients have their errors."""
        self.should_exit = True

    def drain(self, service: Service) -> None:
        """First signal: no new requests, running ones get the drain time. A later one: end now.

        Wrappers such as `timeout` deliver one signal twice within moments; that is one.
        """
        loop = asyncio.get_running_loop()
        if not service.is_draining:
            self._drain_began = loop.time()
        elif loop.time() - self._drain_began < SAME_SIGNAL_S:
            return
        else:
            self.force_exit = True
        service.is_draining = True
        self.should_exit = True
        limit = 0.0 if self.force_exit else service.config.drain_timeout
        loop.call_later(limit, service.engine.fail_all, "the server is shutting down")
        print("stopping: running requests are finished first; a second signal ends them", flush=True)


def make_engine(
    deployment: Deployment, scheme: Scheme, model: ServedModel, limits: ClientLimits
) -> EngineClient:
    """A client of a running deployment; start it in the event loop that uses it."""
    link = ProcessLink(deployment.inbox, deployment.outbox("rank0"))
    make_router: RouterFactory = lambda port: scheme.make_router(deployment, port)  # noqa: E731
    return EngineClient(link, make_router, model.tokens, limits, deployment.lives)


def watch(deployment: Deployment, engine: EngineClient, on_lost: Callable[[], None]) -> None:
    """From now on, a lost process ends all requests with its last words, and on_lost is called.

    Unless the scheme takes care of it. Call it in the event loop.
    """
    loop = asyncio.get_running_loop()
    descriptor = deployment.fileno()

    def check() -> None:
        try:
            deployment.check()
        except LaunchError as error:
            loop.remove_reader(descriptor)
            engine.fail_all(str(error))
            on_lost()

    loop.add_reader(descriptor, check)


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the port while the model loads; connections are refused until it listens.

    Raises ConfigError when the port is taken or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host} port {port} ({error}): choose another --port, or 0, or --host"
        ) from error
    return listener


def media_limits(media: MediaConfig) -> MediaLimits:
    """The flags about images as the multimodal package wants them. Raises ValueError for bad ones."""
    return MediaLimits(
        max_images=images_per_prompt(media.limit_mm_per_prompt),
        max_image_pixels=media.max_image_pixels,
        mm_processor_kwargs=media.mm_processor_kwargs,
        max_media_bytes=media.max_media_bytes,
        media_hosts=media.media_hosts or ("public",),
        allowed_media_path=media.allowed_media_path,
        fetch_timeout_s=media.media_fetch_timeout,
        decode_workers=media.media_threads,
    )


def served_model(
    config: EngineConfig, facts: CheckpointFacts, processor: PromptProcessor, deployment: Deployment
) -> ServedModel:
    """What the HTTP layer knows; the context is what the model allows and the KV cache holds."""
    ready = deployment.ready["rank0"]
    longest = min(ready.max_model_len, ready.num_kv_tokens)
    return ServedModel(
        config.model.served_model_name or config.model.model,
        TokenBytes(processor.tokenizer.backend),
        facts.defaults,
        SamplingLimits(longest, facts.vocab_size),
    )


def _http_config(service: Service, config: EngineConfig) -> uvicorn.Config:
    server = config.server
    return uvicorn.Config(
        build_app(service),
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=math.ceil(server.drain_timeout + ERRORS_S),
        ssl_keyfile=server.ssl_keyfile,
        ssl_certfile=server.ssl_certfile,
    )


def _url(config: EngineConfig, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if config.server.ssl_certfile else 'http'}://{shown}:{port}"


def _leave(*_: object) -> None:
    """SIGTERM while loading: unwind, so that processes are stopped."""
    raise KeyboardInterrupt
