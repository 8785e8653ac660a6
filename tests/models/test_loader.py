"""Checkpoints in every layout give the same parameters; broken ones an error that names the tensor."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from gllm.core.model_shape import ConfigError
from gllm.layers.attention import create_backend
from gllm.layers.comm import SINGLE, ThreadTensorParallel
from gllm.layers.placement import Placement
from gllm.models import loader
from gllm.models.checkpoint import CheckpointError
from gllm.models.dummy import DummySlice
from gllm.models.loader import load_weights
from gllm.models.registry import create_model, create_vision
from gllm.models.shape_file import read_shape
from gllm.models.stage import StageSpec, pipeline_stages


def config(**overrides):
    text = {
        "vocab_size": 67,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 30,
        "out_hidden_size": 32,
        "fullatt_block_indexes": [1],
        "patch_size": 4,
    }
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **overrides)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What transformers saves for a random model."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    Qwen2_5_VLForConditionalGeneration(config()).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A folder with the model's config.json, and `write(tensors)` to put one safetensors file into it."""
    (tmp_path / "config.json").write_text((saved / "config.json").read_text())
    return tmp_path


@pytest.fixture
def tensors(saved):
    """The checkpoint's tensors in the Hub layout."""
    tensors = load_file(saved / "model.safetensors")
    assert "visual.blocks.0.attn.qkv.weight" in tensors and "model.norm.weight" in tensors
    return tensors


def write(folder, tensors, name="model.safetensors"):
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name)


def build(folder, place=None, stage=None, **load):
    shape = read_shape(folder)
    place = place or Placement()
    stage = stage or StageSpec.whole(shape.text.num_layers)
    model = create_model(shape, stage, place, create_backend("sdpa", place))
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    load_weights(model, shape, folder, **load)
    return dict(model.named_parameters())


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def test_every_parameter_is_filled(saved):
    assert not any(parameter.isnan().any() for parameter in build(saved).values())


def renamed(tensors):
    """The names inside transformers 5."""
    new = {}
    for name, tensor in tensors.items():
        if name.startswith("model."):
            name = "model.language_model." + name.removeprefix("model.")
        new["model." + name if name.startswith("visual.") else name] = tensor
    return new


def test_the_names_of_transformers_5_give_the_same_parameters(saved, folder, tensors):
    write(folder, renamed(tensors))
    assert_same(build(folder), build(saved))


@pytest.mark.parametrize("with_index", [True, False])
def test_several_shards_with_or_without_an_index_give_the_same_parameters(saved, folder, tensors, with_index):
    names = sorted(tensors)
    files = {f"model-0000{i + 1}-of-00003.safetensors": names[i::3] for i in range(3)}
    for file, part in files.items():
        write(folder, {name: tensors[name] for name in part}, file)
    if with_index:
        weight_map = {name: file for file, part in files.items() for name in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_same(build(folder), build(saved))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float16, torch.float32])
def test_any_stored_type_becomes_the_wanted_type(folder, tensors, stored, wanted):
    write(folder, {name: tensor.to(stored) for name, tensor in tensors.items()})
    loaded = build(folder, Placement(wanted))["norm.weight"]
    assert torch.equal(loaded, tensors["model.norm.weight"].to(stored).to(wanted))


def test_a_tied_head_is_the_embedding_on_any_stage_even_if_the_checkpoint_has_a_head(folder, tensors):
    written = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(written))
    write(folder, tensors)
    assert "head.weight" not in build(folder)  # one stage: the same object
    last = pipeline_stages(2, 2)[1]
    assert torch.equal(build(folder, stage=last)["head.weight"], tensors["model.embed_tokens.weight"])


def test_an_encoder_rank_loads_the_tower_from_the_whole_checkpoint(saved, tensors):
    shape = read_shape(saved)
    tower = create_vision(shape, Placement())
    load_weights(tower, shape, saved)
    flat = tensors["visual.patch_embed.proj.weight"].flatten(1)
    assert torch.equal(tower.state_dict()["patch_embed.weight"], flat)


def test_each_rank_reads_only_its_own_slices(saved, monkeypatch):
    read = []

    class Recorded:
        def __init__(self, full):
            self.full = full

        def get_shape(self):
            return self.full.get_shape()

        def __getitem__(self, index):
            part = self.full[index]
            read.append(part.numel())
            return part

    original = loader.Checkpoint.slice
    monkeypatch.setattr(loader.Checkpoint, "slice", lambda self, name: Recorded(original(self, name)))
    for stage in pipeline_stages(2, 2):
        for tp in ThreadTensorParallel.create(2):
            read.clear()
            parameters = build(saved, Placement(tp=tp), stage)
            held = sum(parameter.numel() for parameter in parameters.values())
            assert sum(read) <= held


def test_missing_tensors_are_named(folder, tensors):
    del tensors["model.layers.1.mlp.down_proj.weight"], tensors["visual.merger.ln_q.weight"]
    write(folder, tensors)
    with pytest.raises(CheckpointError, match=r"missing: model\.layers\.1\.mlp\.down_proj\.weight, visual"):
        build(folder)


def test_a_rank_misses_only_what_it_needs(folder, tensors):
    write(folder, {name: t for name, t in tensors.items() if not name.startswith("model.layers.1.")})
    build(folder, stage=pipeline_stages(2, 2)[0])
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.input_layernorm\.weight.* and \d+ more"):
        build(folder, stage=pipeline_stages(2, 2)[1])


def test_unexpected_tensors_are_named(folder, tensors):
    write(folder, tensors | {"model.layers.7.mlp.down_proj.weight": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"unexpected: model\.layers\.7\.mlp\.down_proj\.weight"):
        build(folder)


def test_stored_rotary_frequencies_are_no_surprise(saved, folder, tensors):
    write(folder, tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    assert_same(build(folder), build(saved))


def test_a_wrong_shape_is_named_with_both_shapes(folder, tensors):
    write(folder, tensors | {"model.norm.weight": torch.ones(33)})
    with pytest.raises(
        CheckpointError, match=r"model\.norm\.weight in model\.safetensors has shape \[33\].*\[32\]"
    ):
        build(folder)


def test_the_same_tensor_in_two_files_is_refused(folder, tensors):
    write(folder, tensors, "a.safetensors")
    write(folder, renamed({"model.norm.weight": tensors["model.norm.weight"]}), "b.safetensors")
    with pytest.raises(
        CheckpointError, match=r"b\.safetensors: model\.language_model\.norm\.weight is also in a"
    ):
        build(folder)


def test_a_folder_without_weights_a_config_or_a_whole_file_says_so(folder, tmp_path_factory):
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file .*--load-format dummy"):
        build(folder)
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read as safetensors"):
        build(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(CheckpointError, match=r"names files that are missing: gone\.safetensors"):
        build(folder)
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        read_shape(tmp_path_factory.mktemp("empty"))
    with pytest.raises(ValueError, match="auto or dummy"):
        build(folder, load_format="gguf")


def test_dummy_weights_do_not_depend_on_the_split(folder, monkeypatch):
    monkeypatch.setattr("gllm.models.dummy.BLOCK_ROWS", 7)
    whole = build(folder, load_format="dummy", seed=5)
    half = {}
    for tp in ThreadTensorParallel.create(2):
        for stage in pipeline_stages(2, 2):
            part = build(folder, Placement(tp=tp), stage, load_format="dummy", seed=5)
            offset = stage.layers.start
            for name, tensor in part.items():
                if name.startswith("layers.0"):
                    name = f"layers.{offset}" + name.removeprefix("layers.0")
                half.setdefault(name, {})[tp.rank] = tensor
    down = [half["layers.1.mlp.down.weight"][rank] for rank in range(2)]
    assert torch.equal(torch.cat(down, dim=1), whole["layers.1.mlp.down.weight"])
    table = torch.cat([half["embedding.weight"][rank] for rank in range(2)])
    assert torch.equal(table[:67], whole["embedding.weight"])
    gate = torch.cat([half["layers.0.mlp.gate_up.weight"][rank][:22] for rank in range(2)])
    assert torch.equal(gate, whole["layers.0.mlp.gate_up.weight"][:44])


def test_dummy_weights_depend_on_seed_and_name_and_are_finite(folder):
    first, same = (build(folder, load_format="dummy", seed=5) for _ in range(2))
    other = build(folder, load_format="dummy", seed=6)
    assert_same(first, same)
    assert not torch.equal(first["norm.weight"], other["norm.weight"])
    assert not torch.equal(first["layers.0.mlp.down.weight"], first["layers.1.mlp.down.weight"])
    assert all(parameter.isfinite().all() for parameter in first.values())


def test_a_dummy_slice_is_the_slice_of_the_dummy(monkeypatch):
    monkeypatch.setattr("gllm.models.dummy.BLOCK_ROWS", 8)
    full = DummySlice("model.layers.0.mlp.down_proj.weight", (30, 6), 0)
    everything = full[(slice(None), slice(None))]
    assert everything.shape == (30, 6) and full.get_shape() == [30, 6]
    assert torch.equal(full[(slice(7, 25), slice(2, 5))], everything[7:25, 2:5])
    assert full[(slice(9, 9), slice(None))].shape == (0, 6)


def test_single_rank_is_the_default_placement():
    assert Placement().tp is SINGLE
