"""Pictures, questions and tokenizers of the tiny model; what its stored checkpoint answers."""

from __future__ import annotations

import random
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from evaluation.tiny_vlm import check, pictures
from evaluation.tiny_vlm.model import MODEL_FOLDER, sample_texts, special_ids
from evaluation.tiny_vlm.pictures import PLACEMENTS, PictureSpec, Style, draw, follow_up, make_example
from evaluation.tiny_vlm.questions import KINDS
from evaluation.tiny_vlm.reference import build_prompt, load_tokenizer, reference_generate
from evaluation.tiny_vlm.tokenizer import SPECIAL_TOKENS, learn_merges, write_tokenizer

MODELS = MODEL_FOLDER.parent
seeds = st.integers(0, 2**32)


def truth(example: pictures.Example) -> set[str]:
    """Every answer that the pictures justify."""
    specs = example.specs
    if example.kind == "lookup":
        return {s.colour for s in specs if f"the {s.thing}?" in example.question}
    named = [i for i in range(len(specs)) if f"in image {i + 1}?" in example.question]
    named += [i for i in range(len(specs)) if f"Describe image {i + 1}." in example.question]
    spec = specs[named[0]] if named else specs[0]
    described = {"colour": spec.colour, "shape": spec.thing, "digit": spec.thing}
    return {described.get(example.kind, f"{'an' if spec.colour == 'orange' else 'a'} {spec.text}")}


@given(seeds, st.integers(1, 6), st.sampled_from(PLACEMENTS), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_every_example_has_one_right_answer_that_its_pictures_justify(seed, num_images, placement, options):
    example = make_example(
        random.Random(seed), num_images, Style(num_options=options and options + 1, placement=placement)
    )
    assert truth(example) == {example.answer_text}
    assert len(set(example.options)) == len(example.options)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_images_that_a_question_counts_are_labelled(placement):
    for seed in range(20):
        example = make_example(random.Random(seed), 3, Style(placement=placement))
        labelled = example.question.startswith("Image 1<image 1>\nImage 2<image 2>\nImage 3<image 3>\n")
        assert labelled == (example.kind != "lookup" or placement == "labelled")


@given(seeds, st.integers(1, 5), st.sampled_from(PLACEMENTS))
@settings(max_examples=50, deadline=None)
def test_the_parts_hold_each_image_once_in_order_and_all_of_the_text(seed, num_images, placement):
    example = make_example(random.Random(seed), num_images, Style(placement=placement))
    assert [p for p in example.parts if type(p) is int] == list(range(num_images))
    marked = "".join(p if type(p) is str else f"<image {p + 1}>" for p in example.parts)
    assert marked == example.prompt_text
    images = [part["image"] for part in example.messages()[0]["content"] if part["type"] == "image"]
    assert images == list(example.images)


def test_options_are_written_as_in_the_prompt_format_of_mmmu():
    example = make_example(random.Random(3), 1, Style(kind="colour", num_options=3))
    first, second, third = example.options
    assert example.prompt_text.startswith("<image 1>What colour is the object in ")
    assert example.prompt_text.endswith(
        f"?\n(A) {first}\n(B) {second}\n(C) {third}\n\n"
        "Answer with the option's letter from the given choices directly."
    )


def test_the_same_generator_state_draws_the_same_pictures_and_another_draws_others():
    spec = PictureSpec("red", "7", 84, 56)
    one, two, other = (draw(random.Random(seed), spec) for seed in (1, 1, 2))
    assert one.size == (84, 56)
    assert one.tobytes() == two.tobytes() != other.tobytes()


@pytest.mark.parametrize("thing", pictures.SHAPES + pictures.DIGITS)
def test_a_thing_is_painted_in_its_colour_on_a_light_background(thing):
    pixels = np.asarray(draw(random.Random(0), PictureSpec("blue", thing, 112, 84)), dtype=int)
    painted = np.abs(pixels - pictures.COLOURS["blue"]).max(-1) <= 15
    assert 0.04 < painted.mean() < 0.6
    assert (pixels[~painted] >= 205).all()


def test_impossible_requests_for_examples_are_refused():
    rng = random.Random(0)
    with pytest.raises(ValueError, match="at least one image"):
        make_example(rng, 0)
    with pytest.raises(ValueError, match="unknown kind 'size'"):
        make_example(rng, 1, Style(kind="size"))
    with pytest.raises(ValueError, match="unknown placement 'last'"):
        make_example(rng, 1, Style(placement="last"))


def test_every_kind_of_question_can_be_asked():
    for kind in KINDS:
        assert make_example(random.Random(1), 3, Style(kind=kind)).kind == kind


def test_a_follow_up_asks_about_the_same_pictures_without_showing_them_again():
    rng = random.Random(4)
    first = make_example(rng, 3)
    later = follow_up(rng, first)
    assert later.specs == first.specs
    assert later.images == ()
    assert truth(later) == {later.answer_text}


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_text_survives_the_byte_level_tokenizers(text):
    for name in ("tiny", "small"):
        tokenizer = load_tokenizer(str(MODELS / name))
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(("name", "start"), [("tiny", 490), ("small", 151643), ("small-vision", 151643)])
def test_special_tokens_have_their_ids_in_tokenizer_and_configuration(name, start):
    tokenizer = AutoTokenizer.from_pretrained(MODELS / name)
    assert list(special_ids(tokenizer).values()) == list(range(start, start + len(SPECIAL_TOKENS)))
    config = AutoConfig.from_pretrained(MODELS / name)
    assert config.image_token_id == tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert config.vision_start_token_id == tokenizer.convert_tokens_to_ids("<|vision_start|>")
    assert tokenizer.eos_token == "<|im_end|>"
    assert max(tokenizer.get_vocab().values()) < config.text_config.vocab_size


def test_special_ids_that_collide_with_the_vocabulary_are_refused(tmp_path):
    vocab, merges = learn_merges(["red red red blue"], 4)
    with pytest.raises(ValueError, match="collide"):
        write_tokenizer(tmp_path, vocab, merges, 200)


def test_letters_of_options_and_answers_are_the_same_token(tokenizer):
    letter = tokenizer("B").input_ids
    assert len(letter) == 1
    assert letter[0] in tokenizer("\n(B) red").input_ids


def test_words_of_the_training_prompts_are_single_tokens(tokenizer):
    for word in (" red", " orange", " triangle", " image", " colour", "Answer"):
        assert len(tokenizer(word).input_ids) == 1
    assert len(sample_texts(10)) > 10


def test_the_chat_template_has_the_structure_of_qwens(tokenizer):
    content = [{"type": "image"}, {"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {}}]
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "A"}]
    vision = "<|vision_start|><|image_pad|><|vision_end|>"
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    answer = "<|im_start|>assistant\nA<|im_end|>\n"
    plain = tokenizer.apply_chat_template(messages, tokenize=False)
    assert plain == f"{system}<|im_start|>user\n{vision}What?{vision}<|im_end|>\n{answer}"
    numbered = tokenizer.apply_chat_template(
        messages, tokenize=False, add_vision_id=True, add_generation_prompt=True
    )
    assert f"Picture 1: {vision}What?Picture 2: {vision}" in numbered
    assert numbered.endswith("<|im_start|>assistant\n")
    own = [{"role": "system", "content": "Short."}, {"role": "tool", "content": None}]
    rendered = tokenizer.apply_chat_template(own, tokenize=False)
    assert rendered == "<|im_start|>system\nShort.<|im_end|>\n<|im_start|>tool\n<|im_end|>\n"


def test_the_stored_model_is_small_and_divides_over_four_stages_and_two_ranks():
    weights = MODEL_FOLDER / "model.safetensors"
    assert weights.stat().st_size <= 8e6
    config = AutoConfig.from_pretrained(MODEL_FOLDER)
    text, vision = config.text_config, config.vision_config
    assert text.num_hidden_layers % 4 == 0
    sizes = (text.num_attention_heads, text.num_key_value_heads, text.intermediate_size, text.vocab_size)
    assert all(size % 2 == 0 for size in (*sizes, vision.num_heads, vision.intermediate_size))
    head_dim = text.hidden_size // text.num_attention_heads
    assert sum(text.rope_parameters["mrope_section"]) == head_dim // 2
    assert 0 < len(vision.fullatt_block_indexes) < vision.depth


def test_transformers_loads_the_stored_model_in_fp32_with_one_to_three_million_parameters():
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(MODEL_FOLDER)
    assert model.dtype == torch.float32
    assert 1e6 < sum(p.numel() for p in model.parameters()) < 3e6


def test_the_reference_is_greedy_and_reports_the_gaps(untrained):
    example = make_example(random.Random(10), 2, Style(sizes=((56, 56), (168, 112))))
    reference = reference_generate(MODEL_FOLDER, example.messages(), example.images, 6)
    prompt = build_prompt(MODEL_FOLDER, example.messages(), example.images)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(MODEL_FOLDER).eval()
    ids = torch.tensor([prompt.token_ids + reference.token_ids])
    with torch.no_grad():
        logits = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=prompt.pixel_values,
            image_grid_thw=prompt.image_grid_thw,
            mm_token_type_ids=(ids == model.config.image_token_id).int(),
        ).logits[0, len(prompt.token_ids) - 1 : -1]
    best = logits.topk(2).values
    assert reference.prompt_ids == prompt.token_ids
    assert tuple(logits.argmax(-1).tolist()) == reference.token_ids
    np.testing.assert_allclose((best[:, 0] - best[:, 1]).numpy(), reference.logit_gaps, atol=1e-3)


def test_the_reference_refuses_images_that_the_messages_do_not_show():
    image = draw(random.Random(0), PictureSpec("red", "circle"))
    with pytest.raises(ValueError, match="0 image parts in the messages, 1 images given"):
        reference_generate(MODEL_FOLDER, [{"role": "user", "content": "Hi"}], [image])


@pytest.mark.slow
def test_the_stored_model_answers_held_out_examples():
    right, asked = check.accuracies(check.grade(MODEL_FOLDER, 160))["all"]
    assert right >= 0.95 * asked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"), [("colour", 0), ("shape", 0), ("digit", 0), ("describe", 0), ("colour", 4)]
)
def test_the_stored_model_reads_one_small_picture(kind, options):
    tokenizer = load_tokenizer(str(MODEL_FOLDER))
    right = 0
    for index in range(30):
        style = Style(kind=kind, num_options=options, placement=PLACEMENTS[index % 3])
        example = make_example(random.Random(check.HELD_OUT_SEED + 5000 + index), 1, style)
        reference = reference_generate(MODEL_FOLDER, example.messages(), example.images, 12)
        right += tokenizer.decode(list(reference.token_ids), skip_special_tokens=True) == example.answer
    assert right >= 28


def test_held_out_examples_cover_one_to_four_images_letters_and_free_answers():
    examples = list(check.held_out(48))
    assert {len(example.images) for example in examples} == {1, 2, 3, 4}
    assert {bool(example.options) for example in examples} == {True, False}
    assert {example.kind for example in examples} == set(KINDS)


def test_the_report_counts_each_example_in_its_groups():
    example = make_example(random.Random(1), 2, Style(kind="colour"))
    graded = [check.Graded(example, example.answer), check.Graded(example, "Z")]
    table = check.accuracies(graded)
    assert table["all"] == table["2 image(s)"] == table["letter colour"] == table["labelled"] == (1, 2)
