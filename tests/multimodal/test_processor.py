import asyncio
import base64
import io
import json
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager

import numpy as np
import pytest
from PIL import Image

from gllm.core.request import MMItem
from gllm.multimodal.data_url import to_data_url
from gllm.multimodal.errors import BadInput
from gllm.multimodal.limits import MediaLimits
from gllm.multimodal.processor import ChatPrompt, PromptProcessor
from tests.multimodal.pictures import encoded, rgb
from tests.multimodal.web import PICTURE, site

TINY = "gllm/models_data/tiny"
IMAGE = 502


@asynccontextmanager
async def processing(model=TINY, **limits):
    processor = PromptProcessor(model, MediaLimits(**limits))
    try:
        yield processor
    finally:
        await processor.close()


def image_part(url, **options):
    return {"type": "image_url", "image_url": {"url": url, **options}}


def user(*parts):
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}]


def run(messages, **fields):
    """Prepare, take all pixels and digests, release."""
    limits = fields.pop("limits", {})
    model = fields.pop("model", TINY)

    async def main():
        async with processing(model, **limits) as processor:
            prompt = await processor.prepare_chat(ChatPrompt(messages, **fields))
            pixels = [await prompt.pixels(i) for i in range(len(prompt.items))]
            digests = [await prompt.digest(i) for i in range(len(prompt.items))]
            await prompt.release()
            return prompt, pixels, digests

    return asyncio.run(main())


def refused(messages, **fields) -> BadInput:
    with pytest.raises(BadInput) as caught:
        run(messages, **fields)
    return caught.value


def test_items_stand_where_their_placeholders_are_and_pixels_fit_their_grids():
    sizes = [(75, 100), (56, 56), (200, 30)]
    messages = user(*[image_part(to_data_url(rgb(*size))) for size in sizes])
    prompt, pixels, digests = run(messages)
    assert [item.grid for item in prompt.items] == [(1, 6, 8), (1, 4, 4), (1, 14, 2)]
    assert sum(item.num_tokens for item in prompt.items) == prompt.token_ids.count(IMAGE)
    for item, image in zip(prompt.items, pixels, strict=True):
        assert prompt.token_ids[item.offset : item.end] == [IMAGE] * item.num_tokens
        assert prompt.token_ids[item.offset - 1] == 499 and prompt.token_ids[item.end] == 500
        assert image.shape == (item.grid[1] * 14, item.grid[2] * 14, 3) and image.dtype == np.uint8
    assert len(set(digests)) == 3 and all(len(digest) == 16 for digest in digests)


def test_prompts_equal_those_of_the_processor_of_transformers():
    from transformers import AutoImageProcessor, AutoTokenizer
    from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor

    class WithoutVideos(Qwen2_5_VLProcessor):
        def check_argument_for_proper_class(self, name, argument):
            return None if argument is None else super().check_argument_for_proper_class(name, argument)

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    reference = WithoutVideos(
        AutoImageProcessor.from_pretrained(TINY), tokenizer, None, chat_template=tokenizer.chat_template
    )
    images = [rgb(75, 100, 1), rgb(333, 77, 2), rgb(29, 1001, 3)]
    content = [
        {"type": "text", "text": "compare "},
        *[{"type": "image"}] * 3,
        {"type": "text", "text": "\nnow"},
    ]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    expected = reference(text=[text], images=images, return_tensors="np")
    parts = [content[0], *[image_part(to_data_url(image)) for image in images], content[-1]]
    prompt, _, _ = run([{"role": "user", "content": parts}])
    assert prompt.token_ids == expected["input_ids"][0].tolist()
    assert [list(item.grid) for item in prompt.items] == expected["image_grid_thw"].tolist()


def test_positions_are_known_before_the_pixels_have_arrived():
    async def main():
        async with site() as web, processing(media_hosts=("127.0.0.1",)) as processor:
            messages = user(image_part(web.url("halves")), image_part(to_data_url(rgb())))
            prompt = await asyncio.wait_for(processor.prepare_chat(ChatPrompt(messages)), 10)
            assert [item.grid for item in prompt.items] == [(1, 4, 6), (1, 4, 6)]
            late = asyncio.ensure_future(prompt.pixels(0))
            assert (await asyncio.wait_for(prompt.pixels(1), 10)).shape == (56, 84, 3)
            assert not late.done(), "one slow URL idles nobody"
            web.gate.set()
            expected = Image.open(io.BytesIO(PICTURE)).resize((84, 56), Image.Resampling.BICUBIC)
            assert np.array_equal(await late, expected)
            await prompt.release()

    asyncio.run(main())


def test_an_image_that_fails_late_names_its_part():
    async def main():
        limits = {"media_hosts": ("127.0.0.1",), "fetch_timeout_s": 0.5}
        async with site() as web, processing(**limits) as processor:
            messages = user({"type": "text", "text": "a"}, image_part(web.url("stalled")))
            prompt = await processor.prepare_chat(ChatPrompt(messages))
            for late in (prompt.pixels(0), prompt.digest(0)):
                with pytest.raises(BadInput, match="did not arrive") as caught:
                    await late
                assert caught.value.part == "messages[0].content[1]"
            await prompt.release()

    asyncio.run(main())


def test_a_truncated_file_is_accepted_by_its_header_and_refused_by_its_pixels():
    cut = "data:image/png;base64," + base64.b64encode(encoded(rgb(64, 64))[:5000]).decode()
    error = refused(user(image_part(cut)))
    assert error.part == "messages[0].content[0]" and "truncated or corrupt" in str(error)


def test_one_bad_image_ends_the_other_fetches():
    async def main():
        async with site() as web, processing(media_hosts=("127.0.0.1",)) as processor:
            messages = user(image_part(web.url("silent")), image_part(web.url("missing")))
            with pytest.raises(BadInput, match="404") as caught:
                await processor.prepare_chat(ChatPrompt(messages))
            assert caught.value.part == "messages[0].content[1]"
            await asyncio.sleep(0.1)
            assert web.open == 0

    asyncio.run(main())


def test_a_client_that_goes_away_ends_its_fetches():
    async def main():
        async with site() as web, processing(media_hosts=("127.0.0.1",)) as processor:
            task = asyncio.ensure_future(
                processor.prepare_chat(ChatPrompt(user(image_part(web.url("silent")))))
            )
            await asyncio.sleep(0.1)
            assert web.open == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.1)
            assert web.open == 0

    asyncio.run(main())


def test_equal_urls_of_one_request_are_fetched_once_and_stay_items_of_their_own():
    async def main():
        async with site() as web, processing(media_hosts=("127.0.0.1",)) as processor:
            url = web.url("picture")
            parts = [image_part(url), image_part(url, max_pixels=784), image_part(url)]
            prompt = await processor.prepare_chat(ChatPrompt(user(*parts)))
            pixels = [await prompt.pixels(i) for i in range(3)]
            digests = [await prompt.digest(i) for i in range(3)]
            assert web.hits["picture"] == 1
            assert np.array_equal(pixels[0], pixels[2]) and pixels[1].shape == (28, 28, 3)
            assert digests[0] == digests[2] != digests[1]
            await prompt.release()
            with pytest.raises(BadInput, match="ended"):
                await prompt.pixels(2)

    asyncio.run(main())


def test_pixel_options_of_a_part_win_over_those_of_the_request():
    url = to_data_url(rgb(280, 280))
    messages = user(image_part(url), image_part(url, max_pixels=784), image_part(url, min_pixels=400_000))
    prompt, _, _ = run(messages, mm_processor_kwargs={"max_pixels": 28 * 28 * 4})
    assert [item.num_tokens for item in prompt.items][:2] == [4, 1]
    assert prompt.items[2].num_tokens >= 400_000 / 784


def test_the_server_s_bounds_hold_for_images_whose_request_sets_none():
    large = image_part(to_data_url(Image.new("RGB", (400, 400))))
    limits = {"mm_processor_kwargs": {"max_pixels": 28 * 28 * 4}}
    assert [item.num_tokens for item in run(user(large))[0].items] == [196]
    assert [item.num_tokens for item in run(user(large), limits=limits)[0].items] == [4]
    own = run(user(large), limits=limits, mm_processor_kwargs={"max_pixels": 28 * 28 * 9})[0]
    assert [item.num_tokens for item in own.items] == [9]
    with pytest.raises(ValueError, match="--mm-processor-kwargs: max_pixels is 5, allowed"):
        run(user(), limits={"mm_processor_kwargs": {"max_pixels": 5}})


@pytest.mark.parametrize(
    "kwargs", [{"size": {"longest_edge": 3136}}, {"max_pixels": 3136}, {"max_pixels": 3136, "size": None}]
)
def test_both_forms_of_processor_options_are_understood(kwargs):
    prompt, _, _ = run(user(image_part(to_data_url(rgb(280, 280)))), mm_processor_kwargs=kwargs)
    assert prompt.items[0].num_tokens == 4


def test_the_files_of_a_request_share_an_allowance():
    parts = [image_part(to_data_url(rgb(40, 40, seed))) for seed in range(3)]
    assert len(run(user(*parts), limits={"max_request_bytes": 20_000})[0].items) == 3
    error = refused(user(*parts), limits={"max_request_bytes": 10_000})
    assert "more than 10000 bytes in all" in str(error)
    same = [parts[0]] * 3
    assert len(run(user(*same), limits={"max_request_bytes": 10_000})[0].items) == 3


def test_low_detail_makes_fewer_tokens():
    url = to_data_url(rgb(1120, 1120))
    prompt, _, _ = run(user(image_part(url), image_part(url, detail="low"), image_part(url, detail="high")))
    assert [item.num_tokens for item in prompt.items] == [1600, 324, 1600]


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ([], "must be an object"),
        ({"fps": 2}, "unknown field 'fps'"),
        ({"size": {"height": 3}}, "shortest_edge"),
        ({"max_pixels": 5}, "max_pixels is 5, allowed"),
        ({"min_pixels": 2000, "max_pixels": 1000}, "above max_pixels"),
    ],
)
def test_processor_options_that_are_not_understood_are_refused(kwargs, says):
    error = refused(user(), mm_processor_kwargs=kwargs)
    assert error.part == "mm_processor_kwargs" and says in str(error)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_pixels": "784"}, "max_pixels is '784'"),
        ({"max_pixels": True}, "max_pixels is True"),
        ({"max_pixels": 784.0}, "max_pixels is 784.0"),
        ({"max_pixels": 783}, "max_pixels is 783, allowed: an integer from 784 (one token) to "),
        ({"min_pixels": 10**12}, "min_pixels is 1000000000000"),
    ],
)
def test_pixel_options_of_a_part_are_refused_where_they_stand(options, says):
    error = refused(user({"type": "text", "text": "a"}, image_part(to_data_url(rgb()), **options)))
    assert error.part == "messages[0].content[1]" and says in str(error)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (rgb(1, 201), "200 to 1"),
        (Image.new("1", (1001, 1000)), "1001 x 1000 = 1001000 pixels, above the limit of 1000000"),
    ],
)
def test_sizes_are_refused_by_the_header(image, says):
    error = refused(user(image_part(to_data_url(image))), limits={"max_image_pixels": 10**6})
    assert error.part == "messages[0].content[0]" and says in str(error)


def test_images_in_every_role_and_turn_are_items():
    parts = [image_part(to_data_url(rgb(28, 28 * n))) for n in range(4, 8)]
    roles = ("system", "user", "assistant", "tool")
    prompt, _, _ = run([{"role": role, "content": [part]} for role, part in zip(roles, parts)])
    assert [item.num_tokens for item in prompt.items] == [4, 5, 6, 7]


def test_text_alone_has_no_items():
    prompt, _, _ = run([{"role": "user", "content": "hi <|image_pad|>"}])
    assert prompt.items == () and IMAGE not in prompt.token_ids


@pytest.fixture
def text_model(tmp_path):
    """The tiny checkpoint as if it took text only."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(f"{TINY}/{name}", tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 512, "model_type": "qwen2"}')
    return tmp_path


def test_a_text_model_refuses_images_and_serves_text(text_model):
    error = refused(user(image_part(to_data_url(rgb()))), model=text_model)
    assert "text only" in str(error) and error.part == "messages[0].content[0]"
    assert refused(user(), model=text_model, mm_processor_kwargs={}).part == "mm_processor_kwargs"
    assert run(user(), model=text_model)[0].token_ids


def test_a_model_without_a_template_has_completions_only(text_model):
    (text_model / "chat_template.jinja").unlink()
    assert "/v1/completions" in str(refused(user(), model=text_model))


def test_a_checkpoint_with_images_but_no_placeholder_is_refused_at_start(text_model):
    shutil.copy(f"{TINY}/preprocessor_config.json", text_model)
    with pytest.raises(ValueError, match="image_token_id"):
        PromptProcessor(text_model)


def complete(prompt):
    async def main():
        async with processing() as processor:
            return await processor.prepare_completion(prompt)

    return asyncio.run(main())


def test_a_completion_is_text_or_ids():
    ids = complete("<|im_start|>hello").token_ids
    assert 491 not in ids
    assert complete(ids).token_ids == ids
    assert complete([491, 511]).token_ids == [491, 511]


@pytest.mark.parametrize(
    ("prompt", "part", "says"),
    [
        ("", "prompt", "empty"),
        ([], "prompt", "empty"),
        ([1, 512], "prompt[1]", "allowed: integers from 0 to 511"),
        ([-1], "prompt[0]", "-1"),
        ([True], "prompt[0]", "True"),
        ([1.0], "prompt[0]", "1.0"),
        (["a"], "prompt[0]", "'a'"),
        ([1, IMAGE], "prompt[1]", "placeholder"),
        ([503], "prompt[0]", "placeholder"),
        ("\ud800", "prompt", "surrogate"),
    ],
)
def test_a_completion_that_is_neither_is_refused(prompt, part, says):
    with pytest.raises(BadInput, match=says) as caught:
        complete(prompt)
    assert caught.value.part == part


def test_the_order_of_items_is_that_of_the_messages_however_long_each_takes():
    async def main():
        async with site() as web, processing(media_hosts=("127.0.0.1",)) as processor:
            messages = user(image_part(web.url("silent")), image_part(to_data_url(rgb(28, 28 * 7))))
            task = asyncio.ensure_future(processor.prepare_chat(ChatPrompt(messages)))
            await asyncio.sleep(0.1)
            web.gate.set()
            prompt = await task
            assert [item.num_tokens for item in prompt.items] == [6, 7]
            assert isinstance(prompt.items[0], MMItem)
            await prompt.release()

    asyncio.run(main())


def test_neither_torch_nor_transformers_is_imported():
    code = (
        "import sys; from gllm.multimodal.processor import PromptProcessor; "
        f"PromptProcessor({TINY!r}); "
        "print(sorted({'torch', 'transformers', 'torchvision'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout.replace("'", '"')) == []
