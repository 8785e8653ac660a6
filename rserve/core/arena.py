"""The embedding memory: one run of rows, of which whole requests get pieces (credits)."""

from bisect import insort


class Arena:
    """First-fit allocation of rows [0, capacity) with coalescing of free neighbours.

    The dispatcher holds it: an encoder is told where to write, the driver where to read, and neither
    allocates. A row is one token's embedding.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free: list[tuple[int, int]] = [(0, capacity)] if capacity else []

    @property
    def num_free(self) -> int:
        return sum(length for _, length in self._free)

    def reserve(self, lengths: list[int]) -> list[int] | None:
        """Rows for all of these lengths, or None and nothing taken when they do not all fit.

        Whatever fits the capacity fits an empty arena.
        """
        starts: list[int] = []
        for length in lengths:
            start = self._take(length)
            if start is None:
                for taken, size in zip(starts, lengths):
                    self.release(taken, size)
                return None
            starts.append(start)
        return starts

    def release(self, start: int, length: int) -> None:
        """Give rows back."""
        if length == 0:
            return
        insort(self._free, (start, length))
        index = self._free.index((start, length))
        self._merge(index)
        self._merge(index - 1)

    def _take(self, length: int) -> int | None:
        for index, (start, size) in enumerate(self._free):
            if size >= length:
                if size == length:
                    del self._free[index]
                else:
                    self._free[index] = (start + length, size - length)
                return start
        return None

    def _merge(self, index: int) -> None:
        """Join free run `index` with the one behind it when they touch."""
        if 0 <= index < len(self._free) - 1:
            (start, length), (next_start, next_length) = self._free[index : index + 2]
            if start + length == next_start:
                self._free[index : index + 2] = [(start, length + next_length)]
