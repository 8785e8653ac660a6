"""Puts what the encoder made into the input of a micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gllm.core.batch import EmbedRows


@dataclass(frozen=True, slots=True)
class BorrowedRows:
    """Embeddings [n, H] in memory of which this process is not told when it is written to.

    It is not written to until the core has released the embeddings.
    """

    tensor: Tensor


class EmbeddingRows:
    """Overwrites rows of placeholders.

    On a GPU, borrowed rows, in host memory or the GPU's own, come over on a stream of their own, so that they
    do not wait for the micro-batches that run before. What stage 0 encoded comes from the same stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def write(self, hidden: Tensor, embeds: Sequence[EmbedRows]) -> None:
        """hidden [T, H] on the device. When this returns, borrowed rows may be written to again."""
        tensors = [_embeddings(rows) for rows in embeds]
        lent = [i for i, rows in enumerate(embeds) if type(rows.payload) is BorrowedRows]
        if self._side is not None and lent:
            for i, tensor in zip(lent, self._bring([tensors[i] for i in lent], self._side)):
                tensors[i] = tensor
        for rows, tensor in zip(embeds, tensors):
            hidden[rows.row : rows.row + rows.length] = tensor

    def _bring(self, tensors: Sequence[Tensor], side: torch.cuda.Stream) -> list[Tensor]:
        with torch.cuda.stream(side):
            brought = [tensor.to(self._device, non_blocking=True, copy=True) for tensor in tensors]
        side.synchronize()  # waits for these copies, not for what the device computes
        for tensor in brought:
            tensor.record_stream(torch.cuda.current_stream(self._device))
        return brought


def _embeddings(rows: EmbedRows) -> Tensor:
    payload = rows.payload
    tensor = payload.tensor if isinstance(payload, BorrowedRows) else cast(Tensor, payload)
    return tensor[rows.start : rows.start + rows.length]
