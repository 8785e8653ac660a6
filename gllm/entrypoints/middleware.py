"""What every request passes through: an id, a key, and a line in the log."""

import hmac
import logging
import re
import time
import uuid
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gllm.entrypoints import sse
from gllm.entrypoints.errors import ApiError
from gllm.entrypoints.logs import log
from gllm.entrypoints.metrics import Metrics

OPEN_PATHS = ("/health", "/version")
"""Served without a key, for load balancers."""
ID_HEADER = "x-request-id"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(eq=False)
class RequestContext:
    """Gives each request an id, returned as x-request-id, and logs and counts its response."""

    app: ASGIApp
    metrics: Metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(ID_HEADER, "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[ID_HEADER] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            route = scope.get("route")
            path = route.path if route is not None else "other"
            self.metrics.on_response(path, status)
            level = logging.DEBUG if path in ("/health", "/metrics") else logging.INFO
            fields = {"request_id": request_id, "path": scope["path"], "status": status}
            log(level, "response", **fields, seconds=time.perf_counter() - started)


@dataclass(eq=False)
class ApiKey:
    """Refuses requests without the key; the comparison takes the same time however much of it is right."""

    app: ASGIApp
    key: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] in OPEN_PATHS
        if is_open or self._is_right(Headers(scope=scope).get("authorization", "")):
            await self.app(scope, receive, send)
            return
        error = ApiError(
            401, "wrong or missing API key: send 'Authorization: Bearer KEY'", code="invalid_api_key"
        )
        response = Response(sse.to_json(error.body()), 401, error.headers(), "application/json")
        await response(scope, receive, send)

    def _is_right(self, header: str) -> bool:
        scheme, _, token = header.partition(" ")
        matches = hmac.compare_digest(token.strip().encode(), self.key.encode())
        return matches and scheme.lower() == "bearer"
