"""Dead letters: copies of queue messages that no handler could process, with their context. Pure.

The copy has the body of the message. Its correlation id has the context: a JSON object, encoded in
Base64, since a correlation id may have only the characters of that alphabet. The reference broker,
which also sends messages to dead letter topics, does the same.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient_stores.checks import check_text

__all__ = ["DeadLetter"]

_LONGEST_TEXT: Final = 200  # of the error: enough to see what it is
_SHOWN_CHARACTERS: Final = 60  # of a topic and of a correlation id that is not a context
_LONGEST_CONTEXT: Final = 16_383  # the longest correlation id that the reference broker takes


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The error policy that publishes a failed message to another topic.

    The message is acknowledged once its copy is persisted, so it is in one of the two at any time,
    and in both after a failure between the two.

    Attributes:
        topic: Where the copy goes.

    Raises:
        UsageError: The topic is empty.
    """

    topic: str

    def __post_init__(self) -> None:
        check_text("the topic of a DeadLetter", self.topic)

    def correlation_id(self, message: Message, error: Exception, failures: int) -> str:
        """The context of one message, as the correlation id of its copy.

        The correlation id of the message is left out if the result would be too long for a server.

        Args:
            message: The failed message.
            error: What its handler raised.
            failures: How often it has failed here.
        """
        context = {
            "queue": message.topic,
            "reason": "handler_error",
            "bookmark": message.bookmark,
            "failures": failures,
            "error": type(error).__name__,
            "error_text": _text_of(error)[:_LONGEST_TEXT],
        }
        whole = _encoded({**context, "correlation_id": message.correlation_id})
        return whole if len(whole) <= _LONGEST_CONTEXT else _encoded(context)

    @staticmethod
    def context(message: Message) -> dict[str, object]:
        """Read the context of a dead letter.

        Args:
            message: A message of a dead letter topic, from this package or the reference broker.

        Returns:
            At least `queue`, `reason` and `bookmark`; `correlation_id` is that of the message.

        Raises:
            UsageError: It has no such context.
        """
        text = message.correlation_id
        try:
            found = json.loads(base64.b64decode(text, validate=True).decode())
            return msgspec.convert(found, dict[str, object])
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise UsageError(
                f"the message on {_excerpt(message.topic)} is no dead letter: its correlation id "
                f"{_excerpt(text)} has no context"
            ) from error


def _encoded(context: Mapping[str, object]) -> str:
    # Not by msgspec, which refuses text from the wire that is not UTF-8.
    return base64.b64encode(json.dumps(context).encode("ascii")).decode("ascii")


def _excerpt(text: str) -> str:
    """The beginning of a text of any length, quoted."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def _text_of(error: Exception) -> str:
    """The text of any error, so that it can be encoded; empty if it cannot say anything."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:  # of the application's class, which a failed message must not depend on
        return ""
