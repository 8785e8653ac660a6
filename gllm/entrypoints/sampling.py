"""From a request's fields to sampling parameters, with their ranges."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gllm.core.request import SamplingParams
from gllm.entrypoints.detokenize import StopRule
from gllm.entrypoints.errors import ApiError, too_long
from gllm.entrypoints.protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest

MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
GREEDY_BELOW = 1e-5
"""Temperatures below this would divide logits into infinities; they mean greedy."""
COMPLETION_TOKENS = 16
"""`max_tokens` of a text completion that names none, as in OpenAI's API."""


@dataclass(frozen=True)
class SamplingDefaults:
    """What a request gets that does not say: the checkpoint's generation_config.json, as peers do."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def from_folder(cls, folder: Path, model_eos: tuple[int, ...] = ()) -> "SamplingDefaults":
        """Read generation_config.json; a missing file gives the API's defaults and the model's own eos."""
        path = folder / "generation_config.json"
        values = json.loads(path.read_text()) if path.is_file() else {}
        return cls.from_values(values, model_eos)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], model_eos: tuple[int, ...] = ()) -> "SamplingDefaults":
        eos = values.get("eos_token_id")
        ids = tuple(eos) if eos.__class__ is list else () if eos is None else (eos,)
        return cls(
            temperature=_or(values.get("temperature"), 0.0 if values.get("do_sample") is False else 1.0),
            top_p=_or(values.get("top_p"), 1.0),
            top_k=_or(values.get("top_k"), 0),
            min_p=_or(values.get("min_p"), 0.0),
            repetition_penalty=_or(values.get("repetition_penalty"), 1.0),
            eos_token_ids=tuple(dict.fromkeys((*ids, *model_eos))),
        )


@dataclass(frozen=True)
class SamplingLimits:
    """What the deployment can hold."""

    max_model_len: int
    vocab_size: int


def chat_sampling(
    request: ChatCompletionRequest,
    prompt_tokens: int,
    defaults: SamplingDefaults,
    limits: SamplingLimits,
    seed: int,
) -> SamplingParams:
    """Parameters of a chat request; without a length the answer may fill the context.

    seed: used when the request gives none. Raises ApiError (400) for a value out of range.
    """
    asked = request.max_completion_tokens
    name = "max_tokens" if asked is None else "max_completion_tokens"
    asked = request.max_tokens if asked is None else asked
    length = _length(asked, prompt_tokens, limits, name, limits.max_model_len - prompt_tokens)
    return _params(request, length, chat_logprobs(request), (defaults, limits, seed))


def completion_sampling(
    request: CompletionRequest,
    prompt_tokens: int,
    defaults: SamplingDefaults,
    limits: SamplingLimits,
    seed: int,
) -> SamplingParams:
    """Parameters of a text completion; without a length it has 16 tokens, as in OpenAI's API."""
    room = min(COMPLETION_TOKENS, limits.max_model_len - prompt_tokens)
    length = _length(request.max_tokens, prompt_tokens, limits, "max_tokens", room)
    logprobs = _in_range("logprobs", request.logprobs, 0, MAX_LOGPROBS)
    return _params(request, length, logprobs, (defaults, limits, seed))


def chat_logprobs(request: ChatCompletionRequest) -> int | None:
    """How many alternatives to report per token; None for no log-probabilities."""
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    if not request.logprobs:
        return None
    return _in_range("top_logprobs", request.top_logprobs or 0, 0, MAX_LOGPROBS)


def stop_rule(request: GenerationRequest) -> StopRule:
    """The request's stop strings. Raises ApiError for empty, too long or too many."""
    stops = [request.stop] if request.stop.__class__ is str else list(request.stop or ())
    if len(stops) > MAX_STOP_STRINGS:
        raise ApiError(400, f"stop: {len(stops)} strings, at most {MAX_STOP_STRINGS}", param="stop")
    for stop in stops:
        if not 0 < len(str(stop)) <= MAX_STOP_LENGTH:
            message = f"stop: each string must have between 1 and {MAX_STOP_LENGTH} characters"
            raise ApiError(400, message, param="stop")
    strings = tuple(str(stop) for stop in stops)
    return StopRule(strings, request.include_stop_str_in_output, request.skip_special_tokens)


def _params(
    request: GenerationRequest,
    max_tokens: int,
    logprobs: int | None,
    rest: tuple[SamplingDefaults, SamplingLimits, int],
) -> SamplingParams:
    defaults, limits, seed = rest
    temperature = _in_range("temperature", _or(request.temperature, defaults.temperature), 0.0, 2.0)
    top_k = _or(request.top_k, defaults.top_k)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=_above_zero("top_p", _or(request.top_p, defaults.top_p), 1.0),
        top_k=0 if top_k == -1 else _in_range("top_k", top_k, 0, 2**31 - 1),
        min_p=_in_range("min_p", _or(request.min_p, defaults.min_p), 0.0, 1.0),
        repetition_penalty=_above_zero(
            "repetition_penalty", _or(request.repetition_penalty, defaults.repetition_penalty), 2.0
        ),
        presence_penalty=_in_range("presence_penalty", request.presence_penalty or 0.0, -2.0, 2.0),
        frequency_penalty=_in_range("frequency_penalty", request.frequency_penalty or 0.0, -2.0, 2.0),
        seed=seed if request.seed is None else request.seed % 2**63,
        stop_token_ids=_stop_token_ids(request, limits.vocab_size),
        ignore_eos=request.ignore_eos,
        n=_in_range("n", _or(request.n, 1), 1, MAX_N),
        logprobs=logprobs,
    )


def _stop_token_ids(request: GenerationRequest, vocab_size: int) -> tuple[int, ...]:
    ids = request.stop_token_ids or ()
    for token_id in ids:
        _in_range("stop_token_ids", token_id, 0, vocab_size - 1)
    return tuple(dict.fromkeys(ids))


def _length(asked: int | None, prompt_tokens: int, limits: SamplingLimits, name: str, default: int) -> int:
    """Answers that cannot fit the context are refused, as OpenAI does, rather than cut."""
    if prompt_tokens >= limits.max_model_len:
        raise too_long(prompt_tokens, asked or 1, limits.max_model_len)
    if asked is None:
        return default
    if asked < 1:
        raise ApiError(400, f"{name}: {asked} is below 1", param=name)
    if prompt_tokens + asked > limits.max_model_len:
        raise too_long(prompt_tokens, asked, limits.max_model_len)
    return asked


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _in_range(name: str, value: Any, low: float, high: float) -> Any:
    if value is not None and not (math.isfinite(value) and low <= value <= high):
        raise ApiError(400, f"{name}: {value} is not between {low} and {high}", param=name)
    return value


def _above_zero(name: str, value: float, high: float) -> float:
    if not (math.isfinite(value) and 0.0 < value <= high):
        raise ApiError(400, f"{name}: {value} must be above 0 and at most {high}", param=name)
    return value
