"""What the tiny model is trained on and starts from: batches, losses, drills, first weights."""

from __future__ import annotations

import dataclasses
import random
import re

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor

from evaluation.tiny_vlm import dialogues, drill
from evaluation.tiny_vlm.losses import Naming, batch_vision_attention, dialogue_loss, logits, see
from evaluation.tiny_vlm.model import MODEL_FOLDER, new_model
from evaluation.tiny_vlm.pictures import PLACEMENTS, PictureSpec, Style, draw, make_example
from evaluation.tiny_vlm.reference import build_prompt
from evaluation.tiny_vlm.train import LESSONS, Batches, learning_rate


def learnt_places(dialogue: dialogues.Dialogue) -> list[int]:
    """Indexes of the tokens to learn."""
    return [i for i, meaning in enumerate(dialogue.meanings) if meaning != dialogues.NOT_LEARNT]


def test_training_prompts_equal_what_the_template_and_processor_make(maker):
    sizes = ((56, 56), (84, 56), (168, 112))
    for seed in range(5):
        example = make_example(random.Random(seed), 3, Style(sizes=sizes, placement=PLACEMENTS[seed % 3]))
        prompt = build_prompt(MODEL_FOLDER, example.messages(), example.images)
        dialogue = maker.single(example)
        assert dialogue.token_ids[: learnt_places(dialogue)[0]] == list(prompt.token_ids)


def test_patches_equal_those_of_the_image_processor():
    images = [
        draw(random.Random(5), PictureSpec("green", "3", *size)) for size in ((56, 56), (112, 84), (56, 168))
    ]
    processor = AutoImageProcessor.from_pretrained(MODEL_FOLDER, backend="pil")
    expected = processor(images=images, return_tensors="pt")
    ours = np.concatenate([dialogues.patchify(image) for image in images])
    np.testing.assert_allclose(ours, expected["pixel_values"].numpy(), atol=1e-5)
    assert [dialogues.grid_of(image) for image in images] == [
        tuple(grid) for grid in expected["image_grid_thw"].tolist()
    ]


def test_positions_equal_those_of_transformers(untrained, maker):
    for seed in range(8):
        mixture = dialogues.Mixture((1, 2, 3, 4), 0.5, dialogues.EVERY_SIZE)
        dialogue = maker.dialogue(random.Random(seed), mixture)
        ids = torch.tensor([dialogue.token_ids])
        grids = [dialogues.grid_of(image) for image in dialogue.images]
        expected, _ = untrained.model.get_rope_index(
            ids, (ids == maker.image_pad).int(), image_grid_thw=torch.tensor(grids)
        )
        ours = dialogues.mrope_positions(dialogue.token_ids, maker.image_pad, grids)
        assert (ours == expected[:, 0].numpy()).all()


def test_batched_windows_and_padding_leave_the_logits_as_they_are(untrained, maker):
    rng = random.Random(6)
    mixture = dialogues.Mixture((3,), 0.5, ((56, 56), (168, 112), (112, 140)))
    drawn = [maker.dialogue(rng, mixture) for _ in range(3)]
    alone = []
    with torch.no_grad():
        for dialogue in drawn:
            ids = torch.tensor([dialogue.token_ids])
            grids = torch.tensor([dialogues.grid_of(image) for image in dialogue.images])
            patches = np.concatenate([dialogues.patchify(image) for image in dialogue.images])
            output = untrained(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=torch.from_numpy(patches),
                image_grid_thw=grids,
                mm_token_type_ids=(ids == maker.image_pad).int(),
            )
            alone.append(output.logits[0, np.array(learnt_places(dialogue)) - 1])
        fast = new_model(MODEL_FOLDER, seed=0).eval()
        batch_vision_attention(fast)
        batch = maker.collate(drawn)
        together = logits(fast, batch, see(fast, batch.pictures)).answers
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=0)


def test_the_end_of_every_answer_is_learnt_and_nothing_of_the_prompts(maker):
    example = make_example(random.Random(7), 2, Style(kind="colour", num_options=0))
    dialogue = maker.single(example)
    learnt = [dialogue.token_ids[place] for place in learnt_places(dialogue)]
    assert maker.tokenizer.decode(learnt) == example.answer + "<|im_end|>"


@pytest.mark.parametrize("kind", ["colour", "shape", "digit", "lookup"])
def test_a_letter_means_the_word_of_its_option(maker, kind):
    example = make_example(random.Random(7), 3, Style(kind=kind, num_options=4))
    dialogue = maker.single(example)
    letter, end = learnt_places(dialogue)
    assert maker.tokenizer.decode([dialogue.token_ids[letter]]) == example.answer
    assert maker.tokenizer.decode([dialogue.meanings[letter]]) == example.answer_text
    assert dialogue.meanings[end] == dialogue.token_ids[end] == maker.end_mark


def test_batches_of_questions_have_one_number_of_images_and_similar_lengths(maker):
    for lesson in LESSONS:
        if "questions" not in lesson.weights:
            continue
        only = dataclasses.replace(lesson, weights={"questions": 1.0})
        batches = Batches(maker, random.Random(8), only)
        drawn = [batches.draw()[1] for _ in range(4)]
        pads = [(batch.input_ids == maker.image_pad).any(1) for batch in drawn]
        counts = {len(batch.pictures) // int(has.sum()) for batch, has in zip(drawn, pads)}
        assert len(counts) == 1
        lengths = sorted((ids != maker.end_mark).sum(1).tolist() for ids in (b.input_ids for b in drawn))
        assert [len(batch.input_ids) for batch in drawn] == [16] * 4
        assert all(max(rows) - min(rows) < 150 for rows in lengths)


def test_every_sort_of_batch_that_a_lesson_draws_can_be_learnt_from(untrained, maker):
    naming = Naming(maker)
    for lesson in LESSONS:
        for sort in lesson.weights.keys() - {"names"}:
            only = dataclasses.replace(lesson, weights={sort: 1.0})
            drawn, batch = Batches(maker, random.Random(8), only).draw()
            with torch.no_grad():
                loss, found = dialogue_loss(untrained, batch, naming)
            assert drawn == sort and loss.isfinite()
            assert found.answers.shape == found.meanings.shape == (len(batch.targets), 512)


def test_the_loss_of_names_falls_when_embeddings_point_to_the_words(untrained, maker):
    spec = PictureSpec("red", "circle")
    shown = dialogues.Pictures.of([draw(random.Random(0), spec)], [spec])
    words = untrained.get_input_embeddings().weight[maker.word_ids(["red", "circle", "blue", "7"])]
    right, wrong = (words[:2].sum(0).expand(4, -1), words[2:].sum(0).expand(4, -1))
    naming = Naming(maker)
    assert naming.loss(untrained, shown, right) < 0.5 < 5 < naming.loss(untrained, shown, wrong)


def test_the_learning_rate_is_warmed_up_and_cools_where_the_lesson_says_so():
    warm, cool = LESSONS[1], LESSONS[-1]
    assert learning_rate(0, warm) < learning_rate(29, warm) == learning_rate(124, warm) == warm.peak
    assert learning_rate(cool.steps // 2, cool) < 0.6 * cool.peak
    assert learning_rate(cool.steps - 1, cool) < 0.03 * cool.peak


@pytest.mark.parametrize("pictures_shown", [False, True])
def test_letter_drills_learn_the_letter_of_each_word_or_picture(maker, pictures_shown):
    drawn = drill.letter_drill(maker, random.Random(3), pictures_shown)
    learnt = [drawn.token_ids[place] for place in learnt_places(drawn)]
    assert len(drawn.images) == (8 if pictures_shown else 0)
    assert len(learnt) == (8 if pictures_shown else 24)
    assert set(maker.tokenizer.decode(learnt)) <= set("ABCDE")
    if not pictures_shown:
        first = maker.tokenizer.decode(drawn.token_ids).split("\n(A)")[0]
        pairs = re.findall(r"\((\w)\) (\w+)\n", first)
        asked = first.rsplit(")", 1)[1].split("\n")[1]
        assert re.fullmatch("(" + "|".join(word + letter for letter, word in pairs) + "){8}", asked)


def test_place_drills_learn_what_is_in_which_image(maker):
    drawn = drill.place_drill(maker, random.Random(4))
    lines = maker.tokenizer.decode(drawn.token_ids).split("\n")[1:]
    labels, asked = lines[: len(drawn.specs)], lines[len(drawn.specs) :]
    assert all(f"Image {number}<|vision_start|>" in label for number, label in enumerate(labels, 1))
    learnt = [maker.tokenizer.decode([drawn.token_ids[place]]) for place in learnt_places(drawn)]
    assert len(asked) == len(learnt) == 10
    for line, word in zip(asked, learnt):
        numbered = re.search(r"in image (\d)", line)
        if numbered:
            spec = drawn.specs[int(numbered[1]) - 1]
            assert word in (spec.colour, spec.thing)
        else:
            assert any(f"the {spec.thing}?" in line and spec.colour == word for spec in drawn.specs)


def test_heads_that_look_back_attend_the_token_at_their_offset(tokenizer):
    model = new_model(MODEL_FOLDER, seed=2).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(0, 400, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first_layer = model(
            input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True
        ).attentions[0][0]
    for head, offset in ((0, 2), (1, 3), (2, 1)):
        assert all(first_layer[head, i].argmax() == i - offset for i in range(5, 40))


def test_matching_heads_attend_to_tokens_like_their_own(tokenizer):
    model = new_model(MODEL_FOLDER, seed=2).eval()
    model.set_attn_implementation("eager")
    ids = torch.randperm(400, generator=torch.Generator().manual_seed(0))[:40].repeat(2)[None]
    with torch.no_grad():
        layers = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True).attentions
    for layer in layers[1:]:
        repeated = layer[0, -1, 40:]  # the last head, rows of the second half
        like = torch.stack([repeated[i, [i, i + 40]].sum() for i in range(40)])
        assert like.median() > 0.15  # by chance: 2 of 60


WORDS = dataclasses.replace(LESSONS[1], weights={"words": 1.0}, peak=1.5e-3)


@pytest.mark.slow
def test_the_letters_of_words_are_learnt_within_a_hundred_steps(maker):
    model = new_model(MODEL_FOLDER, seed=1)
    naming, batches = Naming(maker), Batches(maker, random.Random(9), WORDS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, betas=(0.9, 0.98))
    right = []
    for step in range(100):
        batch = batches.draw()[1]
        loss, found = dialogue_loss(model, batch, naming)
        optimizer.param_groups[0]["lr"] = learning_rate(step, WORDS)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        right.append((found.answers.argmax(-1) == batch.targets).float().mean().item())
    assert sum(right[-10:]) / 10 > 0.9
