"""The processes of an RServe server: gLLM's ranks, encoder ranks beside them, and the memory they share."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from gllm.config import ConfigError
from gllm.models.names import resolve_model
from gllm.models.shape_file import read_shape
from gllm.runtime.launcher import ChildPlan, Deployment
from gllm.runtime.memory_check import HostNeed, dtype_bytes, need_of_ranks
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
        self._store_port = 0
        self._epochs: dict[int, int] = {}
        self.on_encoder_exit: OnExit = lambda index: False
        num_encoders = config.num_encoders
        shape = read_shape(resolve_model(config.model.model))
        if shape.vision is None:
            num_encoders = 0
        else:
            _check_channel(config)
        names = [encoder_name(index) for index in range(num_encoders)]
        super().__init__(config, config.to_json(), "rserve.runtime.rank_main", names, epd_codec())
        self.num_encoders = num_encoders
        if num_encoders:
            size, hidden = dtype_bytes(config, shape), shape.text.hidden_size
            self.embedding_rows = config.embedding_rows(hidden, size)
            self._open_channel(self.embedding_rows * hidden * size)

    def start(self, rank_fds: Mapping[int, Sequence[int]] | None = None) -> None:
        """Start ranks and encoders."""
        for index in range(self.num_encoders):
            self.start_encoder(index)
        super().start(rank_fds or {0: self._channel_fds()})

    def start_encoder(self, index: int) -> None:
        """Start an encoder, or its successor in the next epoch; RankReady says when it can work."""
        epoch = self._epochs[index] = self._epochs.get(index, -1) + 1
        name = encoder_name(index)
        self.move_inbox(name, str(epoch))
        spec = self.site.spec(name, -1)
        extra = {"index": index, "epoch": epoch, "store_port": self._store_port}
        self.outbox("rank0").send(EncoderJoined(index, epoch))
        plan = ChildPlan(
            name,
            "rserve.runtime.encoder_main",
            dataclasses.replace(spec, extra=extra).to_json(),
            tuple(self._channel_fds()),
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

    def _open_channel(self, num_bytes: int) -> None:
        """Make what the channel needs; for `auto` all that it may need, for only ranks know their devices."""
        channel = self.config.epd.embedding_channel
        is_spread = self.config.parallel.executor == "ray"
        if channel == "shm" or (channel == "auto" and not is_spread):
            self._memory = create_shared(num_bytes)
        if channel != "shm":
            self._store_port = self.site.listen()

    def _channel_fds(self) -> list[int]:
        """The shared memory; rank 0 has the store's socket from the site."""
        return [self._memory] if self._memory is not None else []

    def _on_exit(self, index: int, exited: Exited) -> bool:
        self.ready.pop(exited.name, None)
        return self.on_encoder_exit(index)


def need_of_deployment(config: RServeConfig) -> HostNeed:
    """Memory of this host's processes: ranks and, beside the master, encoders and the embeddings' memory.

    Raises ValueError as need_of_ranks does.
    """
    ranks = need_of_ranks(config, config.stage_zero_encodes)
    shape = read_shape(resolve_model(config.model.model))
    if shape.vision is None or not config.num_encoders or config.parallel.launch_mode == "slave":
        return ranks
    size, hidden = dtype_bytes(config, shape), shape.text.hidden_size
    towers = config.num_encoders * shape.vision.num_params * size
    return HostNeed(
        ranks.weights + towers, ranks.kv_cache, config.embedding_rows(hidden, size) * hidden * size
    )


def _check_channel(config: RServeConfig) -> None:
    """Raise ConfigError when embeddings cannot travel as asked for."""
    channel = config.epd.embedding_channel
    if channel == "nixl" and find_spec("nixl") is None:
        raise ConfigError("--embedding-channel nixl: NIXL is not installed: pip install rserve[nixl]")
    if channel in ("shm", "cuda-ipc") and config.num_encoders and config.parallel.executor == "ray":
        raise ConfigError("--executor ray: its nodes share no memory: use --embedding-channel p2p")


def encoder_name(index: int) -> str:
    """The name of an encoder's process and inbox."""
    return f"encoder{index}"


def encoder_index(ready: RankReady) -> int | None:
    """The number of the encoder that is ready, or None for another rank."""
    return int(ready.name.removeprefix("encoder")) if ready.name.startswith("encoder") else None
