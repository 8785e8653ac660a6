"""What the server refuses, and how it says so; what it accepts although it does nothing with it."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gllm.entrypoints.errors import ApiError
from gllm.entrypoints.protocol import ChatCompletionRequest, CompletionRequest
from gllm.entrypoints.sampling import (
    SamplingDefaults,
    SamplingLimits,
    chat_sampling,
    completion_sampling,
    stop_rule,
)

LIMITS = SamplingLimits(max_model_len=100, vocab_size=50)
MESSAGES = [{"role": "user", "content": "hi"}]


def parse(**fields) -> ChatCompletionRequest:
    return ChatCompletionRequest.parse(json.dumps({"messages": MESSAGES, **fields}).encode())


def sampling(defaults: SamplingDefaults | None = None, prompt_tokens: int = 10, **fields):
    return chat_sampling(parse(**fields), prompt_tokens, defaults or SamplingDefaults(), LIMITS, seed=7)


def refusal(call) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call()
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -3.0),
        ("n", 0),
        ("n", 129),
        ("max_tokens", 0),
        ("max_completion_tokens", -1),
        ("stop_token_ids", [50]),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, value):
    error = refusal(lambda: sampling(**{name: value}))
    assert error.param == name and name in error.message


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("max_tokens", 1.5),
        ("max_tokens", "10"),
        ("n", True),
        ("stream", "yes"),
        ("stop", [1]),
        ("stop_token_ids", ["a"]),
        ("messages", "hello"),
        ("messages", []),
        ("seed", "x"),
        ("logprobs", 5),
        ("chat_template_kwargs", []),
    ],
)
def test_values_of_the_wrong_type_are_refused_by_name(name, value):
    error = refusal(lambda: parse(**{name: value}))
    assert error.param is not None and error.param.split("[")[0] == name


@pytest.mark.parametrize(
    "name, value",
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 1}),
        ("echo", True),
        ("use_beam_search", True),
        ("min_tokens", 5),
        ("guided_json", {}),
        ("temprature", 0.5),
    ],
)
def test_fields_that_would_change_the_answer_are_refused_by_name(name, value):
    error = refusal(lambda: parse(**{name: value}))
    assert error.param == name and name in error.message


def test_fields_that_change_nothing_are_accepted():
    parse(user="me", metadata={"a": "b"}, store=False, service_tier="auto", parallel_tool_calls=True)
    parse(tools=None, tool_choice="none", response_format={"type": "text"}, logit_bias={}, n=1, best_of=1)
    parse(stop=None, seed=None, temperature=None, stream_options=None, guided_json=None)


def test_a_body_that_is_no_json_is_refused():
    for body in (b"", b"{", b"[]", b"null", b'{"messages": NaN}', b"\xff\xfe"):
        refusal(lambda body=body: ChatCompletionRequest.parse(body))


def test_an_answer_that_does_not_fit_the_context_is_refused_with_what_would_fit():
    assert sampling(max_tokens=90).max_tokens == 90
    error = refusal(lambda: sampling(max_tokens=91))
    assert "max_tokens <= 90" in error.message and error.code == "context_length_exceeded"
    assert sampling(prompt_tokens=99).max_tokens == 1
    assert refusal(lambda: sampling(prompt_tokens=100)).param == "messages"


def test_max_completion_tokens_wins_over_max_tokens():
    assert sampling(max_tokens=5, max_completion_tokens=6).max_tokens == 6


def test_a_text_completion_without_a_length_has_16_tokens_or_what_fits():
    body = CompletionRequest(prompt="x")
    assert completion_sampling(body, 10, SamplingDefaults(), LIMITS, 1).max_tokens == 16
    assert completion_sampling(body, 95, SamplingDefaults(), LIMITS, 1).max_tokens == 5


def test_the_checkpoints_defaults_hold_unless_the_request_says_otherwise():
    values = {
        "temperature": 0.1,
        "top_p": 0.8,
        "top_k": 20,
        "repetition_penalty": 1.05,
        "eos_token_id": [1, 2],
    }
    defaults = SamplingDefaults.from_values(values, (2, 3))
    params = sampling(defaults)
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (0.1, 0.8, 20, 1.05)
    assert defaults.eos_token_ids == (1, 2, 3)
    asked = sampling(defaults, temperature=1.0, top_p=1.0, top_k=-1, repetition_penalty=1.0)
    assert (asked.temperature, asked.top_p, asked.top_k, asked.repetition_penalty) == (1.0, 1.0, 0, 1.0)


def test_a_checkpoint_that_does_not_sample_is_greedy():
    assert SamplingDefaults.from_values({"do_sample": False}).temperature == 0.0
    assert SamplingDefaults.from_values({}).temperature == 1.0


def test_tiny_temperatures_are_greedy():
    assert sampling(temperature=1e-6).temperature == 0.0
    assert sampling(temperature=0).temperature == 0.0


def test_a_seed_is_kept_and_drawn_where_there_is_none():
    assert sampling(seed=5).seed == 5
    assert sampling(seed=-1).seed == 2**63 - 1
    assert sampling().seed == 7


def test_logprobs_of_a_chat_need_the_switch_and_have_a_limit():
    assert sampling().logprobs is None
    assert sampling(logprobs=True).logprobs == 0
    assert sampling(logprobs=True, top_logprobs=20).logprobs == 20
    assert refusal(lambda: sampling(top_logprobs=2)).param == "top_logprobs"
    assert refusal(lambda: sampling(logprobs=True, top_logprobs=21)).param == "top_logprobs"


def test_stop_strings_may_be_one_or_several_but_not_empty():
    assert stop_rule(parse(stop="a")).strings == ("a",)
    assert stop_rule(parse(stop=["a", "b"])).strings == ("a", "b")
    refusal(lambda: stop_rule(parse(stop="")))
    refusal(lambda: stop_rule(parse(stop=["a"] * 17)))


def test_prompts_of_a_completion_in_all_their_forms():
    assert CompletionRequest(prompt="a").prompts == ["a"]
    assert CompletionRequest(prompt=["a", "b"]).prompts == ["a", "b"]
    assert CompletionRequest(prompt=[1, 2]).prompts == [[1, 2]]
    assert CompletionRequest(prompt=[[1], [2, 3]]).prompts == [[1], [2, 3]]
    for empty in ("", [], [""], [[]]):
        refusal(lambda empty=empty: CompletionRequest(prompt=empty).prompts)


def test_pixel_bounds_stand_at_the_top_or_in_mm_processor_kwargs():
    top = parse(min_pixels=3136, mm_processor_kwargs={"max_pixels": 50000}).chat_prompt()
    assert top.mm_processor_kwargs == {"max_pixels": 50000, "min_pixels": 3136}
    assert parse().chat_prompt().mm_processor_kwargs is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(sorted(ChatCompletionRequest.model_fields)) | st.text(max_size=8)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(field_names, json_values, max_size=4))
def test_any_json_object_is_accepted_or_refused_with_an_api_error(fields):
    try:
        request = ChatCompletionRequest.parse(json.dumps(fields).encode("utf-8", "surrogatepass"))
        stop_rule(request)
        chat_sampling(request, 10, SamplingDefaults(), LIMITS, seed=1)
    except ApiError as error:
        assert error.status == 400 and error.message
