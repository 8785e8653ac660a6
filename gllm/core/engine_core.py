"""The engine without tensors and without time: events change its state, `step` decides what runs next.

The server's driver and the simulator use this class alike; they differ in who calls and what executes.
"""

from collections import OrderedDict
from collections.abc import Callable

from gllm.core.batch import BatchResult, MicroBatch, Payload, SampledToken, Work
from gllm.core.batch_builder import BatchBuilder
from gllm.core.block_pool import BlockPool
from gllm.core.budget import Budget
from gllm.core.core_config import CoreConfig
from gllm.core.effects import Effect, ItemReleased, RequestFailed, RequestFinished
from gllm.core.embeddings import EmbeddingStore
from gllm.core.finish import finish_reason
from gllm.core.item_flow import ItemFlow
from gllm.core.kv import KvCache
from gllm.core.request import Request
from gllm.core.residency import Residency
from gllm.core.scheduler import Resources, Scheduler
from gllm.core.sequence import Sequence
from gllm.core.served import Flight, Served
from gllm.core.stage_encoder import StageEncoder

MakeScheduler = Callable[[Budget, Resources], Scheduler]


class EngineCore:
    """Requests, sequences, blocks and embeddings of one deployment.

    tracker: readiness of embeddings (whole request here, longest ready prefix in `rserve.core`).
    make_scheduler: the scheduling rule. stage_encoder: given when stage 0 encodes items.
    """

    def __init__(
        self,
        config: CoreConfig,
        tracker: EmbeddingStore | None = None,
        make_scheduler: MakeScheduler = Scheduler,
        stage_encoder: StageEncoder | None = None,
    ) -> None:
        self.config = config
        self.tracker = EmbeddingStore() if tracker is None else tracker
        self.stage_encoder = stage_encoder
        self.pool = BlockPool(config.num_blocks)
        self.kv = KvCache(self.pool, config.block_size, config.prefix_caching)
        self.items = ItemFlow(self.tracker, self.kv, stage_encoder)
        self.builder = BatchBuilder()
        self.requests: dict[str, Served] = {}
        self.residency = Residency(
            config, self.kv, self.items, self.builder, self.requests, lambda seq: self.scheduler.update(seq)
        )
        self.scheduler = make_scheduler(config.budget(), self.residency)
        self.sequences: dict[int, Sequence] = {}
        self.flights: OrderedDict[int, Flight] = OrderedDict()
        self.credits_short: str | None = None
        self._next_arrival = 0
        self._next_seq_id = 0
        self._just_encoded = False

    # -- events ------------------------------------------------------------------------------------

    def on_request(self, request: Request) -> None:
        """A request arrived. One that can never run fails at once, with the numbers."""
        if request.request_id in self.requests:
            self._fail(request.request_id, 409, f"request id {request.request_id!r} is in use")
            return
        most = len(request.token_ids) + request.sampling.max_tokens
        if not request.token_ids or most > self.config.num_kv_tokens:
            limit = f"this deployment holds {self.config.num_kv_tokens} tokens"
            self._fail(request.request_id, 400, f"prompt and output are {most} tokens, {limit}: shorten them")
            return
        served = Served(request, self._next_arrival, digests=[None] * len(request.items))
        self._next_arrival += 1
        self.requests[request.request_id] = served
        seq = self._new_sequence(served, choice=0)
        self.items.start(served)
        self.scheduler.update(seq)

    def on_item_hash(self, request_id: str, item: int, digest: bytes) -> None:
        """The content hash of an item is known (prefix caching only)."""
        served = self.requests.get(request_id)
        if served is not None and self.config.prefix_caching:
            served.digests[item] = digest
            self.items.decide(served)
            self._update(served)

    def on_item_failed(self, request_id: str, item: int, status: int, message: str) -> None:
        """An item can't be fetched, decoded or encoded: its request ends with this error."""
        if request_id in self.requests:
            self._fail(request_id, status, message)
            self._end(request_id, "error")

    def on_pixels(self, request_id: str, item: int, attempt: int) -> None:
        """An item's pixels are with stage 0, which encodes it."""
        if self.stage_encoder is not None:
            self.stage_encoder.on_pixels(request_id, item, attempt)

    def on_encoding(self, request_id: str) -> None:
        """The first item of a request is with an encoder: the request may reserve blocks like others."""
        served = self.requests.get(request_id)
        if served is not None and not served.encoding:
            served.encoding = True
            if self.credits_short == request_id:
                self.credits_short = None
            self._update(served)

    def on_embeddings(self, request_id: str, item: int, attempt: int, payload: Payload) -> bool:
        """An item is encoded. False when nobody waits for it any more; its memory is released then too.

        Unless it came twice: its memory is in use, or was released.
        """
        if not self.tracker.put(request_id, item, attempt, payload):
            if not self.tracker.has_arrived(request_id, item, attempt):
                self.items.effects.append(ItemReleased(request_id, item, attempt))
            return False
        served = self.requests[request_id]
        served.encoding = True
        self.items.arrived(served, item)
        if self.credits_short == request_id:
            self.credits_short = None
        self._update(served)
        return True

    def on_encoder_lost(self, items: list[tuple[str, int, int]]) -> None:
        """An encoder died with these (request, item, attempt); ask again for those that did not arrive."""
        for request_id, item, attempt in items:
            served = self.requests.get(request_id)
            if served is None:
                self.items.effects.append(ItemReleased(request_id, item, attempt))
            else:
                self.items.lost(served, item, attempt)

    def on_credits_short(self, request_id: str) -> None:
        """The first request in the encoder's queue waits for embedding memory that others hold."""
        if request_id in self.requests:
            self.credits_short = request_id

    def on_abort(self, request_id: str, reason: str = "abort") -> None:
        """Nobody waits for this request any more. Unknown ids are ignored."""
        if request_id in self.requests:
            self._end(request_id, reason)

    def on_batch_done(self, result: BatchResult) -> None:
        """A micro-batch left the last stage. Results of unknown batches are ignored."""
        flight = self.flights.pop(result.batch_id, None)
        if flight is None:
            return
        for seq, chunk in flight.chunks:
            seq.in_flight -= 1
            if not seq.finished:
                seq.num_computed = chunk.end
                self.kv.publish(seq, self._served(seq).digests)
        for child in flight.children:
            child.in_flight -= 1
        for token in sorted(result.tokens, key=lambda t: -t.choice):
            self._on_token(token)
        touched = [seq for seq, _ in flight.chunks] + list(flight.children)
        for seq in touched:
            if seq.finished:
                self._close(seq)
            else:
                self.scheduler.update(seq)

    def flush_cache(self) -> int:
        """Forget all cached prefixes. Returns the number of blocks forgotten."""
        return self.pool.flush()

    # -- decisions ---------------------------------------------------------------------------------

    def step(self) -> Work | None:
        """What stage 0 does next, or None. Called when stage 0 is free, after all events so far."""
        full = len(self.flights) >= self.config.max_in_flight
        encoder = self.stage_encoder
        if encoder is not None and encoder.has_work and self._may_encode(full):
            self._just_encoded = True
            return encoder.next_batch()
        if full:
            return None
        self._just_encoded = False
        batch = self._next_micro_batch()
        if batch is None and encoder is not None and not self.flights:
            return encoder.next_batch()
        return batch

    def take_effects(self) -> list[Effect]:
        """What has to be done outside, in order; the list is the caller's."""
        effects, self.items.effects = self.items.effects, []
        return effects

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    @property
    def in_flight(self) -> int:
        return len(self.flights)

    def _may_encode(self, full: bool) -> bool:
        """Stage 0 encodes while the pipeline is full or the next micro-batch would not be.

        Never twice in a row while tokens wait, and not ahead of time beyond the embedding memory.
        """
        waiting = self.scheduler.waiting_tokens
        idle = not waiting and not self.scheduler.decodes
        if self.tracker.tokens_held >= self.config.embedding_tokens:
            return False
        return full or idle or (waiting < self.config.maxp and not self._just_encoded)

    def _next_micro_batch(self) -> MicroBatch | None:
        chunks = self.scheduler.schedule()
        while not chunks and not self.flights and self._relieve():
            chunks = self.scheduler.schedule()
        if not chunks:
            return None
        pairs = [(self.sequences[chunk.seq_id], chunk) for chunk in chunks]
        children: list[Sequence] = []
        for seq, chunk in pairs:
            if chunk.end == seq.prompt_len == seq.num_tokens:
                children += self._make_children(seq)
        batch = self.builder.build(pairs, children, self.tracker)
        self.flights[batch.batch_id] = Flight(tuple(pairs), tuple(children))
        for seq, _ in pairs:
            self.items.release_passed(self._served(seq))
        return batch

    # -- state changes ---------------------------------------------------------------------------------

    def _on_token(self, token: SampledToken) -> None:
        seq = self.sequences.get(token.seq_id)
        if seq is None or seq.finished or token.position != seq.num_tokens:
            return
        seq.token_ids.append(token.token_id)
        request = seq.request
        reason = finish_reason(token.token_id, seq.num_output, request.sampling, request.eos_token_ids)
        if reason is not None:
            self._finish(seq, reason)
        else:
            self.residency.continues(seq)

    def _make_children(self, parent: Sequence) -> list[Sequence]:
        served = self._served(parent)
        if parent.choice != 0 or len(served.sequences) > 1:
            return []
        children = []
        for choice in range(1, parent.request.sampling.n):
            child = self._new_sequence(served, choice)
            child.num_dispatched = child.num_computed = child.prompt_len
            child.in_flight = 1
            children.append(child)
        return children

    def _relieve(self) -> bool:
        """Nothing can run and nothing is in flight: break a hold-and-wait. The oldest never loses.

        Tokens that are schedulable and still not scheduled stand behind someone: for blocks, or in the
        serial reading for their turn. When that one waits for embedding memory, the youngest gives its up.
        """
        refused = self.scheduler.refused
        if refused is not None and self.residency.preempt_after(refused):
            return True
        if self.scheduler.waiting_tokens and self.credits_short is not None:
            self._drop_embeddings_after(self.requests[self.credits_short].arrival)
        return False

    def _drop_embeddings_after(self, arrival: int) -> None:
        holding = [
            s for s in self.requests.values() if s.arrival > arrival and self.tracker.holds(s.request_id)
        ]
        if holding:
            youngest = max(holding, key=lambda s: s.arrival)
            self.items.drop(youngest)
            self._update(youngest)

    def _end(self, request_id: str, reason: str) -> None:
        served = self.requests[request_id]
        for seq in served.sequences:
            if not seq.finished:
                self._finish(seq, reason)
        for seq in list(served.sequences):
            self._close(seq)

    def _finish(self, seq: Sequence, reason: str) -> None:
        seq.finished = True
        self._served(seq).reason = reason
        self.residency.decoding.discard(seq.seq_id)
        self.scheduler.remove(seq)
        self.builder.finish(seq)

    def _close(self, seq: Sequence) -> None:
        """Return the resources of a finished sequence once none of its chunks is in flight."""
        served = self.requests.get(seq.request.request_id)
        if served is None or seq.in_flight:
            return
        self.residency.release(seq)
        if served.is_over:
            self._close_request(served)
        else:
            self.items.release_passed(served)

    def _close_request(self, served: Served) -> None:
        request_id = served.request_id
        for seq in served.sequences:
            self.sequences.pop(seq.seq_id, None)
            self.kv.forget(seq)
        self.items.stop(served)
        if self.credits_short == request_id:
            self.credits_short = None
        del self.requests[request_id]
        cached = max(seq.num_cached for seq in served.sequences)
        self.items.effects.append(RequestFinished(request_id, served.reason, cached))

    def _fail(self, request_id: str, status: int, message: str) -> None:
        self.items.effects.append(RequestFailed(request_id, status, message))

    # -- looking in ----------------------------------------------------------------------------------------

    def waits(self) -> dict[str, str]:
        """What each request waits for: embedding, kv, budget, pipeline slot, or pipeline (it is in there)."""
        return {request_id: self._wait_of(served) for request_id, served in self.requests.items()}

    def stats(self) -> dict[str, float]:
        """Gauges and counters by name; see docs/operations.md for their meaning."""
        running = len({seq.request.request_id for seq in self.residency.holders.values()})
        return {
            "requests_running": running,
            "requests_waiting": len(self.requests) - running,
            "sequences_decoding": len(self.residency.decoding),
            "schedulable_tokens": self.scheduler.waiting_tokens,
            "micro_batches_in_flight": len(self.flights),
            "kv_blocks": self.pool.num_blocks,
            "kv_blocks_used": self.pool.num_used,
            "tracker_requests": len(self.tracker),
            "tracker_tokens": self.tracker.tokens_held,
            "tracker_bytes": self.tracker.bytes_held,
            "stale_embeddings_total": self.tracker.num_stale,
            "preemptions_total": self.residency.num_preemptions,
            "prefix_hit_tokens_total": self.kv.num_hit_tokens,
        }

    def _wait_of(self, served: Served) -> str:
        live = [seq for seq in served.sequences if not seq.finished]
        if any(seq.in_flight for seq in served.sequences):
            return "pipeline"
        if not any(self.residency.schedulable_tokens(seq) for seq in live):
            return "embedding"
        if not any(seq.holds_blocks for seq in live):
            return "kv"
        return "pipeline slot" if len(self.flights) >= self.config.max_in_flight else "budget"

    # -- small things ---------------------------------------------------------------------------------------

    def _new_sequence(self, served: Served, choice: int) -> Sequence:
        tokens = list(served.request.token_ids)
        seq = Sequence(self._next_seq_id, served.request, choice, served.arrival, tokens)
        self._next_seq_id += 1
        self.sequences[seq.seq_id] = seq
        served.sequences.append(seq)
        return seq

    def _served(self, seq: Sequence) -> Served:
        return self.requests[seq.request.request_id]

    def _update(self, served: Served) -> None:
        for seq in served.sequences:
            self.scheduler.update(seq)
