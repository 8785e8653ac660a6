"""What one overlap run measures: deployments, rates, and how many requests the time limit allows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.overlap_bound import Parts
from benchmarks.overlap_workloads import OverlapWorkload
from benchmarks.servers import ServerPlan, core_per_rank, model_folder, weight_flags
from benchmarks.vllm_peer import vllm_plan

VLLM = "vllm-epd"  # vLLM's encoder disaggregation, on the same cores
LOADS = (0.4, 0.7, 0.9)  # rates as shares of what the busiest device can do
QUICK_LOADS = (0.4,)


@dataclass(frozen=True)
class Deployment:
    """What all schemes of a workload are served with, on two cores.

    token_budget: of a micro-batch; vLLM keeps its own. model: instead of the workload's. vllm: the
    environment of `vllm-epd`.
    """

    workload: OverlapWorkload
    dtype: str
    token_budget: int
    model: str | None = None
    vllm: Path | None = None

    def plan(self, scheme: str) -> ServerPlan:
        """The server of one scheme.

        With encoder ranks: the language model on the first core, the encoder on the second, a thread each.
        `gllm` has both cores, two threads: what disaggregation on one machine competes with.
        """
        model = self.model or self.workload.model
        if self.vllm is not None and scheme == VLLM:
            return vllm_plan(self.vllm, str(model_folder(model)), self.dtype, range(1), range(1, 2), kv_gib=1)
        both_cores = ("--scheme", scheme, "--threads-per-rank", "2")
        ranks = both_cores if scheme == "gllm" else core_per_rank(scheme, self.workload.batch_tokens)
        sizes = ("--token-budget", str(self.token_budget), "--kv-cache-gib", "0.5")
        return ServerPlan(model, (*ranks, "--dtype", self.dtype, *sizes, *weight_flags(model)))


@dataclass(frozen=True)
class Plan:
    """rates: requests/s, inf = all at once. alone, at_rate: requests of one repeat, one at a time or not."""

    rates: tuple[float, ...]
    alone: int
    at_rate: int
    repeats: int

    def seconds(self, one: float, capacity: float, schemes: int) -> float:
        """How long it takes: `one` seconds for a request alone, `capacity` requests/s at most."""
        runs = sum(self.at_rate / min(rate, capacity) + one for rate in self.rates)
        return schemes * self.repeats * (self.alone * one + runs)


@dataclass(frozen=True)
class Wish:
    """What the command line asked for; None leaves it to the time limit."""

    schemes: Sequence[str]
    repeats: int
    loads: Sequence[float]
    saturate: bool
    minutes: float | None
    requests: int | None


def make_plan(wish: Wish, parts: Parts, num_tokens: int, num_images: int) -> Plan:
    """Rates at shares of the capacity, and as many requests as the time limit allows (at least three).

    num_tokens, num_images: of an average request.
    """
    stage, encode = parts.prefill(0, num_tokens), parts.encode * num_images
    capacity = 1.0 / max(stage, encode, 1e-6)
    one = stage + encode + parts.fixed
    rates = [float(f"{load * capacity:.2g}") for load in wish.loads] + ([math.inf] if wish.saturate else [])
    if wish.requests is not None:
        return Plan(tuple(rates), max(3, wish.requests // 2), wish.requests, wish.repeats)
    limit = (wish.minutes or math.inf) * 60
    sizes = range(50, 3, -1)
    plans = (Plan(tuple(rates), max(3, size // 2), size, wish.repeats) for size in sizes)
    fitting = (plan for plan in plans if plan.seconds(one, capacity, len(wish.schemes)) <= limit)
    return next(fitting, Plan(tuple(rates), 3, 3, wish.repeats))


@dataclass(frozen=True)
class Saved:
    """A plan and the costs it came from, kept so that a resumed run asks for the same points."""

    plan: Plan
    parts: Parts

    @classmethod
    def read(cls, path: Path) -> Saved | None:
        if not path.exists():
            return None
        content = json.loads(path.read_text())
        content["plan"]["rates"] = tuple(float(rate) for rate in content["plan"]["rates"])
        return cls(Plan(**content["plan"]), Parts(**content["parts"]))

    def write(self, path: Path) -> None:
        content = {"plan": asdict(self.plan), "parts": asdict(self.parts)}
        content["plan"]["rates"] = [str(rate) for rate in self.plan.rates]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1))
