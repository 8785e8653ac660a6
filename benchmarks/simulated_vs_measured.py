"""Does the simulator tell the truth? The four schemes, measured and simulated on the same arrivals.

    rserve calibrate --model small --dtype float32 -o results/this-machine.json
    python -m benchmarks.simulated_vs_measured --costs results/this-machine.json --out results

Every scheme serves the same requests at the same times, at rates that are shares of the capacity which the
calibrated costs predict for the schemes with an encoder rank: the encoder on one core, the language model on
the other, a thread each; `gllm` does both on one core. Then the simulator runs the same requests. Prints mean
and median TTFT and throughput of each, and their ratios; appends both lines of each point to
simulated-vs-measured.jsonl and writes simulated-vs-measured.md. A finished measurement is not repeated.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.alternate import run
from benchmarks.client import BenchSpec, result_line
from benchmarks.client.line import detail_fields
from benchmarks.overlap_bound import image_positions
from benchmarks.servers import ServerPlan, fast_dtype, running
from benchmarks.workloads import Prompt, Text
from benchmarks.workloads.pictures import encode_picture, random_picture
from benchmarks.workloads.words import random_words
from gllm.core.request import MMItem
from gllm.models.names import resolve_model
from rserve.sim.arrivals import poisson_arrivals
from rserve.sim.scenario import Scenario
from rserve.sim.simulator import simulate
from rserve.sim.workload import SimRequest

SCHEMES = ("gllm", "gllm-epd", "rserve-intra", "rserve")
LOADS = (0.4, 0.7, 0.95)
EXPERIMENT = "simulated-vs-measured"
QUANTITIES = {
    "mean_ttft_ms": "mean TTFT (ms)",
    "median_ttft_ms": "median TTFT (ms)",
    "input_throughput": "tokens/s",
}
LIMIT = 0.15


@dataclass(frozen=True)
class Shape:
    """What every request holds: pictures of side x side pixels first, then words."""

    images: int
    side: int
    words: int

    @property
    def item_tokens(self) -> int:
        return (self.side // 28) ** 2

    @property
    def name(self) -> str:
        return f"{self.images}x{self.side}px-{self.words}words"

    def prompts(self, count: int, seed: int) -> list[Prompt]:
        """Different pictures and words for every request; one output token."""
        rng = random.Random(seed)
        return [self._prompt(rng, index) for index in range(count)]

    def _prompt(self, rng: random.Random, index: int) -> Prompt:
        pictures = [encode_picture(random_picture(rng, self.side, self.side)) for _ in range(self.images)]
        return Prompt((*pictures, Text(random_words(rng, self.words))), 1, None, f"{self.name}-{index}")


@dataclass(frozen=True)
class Run:
    """One comparison: model and costs, and where lines go."""

    model: str
    costs: Path
    dtype: str
    shape: Shape
    requests: int
    seed: int
    out: Path

    @property
    def file(self) -> Path:
        return self.out / f"{EXPERIMENT}.jsonl"

    def scenario(self, scheme: str, rate: float) -> Scenario:
        """The deployment of `server_plan`, simulated."""
        return Scenario(
            model=str(resolve_model(self.model)),
            hardware=str(self.costs),
            costs=str(self.costs),
            dtype=self.dtype,
            scheme=scheme,
            pp=1,
            request_rate=rate,
            num_requests=self.requests,
            seed=self.seed,
            embedding_batch_size=self.shape.item_tokens,
            kv_tokens=16_384,
            page_size=16,
            experiment=EXPERIMENT,
        )

    def server_plan(self, scheme: str) -> ServerPlan:
        """One thread a rank, each on its own core."""
        flags = ["--scheme", scheme, "--dtype", self.dtype, "--num-kv-blocks", "1024"]
        flags += ["--threads-per-rank", "1", "--cpu-affinity"]
        if self.model != "tiny":
            flags += ["--load-format", "dummy"]
        if scheme != "gllm":
            flags += ["--embedding-batch-size", str(self.shape.item_tokens), "--embedding-gib", "0.25"]
        return ServerPlan(self.model, tuple(flags))

    def point(self, scheme: str, load: float) -> dict[str, Any]:
        """The fields that say which point a line is."""
        return {
            "experiment": EXPERIMENT,
            "workload": self.shape.name,
            "scheme": scheme,
            "load": load,
            "model": self.model,
            "num_prompts": self.requests,
            "seed": self.seed,
        }

    def capacity(self, prompt_len: int) -> float:
        """Requests/s of the busier of stage and encoder, where requests go through alone."""
        cost = self.scenario("rserve", 1.0).cost_model()
        items = [self.shape.item_tokens] * self.shape.images
        stage = cost.stage_time(0, [(0, prompt_len)], 1)
        return 1 / max(stage, sum(cost.encode_time([item]) for item in items))


def measure(this: Run, scheme: str, rates: dict[float, float], prompts: Sequence[Prompt]) -> None:
    """Serve all rates that have no line yet, on one server."""
    done = results.read_lines([this.file])
    missing = {
        load: rate
        for load, rate in rates.items()
        if not results.is_finished(done, {**this.point(scheme, load), "source": "measured"})
    }
    if not missing:
        return
    with running(this.server_plan(scheme), this.out / "logs") as server:
        for load, rate in missing.items():
            spec = BenchSpec(server.base_url, prompts, request_rate=rate, seed=this.seed, warmup_requests=2)
            result = run(replace(spec, progress=False))
            line = result_line(result, **(detail_fields(result) | this.point(scheme, load)))
            line["generated_texts"] = None
            results.append_line(this.file, line)
            print(f"measured {scheme} at {rate:.2f}/s: {line['mean_ttft_ms']:.0f} ms", flush=True)


def simulate_point(this: Run, measured: results.Line, prompts: Sequence[Prompt]) -> results.Line:
    """The line of the same requests at the same times in the simulator."""
    rate = results.rate_of(measured)
    arrivals = poisson_arrivals(this.requests, rate, this.seed)
    requests = [
        sim_request(index, arrivals[index], prompt, tokens)
        for index, (prompt, tokens) in enumerate(zip(prompts, measured["input_lens"]))
    ]
    simulated = simulate(this.scenario(measured["scheme"], rate), requests=requests)
    line = {**simulated.line, **this.point(measured["scheme"], measured["load"]), "costs": this.costs.name}
    line |= {"hardware": measured["hardware"], "commit": results.current_commit()}
    results.append_line(this.file, line)
    return line


def sim_request(index: int, arrival: float, prompt: Prompt, num_tokens: int) -> SimRequest:
    """A sent request as the simulator sees it; num_tokens: of its prompt, as the server counted."""
    counts = [(image.width // 28) * (image.height // 28) for image in prompt.images]
    at = image_positions(prompt, num_tokens, sum(counts))
    grids = [(1, image.height // 14, image.width // 14) for image in prompt.images]
    items = tuple(MMItem(*item) for item in zip(at, counts, grids))
    return SimRequest(str(index), arrival, num_tokens, items, prompt.output_len)


def table(pairs: Sequence[tuple[results.Line, results.Line]], title: str) -> str:
    """Markdown: a row for each point; a cell holds measured, simulated and simulated / measured."""
    head = ("scheme", "load", "requests/s", *QUANTITIES.values(), f"within {LIMIT:.0%}")
    rows = [title, "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for measured, simulated in pairs:
        cells = [measured["scheme"], f"{measured['load']:g}", f"{results.rate_of(measured):.2f}"]
        ratios = []
        for name in QUANTITIES:
            ratios.append(simulated[name] / measured[name])
            cells.append(f"{measured[name]:.0f} / {simulated[name]:.0f} = {ratios[-1]:.2f}")
        outside = [q for q, ratio in zip(("mean", "median", "tokens/s"), ratios) if abs(ratio - 1) > LIMIT]
        rows.append("| " + " | ".join([*cells, "not: " + ", ".join(outside) if outside else "yes"]) + " |")
    return "\n".join([*rows, ""])


def main(argv: list[str] | None = None) -> int:
    """Measure what is missing, simulate all, write both; 1 when a request failed."""
    args = build_parser().parse_args(argv)
    shape = Shape(args.images, args.side, args.words)
    this = Run(args.model, args.costs, args.dtype, shape, args.requests, args.seed, args.out)
    prompts = shape.prompts(args.requests, args.seed)
    expected = shape.images * (shape.item_tokens + 2) + shape.words + 8
    capacity = this.capacity(expected)
    rates = {load: float(f"{load * capacity:.3g}") for load in args.loads}
    print(f"capacity {capacity:.2f} requests/s; rates {list(rates.values())}", flush=True)
    for scheme in args.schemes:
        measure(this, scheme, rates, prompts)
    lines = results.read_lines([this.file])
    pairs = []
    for scheme in args.schemes:
        for load in args.loads:
            point = {**this.point(scheme, load), "source": "measured"}
            measured = results.select(lines, **point)[-1]
            pairs.append((measured, simulate_point(this, measured, prompts)))
    about = json.loads(args.costs.read_text())["about"]
    title = (
        f"`{this.model}` in {this.dtype}, {this.requests} requests of {shape.name}, "
        f"{pairs[0][0]['hardware']}, commit {results.current_commit()}. "
        f"Cells: measured / simulated = ratio. {about}"
    )
    text = table(pairs, title)
    (args.out / f"{EXPERIMENT}.md").write_text(text)
    print(text)
    return 1 if any(measured["failed"] for measured, _ in pairs) else 0


def build_parser() -> argparse.ArgumentParser:
    """All flags."""
    parser = argparse.ArgumentParser(
        prog="simulated_vs_measured", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--costs", type=Path, required=True, help="a file written by `rserve calibrate`")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--model", default="small")
    parser.add_argument("--dtype", default=fast_dtype(), help="as calibrated (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=50, help="at each rate (default: %(default)s)")
    parser.add_argument("--images", type=int, default=4, help="of a request (default: %(default)s)")
    parser.add_argument("--side", type=int, default=224, help="of an image, in pixels (default: %(default)s)")
    parser.add_argument("--words", type=int, default=64, help="of a request (default: %(default)s)")
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS), help="default: 0.4 0.7 0.95")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES), help="default: all")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and pictures (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
