"""Typed reading of a JSON object, with errors that name the file and the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_MISSING = object()


class ConfigError(ValueError):
    """A model's configuration lacks something, or asks for something that is not supported."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and where it came from, e.g. `config.json: vision_config`. A null counts as absent."""

    values: Mapping[str, object]
    where: str

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def section(self, name: str) -> Fields:
        """The nested object of this name."""
        value = self._value(name, _MISSING)
        if not isinstance(value, Mapping):
            raise self._wrong(name, "an object", value)
        return Fields(value, f"{self.where}: {name}")

    def integer(self, name: str, default: object = _MISSING) -> int:
        """A whole number >= 0."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._wrong(name, "a whole number", value)
        return value

    def number(self, name: str, default: object = _MISSING) -> float:
        """A number."""
        value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(name, "a number", value)
        return float(value)

    def boolean(self, name: str, default: object = _MISSING) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def string(self, name: str, default: object = _MISSING) -> str:
        """A string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def integers(self, name: str, default: object = _MISSING) -> tuple[int, ...]:
        """Whole numbers; a single one counts as a list of one."""
        value = self._value(name, default)
        values = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in values):
            raise self._wrong(name, "a list of whole numbers", value)
        return tuple(values)

    def strings(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._value(name, _MISSING)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of strings", value)
        return tuple(value)

    def refuse_unless(self, name: str, allowed: tuple[object, ...], default: object = _MISSING) -> None:
        """Raise ConfigError where the field has a value that the runtime does not support."""
        value = self._value(name, default)
        if value not in allowed:
            supported = ", ".join(map(repr, allowed))
            raise ConfigError(f"{self.where}: {name} = {value!r} is not supported (supported: {supported})")

    def _value(self, name: str, default: object) -> object:
        if self.has(name):
            return self.values[name]
        if default is _MISSING:
            raise ConfigError(f"{self.where}: {name} is missing")
        return default

    def _wrong(self, name: str, expected: str, value: object) -> ConfigError:
        return ConfigError(f"{self.where}: {name} should be {expected}, is {value!r}")
