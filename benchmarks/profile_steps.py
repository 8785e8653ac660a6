"""Where the milliseconds of one prefill, one decode and one encode go, against the peak of this machine.

    python -m benchmarks.profile_steps --out results

Each step runs alone on one thread (`--threads`), several times for its CPU time and once under torch's
profiler for the shares of its parts. The peak is the fastest matrix product of the same run. FLOPs are those
of the matrix products of the shape; the rest of a step is what a faster implementation could still save.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import results
from benchmarks.servers import fast_dtype
from gllm.config import ModelConfig
from gllm.core.model_shape import ModelShape
from gllm.layers.gemm import linear
from gllm.models.names import resolve_model
from gllm.models.shape_file import read_shape
from gllm.runtime.loading import torch_dtype
from rserve.config import RServeConfig
from rserve.runtime.step_bench import EncoderBench, Span, StageBench

PARTS = {
    "matrix products": ("linear", "addmm", "mm", "matmul", "mkldnn"),
    "attention": ("scaled_dot_product", "bmm", "baddbmm", "softmax"),
    "weights to fp32": ("to", "_to_copy"),
    "norm, rotary, activation": (
        "mul",
        "add",
        "rms_norm",
        "silu",
        "pow",
        "mean",
        "rsqrt",
        "neg",
        "cat",
        "sub",
    ),
    "cache and gathers": ("index", "copy_", "index_put", "index_select", "embedding", "scatter", "gather"),
}
OTHER = "other operators"
PYTHON = "Python and dispatch"


@dataclass(frozen=True)
class Step:
    """A step to profile: its work, and the FLOPs of its matrix products."""

    name: str
    run: Callable[[], object]
    flops: float


@dataclass(frozen=True)
class Profiled:
    """Milliseconds of a step, of each of its parts, and the share of the peak that its products reach."""

    name: str
    ms: float
    gflops: float
    parts: dict[str, float]


def gemm_peak(dtype: str, repeats: int = 12) -> float:
    """GFLOP/s of the best matrix product here: K 1024, N 2816, several numbers of rows."""
    weight = torch.randn(2816, 1024).to(torch_dtype(dtype))
    best = 0.0
    with torch.inference_mode():
        for rows in (256, 512, 1024):
            x = torch.randn(rows, 1024).to(weight.dtype)
            seconds = min(_seconds(lambda x=x: linear(x, weight, None)) for _ in range(repeats))
            best = max(best, 2 * rows * 1024 * 2816 / seconds / 1e9)
    return best


def steps(config: RServeConfig, tokens: int, batch: int) -> list[Step]:
    """A prefill of a whole prompt and of a chunk behind it, decodes alone and together, an encoded image."""
    shape = read_shape(resolve_model(config.model.model))
    stage = StageBench(config, (tokens + 16) * batch)
    encoder = EncoderBench(config)
    text = shape.text
    q, kv = text.num_heads * text.head_dim, text.num_kv_heads * text.head_dim
    layer = 2.0 * text.hidden_size * (2 * q + 2 * kv + 3 * text.intermediate_size)
    head = 2.0 * text.hidden_size * text.vocab_size
    last = layer * (text.num_layers - 1)

    def prefill(spans: Sequence[Span]) -> Step:
        """The last layer computes only keys and values of all rows, and the rest of the sampled ones."""
        rows = sum(span.length for span in spans)
        kept = 2.0 * text.hidden_size * (q + 2 * kv) * rows + layer * len(spans)
        start = f" after {spans[0].start}" if spans[0].start else ""
        name = f"prefill of {rows} tokens{start}"
        return Step(name, lambda: stage.run(spans), rows * last + kept + head * len(spans))

    def decode(count: int) -> Step:
        spans = [Span(tokens, 1)] * count
        name = f"decode of {count} at {tokens} tokens"
        return Step(name, lambda: stage.run(spans), count * (layer * text.num_layers + head))

    chunk = Span(tokens - 256, 256)
    found = [prefill([Span(0, tokens)]), prefill([chunk]), decode(1), decode(batch)]
    return [*found, Step("encode of 448×448", lambda: encoder.run([256]), _tower_flops(shape))]


def profile_step(step: Step, repeats: int) -> Profiled:
    """Median time without the profiler; the parts' shares with it, scaled to that time."""
    with torch.inference_mode():
        step.run()
        times = [_seconds(step.run) for _ in range(repeats)]
        with profile(activities=[ProfilerActivity.CPU]) as record:
            wall = _seconds(step.run)
    by_name = {event.key: event.self_cpu_time_total / 1e6 for event in record.key_averages()}
    parts = dict.fromkeys((*PARTS, OTHER), 0.0)
    for name, seconds in by_name.items():
        parts[_part_of(name)] += seconds
    parts[PYTHON] = max(0.0, wall - sum(parts.values()))
    ms = statistics.median(times) * 1e3
    total = sum(parts.values())
    return Profiled(
        step.name, ms, step.flops / ms / 1e6, {part: ms * value / total for part, value in parts.items()}
    )


def table(profiled: Sequence[Profiled], peak: float, title: str) -> str:
    """Markdown: a row for each step."""
    names = [name for name in (*PARTS, OTHER, PYTHON) if any(p.parts[name] >= 0.05 for p in profiled)]
    head = ("step", "ms", "GFLOP/s", "of the peak", *names)
    rows = [title, "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for found in profiled:
        cells = [found.name, f"{found.ms:.1f}", f"{found.gflops:.1f}", f"{found.gflops / peak:.0%}"]
        rows.append("| " + " | ".join([*cells, *(f"{found.parts[name]:.1f}" for name in names)]) + " |")
    return "\n".join([*rows, ""])


def _part_of(name: str) -> str:
    short = name.rpartition("::")[2].strip("_")
    for part, words in PARTS.items():
        exact = part in ("weights to fp32", "norm, rotary, activation", "cache and gathers")
        if any(
            short.startswith(word.strip("_")) if not exact else short == word.strip("_") for word in words
        ):
            return part
    return OTHER


def _tower_flops(shape: ModelShape) -> float:
    from rserve.sim.vision_cost import item_flops

    assert shape.vision is not None
    return item_flops(shape.vision, 256).gemm


def _seconds(call: Callable[[], object]) -> float:
    """CPU time of one thread, so that other processes do not count; wall time of several."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    call()
    return clock() - start


def main(argv: list[str] | None = None) -> int:
    """Print the table and append lines."""
    parser = argparse.ArgumentParser(prog="profile_steps", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--model", default="small", help="a model that ships with us (default %(default)s)")
    parser.add_argument("--dtype", default=fast_dtype(), help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1307, help="of a prompt (default %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="decodes together (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    config = RServeConfig(model=ModelConfig(model=args.model, dtype=args.dtype, load_format="dummy"))
    peak = gemm_peak(args.dtype)
    found = [profile_step(step, args.repeats) for step in steps(config, args.tokens, args.batch)]
    title = (
        f"`{args.model}` in {args.dtype}, {args.threads} thread(s), {results.hardware_name()}, "
        f"commit {results.current_commit()}; peak of a matrix product in this run: {peak:.0f} GFLOP/s"
    )
    text = table(found, peak, title)
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"profile-{args.model}-{args.dtype}-{args.threads}.md").write_text(text)
    for step in found:
        line = {
            "experiment": "profile",
            "source": "measured",
            "model": args.model,
            "dtype": args.dtype,
            "threads": args.threads,
            "step": step.name,
            "step_ms": step.ms,
            "gflops": step.gflops,
            "peak_gflops": peak,
            "parts_ms": json.loads(json.dumps(step.parts)),
            "hardware": results.hardware_name(),
            "commit": results.current_commit(),
        }
        results.append_line(args.out / "costs.jsonl", line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
