"""Operations and bytes of each step, and the least time they take: `python -m benchmarks.roofline`.

Counted from the model's shape; each step's bound on a device is the larger of operations / peak and bytes /
memory bandwidth. Weights are read once a step, activations once by each kernel that reads or writes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gllm.core.model_shape import PRESETS, ModelShape, TextShape
from rserve.sim.cost_model import attention_pairs
from rserve.sim.hardware import Hardware, load_hardware
from rserve.sim.vision_cost import item_flops

BYTES = 2  # bf16
MODELS = ("qwen2.5-vl-7b", "qwen2.5-vl-32b", "qwen2.5-vl-72b")
DEVICES = ("a100-40g-pcie", "h100", "h200")


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel, or one kind of kernel over all layers: floating-point operations and bytes moved."""

    name: str
    flops: float
    bytes: float

    def bound_s(self, device: Hardware) -> float:
        """The least time on a device."""
        return max(self.flops / device.peak_flops, self.bytes / device.memory_bandwidth)


@dataclass(frozen=True, slots=True)
class Step:
    """A micro-batch: chunks (start, length) of which each samples a token."""

    name: str
    chunks: tuple[tuple[int, int], ...]

    @property
    def num_tokens(self) -> int:
        return sum(length for _, length in self.chunks)


STEPS = (
    Step("prefill 2048", ((0, 2048),)),
    Step("prefill 2048 behind 14336", ((14336, 2048),)),
    Step("decode 1 at 1024", ((1023, 1),)),
    Step("decode 64 at 1024", ((1023, 1),) * 64),
    Step("decode 256 at 1024", ((1023, 1),) * 256),
)


def step_operations(text: TextShape, step: Step) -> list[Operation]:
    """All kernels of a step of the language model, by kind.

    One layer of the 7B model at 2,048 tokens: gate and up are 2 * 2048 * 3584 * 37888 = 0.56 TFLOP.
    """
    t, h, layers = step.num_tokens, text.hidden_size, text.num_layers
    q, kv, inner = text.num_heads * text.head_dim, text.num_kv_heads * text.head_dim, text.intermediate_size
    last = len(step.chunks)  # the last layer's MLP and output run for sampled rows only
    rows = t * (layers - 1) + last
    pairs = sum(attention_pairs(start, length) for start, length in step.chunks)
    seen = sum(start + length for start, length in step.chunks)
    return [
        _gemm("q, k, v", t * layers, layers, h, q + 2 * kv),
        Operation("rotary", 6.0 * t * layers * (q + kv), 2.0 * BYTES * t * layers * (q + kv)),
        Operation("write keys and values", 0.0, 4.0 * BYTES * t * layers * kv),
        Operation("attention", 4.0 * pairs * layers * q, layers * BYTES * (2.0 * t * q + 2.0 * seen * kv)),
        _gemm("attention out", rows, layers, q, h),
        _gemm("gate, up", rows, layers, h, 2 * inner),
        Operation("silu, product", 5.0 * rows * inner, 3.0 * BYTES * rows * inner),
        _gemm("down", rows, layers, inner, h),
        Operation("norms", 8.0 * t * layers * h, 7.0 * BYTES * t * layers * h),
        _gemm("head", last, 1, h, text.vocab_size),
    ]


def _gemm(name: str, rows: float, count: int, inputs: int, outputs: int) -> Operation:
    """`count` products with matrices [inputs, outputs], of `rows` rows in all."""
    moved = BYTES * (count * inputs * outputs + rows * (inputs + outputs))
    return Operation(name, 2.0 * rows * inputs * outputs, float(moved))


def encode_operation(shape: ModelShape, tokens: int) -> Operation:
    """One item of so many embeddings through the vision tower: weights once, activations of each layer."""
    assert shape.vision is not None
    vision = shape.vision
    patches = tokens * vision.merge_unit
    activations = patches * vision.depth * (12 * vision.hidden_size + 4 * vision.intermediate_size)
    moved = BYTES * (vision.num_params + activations)
    return Operation(f"encode {tokens}", item_flops(vision, tokens).total, float(moved))


def total(name: str, operations: Iterable[Operation]) -> Operation:
    """The sum of several operations, as if they overlapped perfectly."""
    listed = list(operations)
    return Operation(name, sum(o.flops for o in listed), sum(o.bytes for o in listed))


def serial_bound_s(operations: Iterable[Operation], device: Hardware) -> float:
    """The least time when kernels run one after another, as they do in one stream."""
    return sum(operation.bound_s(device) for operation in operations)


def steps_table(devices: Sequence[Hardware]) -> list[str]:
    """Markdown: each model's steps."""
    names = " | ".join(device.name for device in devices)
    lines = [f"| model | step | TFLOP | GB | {names} |", "|---" * (4 + len(devices)) + "|"]
    for model in MODELS:
        shape = PRESETS[model]
        rows = [(step.name, step_operations(shape.text, step)) for step in STEPS]
        rows.append(("encode 1080p (2691)", [encode_operation(shape, 2691)]))
        for name, operations in rows:
            whole = total(name, operations)
            bounds = " | ".join(f"{serial_bound_s(operations, d) * 1e3:.3g} ms" for d in devices)
            lines.append(
                f"| {model} | {name} | {whole.flops / 1e12:.3g} | {whole.bytes / 1e9:.3g} | {bounds} |"
            )
    return lines


def kernels_table(model: str, step: Step, devices: Sequence[Hardware]) -> list[str]:
    """Markdown: one step by kind of kernel."""
    names = " | ".join(device.name for device in devices)
    lines = [f"| {model}, {step.name} | GFLOP | MB | FLOP/B | {names} |", "|---" * (4 + len(devices)) + "|"]
    for operation in step_operations(PRESETS[model].text, step):
        bounds = " | ".join(f"{operation.bound_s(d) * 1e6:.0f} µs" for d in devices)
        intensity = operation.flops / max(operation.bytes, 1.0)
        lines.append(
            f"| {operation.name} | {operation.flops / 1e9:.1f} | {operation.bytes / 1e6:.0f} "
            f"| {intensity:.0f} | {bounds} |"
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="roofline", description=__doc__, allow_abbrev=False)
    parser.add_argument("--devices", default=",".join(DEVICES), help="default %(default)s")
    devices = [load_hardware(name) for name in parser.parse_args(arguments).devices.split(",")]
    print("\n".join(steps_table(devices)))
    for step in (STEPS[0], STEPS[3]):
        print("\n" + "\n".join(kernels_table(MODELS[0], step, devices)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
