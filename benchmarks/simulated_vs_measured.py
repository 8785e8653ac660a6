"""Does the simulator tell the truth? The four schemes, measured and simulated on the same arrivals.

    rserve calibrate --model small --dtype float32 -o results/this-machine.json
    python -m benchmarks.simulated_vs_measured --costs results/this-machine.json --out results

Every scheme serves the same requests at the same times, at rates that are shares of the capacity which the
calibrated costs predict for the schemes with an encoder rank: the encoder on one core, the language model on
the other, a thread each; `gllm` does both on one core. All servers run at once and take turns; an idle one
uses no CPU, which is checked. Then the simulator runs the same requests.

The machine's speed is not the calibration's. Servers write traces; from them come the micro-batches and
encoder batches of each point, and what they took over what the cost model gives the same ones: the
`slowness` of stage and encoder, with the least and the most of the run's quarters. Each point is simulated
twice, as calibrated and on a machine slower by both. Prints mean and median TTFT and throughput, measured and
simulated; appends the lines of each point to simulated-vs-measured.jsonl and writes simulated-vs-measured.md.
A finished measurement is not repeated.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.alternate import rotated, run
from benchmarks.client import BenchSpec, result_line
from benchmarks.client.line import detail_fields
from benchmarks.overlap import check_idle
from benchmarks.overlap_bound import image_positions
from benchmarks.overlap_plan import LOADS
from benchmarks.servers import Server, ServerPlan, all_running, core_per_rank, fast_dtype, weight_flags
from benchmarks.simulated_table import QUANTITIES, table
from benchmarks.traced_steps import Steps, Window, read_steps
from benchmarks.workloads import Prompt, Text
from benchmarks.workloads.pictures import encode_picture, random_picture
from benchmarks.workloads.words import random_words
from gllm.core.request import MMItem
from rserve.calibration.constant_set import slowed
from rserve.core.epd_core import SCHEMES
from rserve.sim.arrivals import poisson_arrivals
from rserve.sim.scenario import Scenario
from rserve.sim.simulator import simulate
from rserve.sim.workload import SimRequest

EXPERIMENT = "simulated-vs-measured"
QUARTERS = 4


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
            model=self.model,
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

    def server_plan(self, scheme: str, trace: Path) -> ServerPlan:
        """One thread a rank, each on its own core."""
        ranks = core_per_rank(scheme, self.shape.item_tokens)
        flags = ("--dtype", self.dtype, "--num-kv-blocks", "1024", "--trace", str(trace))
        return ServerPlan(self.model, (*ranks, *flags, *weight_flags(self.model)))

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


def measure(this: Run, schemes: Sequence[str], rates: dict[float, float], prompts: Sequence[Prompt]) -> None:
    """Serve all points that have no line yet, rate by rate, the schemes in turn; then write their lines."""
    lines = results.read_lines([this.file])

    def is_missing(scheme: str, load: float) -> bool:
        return not results.is_finished(lines, {**this.point(scheme, load), "source": "measured"})

    missing = [scheme for scheme in schemes if any(is_missing(scheme, load) for load in rates)]
    if not missing:
        return
    traces = {scheme: this.out / "traces" / f"{EXPERIMENT}-{scheme}.json" for scheme in missing}
    for trace in traces.values():
        trace.parent.mkdir(parents=True, exist_ok=True)
    plans = [this.server_plan(scheme, trace.resolve()) for scheme, trace in traces.items()]
    served: list[tuple[results.Line, Window]] = []
    try:
        with all_running(plans, this.out / "logs") as servers:
            check_idle(servers)
            for index, (load, rate) in enumerate(rates.items()):
                for turn in rotated(len(missing), index):
                    if is_missing(missing[turn], load):
                        point = this.point(missing[turn], load)
                        served.append(serve(this, servers[turn], rate, prompts, point))
    finally:
        for line, window in served:
            steps = read_steps(traces[line["scheme"]], window)
            results.append_line(this.file, {**line, **steps.as_fields()})


def serve(
    this: Run, server: Server, rate: float, prompts: Sequence[Prompt], point: dict[str, Any]
) -> tuple[results.Line, Window]:
    """The line of one server at one rate, and when that was. point: what says which line it is."""
    spec = BenchSpec(
        server.base_url, prompts, request_rate=rate, seed=this.seed, warmup_requests=2, progress=False
    )
    start = time.monotonic()
    result = run(spec)
    line = result_line(result, **(detail_fields(result) | point)) | {"generated_texts": None}
    print(f"{point['scheme']} at {rate:.2f}/s: {line['mean_ttft_ms']:.0f} ms", flush=True)
    return line, (start, time.monotonic())


def simulate_point(this: Run, measured: results.Line, prompts: Sequence[Prompt]) -> results.Line:
    """The line of the same requests in the simulator; under *_scaled, at the speed that its steps had."""
    scheme, rate = measured["scheme"], results.rate_of(measured)
    arrivals = poisson_arrivals(this.requests, rate, this.seed)
    requests = [
        sim_request(index, arrivals[index], prompt, tokens)
        for index, (prompt, tokens) in enumerate(zip(prompts, measured["input_lens"]))
    ]
    scenario = this.scenario(scheme, rate)
    steps, cost = Steps.of(measured), scenario.cost_model()
    stage, encoder = steps.slowness(cost)
    stages, encoders = zip(*(part.slowness(cost) for part in steps.parts(QUARTERS)))
    line = {**simulate(scenario, requests=requests).line}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / this.costs.name
        file.write_text(json.dumps(slowed(json.loads(this.costs.read_text()), stage, encoder)))
        scaled = simulate(replace(scenario, hardware=str(file), costs=str(file)), requests=requests).line
    line |= {**this.point(scheme, measured["load"]), "costs": this.costs.name}
    line |= {"stage_slowness": stage, "stage_slowness_of_quarters": stages}
    line |= {"encoder_slowness": encoder, "encoder_slowness_of_quarters": encoders}
    line |= {"hardware": measured["hardware"], "commit": results.current_commit()}
    line |= {f"{name}_scaled": scaled[name] for name in QUANTITIES}
    results.append_line(this.file, line)
    return line


def sim_request(index: int, arrival: float, prompt: Prompt, num_tokens: int) -> SimRequest:
    """A sent request as the simulator sees it; num_tokens: of its prompt, as the server counted."""
    counts = [(image.width // 28) * (image.height // 28) for image in prompt.images]
    at = image_positions(prompt, num_tokens, sum(counts))
    grids = [(1, image.height // 14, image.width // 14) for image in prompt.images]
    items = tuple(MMItem(*item) for item in zip(at, counts, grids))
    return SimRequest(str(index), arrival, num_tokens, items, prompt.output_len)


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
    measure(this, args.schemes, rates, prompts)
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
        f"{pairs[0][0]['hardware']}, commit {pairs[0][0]['commit']}. "
        f"Cells: measured / simulated = ratio, then that at the speed which its steps had. {about}"
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
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS), help="default: 0.4 0.7 0.9")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES), help="default: all")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and pictures (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
