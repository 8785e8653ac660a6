"""Compiles every kernel for A100 and H100 without having one: `python -m tests.kernels.compile_all`.

One JSON line for each: kernel, target, shared memory in bytes, registers spilled. The interpreter does not
check types as the compiler does; this does.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gllm.layers.kernels import (
    kv_write,
    paged_decode,
    paged_prefill,
    rms_norm,
    rotary,
    silu_mul,
    vision_varlen,
)

TARGETS = {"a100": 80, "h100": 90}
HALF = "*bf16"


@dataclass(frozen=True)
class Build:
    """A kernel, types of its run-time arguments by name ("fp32" unless named), and its constants."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 3


def builds() -> Iterator[Build]:
    ints = dict.fromkeys(("q_row", "q_head", "k_row", "k_head", "v_row", "v_head"), "i32")
    paged = {
        **ints, "q_ptr": HALF, "k_ptr": HALF, "v_ptr": HALF, "out_ptr": HALF, "cu_query_ptr": "*i32",
        "seq_kv_ptr": "*i32", "tables_ptr": "*i32", "kv_slot": "i32", "kv_head": "i32", "table_row": "i32",
        "heads": "i32", "splits": "i32", "part_ptr": "*fp32", "weight_ptr": "*fp32", "cu_ptr": "*i32",
        "order_ptr": "*i64",
    }  # fmt: skip
    for dim, width in ((128, 128), (80, 128), (64, 64)):
        tile = {"DIM": dim, "WIDTH": width, "KEYS": 64, "WIDEN": False}
        prefill = {**tile, "GROUP": 7, "PAGE": 16}
        yield Build(f"prefill d{dim}", paged_prefill._prefill, paged, {**prefill, "ROWS": 128}, 8, 5)
        yield Build(f"short prefill d{dim}", paged_prefill._prefill, paged, {**prefill, "ROWS": 16}, 4, 5)
        for whole in (True, False):
            constants = {**prefill, "ROWS": 16, "WHOLE": whole}
            yield Build(f"decode d{dim}, whole: {whole}", paged_decode._decode, paged, constants, 4, 5)
        small = {**prefill, "ROWS": 64}
        yield Build(f"prefill d{dim}, small memory", paged_prefill._prefill, paged, small, 4, 2)
        small = {**prefill, "ROWS": 16, "WHOLE": False}
        yield Build(f"decode d{dim}, small memory", paged_decode._decode, paged, small, 4, 2)
        for ordered in (True, False):
            constants = {**tile, "ROWS": 128, "ORDERED": ordered}
            yield Build(f"vision d{dim}, in order: {ordered}", vision_varlen._varlen, paged, constants, 8, 2)
    join = {"DIM": 128, "PARTS": 8, "WIDTH": 128}
    yield Build("join", paged_decode._join, paged, join)
    fp32_tile = {"GROUP": 7, "DIM": 128, "PAGE": 16, "ROWS": 32, "KEYS": 32, "WIDTH": 128, "WIDEN": False}
    fp32 = {name: kind.replace("bf16", "fp32") for name, kind in paged.items()}
    yield Build("prefill fp32", paged_prefill._prefill, fp32, fp32_tile, stages=1)
    norm = {"x_ptr": HALF, "residual_ptr": HALF, "weight_ptr": HALF, "out_ptr": HALF, "x_row": "i32",
            "residual_row": "i32"}  # fmt: skip
    yield Build("rms_norm", rms_norm._rms_norm, norm, {"WIDTH": 3584, "BLOCK": 4096, "ADD": True}, 8)
    yield Build("silu_mul", silu_mul._silu_mul, {"gate_up_ptr": HALF, "row_stride": "i32"},
                {"WIDTH": 18944, "BLOCK": 1024})  # fmt: skip
    turn = {**ints, "q_ptr": HALF, "k_ptr": HALF, "cos_ptr": "*fp32", "sin_ptr": "*fp32"}
    heads = {"NUM_Q": 28, "NUM_HEADS": 32, "HALF": 64, "BLOCK": 64, "HEADS": 8}
    yield Build("rotate", rotary._turn, turn, heads)
    angles = {"positions_ptr": "*i64", "inv_freq_ptr": "*fp32", "cos_ptr": "*fp32", "sin_ptr": "*fp32",
              "axis_stride": "i32"}  # fmt: skip
    yield Build("cos_sin", rotary._cos_sin, angles, {"FIRST": 16, "SECOND": 40, "HALF": 64, "BLOCK": 64})
    cache = {**dict.fromkeys(("k_ptr", "v_ptr", "k_cache_ptr", "v_cache_ptr"), HALF), "slots_ptr": "*i64",
             "k_row": "i32", "v_row": "i32"}  # fmt: skip
    yield Build("kv_write", kv_write._kv_write, cache, {"WIDTH": 512, "BLOCK": 512})


def compile_for(build: Build, capability: int) -> dict[str, Any]:
    """Raises what Triton raises where a kernel does not compile."""
    names = build.kernel.arg_names
    signature = {
        name: "constexpr" if name in build.constants else build.types.get(name, "fp32") for name in names
    }
    constants = {(names.index(name),): value for name, value in build.constants.items()}
    plain = (
        "constexpr",
        "fp32",
    )  # Triton marks pointers and integers that are multiples of 16 when it launches
    free = {parameter.name for parameter in build.kernel.params if parameter.do_not_specialize}
    free |= {p.name for p in build.kernel.params if p.do_not_specialize_on_alignment}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(names)
        if signature[n] not in plain and n not in free
    }
    source = ASTSource(build.kernel, signature, constants, aligned)
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target, {"num_warps": build.warps, "num_stages": build.stages})
    return {"shared": compiled.metadata.shared, "tensor_cores": bool(re.search("mma", compiled.asm["ptx"]))}


def main(arguments: Sequence[str]) -> int:
    """Arguments: targets (all by default)."""
    for build in builds():
        for name in arguments or TARGETS:
            capability = TARGETS[name]
            found = compile_for(build, capability)
            print(json.dumps({"kernel": build.name, "target": name, **found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
