"""Is the overlap real? The schemes on two cores of this machine, on identical arrivals, interleaved.

    python -m benchmarks.overlap --out results            every scheme, both workloads (hours)
    python -m benchmarks.overlap --out results --quick    gllm-epd and rserve, one workload (8 minutes)
    python -m benchmarks.overlap --out results --workloads peers --schemes rserve vllm-epd --base vllm-epd \
        --vllm /tmp/vllm-env --model /tmp/small           vLLM (see vllm_env.sh and checkpoint.py)

The encoder rank has one core and the language model (pp 1) the other, one pinned thread each; `gllm` has
both cores. All servers run at once, and only one of them has requests at any time: an idle server uses no
CPU, which is checked. First the parts are measured (prefill by length, encoding of an image), from which the
lower bound follows; then requests one at a time, in turn at every server; then Poisson arrivals at shares of
the capacity and all requests at once. Writes overlap.jsonl, overlap-WORKLOAD.md and the figure. The plan is
kept beside them: a finished point is not measured again, and more --repeats add to those there, of fewer
schemes or rates if so wished.

The token budget is 512 for all our schemes: a core computes each of 64 tokens as fast as each of 2,048, and
in a larger micro-batch requests only wait for one another.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.alternate import one_at_a_time, rotated, run
from benchmarks.client import BenchResult, BenchSpec, result_line
from benchmarks.client.line import detail_fields
from benchmarks.overlap_bound import Parts, fit_prefill, image_positions
from benchmarks.overlap_plan import LOADS, QUICK_LOADS, VLLM, Deployment, Saved, Wish, make_plan
from benchmarks.overlap_table import BASE, write_table
from benchmarks.overlap_workloads import WORKLOADS, OverlapWorkload, text_probe
from benchmarks.servers import Server, all_running, fast_dtype, model_folder
from benchmarks.workloads import Prompt
from plots import overlap as figure
from rserve.core.epd_core import SCHEMES

QUICK_MINUTES = 6.0
PROBES = 2
WARM_UP = 2


@dataclass(frozen=True)
class Session:
    """One workload at its running servers, by scheme. model: its name."""

    deployment: Deployment
    servers: dict[str, Server]
    model: str
    out: Path
    seed: int

    @property
    def workload(self) -> OverlapWorkload:
        return self.deployment.workload

    @property
    def file(self) -> Path:
        return self.out / "overlap.jsonl"

    def spec(self, scheme: str, **fields: Any) -> BenchSpec:
        """No warm-up: vLLM would keep the embeddings of its images, see `warm_up`."""
        backend = "vllm-chat" if scheme == VLLM else "rserve"
        url = self.servers[scheme].base_url
        return BenchSpec(url, prompts=[], backend=backend, timeout_s=1800, warmup_requests=0, **fields)

    def prompts(self, count: int, repeat: int, point: int) -> list[Prompt]:
        """New pictures for every point, the same ones at every scheme: some engines know an image again."""
        return self.workload.make(count, self.seed + 1000 * repeat + point)

    def point(self, scheme: str, rate: float, alone: bool, repeat: int) -> dict[str, Any]:
        """The fields that say which point a line is."""
        return {
            "experiment": "overlap",
            "workload": self.workload.name,
            "model": self.model,
            "dtype": self.deployment.dtype,
            "token_budget": None if scheme == VLLM else self.deployment.token_budget,
            "scheme": scheme,
            "request_rate": rate,
            "max_concurrency": 1 if alone else None,
            "repeat": repeat,
        }

    def is_finished(self, point: dict[str, Any]) -> bool:
        return results.is_finished(results.read_lines([self.file]), point)

    def save(self, result: BenchResult, point: dict[str, Any], parts: Parts) -> None:
        """Append the line of a point, with the bound of each request beside what it took."""
        details = detail_fields(result) | {"generated_texts": None}
        line = result_line(result, **(details | parts.as_fields() | point))
        requests = [_sizes(record, prompt) for record, prompt in zip(result.records, result.spec.prompts)]
        line["image_positions"] = [positions for _, positions in requests]
        if point["scheme"] not in ("gllm", VLLM):
            bounds = [parts.bound(tokens, positions) * 1e3 for tokens, positions in requests]
            line["bound_ttft_ms"] = statistics.fmean(bounds) if point["max_concurrency"] else None
            line["bounds_ms"] = bounds
            line["bound_throughput"] = parts.throughput([(tokens, len(at)) for tokens, at in requests])
        results.append_line(self.file, line)


def main(argv: list[str] | None = None) -> int:
    """Measure, write, print the tables; 1 when a request failed."""
    parser = build_parser()
    args = parser.parse_args(argv)
    wish = _wish(args)
    if VLLM in wish.schemes and args.vllm is None:
        parser.error(f"{VLLM} needs --vllm ENV (see benchmarks/vllm_env.sh)")
    failed = 0
    for name in args.workloads or (["peers"] if args.quick else ["peers", "vision"]):
        workload = WORKLOADS[name]
        deployment = Deployment(workload, args.dtype, args.token_budget, args.model, args.vllm)
        plans = [deployment.plan(scheme) for scheme in wish.schemes]
        print(f"== {name}: starting {', '.join(plan.shown for plan in plans)}", flush=True)
        model = model_folder(args.model or workload.model).name
        with all_running(plans, args.out / "logs") as servers:
            session = Session(deployment, dict(zip(wish.schemes, servers)), model, args.out, args.seed)
            warm_up(session)
            check_idle(servers)
            measure(session, wish)
        lines = results.select(results.read_lines([session.file]), experiment="overlap", workload=name)
        lines = results.select(lines, model=model, dtype=args.dtype, token_budget=(args.token_budget, None))
        failed += sum(line["failed"] for line in lines)
        print(write_table(lines, args.out / f"overlap-{name}.md", args.base))
    for path in figure.draw(results.read_lines([args.out]), args.out / "figures"):
        print(path)
    return 1 if failed else 0


def warm_up(session: Session) -> None:
    """Requests that nothing measures: first ones allocate and import."""
    prompts = session.workload.make(WARM_UP, session.seed + 999)
    for result in one_at_a_time([session.spec(scheme) for scheme in session.servers], prompts):
        _raise_if_failed(result)


def measure(session: Session, wish: Wish) -> None:
    """All points of one workload that are not finished yet."""
    path = session.out / f"overlap-{session.workload.name}-{session.model}-plan.json"
    saved = Saved.read(path)
    parts = measure_parts(session) if saved is None else saved.parts
    sample = session.workload.make(8, session.seed)
    images = statistics.fmean(len(prompt.images) for prompt in sample)
    tokens = images * (session.workload.batch_tokens + 2) + len(sample[0].text.split()) + 20
    wished = make_plan(wish, parts, round(tokens), round(images))
    if saved is None:
        saved = Saved(wished, parts)
        saved.write(path)
    plan = replace(saved.plan, repeats=wished.repeats, rates=wished.rates)
    print(f"parts: {saved.parts.as_fields()}\nplan: {plan}", flush=True)
    points = plan.repeats * (1 + len(plan.rates))
    started = time.perf_counter()
    for repeat in range(plan.repeats):
        _alone(session, saved, session.prompts(plan.alone, repeat, 0), repeat)
        for index, rate in enumerate(plan.rates):
            prompts = session.prompts(plan.at_rate, repeat, 1 + index)
            for number in rotated(len(session.servers), repeat + index):
                scheme = list(session.servers)[number]
                _at_rate(session, saved, (scheme, rate, repeat), prompts)
            done = repeat * (1 + len(plan.rates)) + index + 2
            left = (time.perf_counter() - started) / done * (points - done)
            print(
                f"{session.workload.name}: {done}/{points} rounds, about {left / 60:.0f} min left", flush=True
            )


def measure_parts(session: Session) -> Parts:
    """Prefill and encode times on the idle server of gllm-epd (or whichever has an encoder rank).

    An image by itself is encoded before anything is prefilled. Of several, only gllm-epd encodes all before
    it prefills; a scheme that overlaps the two would hide most of the encoding.
    """
    scheme = next(name for name in ("gllm-epd", *session.servers) if name in session.servers)
    spec = session.spec(scheme)
    texts = [text_probe(n, words) for words in session.workload.text_probes() for n in range(PROBES)]
    (text,) = one_at_a_time([spec], texts)
    _raise_if_failed(text)
    prefill = fit_prefill([(record.prompt_tokens or 1, record.ttft) for record in text.records])
    best = math.inf
    for count in (1, 4) if scheme == "gllm-epd" else (1,):
        probes = [session.workload.image_probe(n, count) for n in range(PROBES)]
        (images,) = one_at_a_time([spec], probes)
        _raise_if_failed(images)
        times = [record.ttft - prefill.ttft(record.prompt_tokens or 1) for record in images.records]
        best = min(best, statistics.median(times) / count)
    return replace(prefill, encode=max(best, 0.0))


def check_idle(servers: Sequence[Server], seconds: float = 2.0) -> None:
    """Servers without requests must not take CPU from the one that has some. Raises RuntimeError."""
    before = [server.cpu_seconds() for server in servers]
    time.sleep(seconds)
    for server, used in zip(servers, before):
        share = (server.cpu_seconds() - used) / seconds
        if share > 0.1:
            raise RuntimeError(
                f"{server.base_url} uses {share:.0%} of a core without requests: not comparable"
            )


def _alone(session: Session, saved: Saved, prompts: list[Prompt], repeat: int) -> None:
    schemes = list(session.servers)
    points = [session.point(scheme, math.inf, True, repeat) for scheme in schemes]
    if all(session.is_finished(point) for point in points):
        return
    specs = [session.spec(scheme) for scheme in schemes]
    for result, point in zip(one_at_a_time(specs, prompts), points):
        session.save(result, point, saved.parts)
        _tell(result, point)


def _at_rate(session: Session, saved: Saved, which: tuple[str, float, int], prompts: list[Prompt]) -> None:
    scheme, rate, repeat = which
    point = session.point(scheme, rate, False, repeat)
    if session.is_finished(point):
        return
    spec = session.spec(scheme, request_rate=rate, seed=session.seed + repeat, progress=False)
    result = run(replace(spec, prompts=prompts))
    session.save(result, point, saved.parts)
    _tell(result, point)


def _tell(result: BenchResult, point: dict[str, Any]) -> None:
    found = result.metrics()
    rate = "all at once" if math.isinf(point["request_rate"]) else f"{point['request_rate']:g}/s"
    when = "one at a time" if point["max_concurrency"] else rate
    ttft = found["mean_ttft_ms"]
    print(
        f"{point['workload']} {point['scheme']:>12} {when:>14} #{point['repeat']}: "
        f"TTFT {'–' if ttft is None else f'{ttft:.0f} ms'}, {found['input_throughput']:.0f} tokens/s"
        + (f", {result.failed} FAILED" if result.failed else ""),
        flush=True,
    )


def _sizes(record: Any, prompt: Any) -> tuple[int, list[int]]:
    tokens = record.prompt_tokens or 1
    return tokens, image_positions(prompt, tokens, record.vision_tokens or 0)


def _raise_if_failed(result: BenchResult) -> None:
    for record in result.records:
        if not record.ok:
            raise RuntimeError(f"a probe failed: {record.error}")


def _wish(args: argparse.Namespace) -> Wish:
    schemes = args.schemes or (["gllm-epd", "rserve"] if args.quick else list(SCHEMES))
    loads = args.loads if args.loads is not None else (QUICK_LOADS if args.quick else LOADS)
    minutes = args.minutes or (QUICK_MINUTES if args.quick else None)
    repeats = args.repeats or (1 if args.quick else 3)
    return Wish(schemes, repeats, loads, not args.no_saturation, minutes, args.requests)


def build_parser() -> argparse.ArgumentParser:
    """All flags."""
    parser = argparse.ArgumentParser(prog="overlap", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="gllm-epd and rserve, one workload, one repeat")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, help="default: peers and vision")
    parser.add_argument("--schemes", nargs="+", choices=(*SCHEMES, VLLM), help="default: our four")
    parser.add_argument("--base", default=BASE, help="the scheme of the ratios (default %(default)s)")
    parser.add_argument(
        "--token-budget", type=int, default=512, help="of a micro-batch, of ours (default %(default)s)"
    )
    parser.add_argument("--vllm", type=Path, metavar="ENV", help="for vllm-epd: its environment")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (default 3)")
    parser.add_argument(
        "--loads", type=float, nargs="*", help=f"rates as shares of the capacity (default {LOADS})"
    )
    parser.add_argument("--no-saturation", action="store_true", help="leave out all requests at once")
    parser.add_argument(
        "--requests", type=int, help="at each rate (default: what the minutes allow, at most 50)"
    )
    parser.add_argument("--minutes", type=float, help="about how long each workload may take")
    parser.add_argument(
        "--dtype", default=fast_dtype(), help="(default: %(default)s, this machine's fast one)"
    )
    parser.add_argument("--model", help="instead of the workload's own, such as tiny or a folder")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and pictures (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
