"""Puts what the encoder made into the input of a micro-batch."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from gllm.core.batch import EmbedRows


class EmbeddingRows:
    """Overwrites rows of placeholders. On a GPU, rows in host memory come over on a stream of their own, so
    that they do not wait for the micro-batches that run before.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def write(self, hidden: Tensor, embeds: Sequence[EmbedRows]) -> None:
        """hidden [T, H] on the device. When this returns, the rows' own memory may be used for others."""
        payloads = [cast(Tensor, rows.payload)[rows.start : rows.start + rows.length] for rows in embeds]
        if self._side is not None and payloads:
            payloads = self._bring(payloads, self._side)
        for rows, payload in zip(embeds, payloads):
            hidden[rows.row : rows.row + rows.length] = payload

    def _bring(self, payloads: Sequence[Tensor], side: torch.cuda.Stream) -> list[Tensor]:
        with torch.cuda.stream(side):
            brought = [payload.to(self._device, non_blocking=True) for payload in payloads]
        side.synchronize()  # waits for these copies, not for what the device computes
        for payload in brought:
            payload.record_stream(torch.cuda.current_stream(self._device))
        return brought
