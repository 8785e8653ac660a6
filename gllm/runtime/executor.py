"""Who carries out what a core decides: one interface for real pipelines and for one process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gllm.core.batch import BatchResult, EncodeBatch, MicroBatch, Payload
from gllm.core.effects import Effect
from gllm.core.request import MMItem, Request
from gllm.core.sequence import Sequence as CoreSequence
from gllm.core.served import Served


class Executor(Protocol):
    """Runs stage 0's part of the work now, and passes micro-batches on to the other stages."""

    def submit(
        self, batch: MicroBatch, tokens_of: Callable[[int], Sequence[int]], after_input: Callable[[], None]
    ) -> BatchResult | None:
        """Run a micro-batch on stage 0.

        tokens_of: all tokens of a sequence by seq_id, for samplers that need them. after_input is called
        once the encoder's rows are copied into the input. Returns the result where this stage is the last
        one, else None: it comes from there.
        """
        ...

    def encode(self, batch: EncodeBatch, items: Sequence[MMItem]) -> list[Payload]:
        """Encode items of one request, whose MMItems are `items`, together; one payload for each."""
        ...

    def tell(self, on_progress: Callable[[], None]) -> None:
        """Have this called now and then while a step runs."""
        ...

    def rest(self) -> None:
        """There is nothing to do for now, or somebody asks: report what this rank did."""
        ...


class DrivenCore(Protocol):
    """What a driver needs of a core: `gllm.core.engine_core.EngineCore` or one that refines it."""

    @property
    def sequences(self) -> Mapping[int, CoreSequence]:
        """Sequences being served, by seq_id."""
        ...

    @property
    def requests(self) -> Mapping[str, Served]:
        """Requests being served, by id."""
        ...

    @property
    def has_work(self) -> bool:
        """True while a request is being served."""
        ...

    def on_request(self, request: Request) -> None: ...
    def on_item_hash(self, request_id: str, item: int, digest: bytes) -> None: ...
    def on_item_failed(self, request_id: str, item: int, status: int, message: str) -> None: ...
    def on_pixels(self, request_id: str, item: int, attempt: int) -> None: ...
    def on_encoding(self, request_id: str) -> None: ...
    def on_embeddings(self, request_id: str, item: int, attempt: int, payload: Payload) -> bool: ...
    def on_batch_done(self, result: BatchResult) -> None: ...
    def on_abort(self, request_id: str, reason: str = "abort") -> None: ...
    def on_credits_short(self, request_id: str) -> None: ...
    def flush_cache(self) -> int: ...
    def stats(self) -> dict[str, float]: ...
    def waits(self) -> dict[str, str]: ...
    def step(self) -> MicroBatch | EncodeBatch | None: ...
    def take_effects(self) -> list[Effect]: ...
