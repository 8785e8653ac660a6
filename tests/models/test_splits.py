"""The real model sizes, on the meta device: every split reads exactly what transformers would save."""

import math
from functools import lru_cache

import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from gllm.core.model_shape import PRESETS
from gllm.layers.attention import create_backend
from gllm.layers.comm import SINGLE, ThreadTensorParallel
from gllm.layers.placement import Placement
from gllm.models.checkpoint import hub_name
from gllm.models.registry import checkpoint_tensors, create_model, create_vision
from gllm.models.stage import pipeline_stages

DIVIDED = ("q_proj.weight", "o_proj", "gate_proj", "up_proj", "down_proj.weight", "attn.qkv", "lm_head")
SMALLER = ("qwen2.5-vl-3b", "qwen2.5-vl-7b")
META = torch.device("meta")


@lru_cache
def hf_tensors(shape):
    text, vision = shape.text, shape.vision
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": text.vocab_size,
            "hidden_size": text.hidden_size,
            "intermediate_size": text.intermediate_size,
            "num_hidden_layers": text.num_layers,
            "num_attention_heads": text.num_heads,
            "num_key_value_heads": text.num_kv_heads,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": text.rope_theta,
                "mrope_section": list(text.mrope_section),
            },
        },
        vision_config={
            "depth": vision.depth,
            "hidden_size": vision.hidden_size,
            "num_heads": vision.num_heads,
            "intermediate_size": vision.intermediate_size,
            "out_hidden_size": vision.out_hidden_size,
            "fullatt_block_indexes": list(vision.fullatt_layers),
        },
        tie_word_embeddings=text.tie_word_embeddings,
    )
    with META:
        model = Qwen2_5_VLForConditionalGeneration(config)
    tensors = {hub_name(name): tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if text.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def box(part, shape):
    """The rows, columns, ... that a part reads: ((start, stop), ...)."""
    return tuple(index.indices(size)[:2] for index, size in zip(part.source, shape, strict=True))


def volume(interval_box):
    return math.prod(stop - start for start, stop in interval_box)


def overlap(one, other):
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other))


@pytest.mark.parametrize("name", PRESETS)
def test_names_and_shapes_are_those_of_transformers(name):
    assert checkpoint_tensors(PRESETS[name]) == hf_tensors(PRESETS[name])


@pytest.mark.parametrize("name", PRESETS)
def test_the_parameter_count_is_that_of_transformers(name):
    counted = sum(math.prod(shape) for shape in hf_tensors(PRESETS[name]).values())
    assert PRESETS[name].num_params == counted


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SMALLER)) for name in PRESETS]
)
def test_the_ranks_of_every_split_read_each_tensor_exactly_once(name, tp):
    shape = PRESETS[name]
    try:
        shape.text.check_tensor_parallel(tp)
    except ValueError:
        assert (name, tp) == ("qwen2.5-vl-7b", 8)
        return
    expected = checkpoint_tensors(shape)
    ranks = ThreadTensorParallel.create(tp) if tp > 1 else [SINGLE]
    for pp in (1, 2, 4, 8):
        read = {}
        for stage in pipeline_stages(shape.text.num_layers, pp):
            for rank in ranks:
                place = Placement(torch.bfloat16, META, rank)
                model = create_model(shape, stage, place, create_backend("sdpa", place))
                collect(model, read)
        check(read, expected, tp)


def collect(model, read):
    for weight in model.weights():
        boxes = read.setdefault((weight.name, weight.shape), [])
        boxes.extend(box(part, weight.shape) for part in weight.parts)
        kept = sum(weight.param[part.target].numel() for part in weight.parts)
        assert kept == sum(volume(box(part, weight.shape)) for part in weight.parts), weight.name


def check(read, expected, tp):
    assert dict(read.keys()) == expected
    for (name, shape), boxes in read.items():
        distinct = [one for one in set(boxes) if volume(one)]
        assert sum(map(volume, distinct)) == math.prod(shape), name
        assert not any(overlap(a, b) for i, a in enumerate(distinct) for b in distinct[:i]), name
        if any(part in name for part in DIVIDED):
            assert len(distinct) == len(boxes), f"{name} is read more than once"


@pytest.mark.parametrize("name", PRESETS)
def test_an_encoder_rank_reads_the_vision_tower_and_nothing_else(name):
    shape = PRESETS[name]
    names = {weight.name for weight in create_vision(shape, Placement(torch.bfloat16, META)).weights()}
    assert names == {name for name in checkpoint_tensors(shape) if name.startswith("visual.")}


def test_without_vision_the_first_stage_has_no_tower():
    shape = PRESETS["qwen2.5-vl-3b"]
    place = Placement(torch.bfloat16, META)
    for stage in pipeline_stages(shape.text.num_layers, 2):
        model = create_model(shape, stage, place, create_backend("sdpa", place), with_vision=False)
        assert not any(weight.name.startswith("visual.") for weight in model.weights())
