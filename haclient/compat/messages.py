"""Messages and commands with the official getters and setters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

import haclient.protocol.commands
import haclient.protocol.messages
from haclient.compat.units import milliseconds_of, seconds_of
from haclient.errors import DecodeError, UsageError
from haclient.protocol.codec import Payload, as_bytes
from haclient.protocol.commands import CommandName
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


def _set(name: str, what: type | tuple[type, ...]) -> Callable[[Message, Any], Message]:
    def set_(self: Message, value: object) -> Message:
        if not isinstance(value, what) or isinstance(value, bool):
            raise UsageError(f"{name} cannot be {value!r}")
        setattr(self.native, name, value)
        return self

    set_.__doc__ = f"Set the `{name}` of the message, which is returned; nothing is sent."
    return set_


def _set_text(name: str) -> Callable[[Message, str], Message]:
    return _set(name, str)


def _set_number(name: str) -> Callable[[Message, int | None], Message]:
    return _set(name, (int, type(None)))


class Message:
    """A received message or ack.

    Its setters are for programs that keep or build messages: what is sent is a `Command`.

    Args:
        native: The message of `haclient`; an empty one by default.

    Attributes:
        native: The message of `haclient`.
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

    set_ack_type = _set_text("ack_type")
    set_batch_size = _set_number("batch_size")
    set_bookmark = _set_text("bookmark")
    set_client_name = _set_text("client_name")
    set_command_id = _set_text("command_id")
    set_correlation_id = _set_text("correlation_id")
    set_expiration = _set_number("expiration")
    set_filter = _set_text("filter")
    set_lease_period = _set_text("lease_period")
    set_matches = _set_number("matches")
    set_options = _set_text("options")
    set_order_by = _set_text("order_by")
    set_query_id = _set_text("query_id")
    set_reason = _set_text("reason")
    set_records_deleted = _set_number("records_deleted")
    set_records_inserted = _set_number("records_inserted")
    set_records_returned = _set_number("records_returned")
    set_records_updated = _set_number("records_updated")
    set_sequence = _set_number("sequence")
    set_sow_key = _set_text("sow_key")
    set_sow_keys = _set_text("sow_keys")
    set_status = _set_text("status")
    set_sub_ids = _set_text("sids")
    set_timestamp = _set_text("timestamp")
    set_top_n = _set_number("top_n")
    set_topic = _set_text("topic")
    set_topic_matches = _set_number("topic_matches")
    set_user_id = _set_text("user_id")
    set_version = _set_text("version")

    def set_command(self, command: str) -> Message:
        """Set the `command` of the message, which is returned.

        Raises:
            UsageError: There is no such command.
        """
        try:
            self.native.kind = CommandName(command).wire
        except ValueError:
            raise UsageError(f"there is no command {command!r}") from None
        return self

    def set_data(self, data: Payload) -> Message:
        """Set the body of the message, which is returned; text becomes UTF-8.

        Raises:
            UsageError: It is neither text nor bytes.
        """
        self.native.data = as_bytes(data)
        return self

    def set_sub_id(self, sub_id: str) -> Message:
        """Set the only subscription that the message is for; the message is returned."""
        self.native.sids = ""
        return _set_text("sub_id")(self, sub_id)

    def get_sub_id(self) -> str:
        """The id of the subscription of the message; the first one if it is for several."""
        ids = self.native.sub_ids
        return ids[0] if ids else ""

    def get_data(self) -> str:
        """The body as text.

        Raises:
            DecodeError: The body is not UTF-8; `get_data_raw` returns the bytes.
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
            UsageError: The options are not one of these.
        """
        words = ack_words(options)
        self.native.ack(cancel="cancel" in words, expire="expire" in words)

    def copy(self) -> Message:
        """A copy, independent of this message."""
        return Message(self.native.copy())

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.native == other.native

    __hash__ = None  # type: ignore[assignment]  # like the native message, which may change

    @override
    def __str__(self) -> str:
        return self.native.text

    @override
    def __repr__(self) -> str:
        return repr(self.native)


def ack_words(options: str | None) -> frozenset[str]:
    """The options of an acknowledgement.

    Raises:
        UsageError: They are not empty, `cancel` or `expire`.
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


def _sets_command(name: str) -> Callable[[Command, Any], Command]:
    def set_(self: Command, value: object) -> Command:
        setattr(self, name, value)
        return self

    set_.__doc__ = f"Set the `{name}` of the command, which is returned."
    return set_


class Command(haclient.protocol.commands.Command):
    """A command with the official getters, and setters that can be chained.

    See `haclient.Command` for its arguments, among them `timeout` in seconds; `set_timeout` takes
    milliseconds. Without a timeout there is no limit for the answer.
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
    get_sub_ids = _of_command("sub_id")
    get_top_n = _of_command("top_n")
    get_topic = _of_command("topic")
    get_user_id = _of_command("user_id")
    get_version = _of_command("version")

    set_ack_type = _sets_command("ack_type")
    set_batch_size = _sets_command("batch_size")
    set_bookmark = _sets_command("bookmark")
    set_client_name = _sets_command("client_name")
    set_command_id = _sets_command("command_id")
    set_correlation_id = _sets_command("correlation_id")
    set_data = _sets_command("data")
    set_expiration = _sets_command("expiration")
    set_filter = _sets_command("filter")
    set_message_type = _sets_command("message_type")
    set_options = _sets_command("options")
    set_order_by = _sets_command("order_by")
    set_password = _sets_command("password")
    set_query_id = _sets_command("query_id")
    set_sequence = _sets_command("sequence")
    set_sow_key = _sets_command("sow_key")
    set_sow_keys = _sets_command("sow_keys")
    set_sub_id = _sets_command("sub_id")
    set_top_n = _sets_command("top_n")
    set_topic = _sets_command("topic")
    set_user_id = _sets_command("user_id")
    set_version = _sets_command("version")
    set_sub_ids = _sets_command("sub_id")

    def set_command(self, command: str) -> Command:
        """Set the name of the command, which is returned.

        Raises:
            UsageError: There is no such command.
        """
        try:
            self.command = CommandName(command)
        except ValueError:
            raise UsageError(f"there is no command {command!r}") from None
        return self

    def add_ack_type(self, ack_type: str) -> Command:
        """Request one more ack; the command is returned."""
        self.ack_type = f"{self.ack_type},{ack_type}" if self.ack_type else str(ack_type)
        return self

    def set_timeout(self, timeout: float | None) -> Command:
        """Set how long to wait for the server's answer; the command is returned.

        Args:
            timeout: The limit in milliseconds; 0 or `None` for none.

        Raises:
            UsageError: The timeout is negative or not a number.
        """
        self.timeout = seconds_of(timeout or 0)
        return self

    def get_timeout(self) -> int:
        """How long to wait for the server's answer, in milliseconds; 0 for no limit."""
        return 0 if self.timeout is None else milliseconds_of(self.timeout)
