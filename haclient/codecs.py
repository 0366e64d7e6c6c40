"""Typed topics: values of the application instead of bodies.

A `Codec` turns values into bodies and back; a `Topic` is a topic's name together with the codec of
its bodies. Both are plain values without a connection: a `Topic` encodes what is published, decodes
what arrives, and makes a handler of messages out of a handler of values. The server knows nothing
of it; the message type of the connection (`/amps/json`) has to fit.

Whatever bytes arrive, decoding gives a value or raises `DecodeError`. Its text names topic, codec
and position, never the body: bodies may hold what logs must not. A value that cannot be written
raises `UsageError`.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast, overload

import msgspec
from typing_extensions import override

from haclient.errors import DecodeError, UsageError
from haclient.protocol.decode_errors import decode_error
from haclient.protocol.messages import Message

__all__ = [
    "Codec",
    "CompositeCodec",
    "FixCodec",
    "JsonCodec",
    "MsgpackCodec",
    "NvfixCodec",
    "OnDecodeError",
    "ProtobufCodec",
    "Topic",
]

T = TypeVar("T")
_Name = TypeVar("_Name", int, str)
_LENGTH_BYTES: Final = 4
_LARGEST_PART: Final = 2 ** (8 * _LENGTH_BYTES) - 1

OnDecodeError: TypeAlias = Callable[[Message, DecodeError], Awaitable[None] | None]
"""Called with a message whose body does not decode; it may discard or acknowledge it."""


class Codec(Protocol[T]):
    """Turns values into bodies and bodies into values.

    Attributes:
        name: Names the codec in errors.
    """

    name: str

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """The body of a value.

        Args:
            value: What to write.

        Returns:
            The body.

        Raises:
            UsageError: It cannot be written.
        """

    @abstractmethod
    def decode(self, data: bytes) -> T:
        """The value of a body.

        Args:
            data: The body.

        Returns:
            The value.

        Raises:
            DecodeError: It cannot be read.
        """


# -- JSON and MessagePack --------------------------------------------------------------------


class _MsgspecCodec(Codec[T]):
    """A codec of msgspec: structs, dataclasses, `TypedDict`s, lists, dates and so on.

    Args:
        type_: The type of the values.

    Raises:
        UsageError: msgspec does not know the type.
    """

    def __init__(self, type_: type[T]) -> None:
        try:
            self._decode = self._decoder_of(type_)
        except (TypeError, ValueError) as error:  # of msgspec: it cannot read such values
            raise UsageError(f"no {self.name} can be read as {type_!r}: {error}") from error

    @abstractmethod
    def _decoder_of(self, type_: type[T]) -> Callable[[bytes], T]:
        """The function that reads bodies of a type."""

    @abstractmethod
    def _write(self, value: T) -> bytes:
        """The body of a value."""

    @override
    def encode(self, value: T) -> bytes:
        try:
            return self._write(value)
        except Exception as error:  # of any kind: attributes may be the application's code
            raise _not_written(self.name, value, error) from error

    @override
    def decode(self, data: bytes) -> T:
        try:
            return self._decode(data)
        except Exception as error:  # of any kind: the type may check itself
            raise decode_error(error, data, codec=self.name) from error


class JsonCodec(_MsgspecCodec[T]):
    """JSON, as one type. NaN and the infinities are refused, since JSON lacks them.

    Args:
        type_: The type of the values: a struct of msgspec, a dataclass, `dict[str, int]`, ...

    Raises:
        UsageError: msgspec does not know the type.
    """

    name = "json"

    @override
    def _decoder_of(self, type_: type[T]) -> Callable[[bytes], T]:
        return msgspec.json.Decoder(type_).decode

    @override
    def _write(self, value: T) -> bytes:
        body = msgspec.json.encode(value)
        if b"null" in body:  # msgspec writes NaN and the infinities as null
            place = next(_not_finite(msgspec.to_builtins(value), "$"), None)
            if place is not None:
                raise ValueError(f"{place} is not finite, and JSON has no such number")
        return body


class MsgpackCodec(_MsgspecCodec[T]):
    """MessagePack, as one type.

    Args:
        type_: The type of the values: a struct of msgspec, a dataclass, `dict[str, int]`, ...

    Raises:
        UsageError: msgspec does not know the type.
    """

    name = "msgpack"

    @override
    def _decoder_of(self, type_: type[T]) -> Callable[[bytes], T]:
        return msgspec.msgpack.Decoder(type_).decode

    @override
    def _write(self, value: T) -> bytes:
        return msgspec.msgpack.encode(value)


def _not_finite(value: object, place: str) -> Iterator[str]:
    """The paths of NaN and infinite numbers in a value of lists and dictionaries."""
    match value:
        case float() if not math.isfinite(value):
            yield place
        case dict():
            for key, item in cast("dict[object, object]", value).items():
                yield from _not_finite(item, f"{place}.{key}")
        case list() | tuple() | set() | frozenset():
            for index, item in enumerate(cast("Iterable[object]", value)):
                yield from _not_finite(item, f"{place}[{index}]")
        case _:
            pass


def _not_written(codec: str, value: object, error: Exception) -> UsageError:
    return UsageError(f"{type(value).__name__} cannot be written as {codec}: {error}")


# -- FIX and NVFIX -----------------------------------------------------------------------------


class _FieldsCodec(Codec[list[tuple[_Name, str]]], Generic[_Name]):
    """Fields `name=value`, each ended by a separator; order and repetitions are kept."""

    def __init__(self, separator: str) -> None:
        encoded = separator.encode()
        if len(encoded) != 1 or separator == "=":
            raise UsageError(
                f"a field separator is one ASCII character other than '=', not {separator!r}"
            )
        self._separator = separator

    @abstractmethod
    def _name_of(self, text: str) -> _Name:
        """The name of a field; raises `ValueError` with what was wanted."""

    @override
    def encode(self, value: Sequence[tuple[_Name, str]]) -> bytes:
        try:
            pairs: list[tuple[object, object]] = [(name, text) for name, text in value]
        except (TypeError, ValueError):  # not iterable, or no pairs
            pairs = []
            is_list = False
        else:
            is_list = not isinstance(value, Mapping | str)
        if not is_list:
            raise UsageError(
                f"a {self.name} body is a list of pairs of name and value, such as "
                "list(fields.items())"
            )
        return "".join(self._written(*pair) for pair in pairs).encode()

    def _written(self, given: object, value: object) -> str:
        name = str(given)
        try:
            is_same = self._name_of(name) == given
        except ValueError:
            is_same = False
        if not isinstance(value, str):
            raise UsageError(
                f"the value of the {self.name} field {name} is text, not {type(value).__name__}: "
                "format it first"
            )
        if not is_same or "=" in name or self._separator in name or not _is_text(name):
            raise UsageError(f"{given!r} cannot be the name of a {self.name} field")
        if self._separator in value:
            raise UsageError(
                f"the value of the {self.name} field {name} has a field separator in it"
            )
        if not _is_text(value):
            raise UsageError(f"the value of the {self.name} field {name} is no text")
        return f"{name}={value}{self._separator}"

    @override
    def decode(self, data: bytes) -> list[tuple[_Name, str]]:
        fields: list[tuple[_Name, str]] = []
        position = 0
        separator = self._separator.encode()
        for part in data.removesuffix(separator).split(separator) if data else ():
            try:
                name, equals, value = part.decode().partition("=")
                if not equals:
                    raise ValueError("a field is name=value, and has no '=' here")  # noqa: TRY301  # one place names the position
                fields.append((self._name_of(name), value))
            except UnicodeDecodeError as error:
                raise self._unread("a field is not UTF-8", position + error.start) from None
            except ValueError as error:  # of `_name_of`, or just above: it has no data in it
                raise self._unread(str(error), position) from None
            position += len(part) + 1
        return fields

    def _unread(self, reason: str, position: int) -> DecodeError:
        return DecodeError(reason, codec=self.name, position=f"byte {position}")


class NvfixCodec(_FieldsCodec[str]):
    """NVFIX: named fields, such as `id=1` and `px=10.5`, as a list of pairs in their order.

    A name that comes twice is two pairs; `dict(pairs)` keeps the last.

    Args:
        separator: Ends each field; the last one need not have it in what is read.

    Raises:
        UsageError: The separator is not one ASCII character, or is `=`.
    """

    name = "nvfix"

    def __init__(self, separator: str = "\x01") -> None:
        super().__init__(separator)

    @override
    def _name_of(self, text: str) -> str:
        if not text:
            raise ValueError("a field has no name")
        return text


class FixCodec(_FieldsCodec[int]):
    """FIX: numbered fields, such as `55=IBM`, as a list of pairs in their order.

    Repeating groups stay as they come. Body length and checksum are fields like others: neither is
    computed or checked.

    Args:
        separator: Ends each field; the last one need not have it in what is read.

    Raises:
        UsageError: The separator is not one ASCII character, or is `=`.
    """

    name = "fix"

    def __init__(self, separator: str = "\x01") -> None:
        super().__init__(separator)

    @override
    def _name_of(self, text: str) -> int:
        if not _TAG.fullmatch(text):
            raise ValueError("a tag is a number from 1 to 9 digits")
        return int(text)


def _is_text(text: str) -> bool:
    """Whether it can be written, unlike half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_TAG: Final = re.compile(r"[1-9][0-9]{0,8}")


# -- composite messages ------------------------------------------------------------------------


class CompositeCodec(Codec[list[bytes]]):
    """Composite messages: parts of bytes, each behind its length in four bytes (big-endian).

    A part may be empty. What is in a part is for another codec: `JsonCodec(Order).decode(part)`.
    """

    name = "composite"

    @override
    def encode(self, value: Sequence[bytes]) -> bytes:
        if isinstance(value, bytes | str):
            raise UsageError("a composite message is a list of parts, not one")
        try:
            parts = [memoryview(part).cast("B") for part in value]
            return b"".join(len(part).to_bytes(_LENGTH_BYTES) + part for part in parts)
        except (TypeError, OverflowError) as error:  # no bytes, or more than a length can say
            raise UsageError(
                f"a part of a composite message is bytes, at most {_LARGEST_PART} of them: {error}"
            ) from error

    @override
    def decode(self, data: bytes) -> list[bytes]:
        parts: list[bytes] = []
        position = 0
        while position < len(data):
            begin = position + _LENGTH_BYTES
            end = begin + int.from_bytes(data[position:begin])
            if end > len(data) or begin > len(data):
                raise DecodeError(
                    f"part {len(parts)} needs {end - position} bytes with its length, "
                    f"{len(data) - position} are left",
                    codec=self.name,
                    position=f"byte {position}",
                )
            parts.append(data[begin:end])
            position = end
        return parts


# -- protobuf ----------------------------------------------------------------------------------


class _ProtobufMessage(Protocol):
    """What a generated class of protobuf has."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802  # protobuf's name

    def ParseFromString(self, serialized: bytes, /) -> object: ...  # noqa: N802  # likewise


_Protobuf = TypeVar("_Protobuf", bound=_ProtobufMessage)


class ProtobufCodec(Codec[_Protobuf]):
    """Protocol buffers, as one generated class; needs the extra `protobuf`.

    Args:
        message_type: The generated class.
    """

    name = "protobuf"

    def __init__(self, message_type: type[_Protobuf]) -> None:
        self._type = message_type

    @override
    def encode(self, value: _Protobuf) -> bytes:
        try:
            return value.SerializeToString()
        except Exception as error:  # protobuf's own, such as a required field that is not set
            raise _not_written(self.name, value, error) from error

    @override
    def decode(self, data: bytes) -> _Protobuf:
        message = self._type()
        try:
            message.ParseFromString(data)
        except Exception as error:  # protobuf's own: it is not imported here
            raise DecodeError(f"the body is no {self._type.__name__}", codec=self.name) from error
        return message


# -- topics ------------------------------------------------------------------------------------


class Topic(Generic[T]):
    """A topic's name and the type of its messages.

    ::

        orders = Topic("orders", Order)  # JSON
        await client.publish(orders.name, orders.encode(Order(1, 10.5)))
        order = orders.decode(message)  # type checkers know that it is an Order

    Args:
        name: The topic, or a regular expression to subscribe with.
        type_: The type of its values; or give a `codec`.
        format: How values of this type are written.
        codec: Writes and reads the values.

    Raises:
        UsageError: Neither or both of `type_` and `codec` are given, or the type is not known.

    Attributes:
        name: The topic.
        codec: The codec of its bodies.
    """

    @overload
    def __init__(
        self, name: str, type_: type[T], *, format: Literal["json", "msgpack"] = "json"
    ) -> None: ...

    @overload
    def __init__(self, name: str, *, codec: Codec[T]) -> None: ...

    def __init__(
        self,
        name: str,
        type_: type[T] | None = None,
        *,
        format: Literal["json", "msgpack"] = "json",  # noqa: A002  # the word for it
        codec: Codec[T] | None = None,
    ) -> None:
        if (type_ is None) == (codec is None):
            raise UsageError(f"the topic {name!r} needs either a type or a codec=")
        if format not in {"json", "msgpack"}:
            raise UsageError(f"format is 'json' or 'msgpack', not {format!r}: others are a codec=")
        if codec is None:
            known = cast("type[T]", type_)
            codec = JsonCodec(known) if format == "json" else MsgpackCodec(known)
        self.name = name
        self.codec: Codec[T] = codec

    @override
    def __repr__(self) -> str:
        return f"Topic({self.name!r}, {self.codec.name})"

    def encode(self, value: T) -> bytes:
        """The body to publish for a value.

        Args:
            value: What to publish.

        Returns:
            The body.

        Raises:
            UsageError: The value cannot be written.
        """
        return self.codec.encode(value)

    def decode(self, message: Message) -> T:
        """The value of a message.

        Args:
            message: One that has arrived; it is neither discarded nor acknowledged by this.

        Returns:
            The value.

        Raises:
            DecodeError: Its body cannot be read.
        """
        topic = message.topic or self.name
        try:
            return self.codec.decode(message.data)
        except DecodeError as error:
            raise DecodeError(
                error.reason, topic=topic, codec=error.codec, position=error.position
            ) from error
        except Exception as error:  # a codec of the application
            raise DecodeError(
                f"the codec raised {type(error).__name__}", topic=topic, codec=self.codec.name
            ) from error

    def handler(
        self,
        handle: Callable[[T, Message], Awaitable[None] | None],
        *,
        on_decode_error: OnDecodeError | None = None,
    ) -> Callable[[Message], Awaitable[None] | None]:
        """A handler of messages for `subscribe` and the like, out of one of values.

        Args:
            handle: A coroutine function or plain function that takes a value and its message.
            on_decode_error: Called instead with a message that does not decode, and the error. When
                it returns, the message counts as handled, as after `handle`: with `auto_discard` it
                is discarded, with `auto_ack` acknowledged. Without one the `DecodeError` is an
                error of the handler like any other: `on_handler_error` decides.

        Returns:
            The handler of messages.
        """

        def handle_message(message: Message) -> Awaitable[None] | None:
            try:
                value = self.decode(message)
            except DecodeError as error:
                if on_decode_error is None:
                    raise
                return on_decode_error(message, error)
            return handle(value, message)

        return handle_message
