"""The processes of an RServe server: gLLM's ranks, encoder ranks beside them, and the memory they share."""

import dataclasses
import socket
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from gllm.config import ConfigError
from gllm.core.model_shape import DTYPE_BYTES
from gllm.models.names import resolve_model
from gllm.models.shape_file import read_shape
from gllm.runtime.launcher import ChildPlan, Deployment
from gllm.runtime.messages import RankReady
from gllm.runtime.spawner import Exited
from rserve.config import RServeConfig
from rserve.runtime.messages import EncoderJoined, epd_codec
from rserve.runtime.shared_file import create_shared

OnExit = Callable[[int], bool]


class EpdDeployment(Deployment):
    """Starts, watches and restarts encoders in addition to the ranks of the language model.

    on_encoder_exit: called with an encoder's number when its process ended; True when the server can go
    on. While the server starts, no encoder may end.
    """

    config: RServeConfig

    def __init__(self, config: RServeConfig) -> None:
        """Starts nothing yet. Raises LaunchError and ConfigError."""
        self.embedding_rows = 0
        self._memory: int | None = None
        self._store: socket.socket | None = None
        self._epochs: dict[int, int] = {}
        self.on_encoder_exit: OnExit = lambda index: False
        num_encoders = config.num_encoders
        shape = read_shape(resolve_model(config.model.model))
        if shape.vision is None:
            num_encoders = 0
        names = [encoder_name(index) for index in range(num_encoders)]
        super().__init__(config, config.to_json(), "rserve.runtime.rank_main", names, epd_codec())
        self.num_encoders = num_encoders
        if num_encoders:
            dtype = shape.dtype if config.model.dtype == "auto" else config.model.dtype
            hidden = shape.text.hidden_size
            self.embedding_rows = config.embedding_rows(hidden, DTYPE_BYTES[dtype])
            self._open_channel(self.embedding_rows * hidden * DTYPE_BYTES[dtype])

    def start(self, rank_fds: Mapping[int, Sequence[int]] | None = None) -> None:
        """Start ranks and encoders."""
        for index in range(self.num_encoders):
            self.start_encoder(index)
        super().start(rank_fds or {0: self._channel_fds(driver=True)})

    def start_encoder(self, index: int) -> None:
        """Start an encoder, or its successor in the next epoch; RankReady says when it can work."""
        epoch = self._epochs[index] = self._epochs.get(index, -1) + 1
        name = encoder_name(index)
        self.move_inbox(name, str(epoch))
        spec = self.spec(name, -1, len(self.local_ranks) + index)
        extra = {"index": index, "epoch": epoch, "store_port": self._store_port}
        self.outbox("rank0").send(EncoderJoined(index, epoch))
        plan = ChildPlan(
            name,
            "rserve.runtime.encoder_main",
            dataclasses.replace(spec, extra=extra).to_json(),
            tuple(self._channel_fds(driver=False)),
            lambda exited: self._on_exit(index, exited),
        )
        self.add(plan)

    def kill_encoder(self, index: int) -> None:
        """End a stalled encoder; on_encoder_exit follows when it is gone."""
        self.kill(encoder_name(index))

    def stop(self, grace_s: float = 5.0) -> None:
        """End all processes. Idempotent."""
        self.on_encoder_exit = lambda index: True
        super().stop(grace_s)
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def _store_port(self) -> int:
        return self._store.getsockname()[1] if self._store is not None else 0

    def _open_channel(self, num_bytes: int) -> None:
        if self.config.epd.embedding_channel == "shm":
            self._memory = create_shared(num_bytes)
        else:
            if self.config.epd.embedding_channel == "nixl" and find_spec("nixl") is None:
                raise ConfigError("--embedding-channel nixl: NIXL is not installed: pip install rserve[nixl]")
            self._store = socket.create_server(("127.0.0.1", 0), backlog=64)

    def _channel_fds(self, driver: bool) -> list[int]:
        if self._memory is not None:
            return [self._memory]
        return [self._store.fileno()] if self._store is not None and driver else []

    def _on_exit(self, index: int, exited: Exited) -> bool:
        self.ready.pop(exited.name, None)
        return self.on_encoder_exit(index)


def encoder_name(index: int) -> str:
    """The name of an encoder's process and inbox."""
    return f"encoder{index}"


def encoder_index(ready: RankReady) -> int | None:
    """The number of the encoder that is ready, or None for another rank."""
    return int(ready.name.removeprefix("encoder")) if ready.name.startswith("encoder") else None
