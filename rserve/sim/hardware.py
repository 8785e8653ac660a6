"""Devices and how a model is laid out on them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gllm.core.model_shape import DTYPE_BYTES, PRESETS, ModelShape, split_layers

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
    """A device by name, or the one in a file that `rserve calibrate` wrote.

    Raises ValueError for an unknown one.
    """
    if name.endswith(".json"):
        path = Path(name)
        content = json.loads(path.read_text()) if path.is_file() else {}
        if "hardware" not in content:
            raise ValueError(f"{name} describes no hardware: give a file that `rserve calibrate` wrote")
        return _device(path.stem, content["hardware"])
    known = devices()
    if name not in known:
        raise ValueError(f"no hardware {name!r}; there are {', '.join(known)}")
    return known[name]


def load_model(name: str) -> ModelShape:
    """A model by the name of its shape, or by the folder of a checkpoint (config.json is enough)."""
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name) / "config.json"
    if not path.is_file():
        raise ValueError(f"no model {name!r}; there are {', '.join(PRESETS)}, or a folder with a config.json")
    generation = path.with_name("generation_config.json")
    extra = json.loads(generation.read_text()) if generation.is_file() else None
    return ModelShape.from_config(json.loads(path.read_text()), extra)


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
