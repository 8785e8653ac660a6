"""The embedding tracker: per request, which prefix of the prompt is ready (paper §3.1)."""

from gllm.core.embeddings import ALL_READY, EmbeddingStore


class EmbeddingTracker(EmbeddingStore):
    """Readiness by prefix: text is ready at once, an item when its embedding has arrived.

    Embeddings may arrive in any order; what counts is the longest ready prefix.
    """

    def ready_until(self, request_id: str, start: int) -> int:
        """End of the longest ready run that begins at `start`.

        Prompt of 100, image at [20, 80): 20 while it is not encoded, ALL_READY afterwards.
        """
        waiting = self._first_waiting(self.entries[request_id], start)
        return ALL_READY if waiting is None else max(start, waiting.offset)
