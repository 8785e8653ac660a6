"""The API server's side of the engine: requests go to the driver, tokens come back as text."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gllm.core.batch import BatchResult, SampledToken, TokenLogprobs
from gllm.core.effects import RequestFailed, RequestFinished
from gllm.core.finish import finish_reason
from gllm.core.request import Request
from gllm.entrypoints.detokenize import Detokenizer, StopRule, TokenBytes
from gllm.entrypoints.errors import ApiError
from gllm.entrypoints.ports import EngineLink, PixelSource, RouterFactory
from gllm.entrypoints.router_load import RouterLoad
from gllm.multimodal.errors import BadInput
from gllm.runtime.messages import (
    AbortRequest,
    AddRequest,
    FlushCache,
    GetStats,
    ItemFailed,
    RankFailed,
    Stats,
)
from gllm.runtime.request_lives import LifeLog, NoLives


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of one choice. text: what became readable with it, which may be nothing.

    finish_reason is set on the choice's last token (stop, length); stop_reason then is the stop string or
    stop token id that ended it, if any did.
    """

    choice: int
    token_id: int
    text: str
    logprobs: TokenLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(eq=False, slots=True)
class _Choice:
    """One answer as it grows."""

    detokenizer: Detokenizer
    num_output: int = 0
    is_finished: bool = False


@dataclass(frozen=True)
class ClientLimits:
    """max_requests: requests inside the engine before new ones get a 429; timeout_s: longest life of one."""

    max_requests: int = 4096
    timeout_s: float = math.inf
    prefix_caching: bool = False


class RequestStream:
    """The tokens of one request, of all its choices, in the order they come."""

    def __init__(
        self,
        request: Request,
        tokens: TokenBytes,
        rule: StopRule,
        abort: Callable[[str], None],
        on_over: Callable[[], None],
    ):
        """abort: called with a reason when the engine should stop although it sees no end itself.

        on_over: called once, when nothing more will come.
        """
        self.request = request
        self.num_cached_tokens: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._rule = rule
        self._tokens = tokens
        self._abort = abort
        self._on_over = on_over
        self._choices = [_Choice(Detokenizer(tokens, rule)) for _ in range(request.sampling.n)]
        self._events: deque[TokenEvent] = deque()
        self._wake = asyncio.Event()
        self._error: ApiError | None = None
        self._goes_on = False  # a choice ended by a stop string, of which the driver knows nothing
        self.is_over = False

    @property
    def num_output(self) -> int:
        """Tokens of all choices so far."""
        return sum(choice.num_output for choice in self._choices)

    def on_token(self, token: SampledToken) -> None:
        """A token that does not continue its choice (sampled twice, or after the end) is dropped."""
        choice = self._choices[token.choice]
        expected = len(self.request.token_ids) + choice.num_output
        if self.is_over or choice.is_finished or token.position != expected:
            return
        choice.num_output += 1
        event = self._event(choice, token)
        choice.is_finished = event.finish_reason is not None
        self._goes_on |= event.stop_reason.__class__ is str
        self._events.append(event)
        if choice.is_finished and all(c.is_finished for c in self._choices):
            self._end()
            if self._goes_on:
                self._abort("stop")
        self._wake.set()

    def fail(self, error: ApiError) -> None:
        """End the stream with an error, which is raised after the events that came before."""
        if not self.is_over:
            self._error = error
            self._end()
        self.on_driver_done(0)

    def on_driver_done(self, num_cached_tokens: int) -> None:
        """The driver has let the request go; so many tokens of its prompt came from the prefix cache."""
        if not self.num_cached_tokens.done():
            self.num_cached_tokens.set_result(num_cached_tokens)

    def cancel(self, reason: str = "abort") -> None:
        """Nobody reads any more: the engine is told unless the request is over."""
        if not self.is_over:
            self._end()
            self._abort(reason)

    def _end(self) -> None:
        self.is_over = True
        self._wake.set()
        self._on_over()

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """Raises ApiError when the request fails."""
        while True:
            while self._events:
                yield self._events.popleft()
            if self.is_over:
                break
            self._wake.clear()
            await self._wake.wait()
        if self._error is not None:
            raise self._error

    def _event(self, choice: _Choice, token: SampledToken) -> TokenEvent:
        sampling = self.request.sampling
        reason = finish_reason(token.token_id, choice.num_output, sampling, self.request.eos_token_ids)
        stop_reason: str | int | None = None
        if reason == "stop" and not self._rule.include_stop:
            text, found = "", None
        else:
            text, found = choice.detokenizer.feed(token.token_id)
        if reason is not None and found is None:
            rest, found = choice.detokenizer.finish()
            text += rest
        if found is not None:
            reason, stop_reason = "stop", found
        elif reason == "stop" and token.token_id in sampling.stop_token_ids:
            stop_reason = token.token_id
        return TokenEvent(token.choice, token.token_id, text, token.logprobs, reason, stop_reason)


@dataclass(eq=False, slots=True)
class _Active:
    """A request inside the engine.

    It leaves when the driver says so and all tokens are here: the last stage's tokens and the driver's
    word take different roads, and either may be first.
    """

    stream: RequestStream
    timer: asyncio.TimerHandle | None = None
    is_driver_done: bool = False


@dataclass(eq=False)
class EngineClient:
    """Submits requests and spreads what comes back; lives in one event loop, call start() in it."""

    link: EngineLink
    make_router: RouterFactory
    tokens: TokenBytes
    limits: ClientLimits = field(default_factory=ClientLimits)
    lives: LifeLog = field(default_factory=NoLives)

    def __post_init__(self) -> None:
        self._active: dict[str, _Active] = {}
        self._num_preparing = 0
        self._num_open = 0
        self._stats_waiters: list[asyncio.Future[Stats]] = []
        self._router = self.make_router(self)
        self.failure: str | None = None
        self.num_stale_tokens = 0
        self._handlers: dict[type, Callable[..., None]] = {
            BatchResult: self._on_batch_result,
            RequestFinished: self._on_finished,
            RequestFailed: self._on_failed,
            Stats: self._on_stats,
            RankFailed: self._on_rank_failed,
        }

    @property
    def num_active(self) -> int:
        """Requests inside the engine, waiting or running."""
        return len(self._active)

    def load(self) -> RouterLoad:
        """What the item router counts."""
        return self._router.load()

    def start(self) -> None:
        self.link.listen(self.on_message)

    async def close(self) -> None:
        self.fail_all("the server is shutting down")
        await self._router.close()
        self.link.close()

    @property
    def num_admitted(self) -> int:
        """Requests that wait for tokens, and those whose prompts are being prepared.

        One whose last token is here does not count, although the driver may hold its memory for a moment: a
        client that sends its next request on an answer finds room.
        """
        return self._num_open + self._num_preparing

    @contextmanager
    def preparing(self, num_requests: int = 1) -> Iterator[None]:
        """Keep room for requests while their prompts are made: headers are fetched, bytes are held.

        Raises as check_room does. Leave it before `submit`.
        """
        self.check_room(num_requests)
        self._num_preparing += num_requests
        try:
            yield
        finally:
            self._num_preparing -= num_requests

    def check_room(self, num_requests: int = 1) -> None:
        """Raises ApiError: 429 when the queue is full, 503 when the engine is gone."""
        if self.failure is not None:
            raise ApiError(503, self.failure, code="engine_dead")
        if self.num_admitted + num_requests > self.limits.max_requests:
            message = (
                f"{self.num_admitted} requests are waiting or running and the limit is "
                f"{self.limits.max_requests} (--max-queued-requests): try again later"
            )
            raise ApiError(429, message, code="queue_full", retry_after=1)

    def submit(
        self, request: Request, source: PixelSource | None, rule: StopRule, age_s: float = 0.0
    ) -> RequestStream:
        """Hand a request to the engine. source: the pixels of its items, None when it has none.

        age_s: how long ago it was read. Raises ApiError as check_room does.
        """
        self.check_room()
        if source is not None:
            self._router.check(request)
        request_id = request.request_id

        def abort(reason: str) -> None:
            self.send(AbortRequest(request_id, reason))
            self._router.remove_request(request_id)

        stream = RequestStream(request, self.tokens, rule, abort, self._on_over)
        self._num_open += 1
        active = _Active(stream)
        if math.isfinite(self.limits.timeout_s):
            loop = asyncio.get_running_loop()
            active.timer = loop.call_later(self.limits.timeout_s, self._on_timeout, request_id)
        self._active[request_id] = active
        self.lives.begin(request_id, age_s)
        self.send(AddRequest(request))
        if source is not None:
            self._router.add_request(request, source)
        return stream

    async def stats(self, timeout_s: float = 1.0) -> Stats | None:
        """The driver's counters; None when it does not answer in time."""
        waiter: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self._stats_waiters.append(waiter)
        self.send(GetStats())
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter
        except TimeoutError:
            return None
        finally:
            if waiter in self._stats_waiters:
                self._stats_waiters.remove(waiter)

    def flush_cache(self) -> None:
        """Ask the driver to forget all cached prefixes that nobody uses."""
        self.send(FlushCache())

    def send(self, message: object) -> None:
        """Queue a message for the driver."""
        self.link.send(message)

    def fail_item(self, request_id: str, item: int, error: BadInput) -> None:
        """End a request whose item can't be had."""
        self.send(ItemFailed(request_id, item, error.status, error.message))
        active = self._active.get(request_id)
        if active is not None:
            active.stream.fail(ApiError(error.status, str(error), param=error.part, code=error.code))

    def fail_all(self, message: str) -> None:
        """Every request ends with a 503, and no more are accepted."""
        self.failure = self.failure or message
        for request_id in tuple(self._active):
            self._active[request_id].stream.fail(ApiError(503, message, code="engine_dead"))
            self._forget(request_id, "error 503")

    def on_message(self, message: object) -> None:
        """Handle one message from a rank or an encoder; those about items go on to the router."""
        handler = self._handlers.get(type(message))
        if handler is None:
            self._router.on_message(message)
        else:
            handler(message)

    def _on_batch_result(self, result: BatchResult) -> None:
        for token in result.tokens:
            active = self._active.get(token.request_id)
            if active is None:
                self.num_stale_tokens += 1
                continue
            active.stream.on_token(token)
            self.lives.token(token.request_id)
            if active.is_driver_done and active.stream.is_over:
                self._forget(token.request_id)

    def _on_finished(self, effect: RequestFinished) -> None:
        self._router.on_message(effect)
        active = self._active.get(effect.request_id)
        if active is None:
            return
        active.is_driver_done = True
        active.stream.on_driver_done(effect.num_cached_tokens)
        if effect.reason not in ("stop", "length"):
            active.stream.fail(ApiError(503, f"the engine ended the request: {effect.reason}"))
        if active.stream.is_over:
            self._forget(effect.request_id, effect.reason)

    def _on_failed(self, effect: RequestFailed) -> None:
        active = self._active.get(effect.request_id)
        if active is not None:
            active.stream.fail(ApiError(effect.status, effect.message))
        self._router.on_message(effect)
        self._forget(effect.request_id, f"error {effect.status}")

    def _on_stats(self, stats: Stats) -> None:
        for waiter in self._stats_waiters:
            if not waiter.done():
                waiter.set_result(stats)

    def _on_rank_failed(self, failed: RankFailed) -> None:
        self.fail_all(f"{failed.name} failed: {failed.message}")

    def _on_over(self) -> None:
        self._num_open -= 1

    def _on_timeout(self, request_id: str) -> None:
        active = self._active.get(request_id)
        if active is not None:
            message = f"the request took longer than {self.limits.timeout_s:g} s (--request-timeout)"
            active.stream.fail(ApiError(504, message, code="timeout"))
            self.send(AbortRequest(request_id, "timeout"))
            self._router.remove_request(request_id)

    def _forget(self, request_id: str, reason: str = "finished") -> None:
        active = self._active.pop(request_id, None)
        if active is not None:
            self.lives.end(request_id, reason, active.stream.num_output)
            if active.timer is not None:
                active.timer.cancel()
        self._router.remove_request(request_id)
