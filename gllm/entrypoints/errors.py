"""Errors as clients see them: an HTTP status and OpenAI's JSON body."""

from typing import Any

from gllm.core.request import Request

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    499: "request_cancelled",
    503: "service_unavailable",
    504: "timeout_error",
}


class ApiError(Exception):
    """A request that ends with an error. param names the part of the body that is to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The JSON body: {"error": {"message", "type", "param", "code"}}."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "internal_error")
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code or kind}
        }

    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def too_many_embeddings(request: Request, capacity: int) -> ApiError:
    """The images of a request take more embeddings than the deployment can hold at once."""
    item, largest = max(enumerate(request.items), key=lambda pair: pair[1].num_tokens)
    if largest.num_tokens > capacity:
        what = f"image {item + 1} of {len(request.items)} takes {largest.num_tokens} embeddings"
        way_out = "send it smaller"
    else:
        what = f"the {len(request.items)} images take {request.num_mm_tokens} embeddings together"
        way_out = "send fewer or smaller images"
    message = f"{what} and this deployment holds {capacity} (--embedding-gib): {way_out}"
    return ApiError(400, message, param="messages", code="embedding_capacity_exceeded")


def too_long(prompt_tokens: int, max_tokens: int, limit: int) -> ApiError:
    """The prompt, or the prompt with the answer it asks for, does not fit the context."""
    if prompt_tokens >= limit:
        message = (
            f"the prompt has {prompt_tokens} tokens (images included) and the context holds {limit}, "
            "one of them for the answer: shorten the prompt, or send fewer or smaller images"
        )
        return ApiError(400, message, param="messages", code="context_length_exceeded")
    message = (
        f"the prompt has {prompt_tokens} tokens (images included) and max_tokens is {max_tokens}, together "
        f"more than the context of {limit}: use max_tokens <= {limit - prompt_tokens}"
    )
    return ApiError(400, message, param="max_tokens", code="context_length_exceeded")
