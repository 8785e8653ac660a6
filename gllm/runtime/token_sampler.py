"""Sampling on the last stage: from logits to tokens, with the histories that penalties need."""

import torch
from torch import Tensor

from gllm.core.batch import Sample, SampledToken, SampleTarget, TokenLogprobs
from gllm.layers.penalties import TokenHistory
from gllm.layers.sampler import SampleOutput, SamplingRow, sample_rows
from gllm.runtime.messages import StageBatch
from gllm.runtime.staging import HostCopy


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
        """logits [len(batch.samples), V] -> one token for each target, in order; waits for the device."""
        return self.start(logits, batch).get()

    def start(self, logits: Tensor, batch: StageBatch) -> "LateTokens":
        """The same without waiting. KeyError where a penalised sequence was announced without its tokens."""
        targets = [(index, target) for index, s in enumerate(batch.samples) for target in s.targets]
        if len(targets) > len(batch.samples):
            index = torch.tensor([index for index, _ in targets])
            logits = logits[index.to(logits.device, non_blocking=True)]
        rows = [self._row(batch, batch.samples[index], target) for index, target in targets]
        output = sample_rows(logits, rows, self._device, self._history)
        self._history.append([target.seq_id for _, target in targets], output.token_ids)
        return LateTokens([(batch.samples[index], target) for index, target in targets], output)

    def _row(self, batch: StageBatch, choice: Sample, target: SampleTarget) -> SamplingRow:
        parent = batch.chunks[choice.chunk_index].seq_id
        return SamplingRow(choice.sampling, parent, target.position, target.choice)


class LateTokens:
    """Tokens that are sampled, on their way to the host."""

    def __init__(self, targets: list[tuple[Sample, SampleTarget]], output: SampleOutput) -> None:
        self._targets = targets
        optional = (output.logprobs, output.top_ids, output.top_logprobs)
        self._copy = HostCopy([output.token_ids, *(tensor for tensor in optional if tensor is not None)])

    def is_done(self) -> bool:
        """Whether `get` would not wait."""
        return self._copy.is_done()

    def get(self) -> tuple[SampledToken, ...]:
        """One token for each target, in order."""
        ids, *probabilities = self._copy.get()
        logprobs = _logprobs([s.sampling.logprobs for s, _ in self._targets], probabilities)
        return tuple(
            SampledToken(target.seq_id, target.request_id, target.choice, target.position, token_id, logprob)
            for (_, target), token_id, logprob in zip(self._targets, ids.tolist(), logprobs)
        )


def _logprobs(wanted: list[int | None], probabilities: list[Tensor]) -> list[TokenLogprobs | None]:
    """probabilities: of the chosen tokens, the best tokens and theirs; empty where nobody wants them."""
    if not probabilities:
        return [None] * len(wanted)
    chosen, ids, values = (tensor.tolist() for tensor in probabilities)
    return [
        None if k is None else TokenLogprobs(chosen[row], tuple(zip(ids[row][:k], values[row][:k])))
        for row, k in enumerate(wanted)
    ]
