"""What msgspec or msgpack says of a body that it cannot read, without the body.

The texts of msgspec name a byte or a path within the value, and quote the value found there, which
may be secret and as long as the body.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from haclient.errors import DecodeError

_LONGEST_TEXT: Final = 200  # characters of a reason and of a position
_AT_BYTE: Final = re.compile(r" ?\((byte \d+)\)")
_AT_PATH: Final = re.compile(r" - at `(.*)`\Z", re.DOTALL)
_UNPACK_ERRORS: Final = {
    "ExtraData": "more follows behind the value",
    "FormatError": "it is not MessagePack",
    "StackError": "it is nested too deeply",
}
_QUOTED_VALUE: Final = re.compile(r"(Invalid (?:enum )?value|unknown field)\b.*", re.DOTALL)


def decode_error(error: Exception, data: bytes, *, codec: str, topic: str = "") -> DecodeError:
    """The error for a body that msgspec, or the type that it was read as, has refused.

    Args:
        error: What was raised.
        data: The body.
        codec: The name of the codec.
        topic: The topic of the message; empty where it is not known.

    Returns:
        The error to raise.
    """
    if isinstance(error, UnicodeDecodeError):
        return DecodeError(
            "text is not UTF-8", codec=codec, position=f"byte {error.start} of it", topic=topic
        )
    if isinstance(error, RecursionError):
        return DecodeError("it is nested too deeply", codec=codec, topic=topic)
    raised = error.__cause__ if isinstance(error, msgspec.MsgspecError) else error
    if raised is not None:  # by the type: its text may be anything
        return DecodeError(f"its type raised {type(raised).__name__}", codec=codec, topic=topic)
    text, position = str(error), ""
    if found := _AT_BYTE.search(text) or _AT_PATH.search(text):
        position = found[1]
    elif "truncated" in text:
        position = f"byte {len(data)}"
    text = _QUOTED_VALUE.sub(r"\1", _AT_PATH.sub("", _AT_BYTE.sub("", text)))
    return DecodeError(
        text[:_LONGEST_TEXT], codec=codec, position=position[:_LONGEST_TEXT], topic=topic
    )


def unpack_error(error: Exception, data: bytes, *, topic: str) -> DecodeError:
    """The error for a body that msgpack has refused.

    Args:
        error: What was raised.
        data: The body.
        topic: The topic of the message.

    Returns:
        The error to raise.
    """
    kind = type(error).__name__
    if isinstance(error, UnicodeDecodeError):
        return decode_error(error, data, codec="msgpack", topic=topic)
    if text := _UNPACK_ERRORS.get(kind):
        return DecodeError(text, codec="msgpack", topic=topic)
    if isinstance(error, ValueError) and "incomplete" in str(error):
        position = f"byte {len(data)}"
        return DecodeError("it was truncated", codec="msgpack", position=position, topic=topic)
    # A list as a key, or a time beyond the year 9999.
    return DecodeError(f"it has a value that raised {kind}", codec="msgpack", topic=topic)
