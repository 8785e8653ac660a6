"""The equality gate: every scheme gives the greedy tokens of transformers, on one process's executor."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gllm.core.core_config import CoreConfig
from gllm.core.request import SamplingParams
from gllm.layers.comm import SINGLE
from gllm.layers.placement import CPU
from gllm.runtime.loading import load_encoder
from gllm.runtime.local_engine import LocalEngine, StageZeroFeed
from gllm.runtime.local_executor import LocalExecutor
from rserve.core.arena import Arena
from rserve.core.dispatcher import Dispatcher
from rserve.core.epd_core import SCHEMES, Scheme, make_core
from rserve.runtime.local_feed import EncoderFeed
from tests.checkpoints import make_random_checkpoint
from tests.runtime.local_server import Asked, ask, differs, load, make_plan, reference

GREEDY = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
LONG = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
INF = float("inf")
TINY = Path(__file__).parents[2] / "gllm" / "models_data" / "tiny"
Case = tuple[str, int, int, float, int]


def mixed_requests(folder: Path) -> list[Asked]:
    """Text only, 1-8 images of 4 to 400 tokens, consecutive images, 1 and 40 output tokens."""
    plan = make_plan(folder)
    eight = [(2, 2), (1, 4), (3, 3), (2, 5), (4, 4), (2, 2), (6, 3), (1, 5)]
    asked = [
        ask(plan, "text", [5, 6, 7, 8, 9, 10, 11], [], LONG),
        ask(plan, "one large image", [20, 21, 22], [(20, 20)], GREEDY),
        ask(plan, "three images", [30, 31], [(2, 2), (4, 2), (3, 3)], LONG),
        ask(plan, "eight images", [40, 41, 42], eight, GREEDY),
        ask(plan, "short text", [44], [], GREEDY),
        ask(plan, "two images", [50, 51, 52, 53], [(5, 7), (2, 2)], LONG),
    ]
    return [*asked, consecutive(asked[2])]


def consecutive(asked: Asked) -> Asked:
    """The same images first in the prompt, with only vision-end and vision-start tokens between them."""
    request = asked.request
    ids: list[int] = []
    items = []
    for item in request.items:
        items.append(type(item)(len(ids), item.num_tokens, item.grid))
        ids += [*request.token_ids[item.offset : item.end], 61, 60]
    ids += [62, 63]
    return Asked(type(request)("consecutive", tuple(ids), tuple(items), LONG), asked.pixels)


def num_tokens(asked: Asked) -> int:
    return len(asked.request.token_ids) + asked.request.sampling.max_tokens


class Gate:
    """One checkpoint: its requests, what transformers answers, and loaded executors."""

    def __init__(self, folder: Path) -> None:
        plan = make_plan(folder)
        self.folder = folder
        self.asked = mixed_requests(folder)
        self.references = {a.request.request_id: reference(folder, plan, a) for a in self.asked}
        self.encoder = load_encoder(plan, plan.placement(CPU, SINGLE))
        self.hidden = plan.shape.text.hidden_size
        self._executors: dict[tuple[int, int], LocalExecutor] = {}

    def engine(self, case: Case, config: CoreConfig, arena_rows: int = 600) -> LocalEngine:
        """An engine of one scheme over shared ranks."""
        name, pp, encoders, min_tokens, _ = case
        key = (pp, config.block_size)
        if key not in self._executors:
            self._executors[key] = load(make_plan(self.folder, pp, page_size=config.block_size), 160)
        executor = self._executors[key]
        scheme = Scheme(name)
        core = make_core(scheme, config)
        digest = (lambda pixels: pixels.tobytes()) if config.prefix_caching else None
        if not scheme.has_encoder_ranks:
            return LocalEngine(core, executor, StageZeroFeed(core, executor.pixels, digest))
        dispatcher = Dispatcher(Arena(arena_rows), scheme.batch_tokens(min_tokens))
        for index in range(encoders):
            dispatcher.on_encoder_ready(index)
        arena = torch.full((arena_rows, self.hidden), float("nan"))
        pick = random.Random(7).randrange if encoders > 1 else lambda n: 0
        return LocalEngine(core, executor, EncoderFeed(core, dispatcher, self.encoder, arena, digest, pick))

    def check(self, case: Case, config: CoreConfig, arena_rows: int = 600) -> LocalEngine:
        """All requests that fit at once; every answer is the reference's."""
        engine = self.engine(case, config, arena_rows)
        fitting = [a for a in self.asked if num_tokens(a) <= config.num_kv_tokens]
        for asked in fitting:
            engine.add(asked.request, asked.pixels)
        outputs = engine.run()
        for asked in fitting:
            name = asked.request.request_id
            assert outputs[name].failure is None
            assert differs(outputs[name].token_ids(), self.references[name]) is None, name
        assert engine.core.tracker.tokens_held == 0
        assert engine.core.pool.num_used == 0
        return engine

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()


@pytest.fixture(scope="module", params=["random", "tiny"])
def gate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    random_model = request.param == "random"
    folder = make_random_checkpoint(tmp_path_factory.mktemp("random")) if random_model else TINY
    made = Gate(folder)
    yield made
    made.close()


def config_of(case: Case, **changes: object) -> CoreConfig:
    _, pp, _, _, budget = case
    values: dict[str, object] = {
        "num_blocks": 160,
        "block_size": 16,
        "num_stages": pp,
        "max_in_flight": pp + 1,
        "maxp": budget,
    }
    return CoreConfig(**{**values, **changes})  # type: ignore[arg-type]


COVERING: list[Case] = [
    ("gllm", 1, 1, INF, 64),
    ("gllm", 4, 1, INF, 2048),
    ("gllm-epd", 2, 2, INF, 64),
    ("gllm-epd", 1, 1, INF, 8),
    ("rserve-intra", 2, 1, 16, 64),
    ("rserve-intra", 1, 2, 1, 2048),
    ("rserve", 1, 1, 1024, 2048),
    ("rserve", 1, 2, 1, 8),
    ("rserve", 2, 1, 16, 64),
    ("rserve", 4, 2, INF, 64),
]
EVERYTHING = [
    case
    for case in itertools.product(SCHEMES, (1, 2, 4), (1, 2), (1, 16, 1024, INF), (8, 64, 2048))
    if case not in COVERING
    and (case[0] not in ("gllm", "gllm-epd") or case[3] == INF)
    and (case[0] != "gllm" or case[2] == 1)
]


@pytest.mark.parametrize("case", COVERING, ids=str)
def test_a_scheme_answers_as_transformers(gate: Gate, case: Case) -> None:
    gate.check(case, config_of(case))


@pytest.fixture(scope="module")
def random_gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    made = Gate(make_random_checkpoint(tmp_path_factory.mktemp("random")))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERYTHING, ids=str)
def test_every_combination_answers_as_transformers(random_gate: Gate, case: Case) -> None:
    random_gate.check(case, config_of(case))


@pytest.mark.parametrize("name", ["gllm", "gllm-epd", "rserve"])
def test_preemption_after_embeddings_were_released_changes_no_token(gate: Gate, name: str) -> None:
    case = (name, 2, 1, 16, 64)
    engine = gate.check(case, config_of(case, num_blocks=23, block_size=4))
    assert engine.core.stats()["preemptions_total"] > 0


@pytest.mark.parametrize("name", SCHEMES)
def test_prefix_caching_changes_no_token(gate: Gate, name: str) -> None:
    case = (name, 1, 1, 16, 64)
    engine = gate.engine(case, config_of(case, prefix_caching=True, block_size=4))
    for _ in range(2):
        for asked in gate.asked:
            engine.add(asked.request, asked.pixels)
        outputs = engine.run()
        for asked in gate.asked:
            key = asked.request.request_id
            assert differs(outputs[key].token_ids(), gate.references[key]) is None, key
    assert engine.core.stats()["prefix_hit_tokens_total"] > 200


def test_an_embedding_memory_that_holds_one_request_serves_all(gate: Gate) -> None:
    case = ("rserve", 2, 2, 16, 64)
    gate.check(case, config_of(case), arena_rows=400)


@pytest.mark.parametrize("method", ["chunked_prefill", "token_throttling"])
def test_both_schedule_methods_answer_the_same(gate: Gate, method: str) -> None:
    case = ("rserve", 4, 1, 16, 64)
    gate.check(case, config_of(case, schedule_method=method, minp=8))
