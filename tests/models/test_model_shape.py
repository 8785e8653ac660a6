import json

import pytest
from transformers import Qwen2_5_VLConfig, Qwen2Config

from gllm.core.model_shape import PRESETS, ConfigError, ModelShape, split_layers

# The fields of the 7B model's config.json on the Hub (transformers 4 layout) that are read.
HUB_7B = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 128000,
    "model_type": "qwen2_5_vl",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 152064,
}
GENERATION = {"eos_token_id": [151645, 151643]}


def test_a_flat_hub_config_gives_the_preset():
    assert ModelShape.from_config(HUB_7B, GENERATION) == PRESETS["qwen2.5-vl-7b"]


def test_what_transformers_5_writes_for_the_same_model_gives_the_same_shape(tmp_path):
    config = Qwen2_5_VLConfig(**{key: value for key, value in HUB_7B.items() if key != "torch_dtype"})
    config.architectures, config.dtype = HUB_7B["architectures"], "bfloat16"
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert "text_config" in written
    assert ModelShape.from_config(written, GENERATION) == PRESETS["qwen2.5-vl-7b"]


def test_a_text_only_config_has_no_vision_and_no_vision_tokens():
    config = Qwen2Config(
        architectures=["Qwen2ForCausalLM"], eos_token_id=7, tie_word_embeddings=True
    ).to_dict()
    shape = ModelShape.from_config(config, None)
    assert shape.vision is None and shape.image_token_id is None and shape.eos_token_ids == (7,)
    assert shape.text.mrope_section is None and shape.text.head_dim == 128
    assert shape.text.tie_word_embeddings and shape.dtype == "float32"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "config.json: hidden_size is missing"),
        ({"num_hidden_layers": "28"}, "config.json: num_hidden_layers should be a whole number, is '28'"),
        ({"architectures": ["LlamaForCausalLM"]}, "architectures .*supported are Qwen2_5_VL"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling: type = 'yarn' is not supported"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24]}}, "does not sum to half of head_dim"),
        ({"use_sliding_window": True}, "use_sliding_window = True is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"torch_dtype": "float8"}, "torch_dtype = 'float8' is not supported"),
        ({"num_key_value_heads": 5}, "num_attention_heads 28 is not a multiple of num_key_value_heads 5"),
        ({"vision_config": {"hidden_size": 1280}}, "vision_config: out_hidden_size is missing"),
        ({"vision_config": HUB_7B["vision_config"] | {"out_hidden_size": 8}}, "out_hidden_size 8 is not"),
        ({"eos_token_id": "stop"}, "eos_token_id should be a list of whole numbers"),
    ],
)
def test_an_error_names_the_file_and_the_field(change, message):
    with pytest.raises(ConfigError, match=message):
        ModelShape.from_config(HUB_7B | change, None)


def test_layers_left_over_go_to_the_stages_before_the_last():
    assert [len(part) for part in split_layers(10, 4)] == [2, 3, 3, 2]
    assert [len(part) for part in split_layers(28, 8)] == [3, 3, 3, 4, 4, 4, 4, 3]
    for pp in range(1, 11):
        parts = split_layers(10, pp)
        assert [layer for part in parts for layer in part] == list(range(10))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_assigned_layers_are_used_as_they_are_or_refused():
    assert split_layers(10, 3, [5, 3, 2]) == [range(5), range(5, 8), range(8, 10)]
    for pp, assigned in [(3, [5, 5]), (2, [5, 4]), (2, [10, 0])]:
        with pytest.raises(ValueError, match="assigned-layers"):
            split_layers(10, pp, assigned)
    with pytest.raises(ValueError, match=r"--pp 11 is outside 1\.\.10"):
        split_layers(10, 11)


def test_a_tensor_parallel_size_that_does_not_divide_the_heads_is_refused():
    text = PRESETS["qwen2.5-vl-7b"].text
    for tp in (1, 2, 4):
        text.check_tensor_parallel(tp)
    PRESETS["qwen2.5-vl-3b"].text.check_tensor_parallel(8)
    for tp in (0, 3, 8):
        with pytest.raises(ValueError, match="28 query heads"):
            text.check_tensor_parallel(tp)


def test_bytes_of_cached_tokens_and_of_weights():
    shape = PRESETS["qwen2.5-vl-7b"]
    assert shape.text.kv_bytes_per_token(2) == 2 * 28 * 4 * 128 * 2
    assert shape.num_bytes() == 2 * shape.num_params == shape.num_bytes(2)
