"""Workloads: MMMU's columns, image places, sizes, and determinism."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PilImage

from benchmarks.workloads import Image, Prompt, Text, custom, image, mmmu, peers, synthetic, vision
from benchmarks.workloads.mmmu_prompt import original_image, question_parts, question_text
from benchmarks.workloads.mmmu_rows import MmmuRow, load_rows, parse_row
from benchmarks.workloads.pictures import parse_resolution
from benchmarks.workloads.vision_tokens import VisionGrid


def png(width: int = 8, height: int = 6, colour: str = "red", mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    PilImage.new(mode, (width, height), colour).save(buffer, format="PNG")
    return buffer.getvalue()


def make_row(question: str, options: tuple[str, ...] = (), numbers: tuple[int, ...] = (1,)) -> MmmuRow:
    kind = "multiple-choice" if options else "open"
    images = {number: png(width=10 * number) for number in numbers}
    return MmmuRow("validation_Art_Theory_12", question, options, ("A",), kind, images)


def shape(parts: list[Text | Image]) -> list[str | int]:
    """Texts, and image numbers read back from the widths that make_row gave."""
    return [part.text if type(part) is Text else part.width // 10 for part in parts]


def test_images_stand_where_their_marks_stand_in_question_and_options() -> None:
    row = make_row("Compare <image 1> with <image 2>.", ("<image 3>", "none"), (1, 2, 3))
    assert shape(question_parts(row, original_image)) == [
        "Compare ",
        1,
        " with ",
        2,
        ".\n(A) ",
        3,
        "\n(B) none\n\nAnswer with the option's letter from the given choices directly.",
    ]


def test_an_image_is_sent_once_and_later_marks_stay_text() -> None:
    row = make_row("<image 1> Look at <image 1> again, not at <image 5>.")
    tail = " Look at <image 1> again, not at <image 5>.\n\nAnswer the question using a single word or phrase."
    assert shape(question_parts(row, original_image)) == [1, tail]


def test_images_without_a_mark_come_first() -> None:
    assert shape(question_parts(make_row("Is <image 2> big?", numbers=(1, 2)), original_image))[:3] == [
        1,
        "Is ",
        2,
    ]


def test_open_questions_ask_for_a_word_and_choices_for_a_letter() -> None:
    assert question_text(make_row("Why?")).endswith("\n\nAnswer the question using a single word or phrase.")
    assert "\n(A) x\n(B) y\n\nAnswer with" in question_text(make_row("Why?", ("x", "y")))


def test_the_subject_is_between_the_first_and_last_underscore() -> None:
    assert make_row("q").subject == "Art_Theory"


def test_options_and_answers_are_read_from_the_text_of_a_list() -> None:
    raw = {"id": "validation_Art_1", "question": "q", "question_type": "open"}
    raw |= {
        "options": "['it\\'s', \"b\"]",
        "answer": "['1/2', '0.5']",
        "image_1": {"bytes": png(), "path": None},
    }
    row = parse_row(raw)
    assert (row.options, row.answers, list(row.images)) == (("it's", "b"), ("1/2", "0.5"), [1])
    assert parse_row(raw | {"answer": "C"}).answers == ("C",)


def test_transparent_parts_of_a_picture_become_white() -> None:
    row = MmmuRow("a_b_1", "q", (), ("A",), "open", {1: png(colour="#00000000", mode="RGBA")})
    assert row.picture(1).getpixel((0, 0)) == (255, 255, 255)


def test_the_synthetic_set_is_read_back_from_parquet_as_it_was_made(tmp_path: Path) -> None:
    assert synthetic.main(["--out", str(tmp_path), "--num-rows", "12", "--seed", "3"]) == 0
    rows = load_rows(str(tmp_path))
    assert rows == synthetic.rows(12, seed=3)
    assert all(row.is_synthetic and row.images for row in rows)
    assert rows != synthetic.rows(12, seed=4)
    assert load_rows(str(tmp_path), limit=5) == rows[:5]


def test_a_folder_without_parquet_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no parquet file"):
        load_rows(str(tmp_path))


def test_the_papers_settings_scale_images_and_add_text_and_say_so_in_the_name() -> None:
    rows = synthetic.rows(6, seed=0, max_images=1)
    for name, tokens in (("1k", 5_000), ("2k", 9_000)):
        spec = mmmu.paper_spec(name)
        prompts = mmmu.prompts(rows, 4, seed=0, spec=spec)
        assert mmmu.workload_name(rows, spec) == f"synthetic-{name}"
        assert all(len(prompt.images) == 2 for prompt in prompts)
        mean = sum(VisionGrid().prompt_tokens(prompt) for prompt in prompts) / len(prompts)
        assert mean == pytest.approx(tokens, rel=0.1)


def test_real_questions_are_called_mmmu() -> None:
    assert mmmu.workload_name([make_row("q")], mmmu.MmmuSpec()) == "mmmu"
    assert mmmu.workload_name([make_row("q")], mmmu.paper_spec("2k")) == "mmmu-2k"


def test_questions_start_again_when_they_run_out() -> None:
    prompts = mmmu.prompts(synthetic.rows(3, seed=0), 7, seed=1, spec=mmmu.MmmuSpec())
    assert len(prompts) == 7
    assert {prompt.prompt_id for prompt in prompts[:3]} == {prompt.prompt_id for prompt in prompts[3:6]}


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: peers.prompts(3, seed),
        lambda seed: vision.prompts(2, seed, side=56),
        lambda seed: image.prompts(3, seed, image.ImageSpec(width=20, height=10, input_len=8, output_len=4)),
        lambda seed: mmmu.prompts(synthetic.rows(8, 0), 4, seed, mmmu.MmmuSpec(passage_tokens=20)),
    ],
    ids=["peers", "vision", "image", "mmmu"],
)
def test_a_seed_gives_the_same_prompts_and_every_prompt_is_distinct(make: object) -> None:
    first: list[Prompt] = make(5)  # type: ignore[operator]
    assert first == make(5)  # type: ignore[operator]
    assert first != make(6)  # type: ignore[operator]
    assert len({(prompt.text, *(i.data for i in prompt.images)) for prompt in first}) == len(first)


def test_peers_requests_hold_four_pictures_and_256_words() -> None:
    prompt = peers.prompts(1, seed=0)[0]
    assert [(i.width, i.height) for i in prompt.images] == [(448, 448)] * 4
    assert len(prompt.text.split()) == 256
    assert VisionGrid().prompt_tokens(prompt) == 1024
    text_only = peers.prompts(1, seed=0, output_len=128, num_images=0)[0]
    assert (text_only.images, text_only.output_len) == ((), 128)


def test_vision_requests_hold_six_to_eight_pictures_between_texts() -> None:
    for prompt in vision.prompts(6, seed=0, side=28):
        assert 6 <= len(prompt.images) <= 8
        assert [type(part) for part in prompt.parts] == [Text, Image] * len(prompt.images) + [Text]


@given(width=st.integers(1, 4000), height=st.integers(1, 4000))
def test_image_tokens_are_whole_blocks_within_the_models_areas(width: int, height: int) -> None:
    grid = VisionGrid(max_pixels=1_000_000)
    pixels = grid.num_tokens(width, height) * 28 * 28
    if max(width, height) / min(width, height) < 50:
        assert 3136 <= pixels <= 1_000_000


@pytest.mark.parametrize(
    ("size", "tokens"), [((1920, 1080), 2691), ((2560, 1440), 4641), ((3840, 2160), 10549)]
)
def test_image_tokens_equal_the_known_counts_of_qwen(size: tuple[int, int], tokens: int) -> None:
    assert VisionGrid().num_tokens(*size) == tokens


def test_resolutions_are_presets_or_height_by_width() -> None:
    assert parse_resolution("1080p") == (1920, 1080)
    assert parse_resolution("300x400") == (400, 300)
    with pytest.raises(ValueError, match="HEIGHTxWIDTH"):
        parse_resolution("300")


def test_custom_prompts_come_from_a_file_with_images_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(5, 4))
    rows = [
        {"prompt": "hi", "images": ["a.png"], "output_len": 9},
        {"conversations": [{"from": "human", "value": "hello"}]},
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    first, second = custom.prompts(file, 10, output_len=2)
    assert (first.text, first.output_len, first.images[0].width, first.images[0].mime) == (
        "hi",
        9,
        5,
        "image/png",
    )
    assert (second.text, second.output_len) == ("hello", 2)
    file.write_text('{"prompt": "ok"}\n{"text": "no"}')
    with pytest.raises(ValueError, match=r"mine\.jsonl:2"):
        custom.prompts(file, 10, output_len=2)
