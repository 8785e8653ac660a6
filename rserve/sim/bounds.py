"""What no schedule can beat on a machine: bounds on TTFT and throughput, from the same costs."""

from collections.abc import Sequence
from math import ceil, sqrt

from .cost_model import CostModel
from .workload import SimRequest


def bound_ttft(cost: CostModel, request: SimRequest, token_budget: int) -> float:
    """Seconds to first token of a request alone on the machine, at best.

    With encoder ranks: the tokens from item j on start only when items 0..j are encoded and j has arrived,
        TTFT >= max over j of [sum e_i (i <= j) + x_j + W(pos_j, L)] + (S - 1) tau_min + a + o,
    and the j-less term is W(0, L). With the encoder on stage 0, encoding and prefill share its device:
        TTFT >= sum e_i + W(0, L) + ....
    """
    round_trip = cost.constants.driver_round_trip
    if cost.machine.encoders == 0:
        encode = cost.encoder.least_time([item.num_tokens for item in request.items])
        return round_trip + encode + _prefill_bound(cost, 0, request.prompt_len, token_budget)
    best = _prefill_bound(cost, 0, request.prompt_len, token_budget)
    tokens: list[int] = []
    for item in request.items:
        tokens.append(item.num_tokens)
        encode = cost.encoder.least_time(tokens) / cost.machine.encoders
        encode = max(encode, cost.encoder.least_time([item.num_tokens]))
        arrival = encode + cost.embedding_transfer_time(item.num_tokens)
        best = max(best, arrival + _prefill_bound(cost, item.offset, request.prompt_len, token_budget))
    return round_trip + best


def bound_throughput(cost: CostModel, requests: Sequence[SimRequest], token_budget: int) -> float:
    """Input tokens per second at best for a set of requests: tokens / work of the busiest device.

    L / max(E[W + a L / B], E[sum e] / encoders), over the stages.
    """
    total = sum(request.prompt_len for request in requests)
    encode = sum(cost.encoder.least_time([i.num_tokens for i in r.items]) for r in requests)
    busiest = 0.0
    for stage in cost.distinct_stages:
        work = cost.fixed_time * total / token_budget
        work += sum(cost.least_compute_time(stage, 0, request.prompt_len) for request in requests)
        if stage == 0 and cost.machine.encoders == 0:
            work += encode
        busiest = max(busiest, work)
    if cost.machine.encoders:
        busiest = max(busiest, encode / cost.machine.encoders)
    return total / busiest


def best_chunk(cost: CostModel, prompt_len: int) -> float:
    """Chunk length that gives one request on an idle pipeline the least latency.

        n* = sqrt(a L / ((S - 1) (alpha + beta L)))

    alpha: stage seconds per token, beta: per (query, key) pair. Raises ValueError for a single stage.
    """
    num_stages = cost.machine.pp
    if num_stages == 1:
        raise ValueError("one stage has no pipeline to fill: any chunk length will do")
    first = cost.least_compute_time(0, 0, 1)
    beta = cost.least_compute_time(0, 1, 2) - first
    alpha = first - beta
    return sqrt(cost.fixed_time * prompt_len / ((num_stages - 1) * (alpha + beta * prompt_len)))


def _prefill_bound(cost: CostModel, start: int, end: int, token_budget: int) -> float:
    """W(start, end) on the slowest stage with fixed costs, and the least micro-batch on every other stage."""
    last = cost.machine.pp - 1
    least = cost.least_times
    micro_batches = ceil((end - start) / token_budget)
    through = max(
        cost.least_compute_time(stage, start, end) + micro_batches * cost.fixed_time - least[stage]
        for stage in cost.distinct_stages
    )
    return sum(least) + max(0.0, through) + last * cost.transfer_time(1)
