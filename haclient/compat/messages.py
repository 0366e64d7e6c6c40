"""Messages and commands with the official getters and setters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from typing_extensions import override

import haclient.protocol.commands
import haclient.protocol.messages
from haclient.compat.units import milliseconds_of, seconds_of
from haclient.errors import DecodeError, UsageError
from haclient.protocol.options import Options


def _text(name: str) -> Callable[[Message], str]:
    def get(self: Message) -> str:
        value: str = getattr(self.native, name)
        return value

    get.__doc__ = f"The `{name}` of the message; empty where it has none."
    return get


def _number(name: str) -> Callable[[Message], int | None]:
    def get(self: Message) -> int | None:
        value: int | None = getattr(self.native, name)
        return value

    get.__doc__ = f"The `{name}` of the message; `None` where it has none."
    return get


class Message:
    """A received message or ack.

    Args:
        native: The message of `haclient`; an empty one by default.

    Attributes:
        native: As above: its attributes are those of `haclient.Message`.
    """

    Options = Options

    __slots__ = ("native",)

    def __init__(self, native: haclient.protocol.messages.Message | None = None) -> None:
        self.native = haclient.protocol.messages.Message() if native is None else native

    get_ack_type = _text("ack_type")
    get_batch_size = _number("batch_size")
    get_bookmark = _text("bookmark")
    get_client_name = _text("client_name")
    get_command = _text("command")
    get_command_id = _text("command_id")
    get_correlation_id = _text("correlation_id")
    get_expiration = _number("expiration")
    get_filter = _text("filter")
    get_lease_period = _text("lease_period")
    get_matches = _number("matches")
    get_options = _text("options")
    get_order_by = _text("order_by")
    get_query_id = _text("query_id")
    get_reason = _text("reason")
    get_records_deleted = _number("records_deleted")
    get_records_inserted = _number("records_inserted")
    get_records_returned = _number("records_returned")
    get_records_updated = _number("records_updated")
    get_sequence = _number("sequence")
    get_sow_key = _text("sow_key")
    get_sow_keys = _text("sow_keys")
    get_status = _text("status")
    get_sub_ids = _text("sids")
    get_timestamp = _text("timestamp")
    get_top_n = _number("top_n")
    get_topic = _text("topic")
    get_topic_matches = _number("topic_matches")
    get_user_id = _text("user_id")
    get_version = _text("version")

    def get_sub_id(self) -> str:
        """The subscription that the message is for, the first where it is for several."""
        ids = self.native.sub_ids
        return ids[0] if ids else ""

    def get_data(self) -> str:
        """The body as text.

        Raises:
            DecodeError: It is not UTF-8; `get_data_raw` gives the bytes.
        """
        try:
            return self.native.data.decode()
        except UnicodeDecodeError as error:
            raise DecodeError(
                "it is not UTF-8, use get_data_raw()",
                codec="text",
                position=f"byte {error.start}",
                topic=self.native.topic,
            ) from error

    def get_data_raw(self) -> bytes:
        """The body as bytes."""
        return self.native.data

    def get_bookmark_seq_no(self) -> int:
        """The number that the bookmark store has given the message; 0 if it has none."""
        return self.native.number

    def discard(self) -> None:
        """Mark the message as finished; see `haclient.Message.discard`."""
        self.native.discard()

    def ack(self, options: str | None = None) -> None:
        """Acknowledge the message of a queue.

        Args:
            options: `"cancel"` returns it to the queue, `"expire"` removes it as expired.

        Raises:
            UsageError: The options are others.
        """
        words = ack_words(options)
        self.native.ack(cancel="cancel" in words, expire="expire" in words)

    def copy(self) -> Message:
        """A copy, independent of this message."""
        return Message(self.native.copy())

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.native == other.native

    __hash__ = None  # type: ignore[assignment]  # as of the message that it has: it may change

    @override
    def __str__(self) -> str:
        return self.native.text

    @override
    def __repr__(self) -> str:
        return repr(self.native)


def ack_words(options: str | None) -> frozenset[str]:
    """The options of an acknowledgement.

    Raises:
        UsageError: They are neither empty, `cancel` nor `expire`.
    """
    words = frozenset(word.strip() for word in (options or "").split(",") if word.strip())
    if not words <= {"cancel", "expire"}:
        raise UsageError(f"an acknowledgement has the option cancel or expire, not {options!r}")
    return words


def _of_command(name: str) -> Callable[[Command], object]:
    def get(self: Command) -> object:
        value: object = getattr(self, name)
        return value

    get.__doc__ = f"The `{name}` of the command, as it was set."
    return get


class Command(haclient.protocol.commands.Command):
    """A command with the official getters; its `set_timeout` takes milliseconds.

    See `haclient.Command` for its arguments, among them `timeout` in seconds, and for the other
    setters, which can be chained. Without a timeout the answer is waited for as long as it takes.
    """

    get_ack_type = _of_command("ack_type")
    get_batch_size = _of_command("batch_size")
    get_bookmark = _of_command("bookmark")
    get_client_name = _of_command("client_name")
    get_command = _of_command("name")
    get_command_id = _of_command("command_id")
    get_correlation_id = _of_command("correlation_id")
    get_data = _of_command("data")
    get_expiration = _of_command("expiration")
    get_filter = _of_command("filter")
    get_options = _of_command("options")
    get_order_by = _of_command("order_by")
    get_query_id = _of_command("query_id")
    get_sequence = _of_command("sequence")
    get_sow_key = _of_command("sow_key")
    get_sow_keys = _of_command("sow_keys")
    get_sub_id = _of_command("sub_id")
    get_top_n = _of_command("top_n")
    get_topic = _of_command("topic")
    get_user_id = _of_command("user_id")
    get_version = _of_command("version")

    @override
    def set_timeout(self, timeout: float | None) -> Self:
        """Set how long to wait for the server's answer.

        Args:
            timeout: The limit in milliseconds; 0 or `None` for none.

        Returns:
            This command.

        Raises:
            UsageError: It is negative or no number.
        """
        self.timeout = seconds_of(timeout or 0)
        return self

    def get_timeout(self) -> int:
        """How long to wait for the server's answer, in milliseconds; 0 for no limit."""
        return 0 if self.timeout is None else milliseconds_of(self.timeout)
