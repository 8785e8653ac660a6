"""The tiny model's shape, tokenizer and files; written in the Hugging Face format."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from evaluation.tiny_vlm.pictures import PLACEMENTS, Style, make_example
from evaluation.tiny_vlm.tokenizer import SPECIAL_TOKENS, learn_merges, write_preprocessor, write_tokenizer

VOCAB_SIZE = 512
COMMON_WORDS = (
    "the of and to a in that it is was for on are as with they be at one have this from or had by"
    " not but what some we can out other were all there when up use your how said an each which do"
    " their time if will way about many then them Hello! I can describe pictures: ask me about"
    " shapes, colours and digits. Please show some images. yes no"
)
MODEL_FOLDER = Path(__file__).resolve().parents[2] / "gllm" / "models_data" / "tiny"


def sample_texts(num_examples: int = 4000) -> list[str]:
    """Text to learn merges from: prompts and answers of the kind the model trains on, without image marks.

    Brackets stand apart from the letters, so that an option's letter and a letter answered are one token.
    """
    rng = random.Random(0)
    texts = ["You are a helpful assistant.", "system\n", "user\n", "assistant\n", "Picture 1: "] * 100
    texts += [COMMON_WORDS] * 20
    for i in range(num_examples):
        style = Style(num_options=4 * (i % 2), placement=PLACEMENTS[i % 3])
        example = make_example(rng, 1 + i % 4, style)
        text = "".join(part for part in example.parts if type(part) is str)
        texts.append(text.replace("(", "( ") + "\n" + example.answer)
    return texts


def write_tiny_tokenizer(folder: Path) -> None:
    """Tokenizer, chat template and preprocessor configuration; the special tokens come last."""
    special_start = VOCAB_SIZE - 22
    vocab, merges = learn_merges(sample_texts(), special_start - 256)
    write_tokenizer(folder, vocab, merges, special_start)
    write_preprocessor(folder)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The id of each of Qwen's special tokens."""
    return {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL_TOKENS}


def tiny_config(ids: dict[str, int]) -> Qwen2_5_VLConfig:
    """Text 4 layers x 128 (4 heads, 2 KV heads), vision 4 layers x 64 (4 heads, windows of 112 pixels)."""
    rope = {"type": "mrope", "rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1000000.0}
    text = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_parameters": rope,
        "rope_scaling": rope,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    vision = {
        "depth": 4,
        "hidden_size": 64,
        "num_heads": 4,
        "intermediate_size": 176,
        "out_hidden_size": 128,
        "in_channels": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1, 3],
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def new_model(folder: Path, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """A freshly initialised fp32 model for the tokenizer in a folder; weight spread 0.8 / sqrt(inputs)."""
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = special_ids(tokenizer)
    model = Qwen2_5_VLForConditionalGeneration(tiny_config(ids)).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            elif "embed_tokens" in name:
                parameter.normal_(0, 0.06)
            else:
                parameter.normal_(0, 0.8 * parameter[0].numel() ** -0.5)
    copy_and_match(model)
    look_back(model, {0: 2, 1: 3})
    look_back(model, {2: 1})
    pair_words(model, tokenizer)
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    model.generation_config.bos_token_id = ids["<|endoftext|>"]
    return model


def copy_and_match(model: Qwen2_5_VLForConditionalGeneration) -> None:
    """Start every text head as one that copies what it attends to, and the last head of each layer but the
    first as one that attends to tokens like its own (mimetic initialisation, Trockman and Kolter 2023).

    Values and outputs are transposes of each other, with orthonormal rows. The matching head has the same
    weights for queries and keys in the half of its dimensions whose rotation is slow: resemblance at any
    distance. The letter of an option is found within a hundred steps; from random weights it took thousands.
    """
    for index, layer in enumerate(model.model.language_model.layers):
        attention, dim = layer.self_attn, layer.self_attn.head_dim
        per_kv, hidden = attention.num_key_value_groups, attention.q_proj.in_features
        with torch.no_grad():
            layer.mlp.down_proj.weight *= 0.3
            for head in range(attention.q_proj.out_features // dim):
                kv, rows = head // per_kv, slice(head * dim, (head + 1) * dim)
                value = attention.v_proj.weight[kv * dim : (kv + 1) * dim]
                if head % per_kv == 0:
                    torch.nn.init.orthogonal_(value)
                attention.o_proj.weight[:, rows] = 0.15 * value.T
            if index == 0:
                continue
            slow = torch.cat([torch.arange(dim // 4, dim // 2) + half for half in (0, dim // 2)])
            query = attention.q_proj.weight[-dim:]
            key = attention.k_proj.weight[-dim:]
            query *= 0.3
            key *= 0.3
            query[slow] = key[slow] = 2.0 * torch.nn.init.orthogonal_(torch.empty(len(slow), hidden))


def look_back(model: Qwen2_5_VLForConditionalGeneration, offsets: dict[int, int]) -> None:
    """Start heads of the first text layer as heads that attend a number of tokens back (head -> offset).

    Rotary embedding turns constant query and key biases into a function of the distance d alone,
    sum_i a_i^2 cos((d - offset) f_i), highest at d = offset. An option's word finds its letter two or three
    tokens back from the first step on; without this, letters took thousands of steps to be bound to options.
    The heads must share one KV head.
    """
    attention = model.model.language_model.layers[0].self_attn
    inverse = model.model.language_model.rotary_emb.inv_freq
    half = attention.head_dim // 2
    amplitude = torch.zeros(half)
    amplitude[:3] = torch.tensor([30.0, 20.0, 10.0]).sqrt()
    kv_head = min(offsets) // attention.num_key_value_groups
    keys = slice(kv_head * attention.head_dim, (kv_head + 1) * attention.head_dim)
    with torch.no_grad():
        attention.k_proj.bias[keys] = torch.cat([amplitude, torch.zeros(half)])
        attention.k_proj.weight[keys] *= 0.2
        for head, offset in offsets.items():
            rows = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
            angle = offset * inverse
            attention.q_proj.bias[rows] = torch.cat([amplitude * angle.cos(), -amplitude * angle.sin()])
            attention.q_proj.weight[rows] *= 0.2


def pair_words(model: Qwen2_5_VLForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
    """Start a word with a space before it close to the same word without.

    The answer "red" and the option " red" are different tokens; letters are learnt sooner when they resemble.
    """
    vocab = tokenizer.get_vocab()
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        for token, index in sorted(vocab.items()):
            if (
                token.startswith("\u0120") and token[1:] in vocab
            ):  # U+0120 is how byte-level BPE writes a space
                weight[index] = weight[vocab[token[1:]]] + 0.5 * weight[index]
