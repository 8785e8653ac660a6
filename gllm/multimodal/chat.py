"""Chat messages to token ids, so that what a client typed is text and images are placed by id.

Every client string is marked before the template sees it: characters of which control tokens are made
(``<``, ``|``, ``>``, ``/``) are replaced by twins, code points that occur nowhere in the request. A control
token in the rendered text is then the template's own. The text between two of them is turned back and
encoded in one piece without parsing control tokens, so ordinary chats get the ids that encoding the whole
text would give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gllm.multimodal.content import ParsedChat, check_json
from gllm.multimodal.errors import BadInput
from gllm.multimodal.template import ChatTemplate
from gllm.multimodal.tokenizer import ModelTokenizer

PRIVATE_USE = range(0xF0000, 0xFFFFE)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a chat is rendered; the names and meanings are those of the HTTP API."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    tools: list[Any] | None = None


class Marker:
    """Replaces the characters of control tokens by twins that are in none of a request's strings."""

    def __init__(self, characters: str, used: set[str]):
        free = (chr(code) for code in PRIVATE_USE if chr(code) not in used)
        twins = {character: next(free) for character in characters}
        self.end = next(free)
        self._mark = str.maketrans(twins)
        self._restore = str.maketrans({twin: character for character, twin in twins.items()})

    def mark(self, value: Any) -> Any:
        """A JSON value with all its strings, keys included, marked."""
        if isinstance(value, str):
            return value.translate(self._mark)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.mark(inner) for inner in value]
        return value

    def restore(self, text: str) -> str:
        """Marked text as the client wrote it."""
        return text.translate(self._restore)


class ChatEncoder:
    """Renders and encodes chats of one checkpoint. placeholders: ids that stand for media, image first."""

    def __init__(self, tokenizer: ModelTokenizer, template: ChatTemplate, placeholders: tuple[int, ...] = ()):
        self._tokenizer = tokenizer
        self._template = template
        self._placeholders = placeholders
        self._characters = _marked_characters(tokenizer.control_ids)
        self._keeps_order = not placeholders or self._template_keeps_order()

    def encode(self, chat: ParsedChat, options: ChatOptions) -> list[int]:
        """Token ids with one image placeholder per image, in order. Raises BadInput; see check_images."""
        kwargs = self._check_options(chat, options)
        strings: set[str] = set()
        _collect(chat.messages, strings)
        _collect([options.tools, kwargs], strings)
        marker = Marker(self._characters, set().union(*strings))
        text = self._render(chat, options, marker)
        ids: list[int] = []
        for piece, control in self._tokenizer.split_control(text):
            ids.extend(self._tokenizer.encode_text(marker.restore(piece)) if control is None else [control])
        self._check_images(ids, len(chat.images))
        return ids

    def _check_options(self, chat: ParsedChat, options: ChatOptions) -> dict[str, Any]:
        """Refuse what the template would ignore; returns the template's variables."""
        if options.tools and not self._template.uses_tools():
            raise BadInput("the model's chat template knows no tools; leave tools out", "tools")
        check_json(options.tools, "tools")
        kwargs = self._template.check_kwargs(options.template_kwargs)
        check_json(kwargs, "chat_template_kwargs")
        for index, message in enumerate(chat.messages):
            if "tool_calls" in message and not self._template.reads("tool_calls"):
                where = f"messages[{index}].tool_calls"
                raise BadInput("the model's chat template knows no tool calls; leave them out", where)
        if options.add_generation_prompt and options.continue_final_message:
            message = "both add_generation_prompt and continue_final_message are true; choose one"
            raise BadInput(message, "continue_final_message")
        return kwargs

    def _render(self, chat: ParsedChat, options: ChatOptions, marker: Marker) -> str:
        """The prompt's text, marked; an open last message ends where the client's text ends."""
        messages = [self._prepare(message, marker) for message in chat.messages]
        where = f"messages[{len(messages) - 1}]"
        if options.continue_final_message:
            _open_end(messages[-1], where, marker.end)
        text = self._template.render(
            messages,
            add_generation_prompt=options.add_generation_prompt,
            tools=marker.mark(options.tools),
            **marker.mark(options.template_kwargs),
        )
        if not options.continue_final_message:
            return text
        if text.count(marker.end) != 1:
            raise BadInput("the chat template does not render the last message as it is", where)
        return text[: text.index(marker.end)]

    def _prepare(self, message: dict[str, Any], marker: Marker) -> dict[str, Any]:
        """Marked, and as a string where the template takes only strings: texts are joined as they stand."""
        marked = {key: marker.mark(value) for key, value in message.items()}
        content = marked["content"]
        if isinstance(content, list) and not self._template.takes_parts:
            marked["content"] = "".join(part.get("text", "") for part in content)
        return marked

    def _check_images(self, ids: list[int], num_images: int) -> None:
        """Every image has its placeholder, or the request is refused: never an answer without the images."""
        if not num_images and not self._placeholders:
            return
        if not self._placeholders:
            raise BadInput("this model takes text only; leave images out", code="unsupported_content")
        found = [ids.count(placeholder) for placeholder in self._placeholders]
        if found[0] != num_images or any(found[1:]):
            raise BadInput(
                f"the model's chat template has placed {found[0]} of {num_images} images; "
                "put images where it expects them (usually the user's messages)",
                "messages",
                code="chat_template",
            )
        if num_images and not self._keeps_order:
            raise BadInput(
                "the model's chat template moves images to other places; it cannot be used with images",
                "messages",
                code="chat_template",
            )

    def _template_keeps_order(self) -> bool:
        """Does an image between two texts stay there? Probed once; no verdict if the template fails."""
        image, texts = {"type": "image"}, [{"type": "text", "text": f"probe{i}"} for i in range(3)]
        probe = [{"role": "user", "content": [texts[0], image, texts[1], image, texts[2]]}]
        try:
            text = self._template.render(probe, add_generation_prompt=True)
        except BadInput:
            return True
        ids = self._tokenizer.control_ids
        pad = next((content for content, index in ids.items() if index == self._placeholders[0]), "")
        marks = [
            text.find("probe0"),
            text.find(pad),
            text.find("probe1"),
            text.rfind(pad),
            text.find("probe2"),
        ]
        return -1 in marks or marks == sorted(marks)


def _open_end(last: dict[str, Any], where: str, end: str) -> None:
    """Mark the end of the last message's text, which the model will go on writing."""
    content = last["content"]
    if last["role"] != "assistant":
        raise BadInput("continue_final_message needs a last message from the assistant", where)
    if isinstance(content, str):
        last["content"] = content + end
    elif content[-1]["type"] == "text":
        content[-1]["text"] += end
    else:
        raise BadInput("continue_final_message needs a last message that ends in text", where)


def _marked_characters(control_tokens: Mapping[str, int]) -> str:
    """Every character of a control token that is neither letter, digit, underscore nor space.

    A token without such characters gives its first character, so that no token can be typed.
    """
    marked: set[str] = set()
    for token in control_tokens:
        special = {ch for ch in token if not (ch.isalnum() or ch == "_" or ch.isspace())}
        marked |= special or {token.strip()[0]}
    return "".join(sorted(marked))


def _collect(value: Any, strings: set[str]) -> None:
    """All strings inside a JSON value."""
    if isinstance(value, str):
        strings.add(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _collect(key, strings)
            _collect(inner, strings)
    elif isinstance(value, list):
        for inner in value:
            _collect(inner, strings)
