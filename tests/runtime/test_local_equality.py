"""Greedy tokens equal those of transformers, however work is cut into stages, ranks, chunks and blocks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gllm.core.core_config import CoreConfig
from gllm.core.request import SamplingParams
from gllm.runtime.local_executor import LocalExecutor
from tests.checkpoints import make_random_checkpoint
from tests.runtime.local_server import Asked, ask, differs, load, make_engine, make_plan, reference

GREEDY = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
NUM_BLOCKS = 96
References = dict[str, list[tuple[int, float]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_checkpoint(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def questions(folder: Path) -> list[Asked]:
    plan = make_plan(folder)
    return [
        ask(plan, "text", [5, 6, 7, 8, 9, 10, 11], [], GREEDY),
        ask(plan, "one image", [20, 21, 22], [(2, 3)], GREEDY),
        ask(plan, "three images", [30, 31], [(1, 1), (4, 2), (3, 3)], GREEDY),
        ask(plan, "short text", [40], [], GREEDY),
        ask(plan, "large image", [50, 51, 52, 53], [(5, 7)], GREEDY),
    ]


@pytest.fixture(scope="module")
def references(folder: Path, questions: list[Asked]) -> References:
    plan = make_plan(folder)
    return {asked.request.request_id: reference(folder, plan, asked) for asked in questions}


class Loaded:
    """Executors by (pp, tp, page size); loading is the slow part."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._executors: dict[tuple[int, int, int], LocalExecutor] = {}

    def get(self, pp: int, tp: int, page_size: int) -> LocalExecutor:
        key = (pp, tp, page_size)
        if key not in self._executors:
            self._executors[key] = load(make_plan(self._folder, pp, tp, page_size), NUM_BLOCKS)
        return self._executors[key]

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Iterator[Loaded]:
    made = Loaded(folder)
    yield made
    made.close()


def check(
    executor: LocalExecutor,
    core: CoreConfig,
    questions: list[Asked],
    references: References,
    delay: int | None = None,
) -> None:
    engine = make_engine(executor, core, delay)
    for asked in questions:
        engine.add(asked.request, asked.pixels)
    outputs = engine.run()
    for asked in questions:
        name = asked.request.request_id
        assert outputs[name].failure is None
        assert differs(outputs[name].token_ids(), references[name]) is None, name


@pytest.mark.parametrize(("pp", "tp"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)])
def test_any_number_of_stages_and_ranks(
    loaded: Loaded, questions: list[Asked], references: References, pp: int, tp: int
):
    core = CoreConfig(NUM_BLOCKS, 16, pp, pp + 1, maxp=16)
    check(loaded.get(pp, tp, 16), core, questions, references)


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8, 13, 64, 2048])
def test_any_token_budget(loaded: Loaded, questions: list[Asked], references: References, budget: int):
    check(loaded.get(2, 1, 16), CoreConfig(NUM_BLOCKS, 16, 2, 3, maxp=budget), questions, references)


@pytest.mark.parametrize("page_size", [1, 4, 7, 32])
def test_any_block_size(loaded: Loaded, questions: list[Asked], references: References, page_size: int):
    core = CoreConfig(NUM_BLOCKS, page_size, 1, 2, maxp=32)
    fitting = [q for q in questions if len(q.request.token_ids) + 5 <= core.num_kv_tokens]
    check(loaded.get(1, 1, page_size), core, fitting, references)


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_results_may_come_as_late_as_the_pipeline_is_deep(
    loaded: Loaded, questions: list[Asked], references: References, delay: int
):
    core = CoreConfig(NUM_BLOCKS, 16, 2, 4, maxp=8)
    check(loaded.get(2, 1, 16), core, questions, references, delay)


def test_each_request_alone_answers_as_with_batch_mates(
    loaded: Loaded, questions: list[Asked], references: References
):
    for asked in questions:
        core = CoreConfig(NUM_BLOCKS, 16, 1, 2, maxp=2048)
        check(loaded.get(1, 1, 16), core, [asked], references)


@pytest.mark.parametrize("pp", [1, 2])
def test_preempted_sequences_answer_the_same(
    loaded: Loaded, questions: list[Asked], references: References, pp: int
):
    core = CoreConfig(12, 4, pp, pp + 1, maxp=16)
    engine = make_engine(loaded.get(pp, 1, 4), core)
    for asked in questions:
        engine.add(asked.request, asked.pixels)
    outputs = engine.run()
    assert engine.core.stats()["preemptions_total"] > 0
    for asked in questions:
        name = asked.request.request_id
        assert differs(outputs[name].token_ids(), references[name]) is None, name


def test_a_cached_prefix_changes_no_token_and_skips_its_images(
    loaded: Loaded, questions: list[Asked], references: References
):
    core = CoreConfig(NUM_BLOCKS, 4, 1, 2, maxp=32, prefix_caching=True)
    engine = make_engine(loaded.get(1, 1, 4), core)
    asked = questions[2]
    for _ in range(2):
        engine.add(asked.request, asked.pixels)
        output = engine.run()[asked.request.request_id]
        assert differs(output.token_ids(), references[asked.request.request_id]) is None
    assert output.finish is not None
    assert output.finish.num_cached_tokens > 8


def test_throttled_batches_answer_the_same(loaded: Loaded, questions: list[Asked], references: References):
    core = CoreConfig(NUM_BLOCKS, 16, 2, 3, schedule_method="token_throttling", maxp=64, minp=4, iterp=3)
    check(loaded.get(2, 1, 16), core, questions, references)
