"""Algorithm 2 as a specification: who is in the next micro-batch, and why."""

from gllm.core.batch import BatchResult, Chunk, MicroBatch, SampledToken
from gllm.core.core_config import CoreConfig
from gllm.core.effects import EncodeItems, ItemReleased, RequestFailed, RequestFinished
from gllm.core.engine_core import EngineCore
from gllm.core.request import MMItem, Request, SamplingParams
from rserve.core.epd_core import Scheme, make_core


def engine(scheme: str = "rserve", reading: str = "serial", **config: object) -> EngineCore:
    values: dict[str, object] = {"num_blocks": 100, "block_size": 16, "maxp": 64, "max_in_flight": 8}
    return make_core(Scheme(scheme, reading), CoreConfig(**{**values, **config}))  # type: ignore[arg-type]


def request(name: str, length: int, *images: tuple[int, int], max_tokens: int = 4) -> Request:
    items = tuple(MMItem(offset, tokens) for offset, tokens in images)
    return Request(name, tuple(range(length)), items, SamplingParams(max_tokens=max_tokens))


def batch(core: EngineCore) -> MicroBatch:
    work = core.step()
    assert isinstance(work, MicroBatch)
    return work


def finish(core: EngineCore, work: MicroBatch, token: int = 5) -> None:
    tokens = [
        SampledToken(t.seq_id, t.request_id, t.choice, t.position, token)
        for s in work.samples
        for t in s.targets
    ]
    core.on_batch_done(BatchResult(work.batch_id, tuple(tokens)))


def test_text_overtakes_a_request_that_waits_for_its_image():
    core = engine()
    core.on_request(request("first", 100, (10, 80)))
    core.on_request(request("second", 40))
    core.on_encoding("first")
    assert batch(core).chunks == (Chunk(0, 0, 10), Chunk(1, 0, 40))
    assert core.step() is None
    core.on_embeddings("first", 0, 0, range(80))
    assert batch(core).chunks == (Chunk(0, 10, 64),)


def test_gllm_epd_prefills_nothing_before_all_images_are_encoded():
    core = engine("gllm-epd")
    core.on_request(request("r", 50, (10, 8), (30, 8)))
    core.on_embeddings("r", 1, 0, range(8))
    assert core.step() is None
    core.on_embeddings("r", 0, 0, range(8))
    assert batch(core).chunks == (Chunk(0, 0, 50),)


def test_a_truncated_prompt_keeps_its_place_at_the_head():
    core = engine()
    core.on_request(request("long", 150))
    core.on_request(request("short", 10))
    assert batch(core).chunks == (Chunk(0, 0, 64),)
    assert batch(core).chunks == (Chunk(0, 64, 64),)
    assert batch(core).chunks == (Chunk(0, 128, 22), Chunk(1, 0, 10))


def test_decodes_come_before_prefills_and_spend_the_same_budget():
    core = engine(maxp=8)
    core.on_request(request("a", 8))
    finish(core, batch(core))
    core.on_request(request("b", 20))
    work = batch(core)
    assert work.chunks == (Chunk(0, 8, 1), Chunk(1, 0, 7))
    assert work.num_decodes == 1


def test_embeddings_that_come_out_of_order_count_when_the_prefix_is_ready():
    core = engine()
    core.on_request(request("r", 60, (10, 10), (30, 10)))
    core.on_embeddings("r", 1, 0, range(10))
    assert batch(core).chunks == (Chunk(0, 0, 10),)
    core.on_embeddings("r", 0, 0, range(10))
    work = batch(core)
    assert work.chunks == (Chunk(0, 10, 50),)
    assert [(e.row, e.length) for e in work.embeds] == [(0, 10), (20, 10)]


def test_an_embedding_is_released_when_the_last_chunk_that_needs_it_is_dispatched():
    core = engine(maxp=16)
    core.on_request(request("r", 40, (10, 20)))
    core.on_embeddings("r", 0, 0, range(20))
    batch(core)
    assert core.take_effects() == []
    batch(core)
    assert core.take_effects() == [ItemReleased("r", 0, 0)]
    assert core.tracker.tokens_held == 0


def test_a_late_embedding_of_an_aborted_request_is_dropped_and_counted():
    core = engine()
    core.on_request(request("r", 40, (10, 20)))
    core.on_abort("r")
    assert core.on_embeddings("r", 0, 0, range(20)) is False
    assert core.take_effects() == [RequestFinished("r", "abort"), ItemReleased("r", 0, 0)]
    assert core.tracker.num_stale == 1


def test_blocks_of_an_aborted_request_return_when_its_chunk_has_left_the_pipeline():
    core = engine()
    core.on_request(request("r", 40))
    work = batch(core)
    core.on_abort("r")
    assert core.pool.num_used == 3
    finish(core, work)
    assert core.pool.num_used == 0
    assert core.take_effects() == [RequestFinished("r", "abort")]


def test_a_whole_prompt_is_reserved_with_its_first_chunk():
    core = engine(num_blocks=10, maxp=16)
    core.on_request(request("first", 100))
    core.on_request(request("second", 60))
    assert batch(core).chunks == (Chunk(0, 0, 16),)
    assert core.pool.num_used == 7
    work = [batch(core) for _ in range(6)]
    assert all(chunk.seq_id == 0 for b in work for chunk in b.chunks)
    assert core.step() is None


def test_a_text_prefix_far_back_in_the_encoder_queue_leaves_blocks_free():
    core = engine(num_blocks=8, watermark=0.5)
    core.on_request(request("a", 60, (50, 10)))
    core.on_request(request("b", 60, (50, 10)))
    assert batch(core).chunks == (Chunk(0, 0, 50),)
    assert core.step() is None
    core.on_encoding("b")
    assert core.step() is None  # a has its four blocks, and one stays free for growth
    core.on_abort("a")


def test_the_younger_of_two_is_preempted_and_has_its_released_image_encoded_again():
    core = engine(num_blocks=5)
    core.on_request(request("old", 30, max_tokens=30))
    core.on_request(request("young", 30, (0, 20), max_tokens=30))
    core.on_embeddings("young", 0, 0, range(20))
    effects = []
    while core.residency.num_preemptions == 0:
        finish(core, batch(core))
        effects += core.take_effects()
    assert core.sequences[0].num_tokens > core.sequences[1].num_tokens
    assert EncodeItems("young", (0,), (1,)) in [*effects, *core.take_effects()]


def test_what_can_never_be_served_fails_at_once_with_both_numbers():
    core = engine(num_blocks=2)
    core.on_request(request("r", 40))
    assert core.take_effects() == [
        RequestFailed(
            "r", 400, "prompt and output are 44 tokens, this deployment holds 32 tokens: shorten them"
        )
    ]


def test_an_exact_fit_is_served():
    core = engine(num_blocks=2)
    core.on_request(request("r", 30, max_tokens=2))
    finish(core, batch(core))
    finish(core, batch(core))
    assert core.take_effects()[-1] == RequestFinished("r", "length")


def test_no_more_micro_batches_are_in_flight_than_allowed():
    core = engine(maxp=8, max_in_flight=2)
    core.on_request(request("r", 64))
    first = batch(core)
    batch(core)
    assert core.step() is None
    finish(core, first)
    assert batch(core).chunks == (Chunk(0, 16, 8),)


def test_intra_serial_lets_one_prefill_into_the_pipeline_at_a_time():
    core = engine("rserve-intra", "serial")
    core.on_request(request("a", 30, max_tokens=1))
    core.on_request(request("b", 30))
    work = batch(core)
    assert work.chunks == (Chunk(0, 0, 30),)
    assert core.step() is None
    finish(core, work)
    assert batch(core).chunks == (Chunk(1, 0, 30),)


def test_intra_per_micro_batch_does_not_mix_requests_but_lets_them_follow():
    core = engine("rserve-intra", "per-micro-batch")
    core.on_request(request("a", 30))
    core.on_request(request("b", 30))
    assert batch(core).chunks == (Chunk(0, 0, 30),)
    assert batch(core).chunks == (Chunk(1, 0, 30),)


def test_a_request_forks_when_its_prompt_is_done_and_shares_full_blocks():
    core = engine()
    fork = Request("r", tuple(range(40)), (), SamplingParams(max_tokens=3, n=3))
    core.on_request(fork)
    first = batch(core)
    assert [t.choice for t in first.samples[0].targets] == [0, 1, 2]
    finish(core, first)
    work = batch(core)
    assert len(work.chunks) == 3
    assert len(work.copies) == 2
    assert core.pool.num_used == 3 + 2


def test_an_encoder_that_is_lost_has_its_items_asked_for_again_under_a_new_attempt():
    core = engine()
    core.on_request(request("r", 40, (10, 20)))
    core.on_encoder_lost([("r", 0, 0)])
    assert core.take_effects() == [ItemReleased("r", 0, 0), EncodeItems("r", (0,), (1,))]
    assert core.on_embeddings("r", 0, 0, range(20)) is False
    assert core.on_embeddings("r", 0, 1, range(20)) is True


def test_a_prefix_that_others_cache_after_a_request_has_its_blocks_spares_no_encoding():
    core = engine(block_size=4, prefix_caching=True)
    core.on_request(request("early", 10, (4, 4), max_tokens=1))
    core.on_encoding("early")
    batch(core)
    core.on_request(request("other", 10, (4, 4), max_tokens=1))
    core.on_item_hash("other", 0, b"cat")
    core.on_embeddings("other", 0, 0, range(4))
    finish(core, batch(core))
    core.take_effects()
    core.on_item_hash("early", 0, b"cat")
    assert core.take_effects() == [EncodeItems("early", (0,), (0,))]
