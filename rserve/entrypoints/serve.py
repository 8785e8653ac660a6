"""RServe's schemes as the HTTP server knows them."""

from typing import Any

from gllm.config import EngineConfig
from gllm.entrypoints.item_router import StageZeroRouter
from gllm.entrypoints.pixel_gate import PixelGate
from gllm.entrypoints.ports import DriverPort, ItemRouter
from gllm.entrypoints.serve import Scheme
from gllm.models.names import resolve_model
from gllm.models.shape_file import read_shape
from gllm.runtime.launcher import Deployment
from rserve.config import RServeConfig
from rserve.core.arena import Arena
from rserve.core.dispatcher import Dispatcher
from rserve.entrypoints.encoders import Encoders
from rserve.entrypoints.router import EncoderRouter, RouterSettings
from rserve.runtime.deployment import EpdDeployment, need_of_deployment

PIXEL_BYTES = 512 * 2**20


class EpdScheme:
    """One server's deployment, router and health, under the scheme that its configuration names."""

    def __init__(self, config: RServeConfig) -> None:
        self._config = config
        self._encoders: Encoders | None = None

    def scheme(self) -> Scheme:
        """What `gllm.entrypoints.serve.serve` wants."""
        return Scheme(
            self._deployment,
            self._router,
            self._about,
            self._problems,
            "rserve.runtime.rank_main",
            lambda config: need_of_deployment(self._config),
        )

    def _deployment(self, config: EngineConfig) -> Deployment:
        return EpdDeployment(self._config)

    def _router(self, deployment: Deployment, port: DriverPort) -> ItemRouter:
        caching = self._config.cache.enable_prefix_caching
        if not isinstance(deployment, EpdDeployment) or deployment.num_encoders == 0:
            return StageZeroRouter(port, deployment.outbox("rank0-pixels"), caching)
        epd = self._config.epd
        self._encoders = Encoders(deployment, epd.encoder_timeout, epd.encoder_restarts)
        fallback = deployment.outbox("rank0-pixels") if epd.encoder_fallback == "driver" else None
        vision = read_shape(resolve_model(self._config.model.model)).vision
        settings = RouterSettings(caching, vision.patch_size if vision else 14, fallback)
        min_tokens = self._config.scheme.batch_tokens(epd.embedding_batch_size)
        dispatcher = Dispatcher(Arena(deployment.embedding_rows), min_tokens)
        gate = PixelGate(PIXEL_BYTES)
        return EncoderRouter(port, deployment, self._encoders, dispatcher, gate, settings)

    def _about(self, deployment: Deployment) -> dict[str, Any]:
        epd = self._config.epd
        size = self._config.scheme.batch_tokens(epd.embedding_batch_size)
        return {
            "scheme": epd.scheme,
            "encoders": self._config.num_encoders,
            "embedding_batch_size": size if size != float("inf") else "inf",
            "embedding_channel": deployment.ready["rank0"].embedding_channel,
        }

    def _problems(self) -> list[str]:
        return self._encoders.problems() if self._encoders is not None else []
