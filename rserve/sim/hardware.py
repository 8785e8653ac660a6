"""Devices and how a model is laid out on them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gllm.core.model_shape import DTYPE_BYTES, PRESETS, ModelShape, split_layers
from gllm.models.names import PACKAGED, UnknownModelError, resolve_model
from gllm.models.shape_file import read_shape

from .costs import measured_sets, set_path

DEVICES_FILE = Path(__file__).parent / "devices.json"
NUMBERS = ("peak_flops", "memory_bandwidth", "memory", "link_bandwidth")


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device (a GPU, or a CPU core that a stage runs on) and the link to its neighbours in the node.

    peak_flops: FLOP/s in bf16; memory_bandwidth and link_bandwidth (one direction): bytes/s; memory: bytes.
    """

    name: str
    peak_flops: float
    memory_bandwidth: float
    memory: float
    link_bandwidth: float


def devices() -> Mapping[str, Hardware]:
    """The devices that ship with the project; `devices.json` says where each number comes from."""
    content = json.loads(DEVICES_FILE.read_text())
    return {name: _device(name, entry) for name, entry in content.items()}


def _device(name: str, entry: Mapping[str, Mapping[str, float]]) -> Hardware:
    return Hardware(name, *(float(entry[number]["value"]) for number in NUMBERS))


def load_hardware(name: str) -> Hardware:
    """A device by name, or the one that `rserve calibrate` measured: its file, or a shipped constant set.

    Raises ValueError for an unknown one.
    """
    known = devices()
    if name in known:
        return known[name]
    path = set_path(name)
    content = json.loads(path.read_text()) if path.is_file() else {}
    if "hardware" in content:
        return _device(path.stem, content["hardware"])
    if name.endswith(".json"):
        raise ValueError(f"{name} describes no hardware: give a file that `rserve calibrate` wrote")
    raise ValueError(f"no hardware {name!r}; there are {', '.join([*known, *measured_sets()])}")


def load_model(name: str) -> ModelShape:
    """A model by the name of its shape, by that of a packaged one, or by the folder of a checkpoint.

    Of a checkpoint config.json is enough. Raises ValueError for an unknown one.
    """
    if name in PRESETS:
        return PRESETS[name]
    try:
        return read_shape(resolve_model(name))
    except UnknownModelError as error:
        known = ", ".join([*PRESETS, *PACKAGED])
        raise ValueError(f"no model {name!r}; there are {known}, or a folder with a config.json") from error


@dataclass(frozen=True, slots=True)
class Machine:
    """A model on devices: pp stages of tp devices each, and encoder ranks of one device each.

    encoders: 0 puts the encoder on stage 0, sharded over its tp devices (scheme gllm).
    assigned_layers: decoder layers per stage; None spreads them as the engine does.
    """

    hardware: Hardware
    model: ModelShape
    pp: int = 1
    tp: int = 1
    encoders: int = 0
    assigned_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self.model.text.check_tensor_parallel(self.tp)
        self.layers_per_stage()

    @property
    def num_devices(self) -> int:
        return self.pp * self.tp + self.encoders

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.model.dtype]

    def layers_per_stage(self) -> list[int]:
        return [
            len(layers) for layers in split_layers(self.model.text.num_layers, self.pp, self.assigned_layers)
        ]
