"""A checkpoint's chat template: rendered in a sandbox, and asked what it can do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gllm.multimodal.errors import BadInput
from gllm.multimodal.tokenizer import tokenizer_config

TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
# Set by the server; a client's chat_template_kwargs may not replace them.
RESERVED = ("messages", "tools", "documents", "add_generation_prompt", *TOKEN_NAMES)


class GenerationTag(jinja2.ext.Extension):
    """``{% generation %} ... {% endgeneration %}`` marks text to train on; here it is rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. Its text comes from the checkpoint and is trusted; what it renders is not."""

    def __init__(
        self,
        source: str,
        tokens: dict[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda format: now().strftime(format)
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template does not compile: {error}") from error
        constants = {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
        self._names = constants | {node.attr for node in tree.find_all(jinja2.nodes.Getattr)}
        self._tokens = tokens or {}
        self.takes_parts = self._renders_parts()

    def render(self, messages: Sequence[dict[str, Any]], **variables: Any) -> str:
        """The prompt's text. Raises BadInput when the template refuses these messages or fails on them."""
        try:
            return self._template.render(messages=list(messages), **{**self._tokens, **variables})
        except jinja2.TemplateError as error:
            message = f"the model's chat template refuses these messages: {error.message}"
            raise BadInput(message, "messages", code="chat_template") from error
        except Exception as error:  # a template runs on a client's values: any error is about these
            message = f"the model's chat template cannot render these messages: {error}"
            raise BadInput(message, "messages", code="chat_template") from error

    def uses_tools(self) -> bool:
        """Does the template put tools into the prompt? If not, a request with tools must be refused."""
        return "tools" in self.variables

    def reads(self, field: str) -> bool:
        """Does the template look at this field of anything? If not, a message's field would be ignored."""
        return field in self._names

    def check_kwargs(self, kwargs: object) -> dict[str, Any]:
        """A request's chat_template_kwargs; raises BadInput for names that the template ignores or owns."""
        if kwargs is None:
            return {}
        where = "chat_template_kwargs"
        if not isinstance(kwargs, dict):
            raise BadInput("must be an object", where)
        for name in kwargs:
            if name in RESERVED or name not in self.variables:
                allowed = ", ".join(sorted(self.variables - set(RESERVED) - set(_GLOBALS))) or "none"
                raise BadInput(
                    f"{str(name)[:80]!r} is no variable of the model's chat template that a request may set; "
                    f"allowed: {allowed}",
                    where,
                )
        return kwargs

    def _renders_parts(self) -> bool:
        """True if content may be a list of parts; a template for strings only would print the list itself."""
        probe = [{"role": "user", "content": [{"type": "text", "text": "probe"}]}]
        try:
            text = self.render(probe, add_generation_prompt=True)
        except BadInput:
            return False
        return "probe" in text and "'type'" not in text


_GLOBALS = ("raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner")


def load_template(model_dir: str | Path) -> ChatTemplate | None:
    """chat_template.jinja, chat_template.json, or the field in tokenizer_config.json; None without any."""
    folder = Path(model_dir)
    config = tokenizer_config(folder)
    source = config.get("chat_template")
    if (folder / "chat_template.json").exists():
        source = json.loads((folder / "chat_template.json").read_text(encoding="utf-8"))["chat_template"]
    if (folder / "chat_template.jinja").exists():
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if isinstance(source, list):
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if not source:
        return None
    return ChatTemplate(source, _tokens(config))


def _tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token and so on, each a string or an object with its content in tokenizer_config.json."""
    tokens = {}
    for name in TOKEN_NAMES:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if value:
            tokens[name] = value
    return tokens


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON as models are trained on it: neither escaped for HTML nor for ASCII."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
