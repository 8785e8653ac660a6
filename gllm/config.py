"""Configuration: frozen dataclasses from which command-line flags are made, parsed and checked.

Every field is one flag; its metadata says what it means and what is allowed. `rserve.config` adds its
own groups in the same way.
"""

import argparse
import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ConfigError(ValueError):
    """A value that cannot work: the message names the flag, the value and what is allowed."""


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[Any, ...] | None = None,
    flags: tuple[str, ...] = (),
    parse: typing.Callable[[str], Any] | None = None,
) -> Any:
    """A field that is also a flag. low and high are inclusive; flags are further names for it."""
    metadata = {"help": help, "low": low, "high": high, "choices": choices, "flags": flags, "parse": parse}
    return field(default=default, metadata=metadata)


def int_list(text: str) -> tuple[int, ...]:
    """'2,3,3' -> (2, 3, 3)."""
    return tuple(int(part) for part in text.split(",") if part.strip())


def str_list(text: str) -> tuple[str, ...]:
    """'a, b' -> ('a', 'b')."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def json_object(text: str) -> dict[str, Any]:
    """'{"a": 1}' -> {"a": 1}."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object, such as '{{\"max_pixels\": 1000000}}'")
    return value


@dataclass(frozen=True)
class ModelConfig:
    """Which model is served, and in what number format."""

    model: str = option("tiny", "checkpoint folder, or tiny | small | small-vision", flags=("--model-path",))
    served_model_name: str | None = option(None, "name clients use (default: MODEL as given)")
    load_format: str = option("auto", "auto: read weights; dummy: seeded random", choices=("auto", "dummy"))
    dtype: str = option(
        "auto",
        "number format of weights and cache",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    max_model_len: int | None = option(
        None, "longest prompt + output in tokens (default: the model's)", low=1
    )
    seed: int = option(0, "seed of dummy weights")


@dataclass(frozen=True)
class ParallelConfig:
    """How ranks are laid out: rank = stage * tp + tp rank; rank 0 is the driver."""

    pp: int = option(1, "pipeline stages", low=1, high=64)
    tp: int = option(1, "tensor-parallel ranks per stage", low=1, high=64)
    assigned_layers: tuple[int, ...] | None = option(
        None, "layers of each stage, e.g. 20,20,20,20", parse=int_list
    )
    device: str = option("auto", "auto: cuda when found, else cpu", choices=("auto", "cpu", "cuda"))
    threads_per_rank: int | None = option(
        None, "CPU threads per rank (default: cores // ranks, at least 1)", low=1
    )
    cpu_affinity: bool = option(False, "pin each rank to cores of its own")
    attention_backend: str = option("auto", "attention kernels", choices=("auto", "flash", "triton", "sdpa"))
    cuda_graphs: bool = option(True, "replay decodes and small micro-batches from CUDA graphs (GPUs only)")
    executor: str = option(
        "local",
        "who starts ranks and encoders: this host, or a Ray cluster (extra [ray])",
        choices=("local", "ray"),
    )
    ray_address: str = option("auto", "address of the Ray cluster (auto: the one that this host is in)")
    ray_placement: str = option(
        "pack", "fill one node of the Ray cluster after another, or use many", choices=("pack", "spread")
    )
    launch_mode: str = option(
        "normal",
        "normal: all ranks here; master, slave: several hosts",
        choices=("normal", "master", "slave"),
    )
    ranks: tuple[int, ...] | None = option(None, "ranks started on this host (master, slave)", parse=int_list)
    master_addr: str = option("127.0.0.1", "address of the master host")
    master_port: int = option(0, "rendezvous port (0: a free one)", low=0, high=65535)
    zmq_port_base: int = option(
        0, "first control port between hosts (0: Unix sockets on one host)", low=0, high=65535
    )

    @property
    def world_size(self) -> int:
        return self.pp * self.tp

    @property
    def is_on_one_host(self) -> bool:
        """Whether all processes run here, so that Unix sockets and this host's clock are enough."""
        return self.launch_mode == "normal" and self.executor == "local"


@dataclass(frozen=True)
class CacheConfig:
    """Paged KV cache."""

    page_size: int = option(16, "tokens per KV block", low=1, high=256)
    gpu_memory_util: float = option(
        0.9, "share of GPU memory for weights, activations and KV cache", low=0.05, high=0.99
    )
    kv_cache_gib: float | None = option(
        None, "KV cache per rank on CPUs in GiB (default: 1, or what is free)", low=0.0
    )
    num_kv_blocks: int | None = option(
        None, "exact number of KV blocks (overrides memory-based sizing)", low=1
    )
    enable_prefix_caching: bool = option(False, "share KV blocks between requests with equal prefixes")


@dataclass(frozen=True)
class SchedulerConfig:
    """How micro-batches are filled."""

    schedule_method: str = option(
        "chunked_prefill", "how a micro-batch is filled", choices=("chunked_prefill", "token_throttling")
    )
    use_cp_schedule: bool = option(False, "same as --schedule-method chunked_prefill")
    maxd: int = option(2048, "most decode tokens in a micro-batch", low=1)
    maxp: int = option(2048, "token budget of a micro-batch", low=1, flags=("--token-budget",))
    minp: int = option(32, "least prefill tokens in a micro-batch (token throttling)", low=1)
    iterp: int = option(
        8, "micro-batches that waiting prefill tokens are spread over (token throttling)", low=1
    )
    kvthresh: float = option(0.05, "share of KV blocks kept free (token throttling)", low=0.0, high=0.95)
    max_in_flight: int | None = option(None, "micro-batches inside the pipeline (default: pp + 1)", low=1)
    max_queued_requests: int = option(4096, "requests waiting or running before new ones get a 429", low=1)


@dataclass(frozen=True)
class MediaConfig:
    """Images: where they may come from and how large they may be."""

    limit_mm_per_prompt: str = option("image=64", "most images in a request, e.g. image=16")
    max_image_pixels: int = option(
        178_956_970, "largest image in pixels, checked before it is decoded", low=1
    )
    mm_processor_kwargs: Mapping[str, Any] | None = option(
        None, "min_pixels and max_pixels of all images, unless a request sets its own", parse=json_object
    )
    max_media_bytes: int = option(64 * 2**20, "largest encoded image in bytes", low=1)
    media_fetch_timeout: float = option(30.0, "seconds to fetch one image", low=0.1)
    media_hosts: tuple[str, ...] | None = option(
        None, "hosts images may come from: patterns, or none (default: public hosts)", parse=str_list
    )
    allowed_media_path: str | None = option(None, "folder below which file: URLs are allowed")
    media_threads: int = option(2, "threads that decode and resize images", low=1, high=256)


@dataclass(frozen=True)
class ServerConfig:
    """The HTTP server."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on (0: a free one)", low=0, high=65535)
    api_key: str | None = option(None, "key that clients must send as a bearer token")
    request_timeout: float = option(600.0, "seconds after which a request ends with an error", low=0.1)
    max_body_bytes: int = option(256 * 2**20, "largest request body in bytes", low=1024)
    cors_origins: tuple[str, ...] = option((), "origins allowed by CORS (default: none)", parse=str_list)
    ssl_keyfile: str | None = option(None, "TLS key file")
    ssl_certfile: str | None = option(None, "TLS certificate file")
    drain_timeout: float = option(30.0, "seconds that running requests get after SIGTERM", low=0.0)
    log_level: str = option("info", "log level", choices=("debug", "info", "warning", "error"))
    trace: str | None = option(None, "write a Chrome/Perfetto trace to this file")


@dataclass(frozen=True)
class EngineConfig:
    """Everything a deployment needs; one group per concern."""

    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    @property
    def max_in_flight(self) -> int:
        return self.scheduler.max_in_flight or self.parallel.pp + 1

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> typing.Self:
        return from_dict(cls, json.loads(text))


def from_dict(cls: type[Any], values: dict[str, Any]) -> Any:
    """Build a (nested) config dataclass from plain values; lists become tuples."""
    hints = typing.get_type_hints(cls)
    kwargs: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        if f.name not in values:
            continue
        value = values[f.name]
        if dataclasses.is_dataclass(hints[f.name]):
            value = from_dict(typing.cast(type[Any], hints[f.name]), value)
        kwargs[f.name] = tuple(value) if isinstance(value, list) else value
    return cls(**kwargs)


def flag_names(name: str, extra: tuple[str, ...]) -> list[str]:
    return [f"--{name.replace('_', '-')}", *extra]


def add_flags(parser: argparse.ArgumentParser, cls: type[Any], skip: tuple[str, ...] = ()) -> None:
    """Add one flag per field of a config class, under a help group named after it."""
    group = parser.add_argument_group((cls.__doc__ or cls.__name__).strip().splitlines()[0])
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        if f.name in skip:
            continue
        meta = f.metadata
        names = flag_names(f.name, meta["flags"])
        shown = "" if f.default is None else f" (default: {_shown(f.default)})"
        help_text = (meta["help"] + shown).replace("%", "%%")
        if hints[f.name] is bool:
            group.add_argument(
                *names, dest=f.name, default=f.default, help=help_text, action=argparse.BooleanOptionalAction
            )
        else:
            group.add_argument(
                *names,
                dest=f.name,
                default=f.default,
                help=help_text,
                type=_parser(f, hints[f.name]),
                choices=meta["choices"],
                metavar=_metavar(f, hints[f.name]),
            )


def from_args(cls: type[Any], args: argparse.Namespace) -> Any:
    """Build a config class from parsed flags; raises ConfigError for values out of range."""
    values = vars(args)
    config = cls(**{f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values})
    check(config)
    return config


def check(config: Any) -> None:
    """Raise ConfigError when a field is outside its range."""
    for f in dataclasses.fields(config):
        value, meta = vars(config)[f.name], f.metadata
        if value is None or not meta:
            continue
        flag = flag_names(f.name, ())[0]
        if meta.get("choices") and value not in meta["choices"]:
            raise ConfigError(f"{flag} {value}: use one of {', '.join(map(str, meta['choices']))}")
        low, high = meta.get("low"), meta.get("high")
        if (low is not None and value < low) or (high is not None and value > high):
            limits = (
                f"between {low} and {high}"
                if low is not None and high is not None
                else f"at least {low}"
                if low is not None
                else f"at most {high}"
            )
            raise ConfigError(f"{flag} {value}: must be {limits}")


Config = typing.TypeVar("Config", bound=EngineConfig)


def add_engine_flags(
    parser: argparse.ArgumentParser, skip: tuple[str, ...] = (), cls: type[EngineConfig] = EngineConfig
) -> None:
    """Add the flags of every group of a configuration; skip: fields that the parser has in another form."""
    for group in typing.get_type_hints(cls).values():
        add_flags(parser, group, skip)


def engine_config(args: argparse.Namespace, cls: type[Config] = EngineConfig) -> Config:
    """The configuration that parsed flags ask for. Raises ConfigError for values that cannot work."""
    groups = typing.get_type_hints(cls)
    config = cls(**{name: from_args(group, args) for name, group in groups.items()})
    check_together(config)
    return config


def engine_config_of(values: Mapping[str, Any], cls: type[Config] = EngineConfig) -> Config:
    """The configuration with these fields, by name and whatever their group; the others keep their defaults.

    Raises ConfigError for unknown names and for values that cannot work.
    """
    groups = typing.get_type_hints(cls)
    known = {f.name for group in groups.values() for f in dataclasses.fields(group)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]!r}: use one of {', '.join(sorted(known))}")
    return engine_config(argparse.Namespace(**values), cls)


def check_together(config: EngineConfig) -> None:
    """Raise ConfigError when flags that are right alone contradict each other."""
    parallel, server = config.parallel, config.server
    if parallel.assigned_layers is not None and len(parallel.assigned_layers) != parallel.pp:
        layers = _shown(parallel.assigned_layers)
        raise ConfigError(f"--assigned-layers {layers}: must have one number per stage (--pp {parallel.pp})")
    if parallel.ranks is not None and not all(0 <= rank < parallel.world_size for rank in parallel.ranks):
        last = parallel.world_size - 1
        raise ConfigError(f"--ranks {_shown(parallel.ranks)}: must be between 0 and {last} (pp * tp - 1)")
    if parallel.launch_mode != "normal" and not (parallel.master_port and parallel.zmq_port_base):
        raise ConfigError(f"--launch-mode {parallel.launch_mode}: needs --master-port and --zmq-port-base")
    if parallel.executor == "ray":
        _check_ray(parallel)
    if (server.ssl_keyfile is None) != (server.ssl_certfile is None):
        raise ConfigError("--ssl-keyfile and --ssl-certfile: give both or neither")
    _check_files(config)
    if config.scheduler.minp > config.scheduler.maxp:
        raise ConfigError(f"--minp {config.scheduler.minp}: must be at most --maxp {config.scheduler.maxp}")


def _check_files(config: EngineConfig) -> None:
    """What the server would miss only when it is asked, or when it ends."""
    server, media = config.server, config.media
    if server.api_key == "":
        raise ConfigError("--api-key: is empty, which no request can send; leave the flag out for none")
    if config.parallel.launch_mode == "slave":
        return
    for flag, path in (("--ssl-keyfile", server.ssl_keyfile), ("--ssl-certfile", server.ssl_certfile)):
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"{flag} {path}: there is no such file")
    if media.allowed_media_path is not None and not Path(media.allowed_media_path).is_dir():
        raise ConfigError(f"--allowed-media-path {media.allowed_media_path}: there is no such folder")
    if server.trace is not None and not Path(server.trace).absolute().parent.is_dir():
        raise ConfigError(f"--trace {server.trace}: its folder does not exist")


def _check_ray(parallel: ParallelConfig) -> None:
    """Ray says what runs where: flags that say so too are refused."""
    for flag, is_set in (
        ("--launch-mode", parallel.launch_mode != "normal"),
        ("--ranks", parallel.ranks is not None),
        ("--cpu-affinity", parallel.cpu_affinity),
    ):
        if is_set:
            raise ConfigError(f"{flag}: not with --executor ray, which places all processes itself")


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def _base_type(hint: Any) -> Any:
    args = [a for a in typing.get_args(hint) if a is not type(None)]
    return args[0] if args and typing.get_origin(hint) is not tuple else hint


def _parser(f: dataclasses.Field[Any], hint: Any) -> typing.Callable[[str], Any]:
    return f.metadata["parse"] or _base_type(hint)


def _metavar(f: dataclasses.Field[Any], hint: Any) -> str | None:
    if f.metadata["choices"]:
        return None
    base = _base_type(hint)
    names: dict[Any, str] = {int: "N", float: "X", str: "TEXT", Mapping: "JSON"}
    return names.get(typing.get_origin(base) or base, "LIST")
