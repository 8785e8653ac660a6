"""What the tiny model learns from: answers, what they mean, and the names of what pictures show."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy, normalize
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VLVisionAttention,
    apply_rotary_pos_emb_vision,
)

from evaluation.tiny_vlm.dialogues import MERGE, Batch, DialogueMaker, Pictures
from evaluation.tiny_vlm.questions import COLOUR_NAMES, THING_NAMES

MEANING_WEIGHT = 0.5
NAMING_WEIGHT = 0.1
SHARPNESS = 12.0
"""Cosines times this are the logits of a picture's names."""


class BatchedVisionAttention(Qwen2_5_VLVisionAttention):
    """The same attention with all windows of one length in one call, instead of one call for each window."""

    def forward(self, hidden_states, cu_seqlens, position_embeddings, **_):
        """hidden_states [P, H] packed by cu_seqlens [W + 1] -> [P, H]."""
        size = hidden_states.shape[0]
        q, k, v = self.qkv(hidden_states).reshape(size, 3, self.num_heads, -1).unbind(1)
        q, k = apply_rotary_pos_emb_vision(q, k, *position_embeddings)
        lengths = cu_seqlens.diff()
        mixed = torch.empty_like(v)
        for length in lengths.unique().tolist():
            starts = cu_seqlens[:-1][lengths == length]
            places = starts[:, None] + torch.arange(length)
            windows = [x[places].transpose(1, 2) for x in (q, k, v)]  # [windows, heads, length, head_dim]
            mixed[places] = torch.nn.functional.scaled_dot_product_attention(*windows).transpose(1, 2)
        return self.proj(mixed.reshape(size, -1))


def batch_vision_attention(model: Qwen2_5_VLForConditionalGeneration) -> None:
    """Make a model's vision blocks use BatchedVisionAttention; weights and names stay."""
    for block in model.model.visual.blocks:
        block.attn.__class__ = BatchedVisionAttention


def see(model: Qwen2_5_VLForConditionalGeneration, pictures: Pictures) -> torch.Tensor:
    """Embeddings [M, hidden] of the merged tokens of all pictures."""
    if not len(pictures):
        return torch.empty(0, model.config.text_config.hidden_size)
    return model.model.visual(pictures.patches, grid_thw=pictures.grids).pooler_output


class Naming:
    """The loss that makes a picture's embeddings resemble the words for what it shows.

    Every merged token of a picture is to point to the embedding of its colour's word and of its thing's
    word, more than to those of other colours and things, and to be as long as a word's: what the layers add,
    such as a picture's number, weighs as much. What is learnt about words, above all to find an option's
    letter, then holds for pictures.
    """

    def __init__(self, maker: DialogueMaker) -> None:
        self._colours = torch.tensor(maker.word_ids(COLOUR_NAMES))
        self._things = torch.tensor(maker.word_ids(THING_NAMES))

    def loss(
        self, model: Qwen2_5_VLForConditionalGeneration, pictures: Pictures, vision: torch.Tensor
    ) -> torch.Tensor:
        """The mean over merged tokens; vision [M, hidden] as see() gives it. 0 without pictures."""
        if not len(pictures):
            return vision.new_zeros(())
        counts = pictures.grids.prod(1) // MERGE**2
        directions = normalize(vision, dim=1) * SHARPNESS
        total = vision.new_zeros(())
        for words, labels in ((self._colours, pictures.colours), (self._things, pictures.things)):
            embeddings = normalize(model.get_input_embeddings().weight[words], dim=1)
            total = total + cross_entropy(directions @ embeddings.T, labels.repeat_interleave(counts))
        return total + (vision.norm(dim=1) - 1).square().mean()


@dataclass(frozen=True)
class Logits:
    """Logits [T, vocab] at the places whose next token is learnt.

    answers: after the last layer. meanings: what the last layer starts from, read the same way.
    """

    answers: torch.Tensor
    meanings: torch.Tensor


def logits(model: Qwen2_5_VLForConditionalGeneration, batch: Batch, vision: torch.Tensor) -> Logits:
    """Run the text model; vision [M, hidden] as see() gives it for the batch's pictures."""
    embeddings = model.get_input_embeddings()(batch.input_ids)
    if len(vision):
        images = (batch.input_ids == model.config.image_token_id).unsqueeze(-1).expand_as(embeddings)
        embeddings = embeddings.masked_scatter(images, vision)
    text = model.model.language_model
    output = text(
        inputs_embeds=embeddings,
        position_ids=batch.position_ids,
        use_cache=False,
        output_hidden_states=True,
    )
    places = batch.target_rows, batch.target_columns
    before_last = text.norm(output.hidden_states[len(text.layers) - 1][places])
    return Logits(model.lm_head(output.last_hidden_state[places]), model.lm_head(before_last))


def dialogue_loss(
    model: Qwen2_5_VLForConditionalGeneration, batch: Batch, naming: Naming
) -> tuple[torch.Tensor, Logits]:
    """The whole loss of a batch, and its logits.

    Answers are learnt twice: after the last layer, and before it as what they mean, an option's letter as the
    option's word. So all but one layer find the word, as for a free answer, and the last one its letter.
    """
    vision = see(model, batch.pictures)
    found = logits(model, batch, vision)
    loss = cross_entropy(found.answers, batch.targets)
    loss = loss + MEANING_WEIGHT * cross_entropy(found.meanings, batch.meanings)
    return loss + NAMING_WEIGHT * naming.loss(model, batch.pictures, vision), found
