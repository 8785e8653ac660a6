"""From logits to tokens: greedy or random, for a whole batch at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from gllm.layers.noise import gumbel_noise, noise_key
from gllm.layers.penalties import Penalties, TokenHistory

GREEDY_BELOW = 1e-5  # a temperature below this is greedy: logits divided by it would overflow
NUCLEUS_WIDTH = 1024  # candidates tried for top_p before the whole vocabulary is sorted
ROWS_AT_ONCE = 128  # sorting a vocabulary takes some 60 bytes a logit: 1.2 GB for so many rows of 152,064


class SamplingKnobs(Protocol):
    """How a request wants its tokens chosen; top_k 0 (or -1) and top_p 1 mean all tokens."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    logprobs: int | None


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row of logits: whose it is, and the index in its sequence of the token that it chooses."""

    knobs: SamplingKnobs
    seq_id: int
    position: int
    choice: int = 0

    @property
    def is_random(self) -> bool:
        """False where the best token is taken."""
        return self.knobs.temperature >= GREEDY_BELOW

    @property
    def is_cut(self) -> bool:
        """True where only a best part of the vocabulary may be drawn."""
        return self.knobs.top_p < 1.0 or self.knobs.top_k > 0

    @property
    def is_penalised(self) -> bool:
        """True where the tokens so far change the logits."""
        knobs = self.knobs
        return knobs.repetition_penalty != 1.0 or bool(knobs.presence_penalty or knobs.frequency_penalty)


@dataclass(frozen=True, slots=True)
class RandomRows:
    """m rows that are drawn: their indices in the batch, and tensors [m, 1] of what shapes the draw.

    `width` bounds how many candidates are looked at first; None means the whole vocabulary, without a cut.
    is_sure: no nucleus can be wider than that.
    """

    rows: Tensor  # int64 [m]
    temperature: Tensor
    min_p: Tensor | None
    top_k: Tensor  # int64; the largest integer where it is off
    top_p: Tensor
    keys: Tensor  # int32 [m, 2]
    width: int | None
    is_sure: bool

    @classmethod
    def build(cls, rows: Sequence[tuple[int, SamplingRow]], device: torch.device) -> RandomRows | None:
        """From (index in the batch, row); None for no rows."""
        if not rows:
            return None
        knobs = [row.knobs for _, row in rows]
        floats = torch.tensor([(k.temperature, k.min_p, k.top_p) for k in knobs]).to(
            device, non_blocking=True
        )
        top_k = [k.top_k if k.top_k > 0 else torch.iinfo(torch.int64).max for k in knobs]
        keys = [noise_key(row.knobs.seed, row.choice, row.position) for _, row in rows]
        widths = [k.top_k if k.top_k > 0 else NUCLEUS_WIDTH for k in knobs]
        return cls(
            rows=torch.tensor([i for i, _ in rows]).to(device, non_blocking=True),
            temperature=floats[:, :1],
            min_p=floats[:, 1:2] if any(k.min_p > 0 for k in knobs) else None,
            top_k=torch.tensor(top_k).to(device, non_blocking=True).unsqueeze(1),
            top_p=floats[:, 2:],
            keys=torch.tensor(keys, dtype=torch.int32).to(device, non_blocking=True),
            width=max(widths) if rows[0][1].is_cut else None,
            is_sure=all(k.top_k > 0 for k in knobs),
        )

    def over_all(self, picked: Tensor, vocab_size: int) -> RandomRows:
        """Some of the rows (int64 [k]), with the whole vocabulary as candidates."""
        return replace(
            self,
            rows=self.rows[picked],
            temperature=self.temperature[picked],
            min_p=None if self.min_p is None else self.min_p[picked],
            top_k=self.top_k[picked],
            top_p=self.top_p[picked],
            keys=self.keys[picked],
            width=vocab_size,
            is_sure=True,
        )


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How each of `size` rows of logits becomes a token. Rows that appear nowhere below are greedy."""

    size: int
    drawn: tuple[RandomRows, ...]  # those drawn from the whole vocabulary, those drawn from a part of it
    penalised: Tensor | None  # int64 [m]
    penalties: Penalties | None
    penalised_ids: tuple[int, ...]
    num_logprobs: int | None

    @classmethod
    def build(
        cls,
        rows: Sequence[SamplingRow],
        device: torch.device | str = "cpu",
        num_logprobs: int | None = None,
    ) -> SamplingBatch:
        """One row for each row of logits. Costs nothing but a look at each row where all are greedy.

        num_logprobs: at least so many, whatever the rows ask for.
        """
        device = torch.device(device)
        drawn = [(i, row) for i, row in enumerate(rows) if row.is_random]
        groups = ([r for r in drawn if not r[1].is_cut], [r for r in drawn if r[1].is_cut])
        penalised = [(i, row) for i, row in enumerate(rows) if row.is_penalised]
        asked = [num_logprobs, *(row.knobs.logprobs for row in rows)]
        wanted = [number for number in asked if number is not None]
        return cls(
            size=len(rows),
            drawn=tuple(group for g in groups if (group := RandomRows.build(g, device)) is not None),
            penalised=torch.tensor([i for i, _ in penalised]).to(device, non_blocking=True)
            if penalised
            else None,
            penalties=_penalties([row.knobs for _, row in penalised], device) if penalised else None,
            penalised_ids=tuple(row.seq_id for _, row in penalised),
            num_logprobs=max(wanted) if wanted else None,
        )


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """token_ids int64 [n]; the rest is None unless a row asked for log-probabilities.

    logprobs fp32 [n] of the chosen tokens; top_ids int64 and top_logprobs fp32 [n, k], best first, with the
    largest k of the batch: a row that asked for fewer takes its first columns.
    """

    token_ids: Tensor
    logprobs: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None


def sample(logits: Tensor, batch: SamplingBatch, history: TokenHistory | None = None) -> SampleOutput:
    """Choose one token for each row of logits [n, V] (left as they are).

    Penalties, then temperature, min_p, top_k and top_p (of what top_k left), then a draw: the order of vLLM.
    The draw is the largest of scaled logit + Gumbel noise, which depends on (seed, choice, position, token)
    only. Log-probabilities are those of the logits as they come from the model, before penalties and
    temperature, as vLLM reports them by default (`raw_logprobs`).

    history: needed where the batch has penalised rows, which must have been added to it.
    """
    scores = _penalise(logits, batch, history)
    token_ids = best_token(scores) if _any_greedy(batch) else logits.new_empty(batch.size, dtype=torch.int64)
    for group in batch.drawn:
        token_ids[group.rows] = _draw(scores, group)
    if batch.num_logprobs is None:
        return SampleOutput(token_ids)
    return _with_logprobs(logits, token_ids, batch.num_logprobs)


def sample_rows(
    logits: Tensor,
    rows: Sequence[SamplingRow],
    device: torch.device | str = "cpu",
    history: TokenHistory | None = None,
) -> SampleOutput:
    """`sample` of logits [n, V], as `rows` ask for it, in blocks of ROWS_AT_ONCE, which bounds its memory."""
    asked = [row.knobs.logprobs for row in rows if row.knobs.logprobs is not None]
    most = max(asked) if asked else None
    outputs = []
    for first in range(0, max(len(rows), 1), ROWS_AT_ONCE):
        block = slice(first, first + ROWS_AT_ONCE)
        outputs.append(sample(logits[block], SamplingBatch.build(rows[block], device, most), history))
    return outputs[0] if len(outputs) == 1 else _joined(outputs)


def _joined(outputs: Sequence[SampleOutput]) -> SampleOutput:
    """All rows, in order; either all outputs have log-probabilities, or none has."""
    ids = torch.cat([output.token_ids for output in outputs])
    if outputs[0].logprobs is None:
        return SampleOutput(ids)
    columns = [(o.logprobs, o.top_ids, o.top_logprobs) for o in outputs]
    return SampleOutput(ids, *(torch.cat(parts) for parts in zip(*columns)))


def best_token(scores: Tensor) -> Tensor:
    """argmax of scores [n, V] -> int64 [n].

    On a CPU, argmax costs twenty times what a maximum does, so the best of up to 128 parts of the vocabulary
    is found first, then the best token in it.
    """
    vocab = scores.shape[-1]
    parts = math.gcd(vocab, 128)
    if scores.is_cuda or parts == 1:
        return scores.argmax(dim=-1)
    grouped = scores.view(len(scores), parts, vocab // parts)
    part = grouped.amax(dim=-1).argmax(dim=-1)  # [n]
    inside = grouped[torch.arange(len(scores)), part].argmax(dim=-1)
    return part.mul_(vocab // parts).add_(inside)


def _any_greedy(batch: SamplingBatch) -> bool:
    return sum(len(group.rows) for group in batch.drawn) < batch.size


def _penalties(knobs: Sequence[SamplingKnobs], device: torch.device) -> Penalties:
    strengths = torch.tensor(
        [(k.repetition_penalty, k.presence_penalty, k.frequency_penalty) for k in knobs]
    ).to(device, non_blocking=True)
    return Penalties(*strengths.unbind(1))


def _penalise(logits: Tensor, batch: SamplingBatch, history: TokenHistory | None) -> Tensor:
    if batch.penalised is None or batch.penalties is None:
        return logits
    if history is None:
        raise ValueError("penalties need the history of their sequences")
    row, token, times = history.seen(batch.penalised_ids)
    scores = logits.to(torch.float32, copy=True)
    place = (batch.penalised[row], token)
    scores[place] = batch.penalties.apply(scores[place], row, times)
    return scores


def _draw(scores: Tensor, group: RandomRows) -> Tensor:
    """Token ids [m] of the group's rows of scores [n, V]."""
    scaled = scores[group.rows].float().div_(group.temperature)  # [m, V]
    if group.min_p is not None:
        floor = scaled.amax(-1, keepdim=True) + group.min_p.log()
        scaled.masked_fill_(scaled < floor, -torch.inf)
    if group.width is None:
        every = torch.arange(scaled.shape[-1], dtype=torch.int32, device=scaled.device).unsqueeze(0)
        return best_token(scaled.add_(gumbel_noise(group.keys, every)))
    vocab = scaled.shape[-1]
    values, ids, is_held = _candidates(scaled, group, min(group.width, vocab))
    del scaled
    best = values.add_(gumbel_noise(group.keys, ids.int())).argmax(dim=-1, keepdim=True)
    tokens = ids.gather(1, best).squeeze(1)
    if not group.is_sure and group.width < vocab and not bool(is_held.all()):
        picked = (~is_held).nonzero().squeeze(1)
        tokens[picked] = _draw(scores, group.over_all(picked, vocab))
    return tokens


def _candidates(scaled: Tensor, group: RandomRows, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best `width` of scaled [m, V], best first: values (-inf where top_k or top_p cut) and ids.

    The third tensor, bool [m], is true where they hold all of a row's nucleus.
    """
    values, ids = scaled.topk(width, dim=-1)
    limited = group.top_k <= width
    column = torch.arange(width, device=scaled.device)
    values.masked_fill_(column >= group.top_k, -torch.inf)
    total = torch.where(
        limited, values.logsumexp(-1, keepdim=True), scaled.logsumexp(-1, keepdim=True)
    )  # what top_k left counts as everything
    mass = (values - total).exp_()
    covered = mass.cumsum(-1)
    is_held = (limited | (covered[:, -1:] >= group.top_p)).squeeze(1)
    outside = (covered - mass) >= group.top_p
    outside[:, 0] = False  # the best token stays whatever top_p
    return values.masked_fill_(outside, -torch.inf), ids, is_held


def _with_logprobs(logits: Tensor, token_ids: Tensor, k: int) -> SampleOutput:
    wide = logits.float()
    total = wide.logsumexp(dim=-1, keepdim=True)
    chosen = wide.gather(1, token_ids.unsqueeze(1)).sub_(total).squeeze(1)
    top, top_ids = wide.topk(k, dim=-1)
    return SampleOutput(token_ids, chosen, top_ids, top.sub_(total))
