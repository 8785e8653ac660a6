"""Paths and bodies of requests to the HTTP API."""

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def chat(text: str = "hello", **fields) -> dict:
    return {"messages": [{"role": "user", "content": text}], **fields}


def with_image(url: str, **fields) -> dict:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "hi"}]
    return {"messages": [{"role": "user", "content": parts}], **fields}
