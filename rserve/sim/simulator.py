"""Run a scenario: the production scheduler on a simulated machine, and its result line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from gllm.core.core_config import CoreConfig
from gllm.core.request_life import RequestLife
from gllm.core.trace import Span

from .bounds import bound_throughput, bound_ttft
from .clock import VirtualClock
from .cost_model import CostModel
from .driver import SimulatedDriver
from .memory import kv_capacity
from .metrics import Outcome, metrics
from .pipeline import SimulatedPipeline
from .scenario import Scenario
from .workload import SimRequest
from .world import make_world


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a run gave: its result line, every request's times, and where the time went."""

    line: Mapping[str, object]
    outcomes: tuple[Outcome, ...]
    spans: tuple[Span, ...]
    ranks: tuple[str, ...]

    @property
    def lives(self) -> list[RequestLife]:
        """From arrival to the last token, of every request."""
        return [outcome.life for outcome in self.outcomes]


def simulate(
    scenario: Scenario, with_trace: bool = False, requests: Sequence[SimRequest] | None = None
) -> Simulated:
    """Simulate one scenario. Raises ValueError when its model does not fit its machine.

    requests: in place of those that the scenario's workload, rate and seed give, such as recorded ones.
    """
    cost = scenario.cost_model()
    requests = scenario.requests() if requests is None else requests
    spans: list[Span] | None = [] if with_trace else None
    clock = VirtualClock()
    driver = make_world(scenario, core_config(scenario, cost), SimulatedPipeline(cost, spans), clock)
    driver.send(requests)
    clock.run()
    outcomes = tuple(driver.outcomes[request.request_id] for request in requests)
    line = _line(scenario, cost, outcomes) | _utilisation(driver, cost, outcomes)
    return Simulated(line, outcomes, tuple(spans or ()), rank_names(cost))


def core_config(scenario: Scenario, cost: CostModel) -> CoreConfig:
    """The sizes that the production core is built from, here from the machine model."""
    tokens = scenario.kv_tokens or kv_capacity(cost.machine, cost.constants)
    return CoreConfig(
        num_blocks=tokens // scenario.page_size,
        block_size=scenario.page_size,
        num_stages=scenario.pp,
        max_in_flight=scenario.in_flight,
        schedule_method=scenario.schedule_method,
        maxp=scenario.token_budget,
        maxd=scenario.token_budget,
        embedding_tokens=scenario.embedding_tokens,
    )


def rank_names(cost: CostModel) -> tuple[str, ...]:
    """Rows of a trace: stages, then encoders."""
    machine = cost.machine
    stages = [f"stage {stage}" for stage in range(machine.pp)]
    return (*stages, *(f"encoder {encoder}" for encoder in range(machine.encoders)))


def _line(scenario: Scenario, cost: CostModel, outcomes: Sequence[Outcome]) -> dict[str, object]:
    machine = cost.machine
    line: dict[str, object] = {
        "backend": "simulator",
        "source": "simulated",
        "experiment": scenario.experiment,
        "label": scenario.label or scenario.scheme,
        "model": scenario.model,
        "hardware": scenario.hardware,
        "costs": scenario.costs,
        "scheme": scenario.scheme,
        "pp": scenario.pp,
        "tp": scenario.tp,
        "encoders": scenario.num_encoders,
        "num_devices": machine.num_devices,
        "assigned_layers": machine.layers_per_stage(),
        "workload": scenario.workload,
        "dataset_name": scenario.workload,
        "placement": scenario.make_workload().placement,
        "request_rate": scenario.request_rate,
        "max_concurrency": None,
        "num_prompts": scenario.num_requests,
        "seed": scenario.seed,
        "token_budget": scenario.token_budget,
        "embedding_batch_size": scenario.embedding_batch_size,
        "max_in_flight": scenario.in_flight,
        "intra_reading": scenario.intra_reading,
        "schedule_method": scenario.schedule_method,
    }
    width, height = scenario.make_workload().size
    line |= {"image_width": width or None, "image_height": height or None}
    line["encode_ms"] = fmean(cost.encode_time(_item_tokens(o.request)) for o in outcomes) * 1e3
    return line | metrics(outcomes, scenario.slo_ttft_ms) | _bounds(scenario, cost, outcomes)


def _item_tokens(request: SimRequest) -> list[int]:
    return [item.num_tokens for item in request.items]


def _bounds(scenario: Scenario, cost: CostModel, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Bounds over the requests that were served; TTFT's is the mean of each request alone on the machine."""
    served: list[SimRequest] = [outcome.request for outcome in outcomes if outcome.ok]
    if not served:
        return {"bound_ttft_ms": None, "bound_throughput": None}
    budget = scenario.token_budget
    return {
        "bound_ttft_ms": fmean(bound_ttft(cost, request, budget) for request in served) * 1e3,
        "bound_throughput": bound_throughput(cost, served, budget),
    }


def _utilisation(driver: SimulatedDriver, cost: CostModel, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Per-device throughput, and the share of the run in which each stage was busy."""
    good = [outcome for outcome in outcomes if outcome.ok]
    if not good:
        return {"input_throughput_per_device": 0.0, "stage_busy": None}
    duration = max(o.token_times[-1] for o in good) - min(o.request.arrival for o in outcomes)
    tokens = sum(outcome.request.prompt_len for outcome in good)
    return {
        "input_throughput_per_device": tokens / duration / cost.machine.num_devices,
        "stage_busy": [busy / duration for busy in driver.pipeline.stage_busy],
    }
