import pytest

from gllm.multimodal.content import ImageSource, parse_chat
from gllm.multimodal.errors import BadInput

URL = "https://example.org/a.png"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}


def user(content):
    return [{"role": "user", "content": content}]


def refused(messages, max_images=4) -> BadInput:
    with pytest.raises(BadInput) as caught:
        parse_chat(messages, max_images)
    assert caught.value.status == 400 and str(caught.value)
    return caught.value


def test_text_and_images_keep_their_order_and_places():
    chat = parse_chat(
        [
            {"role": "system", "content": [IMAGE, {"type": "text", "text": "s"}]},
            {"role": "user", "content": "plain"},
            {"role": "assistant", "content": [{"type": "input_text", "text": "a"}, IMAGE]},
            {"role": "tool", "tool_call_id": "1", "content": [IMAGE]},
        ],
        4,
    )
    assert [image.part for image in chat.images] == [
        "messages[0].content[0]",
        "messages[2].content[1]",
        "messages[3].content[0]",
    ]
    assert chat.messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "s"}]
    assert chat.messages[1] == {"role": "user", "content": "plain"}
    assert chat.messages[3]["tool_call_id"] == "1"


@pytest.mark.parametrize(
    "part",
    [
        IMAGE,
        {"type": "image_url", "image_url": URL},
        {"type": "image", "image": URL},
        {"type": "image", "url": URL},
        {"type": "input_image", "image_url": URL, "detail": None},
        {"type": "image_url", "image_url": {"url": URL}, "cache_control": {"type": "ephemeral"}},
    ],
)
def test_every_usual_form_of_an_image_part_is_understood(part):
    assert parse_chat(user([part]), 1).images == (ImageSource("messages[0].content[0]", URL),)


def test_options_stand_in_the_part_or_beside_the_url():
    inner = {
        "type": "image_url",
        "image_url": {"url": URL, "detail": "low", "min_pixels": 1, "max_pixels": 2},
    }
    outer = {"type": "image", "image": URL, "detail": "low", "min_pixels": 1, "max_pixels": 2}
    expected = (ImageSource("messages[0].content[0]", URL, "low", 1, 2),)
    assert parse_chat(user([inner]), 1).images == parse_chat(user([outer]), 1).images == expected


def test_developer_is_the_system_role():
    assert parse_chat([{"role": "developer", "content": "x"}], 0).messages[0]["role"] == "system"


def test_an_assistant_message_as_the_openai_client_returns_it_is_accepted():
    message = {
        "role": "assistant",
        "content": "yes",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert parse_chat([message], 0).messages == [{"role": "assistant", "content": "yes"}]


def test_an_assistant_that_only_calls_tools_needs_no_content():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    message = parse_chat([{"role": "assistant", "content": None, "tool_calls": [call]}], 0).messages[0]
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": [1]}


@pytest.mark.parametrize(
    ("messages", "part", "says"),
    [
        (None, "messages", "list"),
        ([], "messages", "at least one"),
        ("hi", "messages", "list"),
        ([7], "messages[0]", "object"),
        ([{"content": "x"}], "messages[0].role", "None"),
        ([{"role": "root", "content": "x"}], "messages[0].role", "'root', allowed: system"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role", "allowed"),
        ([{"role": "user"}], "messages[0].content", "None"),
        (user(None), "messages[0].content", "string or a list"),
        (user(3), "messages[0].content", "3"),
        (user({}), "messages[0].content", "string or a list"),
        (user([]), "messages[0].content", "empty"),
        (user(["hi"]), "messages[0].content[0]", "object"),
        (user([{}]), "messages[0].content[0]", "type is None, supported: text"),
        (user([{"type": "poem", "text": "x"}]), "messages[0].content[0]", "'poem', supported"),
        (user([{"type": ["text"], "text": "x"}]), "messages[0].content[0]", "supported"),
        (user([{"type": "text"}]), "messages[0].content[0]", "text must be a string, got None"),
        (user([{"type": "text", "text": 5}]), "messages[0].content[0]", "got 5"),
        (user([{"type": "text", "text": "x", "image": URL}]), "messages[0].content[0]", "'image'"),
        (user([{"type": "video_url", "video_url": {"url": URL}}]), "messages[0].content[0]", "videos"),
        (user([{"type": "input_audio", "input_audio": {}}]), "messages[0].content[0]", "audio"),
        (user([{"type": "image_url"}]), "messages[0].content[0]", "has none"),
        (user([{"type": "image", "image": URL, "url": URL}]), "messages[0].content[0]", "image and url"),
        (user([{"type": "image_url", "image_url": {}}]), "messages[0].content[0]", "non-empty string"),
        (user([{"type": "image_url", "image_url": {"url": ""}}]), "messages[0].content[0]", "non-empty"),
        (user([{"type": "image_url", "image_url": {"url": 5}}]), "messages[0].content[0]", "got 5"),
        (user([{"type": "image_url", "image_url": [URL]}]), "messages[0].content[0]", "string"),
        (
            user([{"type": "image_url", "image_url": {"url": URL, "size": 3}}]),
            "messages[0].content[0].image_url",
            "'size'",
        ),
        (user([{**IMAGE, "detail": "ultra"}]), "messages[0].content[0]", "'ultra', allowed: auto"),
        (user([{**IMAGE, "detail": ["low"]}]), "messages[0].content[0]", "allowed: auto"),
        (user([{**IMAGE, "resized_height": 28}]), "messages[0].content[0]", "'resized_height'"),
        (user("a\ud800"), "messages[0].content", "surrogate pair at character 1"),
        (user([{"type": "text", "text": "\udfff"}]), "messages[0].content[0]", "surrogate"),
        ([{"role": "user", "content": "x", "weight": 0}], "messages[0]", "'weight'"),
        ([{"role": "user", "content": "x", "name": 1}], None, "name must be a string"),
        (
            [{"role": "user", "content": "x", "tool_calls": [{}]}],
            "messages[0].tool_calls",
            "only an assistant",
        ),
        ([{"role": "assistant", "content": "x", "tool_calls": {}}], "messages[0].tool_calls", "list"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
            "messages[0].tool_calls",
            "must be JSON",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(messages, part, says):
    error = refused(messages)
    assert error.part == part and says in str(error)


def test_one_image_too_many_is_refused_where_it_stands():
    assert len(parse_chat(user([IMAGE] * 4), 4).images) == 4
    error = refused([{"role": "user", "content": [IMAGE] * 3}, {"role": "user", "content": [IMAGE] * 2}])
    assert error.part == "messages[1].content[1]" and "at most 4" in str(error)
    assert error.code == "too_many_images"


def test_an_error_does_not_echo_a_huge_value():
    assert len(str(refused(user([{"type": "x" * 10**6}])))) < 400


def test_json_that_nests_too_deeply_is_refused():
    value: list = []
    for _ in range(500):
        value = [value]
    error = refused([{"role": "assistant", "content": "", "tool_calls": [{"x": value}]}])
    assert "nested too deeply" in str(error)
