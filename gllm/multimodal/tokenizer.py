"""A checkpoint's tokenizer, with a clear line between text and control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer


class ModelTokenizer:
    """Encodes text in which control tokens stay text, and text in which they do not.

    Control tokens are all tokens added to the vocabulary (``<|im_end|>``, ``<tool_call>``). special_ids are
    those that a decoder hides. vocab_size is the largest id plus one.
    """

    def __init__(self, backend: Tokenizer):
        self.backend = backend
        added = {i: t for i, t in backend.get_added_tokens_decoder().items() if t.content.strip()}
        self.control_ids = {token.content.strip(): index for index, token in added.items()}
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values())
        self._control = _control_pattern(added.values())
        self._plain = _without_added_tokens(backend)
        for content, index in self.control_ids.items():
            if index in self._plain.encode(content, add_special_tokens=False).ids:
                raise ValueError(
                    f"the tokenizer makes {content!r} from plain text; it can't be served safely"
                )

    def encode_text(self, text: str) -> list[int]:
        """Ids of a client's text: control tokens typed in it are ordinary characters."""
        return self._plain.encode(text, add_special_tokens=False).ids if text else []

    def split_control(self, text: str) -> Iterable[tuple[str, int | None]]:
        """The text cut at its control tokens: (piece, None) for text, (token, id) for a control token."""
        end = 0
        if self._control is not None:
            for match in self._control.finditer(text):
                if match.start() > end:
                    yield text[end : match.start()], None
                yield match.group(), self.control_ids[match.group().strip()]
                end = match.end()
        if end < len(text):
            yield text[end:], None

    def encode_trusted(self, text: str) -> list[int]:
        """Ids of a text that no client wrote: control tokens in it are control tokens."""
        ids: list[int] = []
        for piece, control in self.split_control(text):
            ids.extend(self.encode_text(piece) if control is None else [control])
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; incomplete UTF-8 becomes U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)


def load_tokenizer(model_dir: str | Path) -> ModelTokenizer:
    """Load tokenizer.json; for a checkpoint without one, let transformers convert what there is.

    Raises ValueError if there is no tokenizer of a supported kind.
    """
    folder = Path(model_dir)
    path = folder / "tokenizer.json"
    if not path.exists():
        return ModelTokenizer(_converted(folder))
    backend = Tokenizer.from_file(str(path))
    backend.no_truncation()
    backend.no_padding()
    _add_missing(backend, tokenizer_config(folder).get("added_tokens_decoder") or {})
    return ModelTokenizer(backend)


def tokenizer_config(model_dir: str | Path) -> dict[str, Any]:
    """The fields of tokenizer_config.json; empty without that file."""
    path = Path(model_dir) / "tokenizer_config.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _converted(folder: Path) -> Tokenizer:
    message = f"{folder} has no tokenizer.json, and no other tokenizer that can be converted to one"
    if not any((folder / name).exists() for name in ("vocab.json", "vocab.txt", "tokenizer.model")):
        raise ValueError(message)
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(message)
    return tokenizer.backend_tokenizer


def _add_missing(backend: Tokenizer, declared: dict[str, dict[str, Any]]) -> None:
    """Control tokens that only tokenizer_config.json declares, as long as their ids come next."""
    known = backend.get_added_tokens_decoder()
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for index, fields in sorted((int(key), value) for key, value in declared.items()):
        if index in known:
            continue
        token = AddedToken(fields["content"], **{name: fields[name] for name in flags if name in fields})
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
        if backend.token_to_id(token.content) != index:
            raise ValueError(
                f"tokenizer_config.json gives {token.content!r} the id {index}, which is not free"
            )


def _control_pattern(tokens: Iterable[AddedToken]) -> re.Pattern[str] | None:
    """Finds control tokens, the longest first, with the white space that some of them swallow."""
    alternatives = [
        (r"\s*" if token.lstrip else "") + re.escape(token.content.strip()) + (r"\s*" if token.rstrip else "")
        for token in sorted(tokens, key=lambda token: -len(token.content))
    ]
    return re.compile("|".join(alternatives)) if alternatives else None


def _without_added_tokens(backend: Tokenizer) -> Tokenizer:
    """The same model, normaliser and pre-tokenizer, without added tokens; the vocabulary is shared."""
    plain = Tokenizer(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    return plain
