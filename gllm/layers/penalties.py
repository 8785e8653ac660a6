"""Repetition, presence and frequency penalties, and the token counts that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class TokenHistory:
    """What penalised sequences have read and said: one row of counts for each, none for the others.

    A row takes five bytes for each token of the vocabulary; rows of sequences that ended are used again.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._in_prompt = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._outputs = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._slots

    def add(self, seq_id: int, prompt: Sequence[int], outputs: Sequence[int] = ()) -> None:
        """Start a sequence, or start it again with what it has said so far (after a preemption)."""
        slot = self._slots.get(seq_id)
        if slot is None:
            slot = self._slots[seq_id] = self._free.pop() if self._free else self._grow()
        self._in_prompt[slot] = False
        self._outputs[slot] = 0
        self._in_prompt[slot, self._ids(prompt)] = True
        said = self._ids(outputs)
        self._outputs[slot].index_add_(0, said, torch.ones_like(said, dtype=torch.int32))

    def append(self, seq_ids: Sequence[int], token_ids: Tensor) -> None:
        """Count one new output token [n] for each of these sequences; ids without a row are passed over."""
        known = [(i, self._slots[seq_id]) for i, seq_id in enumerate(seq_ids) if seq_id in self._slots]
        if known:
            picked, slots = self._ids([i for i, _ in known]), self._ids([slot for _, slot in known])
            self._outputs[slots, token_ids.to(self._outputs.device)[picked]] += 1

    def remove(self, seq_id: int) -> None:
        """Forget a sequence; unknown ids are passed over."""
        slot = self._slots.pop(seq_id, None)
        if slot is not None:
            self._free.append(slot)

    def counts(self, seq_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(in the prompt: bool [n, V], times in the output: int32 [n, V]). KeyError for an unknown id."""
        slots = self._ids([self._slots[seq_id] for seq_id in seq_ids])
        return self._in_prompt[slots], self._outputs[slots]

    def _ids(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._outputs.device)

    def _grow(self) -> int:
        """Double the number of rows (at least 4) and return a free one."""
        old = self._outputs.shape[0]
        new = max(2 * old, 4)
        rows = new - old
        self._in_prompt = torch.cat(
            (self._in_prompt, self._in_prompt.new_zeros(rows, *self._in_prompt.shape[1:]))
        )
        self._outputs = torch.cat((self._outputs, self._outputs.new_zeros(rows, *self._outputs.shape[1:])))
        self._free.extend(range(new - 1, old, -1))
        return old


@dataclass(frozen=True, slots=True)
class Penalties:
    """Strengths for m rows: three fp32 tensors [m, 1]; 1, 0 and 0 change nothing."""

    repetition: Tensor
    presence: Tensor
    frequency: Tensor

    def apply(self, logits: Tensor, in_prompt: Tensor, outputs: Tensor) -> Tensor:
        """logits fp32 [m, V] -> penalised logits, in new memory.

        Repetition divides positive logits and multiplies negative ones, of tokens seen in prompt or output
        (CTRL, Keskar et al. 2019, section 4.1). Presence is subtracted once and frequency for each time,
        of tokens in the output (OpenAI's API reference). Repetition comes first.
        Logit 3, seen twice in the output, with 1.5, 0.2 and 0.1: 3 / 1.5 - 0.2 - 2 * 0.1 = 1.6.
        """
        said = outputs > 0
        repeated = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
        logits = torch.where(in_prompt | said, repeated, logits)
        return logits.sub_(self.presence * said).sub_(self.frequency * outputs)
