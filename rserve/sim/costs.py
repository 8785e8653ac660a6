"""Named sets of machine constants: what the cost model knows beside shapes and data-sheet numbers.

A set is a JSON file under `constants/`. Each number carries its unit and where it comes from; a set may
extend another one and then gives only what differs. Overlays hold only differences and are laid over any
set: "clean+vllm".
"""

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

CONSTANTS_FOLDER = Path(__file__).parent / "constants"


@dataclass(frozen=True, slots=True)
class Table:
    """A utilisation read from measured points: linear between them, constant outside.

    points: (size, utilisation), sizes increasing. With [(256, 0.60), (512, 0.75)], 384 gives 0.675.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or sizes != sorted(set(sizes)):
            raise ValueError("a table needs points of increasing size")
        if any(not 0 < value <= 1 for _, value in self.points):
            raise ValueError("a utilisation lies in (0, 1]")

    def at(self, size: float) -> float:
        index = bisect_right(self.points, (size, 2.0))
        if index == 0:
            return self.points[0][1]
        if index == len(self.points):
            return self.points[-1][1]
        (x0, y0), (x1, y1) = self.points[index - 1], self.points[index]
        return y0 + (y1 - y0) * (size - x0) / (x1 - x0)

    @property
    def best(self) -> float:
        return max(value for _, value in self.points)


@dataclass(frozen=True, slots=True)
class Constants:
    """All constants of the cost model, in SI units (seconds, bytes, shares of a device's peak).

    gemm_utilisation: by tokens of a micro-batch. head_utilisation: of the vocabulary projection, by rows.
    attention_utilisation: by tokens of a chunk.
    vision_gemm_utilisation: by embedding tokens of an encoder batch; vision_attention_utilisation: by those
    of an item.
    elementwise_share: part of a layer's time that is neither GEMM nor attention.
    all_reduce_step_latency: of one of the 2(n-1) steps of a ring over n devices.
    iteration_overhead: per micro-batch and stage; chunk_overhead: per chunk and stage.
    driver_round_trip: what a request pays to reach the driver and for its first token to come back.
    driver_request_time, driver_embedding_time: stage 0 stands still so long per request, per received byte.
    preprocess_inline: image preprocessing occupies the encoder (True) or only delays the item (False).
    """

    name: str
    gemm_utilisation: Table
    head_utilisation: Table
    attention_utilisation: Table
    vision_gemm_utilisation: Table
    vision_attention_utilisation: Table
    memory_efficiency: float
    elementwise_share: float
    all_reduce_step_latency: float
    all_reduce_efficiency: float
    all_reduce_factor: float
    link_latency: float
    link_efficiency: float
    iteration_overhead: float
    chunk_overhead: float
    driver_round_trip: float
    driver_request_time: float
    driver_embedding_time: float
    encoder_launch_floor: float
    preprocess_per_token: float
    preprocess_inline: bool
    embedding_latency: float
    embedding_bandwidth: float
    memory_utilisation: float
    activation_memory: float


@dataclass(frozen=True, slots=True)
class Sourced:
    """One number of a set, as it stands in the file."""

    value: object
    unit: str
    source: str


def constant_sets() -> list[str]:
    """Names of the sets that ship with the project."""
    return sorted(path.stem for path in CONSTANTS_FOLDER.glob("*.json"))


def measured_sets() -> list[str]:
    """Names of those that `rserve calibrate` wrote: with the device of whose peak they are shares."""
    return [name for name in constant_sets() if "hardware" in json.loads(set_path(name).read_text())]


def set_path(name: str) -> Path:
    """The file of a set; name: as for `read_sourced`, of one part."""
    return Path(name) if name.endswith(".json") else CONSTANTS_FOLDER / f"{name}.json"


def read_sourced(name: str) -> dict[str, Sourced]:
    """A set with units and sources.

    name: a shipped set or the path of a JSON file; further ones, after a +, are laid over it: "vidur+vllm".
    Raises ValueError for an unknown set, an unknown constant, a number without a source, or a set that is
    only an overlay.
    """
    entries: dict[str, Sourced] = {}
    for part in name.split("+"):
        entries |= _read_file(part)
    if missing := _known_names() - entries.keys():
        raise ValueError(
            f"constant set {name} lacks {', '.join(sorted(missing))}: lay an overlay over a whole set, as in "
            "clean+vllm; measure a file of an earlier version again with `rserve calibrate`"
        )
    return entries


def _known_names() -> set[str]:
    return {field.name for field in fields(Constants)} - {"name"}


def _read_file(name: str) -> dict[str, Sourced]:
    path = set_path(name)
    if not path.is_file():
        raise ValueError(f"no constant set {name!r}; there are {', '.join(constant_sets())}")
    content = json.loads(path.read_text())
    entries = _read_file(content["extends"]) if "extends" in content else {}
    for key, entry in content["constants"].items():
        if key not in _known_names():
            raise ValueError(f"{path.name}: unknown constant {key!r}")
        if not entry.get("source"):
            raise ValueError(f"{path.name}: {key} has no source")
        entries[key] = Sourced(entry["value"], entry["unit"], entry["source"])
    return entries


def constants_from(name: str, entries: Mapping[str, Sourced]) -> Constants:
    """Build a set from its entries; utilisations become tables."""
    values: dict[str, object] = {key: entry.value for key, entry in entries.items()}
    for key in values:
        if key.endswith("_utilisation") and key != "memory_utilisation":
            values[key] = Table(tuple((float(x), float(y)) for x, y in values[key]))  # type: ignore[attr-defined]
    return Constants(name=name, **values)  # type: ignore[arg-type]


def load_constants(name: str) -> Constants:
    """The constants of a set; `name` as for `read_sourced`."""
    return constants_from(name, read_sourced(name))
