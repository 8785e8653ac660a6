"""Control messages as bytes: msgspec's MessagePack, a type's name before its fields."""

import msgspec

from gllm.runtime.messages import TYPES


class Codec:
    """Encodes messages of a fixed set of types; anything else on the wire is an error."""

    def __init__(self, types: tuple[type, ...] = TYPES) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoders: dict[bytes, msgspec.msgpack.Decoder[object]] = {
            t.__name__.encode(): msgspec.msgpack.Decoder(t) for t in types
        }

    def encode(self, message: object) -> list[bytes]:
        return [type(message).__name__.encode(), self._encoder.encode(message)]

    def decode(self, name: bytes, body: bytes) -> object:
        """Raises ValueError for an unknown type or a body that does not fit it."""
        decoder = self._decoders.get(bytes(name))
        if decoder is None:
            raise ValueError(f"unknown message type {name!r}")
        return decoder.decode(body)
