"""Bodies of FIX, NVFIX and composite messages, built and read with the official names.

The bytes are those of the codecs in `haclient.codecs`, which also refuse what cannot be written or
read. What is appended is checked at once, so that an error is raised where the value is at hand.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from typing_extensions import override

from haclient.codecs import CompositeCodec, FieldsCodec, FixCodec, NvfixCodec
from haclient.compat.messages import Message
from haclient.errors import UsageError
from haclient.protocol.codec import as_bytes

_Name = TypeVar("_Name", int, str)
_HIGHEST_ASCII = 127


def _separator_of(given: int | str) -> str:
    """A field separator: the character, or its number."""
    if isinstance(given, int):
        if not 0 <= given <= _HIGHEST_ASCII:
            raise UsageError(f"a field separator is one ASCII character, not number {given}")
        return chr(given)
    return given


def _value_of(value: object) -> str | bytes:
    """The value of a field as text or bytes."""
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise UsageError(f"the value of a field is text, bytes or a number, not {value!r}")


def _bytes_of(data: bytes | str | Message) -> bytes:
    """The body of a message."""
    return data.get_data_raw() if isinstance(data, Message) else as_bytes(data)


class _FieldsBuilder(Generic[_Name]):
    """Builds a body of fields.

    Args:
        codec: Writes them.
    """

    def __init__(self, codec: FieldsCodec[_Name]) -> None:
        self._codec: FieldsCodec[_Name] = codec
        self._last: tuple[_Name, str | bytes] | None = None
        self._written: list[bytes] = []

    def _append(self, name: _Name, value: object) -> None:
        field = (name, _value_of(value))
        self._written.append(self._codec.encode_field(field, self._last))
        self._last = field

    def get_bytes(self) -> bytes:
        """The body that was built, to be published."""
        return b"".join(self._written)

    def get_string(self) -> str:
        """The body that was built as text."""
        return self.get_bytes().decode()

    def clear(self) -> None:
        """Begin another body."""
        self._written.clear()
        self._last = None

    @override
    def __str__(self) -> str:
        return self.get_string()


class FIXBuilder(_FieldsBuilder[int]):
    """Builds a FIX body: numbered fields in the order in which they are appended.

    Body length and checksum are fields like others: neither is computed.

    Args:
        field_sep: Ends each field: a character, or its number.

    Raises:
        UsageError: The separator is not one ASCII character, or is `=`.
    """

    def __init__(self, field_sep: int | str = 1) -> None:
        super().__init__(FixCodec(_separator_of(field_sep)))

    def append(self, tag: int, value: str | bytes | float) -> None:
        """Append a field.

        Args:
            tag: Its number.
            value: Its value.

        Raises:
            UsageError: The number is not a tag, or the value cannot be written.
        """
        self._append(tag, value)


class NVFIXBuilder(_FieldsBuilder[str]):
    """Builds an NVFIX body: named fields in the order in which they are appended.

    Args:
        field_sep: Ends each field: a character, or its number.

    Raises:
        UsageError: The separator is not one ASCII character, or is `=`.
    """

    def __init__(self, field_sep: int | str = 1) -> None:
        super().__init__(NvfixCodec(_separator_of(field_sep)))

    def append(self, name: str, value: str | bytes | float) -> None:
        """Append a field.

        Args:
            name: Its name.
            value: Its value.

        Raises:
            UsageError: The name or the value cannot be written.
        """
        self._append(name, value)


class FixShredder:
    """Reads FIX bodies.

    Args:
        field_sep: Ends each field: a character, or its number.

    Raises:
        UsageError: The separator is not one ASCII character, or is `=`.
    """

    def __init__(self, field_sep: int | str = 1) -> None:
        self._codec = FixCodec(_separator_of(field_sep))

    def to_map(self, data: bytes | str | Message) -> dict[int, str | bytes]:
        """The fields of a body; of a tag that comes twice, the last.

        Args:
            data: The body, or the message that has it.

        Raises:
            DecodeError: It is no FIX.
        """
        return dict(self._codec.decode(_bytes_of(data)))


class NvfixShredder:
    """Reads NVFIX bodies.

    Args:
        field_sep: Ends each field: a character, or its number.

    Raises:
        UsageError: The separator is not one ASCII character, or is `=`.
    """

    def __init__(self, field_sep: int | str = 1) -> None:
        self._codec = NvfixCodec(_separator_of(field_sep))

    def to_map(self, data: bytes | str | Message) -> dict[str, str | bytes]:
        """The fields of a body; of a name that comes twice, the last.

        Args:
            data: The body, or the message that has it.

        Raises:
            DecodeError: It is no NVFIX.
        """
        return dict(self._codec.decode(_bytes_of(data)))


class CompositeMessageBuilder:
    """Builds the body of a composite message out of its parts."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def append(self, data: bytes | str) -> None:
        """Append a part.

        Args:
            data: The part; text is sent as UTF-8. It may be empty.

        Raises:
            UsageError: It is neither text nor bytes.
        """
        self._parts.append(as_bytes(data))

    def get_data(self) -> bytes:
        """The body that was built, to be published."""
        return CompositeCodec().encode(self._parts)

    def clear(self) -> None:
        """Begin another body."""
        self._parts.clear()


class CompositeMessageParser:
    """Reads the parts of a composite message."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def parse(self, data: bytes | str | Message) -> int:
        """Read a body; its parts replace those of the body before.

        Args:
            data: The body, or the message that has it.

        Returns:
            How many parts it has.

        Raises:
            DecodeError: It is not a composite message; then there are no parts.
        """
        self._parts = []
        self._parts = CompositeCodec().decode(_bytes_of(data))
        return len(self._parts)

    def size(self) -> int:
        """How many parts there are."""
        return len(self._parts)

    def get_part(self, index: int) -> bytes:
        """One part.

        Args:
            index: Its place, from 0 on.

        Raises:
            UsageError: There is no such part.
        """
        if not 0 <= index < len(self._parts):
            raise UsageError(f"the message has {len(self._parts)} parts, and none at {index!r}")
        return self._parts[index]
