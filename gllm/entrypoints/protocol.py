"""The OpenAI API's request bodies as this server reads them.

What would change the answer and is not supported is refused with an error that names the field; what
cannot change it (who asks, how it is billed) is accepted and ignored.
"""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from gllm.entrypoints.errors import ApiError
from gllm.multimodal.processor import ChatPrompt

HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "request_id",
    }
)
"""Fields that cannot change the answer."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "functions": ([],),
    "function_call": ("none",),
    "length_penalty": (1, 1.0),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""Fields that are not supported, with the values that ask for nothing (null always does)."""

Number = float


class StreamOptions(BaseModel):
    """What a stream holds besides the answer."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: StrictBool | None = False


class GenerationRequest(BaseModel):
    """Fields that chat and text completions share. Ranges are checked in `gllm.entrypoints.sampling`."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: StrictStr | None = None
    max_tokens: StrictInt | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: StrictInt | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    seed: StrictInt | None = None
    stop: StrictStr | list[StrictStr] | None = None
    stop_token_ids: list[StrictInt] | None = None
    include_stop_str_in_output: StrictBool = False
    skip_special_tokens: StrictBool = True
    ignore_eos: StrictBool = False
    n: StrictInt | None = None
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Read a JSON body. Raises ApiError (400) that names the first field that is wrong."""
        try:
            request = cls.model_validate_json(body)
        except ValidationError as error:
            raise _from_validation(error) from None
        request.refuse_unsupported()
        return request

    @classmethod
    def checked(cls, fields: dict[str, Any]) -> Self:
        """The same from Python values."""
        try:
            request = cls.model_validate(fields)
        except ValidationError as error:
            raise _from_validation(error) from None
        request.refuse_unsupported()
        return request

    def refuse_unsupported(self) -> None:
        """Raises ApiError for a field that would change the answer and is not honoured."""
        for name, value in (self.model_extra or {}).items():
            if value is None or name in HARMLESS:
                continue
            if name not in NEUTRAL:
                raise ApiError(400, f"unknown field {name!r}: remove it", param=name, code="unknown_field")
            if not any(value == allowed for allowed in NEUTRAL[name]):
                message = f"{name} is not supported by this server: remove it"
                raise ApiError(400, message, param=name, code="unsupported_field")
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream: true", param="stream_options")

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatCompletionRequest(GenerationRequest):
    """`POST /v1/chat/completions`. The messages' parts are checked where they are rendered."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool | None = False
    top_logprobs: StrictInt | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: StrictBool = False
    mm_processor_kwargs: dict[str, Any] | None = None
    min_pixels: StrictInt | None = None
    max_pixels: StrictInt | None = None

    def chat_prompt(self) -> ChatPrompt:
        """What the prompt is made of. min_pixels and max_pixels may stand in mm_processor_kwargs too."""
        bounds = {"min_pixels": self.min_pixels, "max_pixels": self.max_pixels}
        given = {name: value for name, value in bounds.items() if value is not None}
        opens_turn = self.add_generation_prompt
        return ChatPrompt(
            self.messages,
            add_generation_prompt=not self.continue_final_message if opens_turn is None else opens_turn,
            continue_final_message=self.continue_final_message,
            chat_template_kwargs=self.chat_template_kwargs,
            mm_processor_kwargs={**(self.mm_processor_kwargs or {}), **given} or None,
        )


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`: plain text or token ids, one prompt or several."""

    prompt: StrictStr | list[StrictStr] | list[StrictInt] | list[list[StrictInt]]
    logprobs: StrictInt | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one each; raises ApiError when there is none or one is empty."""
        if self.prompt and self.prompt == [p for p in self.prompt if p.__class__ is int]:
            return [list(self.prompt)]  # type: ignore[arg-type]
        prompts = [self.prompt] if self.prompt.__class__ is str else list(self.prompt)
        if not prompts or not all(prompts):
            raise ApiError(400, "prompt is empty", param="prompt")
        return prompts  # type: ignore[return-value]


def _from_validation(error: ValidationError) -> ApiError:
    """The first of pydantic's complaints in this API's words."""
    first = error.errors(include_url=False, include_input=False)[0]
    names = [part for part in first["loc"] if not _is_branch(part)]
    where = "".join(f"[{part}]" if part.__class__ is int else f".{part}" for part in names).lstrip(".")
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first['msg']}", code="invalid_json")
    message = first["msg"][:1].lower() + first["msg"][1:]
    return ApiError(400, f"{where}: {message}" if where else message, param=where or None)


def _is_branch(part: int | str) -> bool:
    """Whether a location names a member of a union ('list[str]', 'constrained-int') and no field."""
    return part in ("str", "int") or (part.__class__ is str and not str(part).isidentifier())
