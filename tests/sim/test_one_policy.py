"""One policy for two worlds: a real CPU run, recorded, gives the same micro-batches in the simulator."""

import numpy as np
import pytest

from gllm.config import EngineConfig, ModelConfig, ParallelConfig
from gllm.core.batch import MicroBatch
from gllm.core.core_config import CoreConfig
from gllm.core.effects import EncodeItems, ItemReleased, RequestFailed, RequestFinished, SkipItems
from gllm.core.request import MMItem, Request, SamplingParams
from gllm.core.scheduler import Scheduler
from gllm.layers.comm import SINGLE
from gllm.layers.placement import CPU
from gllm.runtime.loading import ModelPlan, load_encoder
from gllm.runtime.local_engine import LocalEngine, StageZeroFeed
from gllm.runtime.local_executor import load_local
from rserve.core.arena import Arena
from rserve.core.dispatcher import Dispatcher
from rserve.core.epd_core import Scheme, make_core
from rserve.sim.cost_model import CostModel
from rserve.sim.costs import load_constants
from rserve.sim.hardware import Machine, load_hardware
from rserve.sim.pipeline import SimulatedPipeline
from rserve.sim.recording import RecordingCore, replay, without_payloads
from rserve.sim.scenario import Scenario
from rserve.sim.simulator import simulate

CONFIG = CoreConfig(num_blocks=24, block_size=8, num_stages=2, max_in_flight=3, maxp=24, maxd=24)
PLAN = ModelPlan.of(EngineConfig(ModelConfig("tiny"), ParallelConfig(pp=2, attention_backend="sdpa")))
SIDE = 56
ITEM_TOKENS = 4


class EncoderFeed:
    """An encoder rank in this process: the dispatcher's batches, encoded by the real tower, one a turn."""

    def __init__(self, core, min_tokens):
        self.core = core
        self.encoder = load_encoder(PLAN, PLAN.placement(CPU, SINGLE))
        self.dispatcher = Dispatcher(Arena(64), min_tokens)
        self.dispatcher.on_encoder_ready(0)
        self.pixels, self.requests, self.waiting = {}, {}, []

    def add(self, request, pixels):
        self.pixels[request.request_id], self.requests[request.request_id] = pixels, request
        self.dispatcher.add(request.request_id, request.items, ordered=True)
        for item in range(len(pixels)):
            self.dispatcher.on_pixels(request.request_id, item)

    def on_effect(self, effect):
        match effect:
            case EncodeItems(request_id, items, attempts):
                self.dispatcher.need(request_id, dict(zip(items, attempts)))
            case SkipItems(request_id, items):
                self.dispatcher.skip(request_id, items)
            case ItemReleased(request_id, item, attempt):
                self.dispatcher.on_released(request_id, item, attempt)
            case RequestFinished(request_id) | RequestFailed(request_id):
                self.dispatcher.remove(request_id)

    def advance(self):
        for dispatch in self.dispatcher.dispatch():
            self.core.on_encoding(dispatch.request_id)
            self.waiting.append(dispatch)
        if not self.waiting:
            return False
        batch = self.waiting.pop(0)
        items = self.requests[batch.request_id].items
        pixels = [self.pixels[batch.request_id][item] for item in batch.items]
        payloads = list(self.encoder.encode(pixels, [items[item].grid for item in batch.items]))
        for item, attempt, payload in zip(batch.items, batch.attempts, payloads):
            self.core.on_embeddings(batch.request_id, item, attempt, payload)
        self.dispatcher.on_encoded(0, batch.batch_id)
        return True


def request(index, text, num_items, max_tokens):
    """Text around items of four tokens each, one text token before every item."""
    items = tuple(MMItem(1 + k * (ITEM_TOKENS + 1), ITEM_TOKENS, (1, 4, 4)) for k in range(num_items))
    tokens = [10 + (index * 7 + k) % 400 for k in range(text + num_items * (ITEM_TOKENS + 1))]
    for item in items:
        tokens[item.offset : item.end] = [PLAN.shape.image_token_id] * ITEM_TOKENS
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Request(f"r{index}", tuple(tokens), items, sampling)


def run_for_real(scheme):
    """Eight requests on the tiny model: some of images, some of text, one aborted, with preemptions."""
    recording = RecordingCore(make_core(scheme, CONFIG))
    executor = load_local(PLAN, CONFIG.num_blocks, with_vision=not scheme.has_encoder_ranks)
    if scheme.has_encoder_ranks:
        feed = EncoderFeed(recording, scheme.batch_tokens(2 * ITEM_TOKENS))
    else:
        feed = StageZeroFeed(recording, executor.pixels)
    engine = LocalEngine(recording, executor, feed, delay=1)
    rng = np.random.default_rng(0)
    for index in range(8):
        num_items = (0, 3, 5, 1)[index % 4]
        pictures = [rng.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8) for _ in range(num_items)]
        engine.add(request(index, 20 + 5 * index, num_items, 3 + 9 * (index % 3)), pictures)
        engine.advance()
    engine.abort("r5")
    outputs = engine.run()
    executor.close()
    assert all(output.finish for output in outputs.values())
    return recording


def simulated_pipeline():
    machine = Machine(load_hardware("cpu"), PLAN.shape, pp=2, encoders=1)
    return SimulatedPipeline(CostModel(machine, load_constants("platform-cpu")))


SCHEMES = [
    Scheme("gllm"),
    Scheme("gllm-epd"),
    Scheme("rserve"),
    Scheme("rserve-intra"),
    Scheme("rserve-intra", "per-micro-batch"),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: f"{s.name}-{s.intra_reading}")
def test_the_recorded_calls_of_a_real_run_give_the_same_micro_batches_in_the_simulator(scheme):
    recording = run_for_real(scheme)
    pipeline = simulated_pipeline()
    works = replay(recording.calls, make_core(scheme, CONFIG), pipeline)
    assert without_payloads(works) == without_payloads(recording.works)
    batches = [work for work in works if type(work) is MicroBatch]
    mixes = scheme.name != "rserve-intra"
    assert len(batches) > 15 and (not mixes or any(len(batch.chunks) > 1 for batch in batches))
    assert any(batch.embeds for batch in batches) and pipeline.stage_free[-1] > 0


def test_a_rule_replaced_in_the_core_changes_both_worlds(monkeypatch):
    one_chunk = Scenario(request_rate=float("inf"), num_requests=6, workload="peers", token_budget=2048)
    real, simulated = run_for_real(Scheme("rserve")), simulate(one_chunk).line

    def single(self, with_fresh, taken, rule=Scheduler._next_prefill):
        return None if taken else rule(self, with_fresh, taken)

    monkeypatch.setattr(Scheduler, "_next_prefill", single)
    changed_real, changed_simulated = run_for_real(Scheme("rserve")), simulate(one_chunk).line
    assert without_payloads(changed_real.works) != without_payloads(real.works)
    assert changed_simulated["mean_ttft_ms"] != simulated["mean_ttft_ms"]
