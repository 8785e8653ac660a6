"""A request being served: counters, tokens and blocks."""

from dataclasses import dataclass, field

from gllm.core.request import MMItem, Request


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice of one request while it is served; three counters hold all of its progress.

    num_computed <= num_dispatched <= num_tokens: between the first two lie the tokens inside the
    pipeline, between the last two those still to schedule. A preemption sets both back to zero.

    arrival: the order in which requests came; all decisions between sequences use it.
    attempt: how often the sequence was preempted.
    in_flight: chunks inside the pipeline (of any attempt); blocks return when it is zero.
    """

    seq_id: int
    request: Request
    choice: int
    arrival: int
    token_ids: list[int]
    block_table: list[int] = field(default_factory=list)
    num_dispatched: int = 0
    num_computed: int = 0
    num_cached: int = 0
    attempt: int = 0
    in_flight: int = 0
    finished: bool = False

    @property
    def prompt_len(self) -> int:
        return len(self.request.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.request.token_ids)

    @property
    def items(self) -> tuple[MMItem, ...]:
        return self.request.items

    @property
    def is_decode(self) -> bool:
        """True when all but the last sampled token has been dispatched."""
        return self.num_dispatched == len(self.token_ids) - 1 and self.num_dispatched >= self.prompt_len

    @property
    def holds_blocks(self) -> bool:
        return bool(self.block_table)
