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
        self._seen = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)  # in prompt or output
        self._outputs = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._slots

    def add(self, seq_id: int, prompt: Sequence[int], outputs: Sequence[int] = ()) -> None:
        """Start a sequence, or start it again with what it has said so far (after a preemption)."""
        slot = self._slots.get(seq_id)
        if slot is None:
            slot = self._slots[seq_id] = self._free.pop() if self._free else self._grow()
        self._seen[slot] = False
        self._outputs[slot] = 0
        said = self._ids(outputs)
        self._seen[slot, self._ids(prompt)] = True
        self._seen[slot, said] = True
        self._outputs[slot].index_add_(0, said, torch.ones_like(said, dtype=torch.int32))

    def append(self, seq_ids: Sequence[int], token_ids: Tensor) -> None:
        """Count one new output token [n] for each of these sequences; ids without a row are passed over."""
        known = [(i, self._slots[seq_id]) for i, seq_id in enumerate(seq_ids) if seq_id in self._slots]
        if known:
            picked, slots = self._ids([i for i, _ in known]), self._ids([slot for _, slot in known])
            said = token_ids.to(self._outputs.device)[picked]
            self._outputs[slots, said] += 1
            self._seen[slots, said] = True

    def remove(self, seq_id: int) -> None:
        """Forget a sequence; unknown ids are passed over."""
        slot = self._slots.pop(seq_id, None)
        if slot is not None:
            self._free.append(slot)

    def seen(self, seq_ids: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """All k pairs (index in seq_ids, token in its prompt or output), and how often it is in the output.

        Three tensors [k]. KeyError for an unknown id.
        """
        slots = self._ids([self._slots[seq_id] for seq_id in seq_ids])
        row, token = self._seen[slots].nonzero(as_tuple=True)
        return row, token, self._outputs[slots[row], token]

    def _ids(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self._outputs.device, non_blocking=True)

    def _grow(self) -> int:
        """Double the number of rows (at least 4) and return a free one."""
        old = self._outputs.shape[0]
        new = max(2 * old, 4)
        rows = new - old
        self._seen = torch.cat((self._seen, self._seen.new_zeros(rows, *self._seen.shape[1:])))
        self._outputs = torch.cat((self._outputs, self._outputs.new_zeros(rows, *self._outputs.shape[1:])))
        self._free.extend(range(new - 1, old, -1))
        return old


@dataclass(frozen=True, slots=True)
class Penalties:
    """Strengths for m rows: three fp32 tensors [m]; 1, 0 and 0 change nothing."""

    repetition: Tensor
    presence: Tensor
    frequency: Tensor

    def apply(self, logits: Tensor, row: Tensor, times: Tensor) -> Tensor:
        """logits fp32 [k] of tokens that row[k] has seen, times[k] of them in its output -> penalised [k].

        Repetition divides positive logits and multiplies negative ones, of tokens seen in prompt or output
        (CTRL, Keskar et al. 2019, section 4.1). Presence is subtracted once and frequency for each time, of
        tokens in the output (OpenAI's API reference). Repetition comes first.
        Logit 3, seen twice in the output, with 1.5, 0.2 and 0.1: 3 / 1.5 - 0.2 - 2 * 0.1 = 1.6.
        """
        repetition = self.repetition[row]
        logits = torch.where(logits > 0, logits / repetition, logits * repetition)
        return logits - self.presence[row] * (times > 0) - self.frequency[row] * times
