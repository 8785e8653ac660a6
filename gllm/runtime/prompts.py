"""Which tokens the sampler of the last stage must be told."""

import dataclasses
from collections.abc import Callable, Sequence

from gllm.runtime.messages import StageBatch


def with_prompts(batch: StageBatch, tokens_of: Callable[[int], Sequence[int]]) -> StageBatch:
    """Add the tokens so far of the new sequences that have penalties; nothing is copied where none has."""
    prompts = {
        seq.seq_id: tuple(tokens_of(seq.seq_id)[: seq.num_tokens])
        for seq in batch.new
        if seq.sampling.needs_history
    }
    return dataclasses.replace(batch, prompts=prompts) if prompts else batch
