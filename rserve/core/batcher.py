"""Algorithm 1: cutting one request's items into encoder batches."""

from collections.abc import Iterable, Iterator

Sized = tuple[int, int]
"""(item index, number of tokens)"""


def encoder_batches(items: Iterable[Sized], min_tokens: float) -> Iterator[list[int]]:
    """Cut one request's items, in prompt order, into encoder batches (paper Algorithm 1).

    A batch closes once it holds min_tokens embeddings (the paper's C); what is left over closes the
    last one. A small C starts prefill early, a large one keeps the encoder efficient; infinity makes
    one batch of the request, which is gLLM-epd.

    Items of 400, 700 and 300 tokens and 1024 give [0, 1], [2].
    """
    batch: list[int] = []
    tokens = 0
    for index, num_tokens in items:
        batch.append(index)
        tokens += num_tokens
        if tokens >= min_tokens:
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch
