"""One point to simulate: a machine, a scheme, a workload and a rate, as plain values."""

import random
from dataclasses import dataclass, replace

from rserve.core.epd_core import INTRA_READINGS, SCHEMES

from .arrivals import poisson_arrivals
from .cost_model import CostModel
from .costs import load_constants
from .hardware import Machine, load_hardware, load_model
from .workload import Placement, SimRequest, Workload, load_workload, make_requests


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that decides a simulated run; equal scenarios give equal results.

    encoders: encoder ranks; scheme gllm encodes on stage 0 and uses none. max_in_flight: None is pp + 1, the
    engine's default. page_size: tokens a KV block; large ones only round memory and save time. kv_tokens:
    None is what memory holds. embedding_tokens: embeddings that the driver has room for. placement,
    output_len: None keeps the workload's. experiment: the figure a run belongs to. label: how the figure
    calls the run, where the scheme's name is not enough. dtype: None is the checkpoint's own.
    """

    model: str = "qwen2.5-vl-72b"
    hardware: str = "h100"
    scheme: str = "rserve"
    pp: int = 4
    tp: int = 1
    encoders: int = 1
    assigned_layers: tuple[int, ...] | None = None
    workload: str = "mmmu-1k"
    placement: Placement | None = None
    output_len: int | None = None
    request_rate: float = 1.0
    num_requests: int = 200
    seed: int = 0
    costs: str = "clean"
    token_budget: int = 2048
    embedding_batch_size: int = 1024
    max_in_flight: int | None = None
    intra_reading: str = "serial"
    schedule_method: str = "chunked_prefill"
    kv_tokens: int | None = None
    page_size: int = 256
    embedding_tokens: int = 131_072
    slo_ttft_ms: float | None = None
    experiment: str = ""
    label: str = ""
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ValueError(f"no scheme {self.scheme!r}; there are {', '.join(SCHEMES)}")
        if self.scheme != "gllm" and self.encoders < 1:
            raise ValueError(f"scheme {self.scheme} needs at least one encoder rank")
        if self.intra_reading not in INTRA_READINGS:
            raise ValueError(f"no reading {self.intra_reading!r}; there are {', '.join(INTRA_READINGS)}")

    @property
    def num_encoders(self) -> int:
        """Encoder ranks in use: none where stage 0 encodes."""
        return 0 if self.scheme == "gllm" else self.encoders

    @property
    def in_flight(self) -> int:
        return self.max_in_flight or self.pp + 1

    def cost_model(self) -> CostModel:
        model = load_model(self.model)
        machine = Machine(
            hardware=load_hardware(self.hardware),
            model=replace(model, dtype=self.dtype or model.dtype),
            pp=self.pp,
            tp=self.tp,
            encoders=self.num_encoders,
            assigned_layers=self.assigned_layers,
        )
        return CostModel(machine, load_constants(self.costs))

    def make_workload(self) -> Workload:
        workload = load_workload(self.workload)
        if self.placement is not None:
            workload = replace(workload, placement=self.placement)
        if self.output_len is not None:
            workload = replace(workload, output_len=self.output_len)
        return workload

    def requests(self) -> list[SimRequest]:
        """The requests of the run: arrivals from the seed, lengths from a generator of their own."""
        arrivals = poisson_arrivals(self.num_requests, self.request_rate, self.seed)
        return make_requests(self.make_workload(), arrivals, random.Random(f"lengths {self.seed}"))
