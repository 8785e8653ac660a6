"""One request while it is served: its sequences and what is known of its items."""

from dataclasses import dataclass, field

from gllm.core.batch import Chunk
from gllm.core.request import Request
from gllm.core.sequence import Sequence


@dataclass(eq=False, slots=True)
class Served:
    """A request, its n sequences (the first exists from the start) and late facts about its items.

    digests: content hashes as they become known (prefix caching). num_decided: leading items whose
    encoding was asked for or spared. encoding: the first item is with an encoder.
    """

    request: Request
    arrival: int
    sequences: list[Sequence] = field(default_factory=list)
    digests: list[bytes | None] = field(default_factory=list)
    num_decided: int = 0
    encoding: bool = False
    reason: str = ""

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def is_over(self) -> bool:
        """All sequences ended, none of their chunks is inside the pipeline, and their blocks are back."""
        return all(seq.finished and seq.in_flight == 0 and not seq.holds_blocks for seq in self.sequences)

    @property
    def num_passed(self) -> int:
        """Prompt tokens that every live sequence has dispatched: embeddings before it are done with."""
        live = [seq.num_dispatched for seq in self.sequences if not seq.finished]
        return min(live, default=0)


@dataclass(frozen=True, slots=True)
class Flight:
    """A micro-batch inside the pipeline: its chunks, and the forks that its samples make."""

    chunks: tuple[tuple[Sequence, Chunk], ...]
    children: tuple[Sequence, ...]
