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
from decimal import Decimal
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast, overload

import msgspec
from typing_extensions import override

from haclient.errors import DecodeError, UsageError
from haclient.protocol.decode_errors import decode_error
from haclient.protocol.messages import Message

__all__ = [
    "FIX_DATA_FIELDS",
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
    """JSON, as one type.

    JSON has neither NaN nor infinities: a float or `Decimal` that is one is refused, wherever it
    is. A `Decimal` is written as text, with all its digits, and is read from text or from a number
    where the type says `Decimal`.

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
        if any(word in body for word in _WORDS_FOR_NO_NUMBER):
            # What has been written and is unknown here is a `msgspec.Raw`, which is JSON already.
            plain = msgspec.to_builtins(value, builtin_types=(Decimal,), enc_hook=lambda _: None)
            place = next(_not_finite(plain, "$"), None)
            if place is not None:
                raise ValueError(f"{place} is not finite, and JSON has no such number")
        return body


_WORDS_FOR_NO_NUMBER: Final = (b"null", b"NaN", b"Inf", b"nan", b"inf")
"""How msgspec writes NaN and the infinities: a float, a `Decimal`, a key."""


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
        case Decimal() if not value.is_finite():
            yield place
        case dict():
            for key, item in cast("dict[object, object]", value).items():
                yield from _not_finite(key, f"{place}.{key}")
                yield from _not_finite(item, f"{place}.{key}")
        case list() | tuple() | set() | frozenset():
            for index, item in enumerate(cast("Iterable[object]", value)):
                yield from _not_finite(item, f"{place}[{index}]")
        case _:
            pass


def _not_written(codec: str, value: object, error: Exception) -> UsageError:
    return UsageError(f"{type(value).__name__} cannot be written as {codec}: {error}")


# -- FIX and NVFIX -----------------------------------------------------------------------------


_Field: TypeAlias = tuple[_Name, str | bytes]


class FieldsCodec(Codec[list[_Field[_Name]]], Generic[_Name]):
    """Fields `name=value`, each ended by a separator; order and repetitions are kept."""

    def __init__(self, separator: str, data_fields: Mapping[_Name, _Name]) -> None:
        encoded = separator.encode()
        if len(encoded) != 1 or separator == "=":
            raise UsageError(
                f"a field separator is one ASCII character other than '=', not {separator!r}"
            )
        self._separator = encoded
        self._data_fields: Mapping[_Name, _Name] = data_fields  # by the length field before each

    @abstractmethod
    def _name_of(self, text: str) -> _Name:
        """The name of a field; raises `ValueError` with what was wanted."""

    def _length_before(self, name: _Name, last: _Field[_Name] | None) -> int | None:
        """The length of a field as the field before it says; `None` if it ends by a separator.

        It is -1 if that field has no length.
        """
        if last is None or self._data_fields.get(last[0]) != name:
            return None
        text = last[1]
        return int(text) if isinstance(text, str) and _LENGTH.fullmatch(text) else -1

    @override
    def encode(self, value: Sequence[_Field[_Name]]) -> bytes:
        pairs: list[_Field[_Name]] = []
        try:
            pairs.extend((name, text) for name, text in value)
            is_list = not isinstance(value, Mapping | str)
        except (TypeError, ValueError):  # not iterable, or no pairs
            is_list = False
        if not is_list:
            raise UsageError(
                f"a {self.name} body is a list of pairs of name and value, such as "
                "list(fields.items())"
            )
        lasts: list[_Field[_Name] | None] = [None]
        lasts.extend(pairs)  # not of `value`, which may be an iterator
        return b"".join(map(self.encode_field, pairs, lasts))

    def encode_field(self, field: tuple[_Name, object], last: _Field[_Name] | None) -> bytes:
        """One field of a body, with its separator.

        Args:
            field: Its name and value.
            last: The field before it, which may say how long it is.

        Returns:
            The bytes.

        Raises:
            UsageError: It cannot be written.
        """
        given, value = field
        name = str(given)
        try:
            is_same = self._name_of(name) == given
        except ValueError:
            is_same = False
        what = f"the value of the {self.name} field {name}"
        if not isinstance(value, str | bytes):
            raise UsageError(
                f"{what} is text or bytes, not {type(value).__name__}: format it first"
            )
        no_name = f"{given!r} cannot be the name of a {self.name} field"
        if not is_same or "=" in name or self._separator in _utf8(name, no_name):
            raise UsageError(no_name)
        body = _utf8(value, f"{what} is no text")
        length = self._length_before(given, last)
        if length is None and self._separator in body:
            raise UsageError(f"{what} has a field separator in it")
        if length is not None and length != len(body):
            says = length if length >= 0 else "no length"
            raise UsageError(f"{what} has {len(body)} bytes, and the field before it says {says}")
        return b"%s=%s%s" % (name.encode(), body, self._separator)

    @override
    def decode(self, data: bytes) -> list[_Field[_Name]]:
        fields: list[_Field[_Name]] = []
        position = 0
        while position < len(data):
            end = self._end(data, position)
            equals = data.find(b"=", position, end)
            if equals < 0:
                raise self._unread("a field is name=value, and has no '=' here", position)
            try:
                name = self._name_of(data[position:equals].decode())
            except UnicodeDecodeError as error:
                raise self._unread("a field is not UTF-8", position + error.start) from None
            except ValueError as error:  # of `_name_of`: it has no data in it
                raise self._unread(str(error), position) from None
            length = self._length_before(name, fields[-1] if fields else None)
            if length is not None:  # its value may have separators in it
                end = equals + 1 + length
                if length < 0 or self._end(data, end) != end:
                    raise self._unread("a field is not as long as the one before it says", position)
            fields.append((name, _text_or_bytes(data[equals + 1 : end])))
            position = end + 1
        return fields

    def _end(self, data: bytes, begin: int) -> int:
        """Where the next separator is, or the end."""
        found = data.find(self._separator, begin)
        return found if found >= 0 else len(data)

    def _unread(self, reason: str, position: int) -> DecodeError:
        return DecodeError(reason, codec=self.name, position=f"byte {position}")


class NvfixCodec(FieldsCodec[str]):
    """NVFIX: named fields, such as `id=1` and `px=10.5`, as a list of pairs in their order.

    A name that comes twice is two pairs; `dict(pairs)` keeps the last. A value is text, or bytes if
    it is not UTF-8.

    Args:
        separator: Ends each field; the last one need not have it in what is read.

    Raises:
        UsageError: The separator is not one ASCII character, or is `=`.
    """

    name = "nvfix"

    def __init__(self, separator: str = "\x01") -> None:
        super().__init__(separator, {})

    @override
    def _name_of(self, text: str) -> str:
        if not text:
            raise ValueError("a field has no name")
        return text


FIX_DATA_FIELDS: Final[dict[int, int]] = {
    90: 91,
    93: 89,
    95: 96,
    212: 213,
    445: 446,
    618: 619,
    621: 622,
    **{length: length + 1 for length in range(348, 365, 2)},
    1184: 1185,
    1277: 1278,
    1280: 1281,
    1282: 1283,
    1397: 1398,
    1401: 1402,
    1403: 1404,
    1468: 1469,
}
"""The data field behind each length field of FIX 4.0 to 5.0 SP2, such as `RawData` (96) behind
`RawDataLength` (95): the length counts the bytes of its value, which may have separators in it."""


class FixCodec(FieldsCodec[int]):
    """FIX: numbered fields, such as `55=IBM`, as a list of pairs in their order.

    Repeating groups stay as they come. Body length and checksum are fields like others: neither is
    computed or checked. A data field is as long as the length field before it says. A value is
    text, or bytes if it is not UTF-8.

    Args:
        separator: Ends each field; the last one need not have it in what is read.
        data_fields: The data field behind each length field; other pairs of your counterparty's
            are added by `FIX_DATA_FIELDS | {9501: 9502}`.

    Raises:
        UsageError: The separator is not one ASCII character, or is `=`.
    """

    name = "fix"

    def __init__(
        self, separator: str = "\x01", *, data_fields: Mapping[int, int] = FIX_DATA_FIELDS
    ) -> None:
        super().__init__(separator, data_fields)

    @override
    def _name_of(self, text: str) -> int:
        if not _TAG.fullmatch(text):
            raise ValueError("a tag is a number from 1 to 9 digits")
        return int(text)


def _utf8(value: str | bytes, why_not: str) -> bytes:
    """Text as UTF-8, and bytes as they are; half of a surrogate pair is a `UsageError`."""
    try:
        return value if isinstance(value, bytes) else value.encode()
    except UnicodeEncodeError:
        raise UsageError(why_not) from None


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


_TAG: Final = re.compile(r"[1-9][0-9]{0,8}")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")  # with leading zeros, as FIX allows


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
