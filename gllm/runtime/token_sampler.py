"""Sampling on the last stage: from logits to tokens, with the histories that penalties need."""

import torch
from torch import Tensor

from gllm.core.batch import Sample, SampledToken, SampleTarget, TokenLogprobs
from gllm.layers.penalties import TokenHistory
from gllm.layers.sampler import SampleOutput, SamplingBatch, SamplingRow, sample
from gllm.runtime.messages import StageBatch


class TokenSampler:
    """Samples the targets of each micro-batch; keeps histories only of sequences with penalties.

    The first token of a forked choice is drawn from the parent's row and history; the choice gets a history
    of its own when it is announced as a new sequence.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._history = TokenHistory(vocab_size, self._device)

    def apply(self, batch: StageBatch) -> None:
        """Forget finished sequences and start the histories of new ones."""
        for seq_id in batch.finished:
            self._history.remove(seq_id)
        for seq in batch.new:
            self._history.remove(seq.seq_id)
            ids = batch.prompts.get(seq.seq_id)
            if ids is not None:
                self._history.add(seq.seq_id, ids[: seq.prompt_len], ids[seq.prompt_len :])

    def sample(self, logits: Tensor, batch: StageBatch) -> tuple[SampledToken, ...]:
        """logits [len(batch.samples), V] -> one token for each target, in order.

        KeyError where a penalised sequence was announced without its tokens.
        """
        targets = [(index, target) for index, s in enumerate(batch.samples) for target in s.targets]
        if len(targets) > len(batch.samples):
            logits = logits[torch.tensor([index for index, _ in targets], device=logits.device)]
        rows = [self._row(batch, batch.samples[index], target) for index, target in targets]
        output = sample(logits, SamplingBatch.build(rows, self._device), self._history)
        self._history.append([target.seq_id for _, target in targets], output.token_ids)
        return _tokens([(batch.samples[index], target) for index, target in targets], output)

    def _row(self, batch: StageBatch, choice: Sample, target: SampleTarget) -> SamplingRow:
        parent = batch.chunks[choice.chunk_index].seq_id
        return SamplingRow(choice.sampling, parent, target.position, target.choice)


def _tokens(targets: list[tuple[Sample, SampleTarget]], output: SampleOutput) -> tuple[SampledToken, ...]:
    ids = output.token_ids.tolist()
    logprobs = _logprobs([s.sampling.logprobs for s, _ in targets], output)
    return tuple(
        SampledToken(target.seq_id, target.request_id, target.choice, target.position, token_id, logprob)
        for (_, target), token_id, logprob in zip(targets, ids, logprobs)
    )


def _logprobs(wanted: list[int | None], output: SampleOutput) -> list[TokenLogprobs | None]:
    if output.logprobs is None or output.top_ids is None or output.top_logprobs is None:
        return [None] * len(wanted)
    chosen, ids, values = output.logprobs.tolist(), output.top_ids.tolist(), output.top_logprobs.tolist()
    return [
        None if k is None else TokenLogprobs(chosen[row], tuple(zip(ids[row][:k], values[row][:k])))
        for row, k in enumerate(wanted)
    ]
