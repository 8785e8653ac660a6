"""The official client against a real server: streams, choices, stops, log-probabilities, usage, lengths."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from PIL import Image
from schemathesis.checks import not_a_server_error

from gllm.multimodal.data_url import to_data_url
from tests.e2e.server import Server, running

FREE = {"extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--scheme", "rserve", "--num-kv-blocks", "256", "--media-hosts", "none")
    with running(tmp_path_factory.mktemp("server"), "tiny", *flags) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


def asked(text: str = "What is this?", images: int = 1, **fields: object) -> dict:
    url = to_data_url(Image.new("RGB", (56, 56), "red"))
    part = {"type": "image_url", "image_url": {"url": url}}
    content = [*[part] * images, {"type": "text", "text": text}]
    messages = [{"role": "user", "content": content}]
    return {"model": "tiny", "messages": messages, "max_tokens": 24, "temperature": 0, **fields}


def streamed(client: openai.OpenAI, **request: object) -> tuple[dict[int, str], dict[int, str], object, int]:
    """Text and finish reason of each choice, usage, and the number of chunks that carry text."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    usage, chunks = None, 0
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in client.chat.completions.create(**request, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            chunks += bool(choice.delta.content)
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, usage, chunks


@pytest.mark.slow
def test_a_stream_of_several_choices_equals_the_whole_answer(client: openai.OpenAI):
    request = asked(n=3, seed=7, temperature=1.0, **FREE)
    whole = client.chat.completions.create(**request)
    texts, reasons, usage, chunks = streamed(client, **request)
    assert [texts[c.index] for c in whole.choices] == [c.message.content for c in whole.choices]
    assert reasons == {0: "length", 1: "length", 2: "length"}
    assert usage == whole.usage and usage.completion_tokens == 72
    assert usage.total_tokens == usage.prompt_tokens + 72
    assert chunks > 6


@pytest.mark.slow
def test_stop_strings_split_over_tokens_never_show_in_answers_or_streams(client: openai.OpenAI):
    whole = client.chat.completions.create(**asked(**FREE)).choices[0].message.content
    assert len(whole) > 8
    for start in (1, 3, 5):
        stop = whole[start : start + 3]
        request = asked(stop=[stop, "never said"], **FREE)
        answer = client.chat.completions.create(**request)
        texts, reasons, usage, _ = streamed(client, **request)
        expected = whole[: whole.index(stop)]
        assert answer.choices[0].message.content == texts[0] == expected
        assert answer.choices[0].finish_reason == reasons[0] == "stop"
        assert answer.usage.completion_tokens == usage.completion_tokens < 24


@pytest.mark.slow
def test_characters_split_over_tokens_are_sent_whole(client: openai.OpenAI):
    """The prompt makes nothing sure about the answer: a forced one would not; every chunk must be text."""
    text = "😀 é 漢字 " * 4
    texts, _, usage, _ = streamed(client, **asked(text, images=0, max_tokens=64, **FREE))
    whole = client.chat.completions.create(**asked(text, images=0, max_tokens=64, **FREE))
    assert texts[0] == whole.choices[0].message.content
    assert usage.completion_tokens == 64


@pytest.mark.slow
def test_log_probabilities_come_with_every_token_and_fit_the_text(client: openai.OpenAI):
    request = asked(logprobs=True, top_logprobs=3, max_tokens=6, **FREE)
    choice = client.chat.completions.create(**request).choices[0]
    assert len(choice.logprobs.content) == 6
    for token in choice.logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)
    spelled = b"".join(bytes(token.bytes) for token in choice.logprobs.content)
    assert spelled.decode().replace("<|im_end|>", "") == choice.message.content


@pytest.mark.slow
def test_lengths_of_one_none_and_too_much(client: openai.OpenAI):
    one = client.chat.completions.create(**asked(max_tokens=1, **FREE))
    assert one.usage.completion_tokens == 1 and one.choices[0].finish_reason == "length"
    without = asked()
    del without["max_tokens"]
    free = client.chat.completions.create(**without)
    assert free.usage.completion_tokens >= 1
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(**asked(max_tokens=0))
    with pytest.raises(openai.BadRequestError, match="context"):
        client.chat.completions.create(**asked(max_tokens=10**9))


@pytest.mark.slow
def test_the_longest_answer_that_fits_is_served_and_one_more_token_is_refused(client: openai.OpenAI):
    prompt = client.chat.completions.create(**asked(max_tokens=1)).usage.prompt_tokens
    limit = client.models.list().data[0].model_dump()["max_model_len"]
    with pytest.raises(openai.BadRequestError, match=f"max_tokens <= {limit - prompt}"):
        client.chat.completions.create(**asked(max_tokens=limit - prompt + 1))
    request = asked(max_tokens=limit - prompt, **FREE)
    for chunk in client.chat.completions.create(**request, stream=True):
        assert chunk.choices
        break


@pytest.mark.slow
def test_streams_at_the_same_time_do_not_mix(client: openai.OpenAI):
    requests = [asked(f"number {i}", images=i % 3, **FREE) for i in range(12)]
    alone = [client.chat.completions.create(**r).choices[0].message.content for r in requests]
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda r: streamed(client, **r)[0][0], requests))
    assert found == alone


@pytest.mark.slow
def test_the_request_id_of_a_client_comes_back(client: openai.OpenAI, server: Server):
    raw = client.chat.completions.with_raw_response
    answer = raw.create(**asked(), extra_headers={"x-request-id": "my-id-1"})
    assert answer.headers["x-request-id"] == "my-id-1"
    assert "request_id=my-id-1" in server.log.read_text()


@pytest.mark.slow
def test_whatever_the_schema_allows_the_real_server_answers_it(server: Server):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy())
        def answers(case: schemathesis.Case) -> None:
            response = case.call(timeout=60)
            case.validate_response(response, checks=[not_a_server_error])

        answers()
