"""The HTTP API over the echo engine: completions and chats, streams, errors."""

import asyncio
import json

import pytest

from gllm.core.effects import RequestFailed
from gllm.entrypoints.engine_client import ClientLimits
from gllm.runtime.messages import AbortRequest, AddRequest, ItemHash, RankFailed
from tests.entrypoints.bodies import CHAT, TEXT, chat, with_image
from tests.entrypoints.fakes import EOS, EchoEngine, FakeProcessor

pytestmark = pytest.mark.anyio


def events(text: str) -> list[dict]:
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def joined(chunks: list[dict], index: int = 0) -> str:
    return "".join(
        choice["delta"]["content"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )


async def test_a_chat_is_answered_with_its_usage(serve):
    async with serve() as http:
        response = await http.post(CHAT, json=chat())
        body = response.json()
    assert response.status_code == 200
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["completion_tokens"] == 6
    assert body["model"] == "echo" and body["object"] == "chat.completion"


async def test_a_stream_has_an_event_per_token_and_ends_with_its_usage(serve):
    async with serve() as http:
        response = await http.post(CHAT, json=chat(stream=True, stream_options={"include_usage": True}))
    found = events(response.text)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert len(found) == 7
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": "h"}
    assert joined(found) == "hello"
    assert [c["choices"][0]["finish_reason"] for c in found[:-1]] == [None] * 5 + ["stop"]
    assert found[-1]["choices"] == [] and found[-1]["usage"]["total_tokens"] == 11
    assert all(chunk["usage"] is None for chunk in found[:-1])


async def test_a_stream_without_usage_asked_for_has_none(serve):
    async with serve() as http:
        response = await http.post(CHAT, json=chat(stream=True))
    assert all("usage" not in chunk for chunk in events(response.text))


async def test_the_answer_ends_at_max_tokens(serve):
    async with serve() as http:
        for name in ("max_tokens", "max_completion_tokens"):
            body = (await http.post(CHAT, json=chat(**{name: 3}))).json()
            assert body["choices"][0]["message"]["content"] == "hel"
            assert body["choices"][0]["finish_reason"] == "length"


async def test_without_max_tokens_a_chat_may_fill_the_context_and_a_completion_has_16_tokens(serve):
    engine = EchoEngine(answers=[[97]])
    async with serve(engine) as http:
        whole = (await http.post(CHAT, json=chat())).json()
        short = (await http.post(TEXT, json={"prompt": "hello"})).json()
    assert whole["usage"]["total_tokens"] == 512
    assert short["usage"]["completion_tokens"] == 16


async def test_a_stop_string_split_over_tokens_ends_the_answer_and_the_engine_is_told(serve):
    engine = EchoEngine(pause_s=0.001)
    async with serve(engine) as http:
        body = (await http.post(CHAT, json=chat("abcdef", stop=["cd", "zz"]))).json()
        stream = await http.post(CHAT, json=chat("abcdef", stop="cd", stream=True))
        kept = (await http.post(CHAT, json=chat("abcdef", stop="cd", include_stop_str_in_output=True))).json()
    assert body["choices"][0]["message"]["content"] == "ab"
    assert body["choices"][0]["finish_reason"] == "stop" and body["choices"][0]["stop_reason"] == "cd"
    assert joined(events(stream.text)) == "ab"
    assert kept["choices"][0]["message"]["content"] == "abcd"
    assert [abort.reason for abort in engine.of(AbortRequest)] == ["stop"] * 3


async def test_a_stop_token_ends_the_answer_and_is_not_shown(serve):
    async with serve() as http:
        body = (await http.post(CHAT, json=chat("abc", stop_token_ids=[ord("c")]))).json()
    assert body["choices"][0]["message"]["content"] == "ab"
    assert body["choices"][0]["stop_reason"] == ord("c")


async def test_ignore_eos_goes_on_to_max_tokens(serve):
    async with serve() as http:
        body = (await http.post(CHAT, json=chat("ab", ignore_eos=True, max_tokens=5))).json()
    assert body["choices"][0]["message"]["content"] == "abab"
    assert body["usage"]["completion_tokens"] == 5


async def test_several_choices_are_kept_apart(serve):
    engine = EchoEngine(answers=[[97, 97, EOS], [98, EOS]])
    async with serve(engine) as http:
        whole = (await http.post(CHAT, json=chat(n=2))).json()
        stream = events((await http.post(CHAT, json=chat(n=2, stream=True))).text)
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["aa", "b"]
    assert whole["usage"]["completion_tokens"] == 5
    assert joined(stream, 0) == "aa" and joined(stream, 1) == "b"


async def test_several_prompts_number_their_choices_through(serve):
    async with serve() as http:
        body = (await http.post(TEXT, json={"prompt": ["ab", "cd"], "n": 2})).json()
        stream = events((await http.post(TEXT, json={"prompt": [[97], [98, 99]], "stream": True})).text)
    assert [choice["text"] for choice in body["choices"]] == ["ab", "ab", "cd", "cd"]
    assert body["usage"]["prompt_tokens"] == 4
    texts = ["", ""]
    for chunk in stream:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["a", "bc"]


async def test_utf8_split_over_tokens_reaches_a_stream_whole(serve):
    async with serve() as http:
        response = await http.post(CHAT, json=chat("€ü", stream=True))
    found = events(response.text)
    contents = [chunk["choices"][0]["delta"]["content"] for chunk in found]
    assert contents == ["", "", "€", "", "ü", ""]


async def test_chat_logprobs_name_tokens_bytes_and_alternatives(serve):
    async with serve() as http:
        body = (await http.post(CHAT, json=chat("a", logprobs=True, top_logprobs=2))).json()
        plain = (await http.post(CHAT, json=chat("a", logprobs=True))).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert content[0]["token"] == "a" and content[0]["bytes"] == [97] and content[0]["logprob"] == -0.5
    assert [t["token"] for t in content[0]["top_logprobs"]] == ["a", "b"]
    assert len(content) == 2
    assert plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


async def test_completion_logprobs_have_the_older_format(serve):
    async with serve() as http:
        body = (await http.post(TEXT, json={"prompt": "ab", "logprobs": 2})).json()
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "<|end|>"]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["token_logprobs"] == [-0.5] * 3
    assert logprobs["top_logprobs"][0] == {"a": -0.5, "b": -1.5}


async def test_images_are_sent_to_stage_zero_and_counted(serve):
    engine = EchoEngine()
    async with serve(engine) as http:
        body = (await http.post(CHAT, json=with_image("ok"))).json()
    assert body["usage"]["prompt_tokens_details"]["image_tokens"] == 4
    assert [(batch.items, batch.attempts, batch.grids) for batch in engine.pixels] == [
        ((0,), (0,), ((1, 4, 4),))
    ]


async def test_with_prefix_caching_hashes_go_first_and_cached_tokens_are_reported(serve):
    engine = EchoEngine()
    async with serve(engine, ClientLimits(prefix_caching=True)) as http:
        text = (await http.post(CHAT, json=chat())).json()
        waiting = asyncio.create_task(http.post(CHAT, json=with_image("picture")))
        while not engine.of(ItemHash):
            await asyncio.sleep(0)
        assert engine.of(ItemHash)[0].digest == b"picture" and not engine.pixels
        waiting.cancel()
    assert text["usage"]["prompt_tokens_details"]["cached_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_an_image_that_fails_late_is_an_error_with_its_own_status(serve, stream):
    async with serve() as http:
        response = await http.post(CHAT, json=with_image("broken", stream=stream))
        assert http.service.engine.num_active == 0
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["param"] == "messages[0].content[0]" and error["code"] == "bad_image"
    assert "broken" in error["message"]


async def test_an_image_that_cannot_be_found_is_refused_before_anything_is_queued(serve):
    engine = EchoEngine()
    async with serve(engine) as http:
        response = await http.post(CHAT, json=with_image("unreadable"))
    assert response.status_code == 400
    assert not engine.of(AddRequest)


async def test_a_refused_request_releases_its_images(serve):
    processor = FakeProcessor()
    async with serve(processor=processor) as http:
        response = await http.post(CHAT, json=with_image("ok", max_tokens=100000))
    assert response.status_code == 400
    assert processor.prompts[0].is_released


async def test_a_served_request_releases_its_images(serve):
    processor = FakeProcessor()
    async with serve(processor=processor) as http:
        await http.post(CHAT, json=with_image("ok"))
        await asyncio.sleep(0.01)
        assert processor.prompts[0].is_released


async def test_what_the_driver_refuses_has_the_drivers_status(serve):
    engine = EchoEngine(refuse=RequestFailed("", 413, "needs 9 blocks of 4"))
    async with serve(engine) as http:
        response = await http.post(CHAT, json=chat(stream=True))
    assert response.status_code == 413
    assert response.json()["error"]["message"] == "needs 9 blocks of 4"


async def test_a_full_queue_answers_429_with_retry_after(serve):
    engine = EchoEngine(is_silent=True)
    async with serve(engine, ClientLimits(max_requests=1)) as http:
        waiting = asyncio.create_task(http.post(CHAT, json=chat()))
        while not engine.of(AddRequest):
            await asyncio.sleep(0)
        response = await http.post(CHAT, json=chat())
        waiting.cancel()
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["type"] == "rate_limit_error"


async def test_a_client_that_has_its_answer_finds_room_before_the_driver_has_let_the_request_go(serve):
    async with serve(EchoEngine(finishes_never=True), ClientLimits(max_requests=1)) as http:
        answers = [await http.post(CHAT, json=chat()) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3


async def test_a_request_that_takes_too_long_ends_with_504_and_is_aborted(serve):
    engine = EchoEngine(is_silent=True)
    async with serve(engine, ClientLimits(timeout_s=0.02)) as http:
        response = await http.post(CHAT, json=chat())
    assert response.status_code == 504
    assert [abort.reason for abort in engine.of(AbortRequest)] == ["timeout"]


async def test_a_stream_that_fails_after_its_first_token_says_so_in_an_event(serve):
    engine = EchoEngine(pause_s=0.01)
    async with serve(engine) as http:
        task = asyncio.create_task(http.post(CHAT, json=chat("hello world", stream=True)))
        await asyncio.sleep(0.05)
        engine.fail(RankFailed("rank1", "killed"))
        found = events((await task).text)
        assert "rank1" in found[-1]["error"]["message"]
        assert (await http.get("/health")).status_code == 503
        assert (await http.post(CHAT, json=chat())).status_code == 503


@pytest.mark.parametrize("engine", [EchoEngine(finished_first=True), EchoEngine(repeats=True)])
async def test_tokens_are_whole_although_messages_overtake_or_repeat(serve, engine):
    async with serve(engine) as http:
        body = (await http.post(CHAT, json=chat())).json()
        assert http.service.engine.num_active == 0
    assert body["choices"][0]["message"]["content"] == "hello"
    assert body["usage"]["completion_tokens"] == 6


async def test_nothing_is_left_in_the_engine_after_many_requests(serve):
    async with serve() as http:
        answers = await asyncio.gather(*(http.post(CHAT, json=chat(f"number {i}")) for i in range(50)))
        assert http.service.engine.num_active == 0
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert texts == [f"number {i}" for i in range(50)]
