"""What a client asked, as the engine sees it: token ids, items and sampling parameters."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MMItem:
    """One image, or one temporal group of a video: what the encoder cannot divide.

    offset: index in the prompt of its first placeholder token.
    num_tokens: consecutive placeholder tokens, t * (h / 2) * (w / 2) for a 2x2 merge.
    grid: (t, h, w) in patches.
    seconds_per_grid: time between two temporal positions (videos only).
    """

    offset: int
    num_tokens: int
    grid: tuple[int, int, int] = (1, 2, 2)
    seconds_per_grid: float = 0.0

    @property
    def end(self) -> int:
        return self.offset + self.num_tokens


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop. temperature 0 is greedy, top_k 0 means all tokens.

    seed is always a number here (the API server draws one when the client gives none), so noise is a
    function of (seed, choice, position) and survives preemption.
    logprobs: None for none, k for the chosen token's log-probability and those of the k best.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None

    @property
    def needs_history(self) -> bool:
        """True when the sampler must know the tokens so far."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request, admitted and immutable. `token_ids` is the expanded prompt (placeholders included)."""

    request_id: str
    token_ids: tuple[int, ...]
    items: tuple[MMItem, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_mm_tokens(self) -> int:
        return sum(item.num_tokens for item in self.items)
