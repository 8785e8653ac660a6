"""The numbers of a model: what its config.json says, checked, without any tensor.

The runtime builds layers from them, the simulator prices layers with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gllm.core.config_reader import ConfigError, Fields
from gllm.core.rank_share import RankShare

__all__ = ["DTYPE_BYTES", "PRESETS", "ConfigError", "ModelShape", "TextShape", "VisionShape", "split_layers"]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class TextShape:
    """A Qwen2 language model. `mrope_section` (pairs for t, h, w) is None for plain RoPE."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, ...] | None
    tie_word_embeddings: bool
    attention_bias: bool

    @property
    def params_per_layer(self) -> int:
        """All parameters of one decoder layer, its two norms included."""
        return self._layer_params(RankShare(1))

    @property
    def embedding_params(self) -> int:
        """Parameters of the token embedding, which is also the size of the head's matrix."""
        return self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        """All parameters of the language model; a tied head counts once."""
        return self.params_of(RankShare(self.num_layers))

    def params_of(self, share: RankShare) -> int:
        """Parameters of a rank. Of a vocabulary of 10, each of 4 ranks has 3 rows."""
        table = -(-self.vocab_size // share.tp) * self.hidden_size
        has_own_head = share.is_last and not (share.is_first and self.tie_word_embeddings)
        return (
            share.num_layers * self._layer_params(share)
            + (table if share.is_first else 0)
            + (table if has_own_head else 0)
            + (self.hidden_size if share.is_last else 0)
        )

    def kv_bytes_per_token(self, dtype_bytes: int, share: RankShare | None = None) -> int:
        """Bytes of keys and values that a rank, or one that has all layers, keeps of a token."""
        share = share or RankShare(self.num_layers)
        return 2 * share.num_layers * self._kv_heads(share) * self.head_dim * dtype_bytes

    def _kv_heads(self, share: RankShare) -> int:
        """With more ranks than heads, several ranks keep the same one."""
        return max(self.num_kv_heads // share.tp, 1)

    def _layer_params(self, share: RankShare) -> int:
        query = share.part(self.num_heads) * self.head_dim
        kv = 2 * self._kv_heads(share) * self.head_dim
        bias = query + kv if self.attention_bias else 0
        mlp = 3 * self.hidden_size * share.part(self.intermediate_size)
        return self.hidden_size * (2 * query + kv) + bias + mlp + 2 * self.hidden_size

    def check_tensor_parallel(self, tp: int) -> None:
        """Raise ValueError where tp ranks cannot share the heads.

        Query heads are divided; key/value heads are divided, or each is held by tp / num_kv_heads ranks.
        """
        kv_heads = self.num_kv_heads
        if tp < 1 or self.num_heads % tp or (kv_heads % tp and tp % kv_heads):
            raise ValueError(
                f"--tp {tp} does not divide the model's {self.num_heads} query heads "
                f"and {self.num_kv_heads} key/value heads"
            )


@dataclass(frozen=True, slots=True)
class VisionShape:
    """A Qwen2.5-VL vision tower. `window_size` is in pixels; `fullatt_layers` see the whole item."""

    depth: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    window_size: int
    fullatt_layers: tuple[int, ...]
    in_channels: int
    out_hidden_size: int
    tokens_per_second: float

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def patch_dim(self) -> int:
        """Numbers in one patch: channels x frames x height x width."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def merge_unit(self) -> int:
        """Patches that the merger turns into one language-model token."""
        return self.spatial_merge_size**2

    @property
    def num_params(self) -> int:
        """All parameters of the tower: patch embedding, blocks, merger."""
        return self.params_of(RankShare(self.depth))

    def params_of(self, share: RankShare) -> int:
        """Parameters of a rank that has all blocks; biases of what is summed over ranks are on rank 0 only.

        A block has qkv and output with bias, a gated MLP with bias, and two norms.
        """
        hidden, wide = self.hidden_size, self.hidden_size * self.merge_unit
        heads = share.part(self.num_heads) * self.head_dim
        mlp, merged = share.part(self.intermediate_size), share.part(wide)
        block = 4 * heads * hidden + 3 * heads + 3 * mlp * hidden + 2 * mlp + 2 * hidden
        merger = hidden + merged * wide + merged + merged * self.out_hidden_size
        summed = self.depth * 2 * hidden + self.out_hidden_size if share.tp_rank == 0 else 0
        return hidden * self.patch_dim + self.depth * block + merger + summed


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A whole model. The four token ids are None for text-only models; dtype is the checkpoint's."""

    architecture: str
    text: TextShape
    vision: VisionShape | None
    dtype: str
    image_token_id: int | None
    video_token_id: int | None
    vision_start_id: int | None
    vision_end_id: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def num_params(self) -> int:
        """All parameters, vision tower included."""
        return self.text.num_params + (self.vision.num_params if self.vision else 0)

    def num_bytes(self, dtype_bytes: int | None = None) -> int:
        """Bytes of all parameters, in the checkpoint's dtype unless one is given."""
        return self.num_params * (dtype_bytes or DTYPE_BYTES[self.dtype])

    @classmethod
    def from_config(
        cls, config: dict[str, object], generation_config: dict[str, object] | None
    ) -> ModelShape:
        """Read a config.json (and generation_config.json) of transformers 4 (flat) or 5 (nested text_config).

        Raises ConfigError naming the file and the field that is missing, of the wrong type, or asks for
        something this runtime does not do.
        """
        top = Fields(config, "config.json")
        architecture = _architecture(top)
        text = top.section("text_config") if top.has("text_config") else top
        vision = _vision(top.section("vision_config")) if "VL" in architecture else None
        language = _text(text, top)
        if vision is not None:
            _check_multimodal(language, vision)

        def token_id(name: str, default: int) -> int | None:
            fields = top if top.has(name) else text
            return fields.integer(name, default=default) if vision is not None else None

        return cls(
            architecture=architecture,
            text=language,
            vision=vision,
            dtype=_dtype(top, text),
            image_token_id=token_id("image_token_id", 151655),
            video_token_id=token_id("video_token_id", 151656),
            vision_start_id=token_id("vision_start_token_id", 151652),
            vision_end_id=token_id("vision_end_token_id", 151653),
            eos_token_ids=_eos(top, text, generation_config),
        )


ARCHITECTURES = ("Qwen2_5_VLForConditionalGeneration", "Qwen2ForCausalLM")


def _architecture(top: Fields) -> str:
    names = top.strings("architectures")
    for name in names:
        if name in ARCHITECTURES:
            return name
    raise ConfigError(f"config.json: architectures {list(names)}: supported are {', '.join(ARCHITECTURES)}")


def _text(text: Fields, top: Fields) -> TextShape:
    text.refuse_unless("hidden_act", ("silu",), default="silu")
    text.refuse_unless("use_sliding_window", (False,), default=False)
    top.refuse_unless("quantization_config", (None,), default=None)
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    kv_heads = text.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ConfigError(
            f"{text.where}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    if not text.has("head_dim") and hidden % heads:
        raise ConfigError(
            f"{text.where}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        )
    rope_theta, section = _rope(text)
    tied = top.boolean("tie_word_embeddings", default=text.boolean("tie_word_embeddings", default=False))
    return TextShape(
        num_layers=text.integer("num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=text.integer("head_dim", default=hidden // heads),
        intermediate_size=text.integer("intermediate_size"),
        vocab_size=text.integer("vocab_size"),
        max_position=text.integer("max_position_embeddings"),
        rms_norm_eps=text.number("rms_norm_eps", default=1e-6),
        rope_theta=rope_theta,
        mrope_section=section,
        tie_word_embeddings=tied,
        attention_bias=text.boolean("attention_bias", default=True),
    )


def _rope(text: Fields) -> tuple[float, tuple[int, ...] | None]:
    """RoPE's base and M-RoPE's sections.

    transformers 5 writes `rope_parameters`, transformers 4 `rope_theta` and `rope_scaling`.
    """
    default_theta = text.number("rope_theta", default=10000.0)
    name = "rope_parameters" if text.has("rope_parameters") else "rope_scaling"
    if not text.has(name):
        return default_theta, None
    rope = text.section(name)
    kind = "rope_type" if rope.has("rope_type") else "type"
    rope.refuse_unless(kind, ("default", "mrope"), default="default")
    section = rope.integers("mrope_section") if rope.has("mrope_section") else None
    return rope.number("rope_theta", default=default_theta), section


def _vision(vision: Fields) -> VisionShape:
    vision.refuse_unless("hidden_act", ("silu",), default="silu")
    channels = "in_channels" if vision.has("in_channels") else "in_chans"
    return VisionShape(
        depth=vision.integer("depth", default=32),
        hidden_size=vision.integer("hidden_size"),
        num_heads=vision.integer("num_heads", default=16),
        intermediate_size=vision.integer("intermediate_size", default=3420),
        patch_size=vision.integer("patch_size", default=14),
        temporal_patch_size=vision.integer("temporal_patch_size", default=2),
        spatial_merge_size=vision.integer("spatial_merge_size", default=2),
        window_size=vision.integer("window_size", default=112),
        fullatt_layers=vision.integers("fullatt_block_indexes", default=(7, 15, 23, 31)),
        in_channels=vision.integer(channels, default=3),
        out_hidden_size=vision.integer("out_hidden_size"),
        tokens_per_second=vision.number("tokens_per_second", default=4),
    )


def _check_multimodal(text: TextShape, vision: VisionShape) -> None:
    if vision.out_hidden_size != text.hidden_size:
        raise ConfigError(
            f"config.json: vision_config.out_hidden_size {vision.out_hidden_size} "
            f"is not the language model's hidden_size {text.hidden_size}"
        )
    if text.mrope_section is None or 2 * sum(text.mrope_section) != text.head_dim:
        raise ConfigError(
            f"config.json: mrope_section {text.mrope_section} "
            f"does not sum to half of head_dim {text.head_dim}"
        )
    if vision.hidden_size % vision.num_heads:
        raise ConfigError(
            f"config.json: vision_config.hidden_size {vision.hidden_size} "
            f"is not a multiple of num_heads {vision.num_heads}"
        )


def _dtype(top: Fields, text: Fields) -> str:
    for fields in (top, text):
        for name in ("dtype", "torch_dtype"):
            if fields.has(name):
                fields.refuse_unless(name, tuple(DTYPE_BYTES))
                return fields.string(name)
    return "float32"


def _eos(top: Fields, text: Fields, generation_config: dict[str, object] | None) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json knows them all, config.json often only one."""
    generation = Fields(generation_config or {}, "generation_config.json")
    for fields in (generation, top, text):
        if fields.has("eos_token_id"):
            return fields.integers("eos_token_id")
    return ()


def split_layers(num_layers: int, pp: int, assigned: Sequence[int] | None = None) -> list[range]:
    """Spread decoder layers over pipeline stages: `assigned` counts per stage, or evenly.

    Layers left over go to the stages before the last, backwards: the last one also computes the head.
    10 layers over 4 stages: 2, 3, 3, 2. Raises ValueError where counts do not fit.
    """
    if assigned is None:
        if not 1 <= pp <= num_layers:
            raise ValueError(f"--pp {pp} is outside 1..{num_layers}, the number of layers of this model")
        base, extra = divmod(num_layers, pp)
        first_extra = max(pp - 1 - extra, 0)
        counts = [base + (first_extra <= stage < first_extra + extra) for stage in range(pp)]
    else:
        counts = list(assigned)
        if len(counts) != pp or sum(counts) != num_layers or min(counts) < 1:
            raise ValueError(
                f"--assigned-layers {','.join(map(str, counts))}: "
                f"need {pp} positive counts that sum to {num_layers}"
            )
    bounds = [sum(counts[:stage]) for stage in range(pp + 1)]
    return [range(start, stop) for start, stop in pairwise(bounds)]


def _qwen2_5_vl(
    layers: int, hidden: int, heads: tuple[int, int], mlp: tuple[int, int], tied: bool
) -> ModelShape:
    text = TextShape(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=128,
        intermediate_size=mlp[0],
        vocab_size=151936 if tied else 152064,
        max_position=128000,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        mrope_section=(16, 24, 24),
        tie_word_embeddings=tied,
        attention_bias=True,
    )
    vision = VisionShape(
        depth=32,
        hidden_size=1280,
        num_heads=16,
        intermediate_size=mlp[1],
        patch_size=14,
        temporal_patch_size=2,
        spatial_merge_size=2,
        window_size=112,
        fullatt_layers=(7, 15, 23, 31),
        in_channels=3,
        out_hidden_size=hidden,
        tokens_per_second=2,
    )
    return ModelShape(
        architecture="Qwen2_5_VLForConditionalGeneration",
        text=text,
        vision=vision,
        dtype="bfloat16",
        image_token_id=151655,
        video_token_id=151656,
        vision_start_id=151652,
        vision_end_id=151653,
        eos_token_ids=(151645, 151643),
    )


PRESETS: dict[str, ModelShape] = {
    "qwen2.5-vl-3b": _qwen2_5_vl(36, 2048, (16, 2), (11008, 3420), tied=True),
    "qwen2.5-vl-7b": _qwen2_5_vl(28, 3584, (28, 4), (18944, 3420), tied=False),
    "qwen2.5-vl-32b": _qwen2_5_vl(64, 5120, (40, 8), (27648, 3456), tied=False),
    "qwen2.5-vl-72b": _qwen2_5_vl(80, 8192, (64, 8), (29568, 3456), tied=False),
}
