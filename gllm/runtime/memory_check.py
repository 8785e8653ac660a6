"""Says before anything is loaded when a deployment cannot fit into this host's memory; no torch.

On GPUs each rank looks at its own device while it loads, see kv_sizing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gllm.config import CacheConfig, ConfigError, EngineConfig
from gllm.core.model_shape import DTYPE_BYTES, ModelShape, split_layers
from gllm.core.rank_share import rank_shares
from gllm.models.names import resolve_model
from gllm.models.shape_file import read_shape
from gllm.runtime.host_memory import GIB

GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))


@dataclass(frozen=True, slots=True)
class HostNeed:
    """Bytes that all processes on this host allocate, at least, until they are ready.

    Weight files are mapped: their pages can be given back, and only what is copied out of them counts.
    """

    weights: int
    kv_cache: int
    embeddings: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.embeddings


def need_of_ranks(config: EngineConfig, stage_zero_encodes: bool = True) -> HostNeed:
    """What this host's ranks of the language model need.

    Raises ValueError where the model cannot be read, or does not go with --pp, --tp or --assigned-layers.
    """
    shape = read_shape(resolve_model(config.model.model))
    parallel = config.parallel
    shape.text.check_tensor_parallel(parallel.tp)
    stages = split_layers(shape.text.num_layers, parallel.pp, parallel.assigned_layers)
    shares = rank_shares([len(layers) for layers in stages], parallel.tp)
    here = parallel.ranks or tuple(range(len(shares)))
    params = 0
    for share in (shares[rank] for rank in here):
        params += shape.text.params_of(share)
        if stage_zero_encodes and share.is_first and shape.vision is not None:
            params += shape.vision.params_of(share)
    size = dtype_bytes(config, shape)
    blocks = [config.cache.page_size * shape.text.kv_bytes_per_token(size, share) for share in shares]
    return HostNeed(size * params, _num_blocks(config.cache, blocks) * sum(blocks[rank] for rank in here))


def check_host_memory(config: EngineConfig, need: HostNeed, available: int) -> None:
    """Raise ConfigError when this host has less memory available than is needed and computes on CPUs.

    Ray places processes itself, on hosts that are not known here.
    """
    parallel = config.parallel
    if need.total <= available or parallel.executor == "ray" or not computes_on_cpu(parallel.device):
        return
    parts = {"weights": need.weights, "KV cache": need.kv_cache, "embeddings": need.embeddings}
    shown = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size)
    raise ConfigError(
        f"not enough memory: {config.model.model} needs {need.total / GIB:.1f} GiB on this host ({shown}) "
        f"and {available / GIB:.1f} GiB are available: use a smaller model, a lower --kv-cache-gib, "
        "or fewer ranks and encoders on this host"
    )


def computes_on_cpu(asked: str) -> bool:
    """Whether ranks certainly compute on CPUs; asked: auto, cpu or cuda. Only torch knows what auto finds."""
    return asked == "cpu" or (asked == "auto" and not any(device.exists() for device in GPU_DEVICES))


def dtype_bytes(config: EngineConfig, shape: ModelShape) -> int:
    """Bytes of one number of weights and cache."""
    return DTYPE_BYTES[shape.dtype if config.model.dtype == "auto" else config.model.dtype]


def _num_blocks(cache: CacheConfig, block_bytes: Sequence[int]) -> int:
    """Blocks that every rank takes at least; block_bytes: of one block, on each rank of the deployment."""
    if cache.num_kv_blocks is not None:
        return cache.num_kv_blocks
    if cache.kv_cache_gib is not None:
        return max(int(cache.kv_cache_gib * GIB) // max(block_bytes), 1)
    return 1
