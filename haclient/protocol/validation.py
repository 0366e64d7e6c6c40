"""What can be refused in a command before it is sent (CC21, protocol 3).

Each rule is a function of the command that raises `UsageError`; a table says which rules a command
has to pass. A rule is here only if no server could carry the command out: whatever depends on how a
server is configured is left to the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from haclient.errors import UsageError
from haclient.protocol.acks import parse_acks
from haclient.protocol.encoding import check_correlation_id
from haclient.protocol.options import Options
from haclient_stores.bookmark import MOST_RECENT, NOW, Bookmark, BookmarkList, parse_bookmark

if TYPE_CHECKING:
    from collections.abc import Callable

    from haclient.protocol.commands import Command
    from haclient_stores.bookmark import StartPoint

    Rule = Callable[[Command], None]

__all__ = ["MAX_BATCH_SIZE", "validate"]

MAX_BATCH_SIZE: Final = 10_000
"""More records in one frame are an error (protocol 1.2)."""


def validate(command: Command) -> None:
    """Apply every rule for this command.

    Raises:
        UsageError: By the first rule that the command breaks.
    """
    for rule in (*_FOR_ALL, *_RULES.get(command.name, ())):
        rule(command)


def _words_can_be_read(command: Command) -> None:
    parse_acks(command.ack_type)
    check_correlation_id(command.correlation_id)
    if command.name != "heartbeat":  # its options are words of its own
        _options(command)
    _bookmark(command)


def _numbers_are_in_range(command: Command) -> None:
    for name in ("batch_size", "top_n", "expiration", "sequence"):
        given: object = getattr(command, name)
        if given is not None and not isinstance(given, int):
            raise UsageError(f"{name} is a whole number, not {given!r:.40}")
    if command.batch_size is not None and not 1 <= command.batch_size <= MAX_BATCH_SIZE:
        raise UsageError(f"a batch has 1 to {MAX_BATCH_SIZE} records, not {command.batch_size}")
    if command.sequence is not None and not 0 < command.sequence < 2**64:
        raise UsageError(f"a sequence is 1 to {2**64 - 1}, not {command.sequence}")
    for name in ("top_n", "expiration"):
        number: int | None = getattr(command, name)
        if number is not None and number < 0:
            raise UsageError(f"{name} is 0 or more, not {number}")


def _needs_topic(command: Command) -> None:
    if not command.topic:
        raise UsageError(f"a {command.name} needs a topic")


def _has_no_bookmark(command: Command) -> None:
    if _bookmark(command) is not None:
        raise UsageError(f"a {command.name} takes no bookmark")


def _bookmark_options_need_a_bookmark(command: Command) -> None:
    options = _options(command)
    start = _bookmark(command)
    if start is None and options.bookmark_not_found is not None:
        raise UsageError("the option bookmark_not_found needs a bookmark")
    if start is not None and options.oof and command.name == "subscribe":
        raise UsageError("a bookmark subscription cannot have the option oof")


def _top_n_needs_a_replay(command: Command) -> None:
    if command.top_n is not None and _bookmark(command) in {None, NOW}:
        raise UsageError(f"top_n of a {command.name} needs a bookmark other than NOW")


def _skip_n_of_a_query_needs_an_order(command: Command) -> None:
    if _options(command).skip_n is not None and not command.order_by:
        raise UsageError("the option skip_n of a sow needs order_by")


def _deletes_by_one_criterion(command: Command) -> None:
    given = [
        name
        for name, value in (
            ("filter", command.filter),
            ("sow_keys", command.sow_keys),
            ("bookmark", str(command.bookmark)),
            ("data", command.body),
        )
        if value
    ]
    if len(given) != 1:
        raise UsageError(
            "a sow_delete needs exactly one of filter, sow_keys, bookmark and data, "
            f"found {' and '.join(given) or 'none'}"
        )


def _acknowledges_messages(command: Command) -> None:
    positions = _bookmark(command)
    items = positions.items if isinstance(positions, BookmarkList) else (positions,)
    if positions is not None and not all(isinstance(item, Bookmark) for item in items):
        raise UsageError(f"a sow_delete acknowledges messages by their bookmarks, not {positions}")


def _id_is_one(command: Command) -> None:
    """Servers send several ids joined by commas, and tolerate blanks around each."""
    for name in ("sub_id", "query_id"):
        text: str = getattr(command, name)
        if "," in text or text != text.strip() or text == "all":
            raise UsageError(
                f"a {name} has no comma and no blank at its ends and is not 'all', unlike {text!r}"
            )


def _needs_an_id(command: Command) -> None:
    if not (command.sub_id or command.query_id):
        raise UsageError("an unsubscribe needs a sub_id (several, or 'all') or a query_id")


def _needs_client_name(command: Command) -> None:
    if not command.client_name:
        raise UsageError("a logon needs a client name")


def _options(command: Command) -> Options:
    options = command.options
    return options if isinstance(options, Options) else Options.parse(options)


def _bookmark(command: Command) -> StartPoint | None:
    text = str(command.bookmark)
    if not text:
        return None
    start = parse_bookmark(text)
    if start == MOST_RECENT:
        raise UsageError("MOST_RECENT is resolved by a bookmark store and never sent")
    return start


_FOR_ALL: Final[tuple[Rule, ...]] = (_words_can_be_read, _numbers_are_in_range)
_RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "publish": (_needs_topic, _has_no_bookmark),
    "delta_publish": (_needs_topic, _has_no_bookmark),
    "subscribe": (
        _needs_topic,
        _id_is_one,
        _bookmark_options_need_a_bookmark,
        _top_n_needs_a_replay,
    ),
    "delta_subscribe": (
        _needs_topic,
        _id_is_one,
        _has_no_bookmark,
        _bookmark_options_need_a_bookmark,
    ),
    "sow": (_needs_topic, _id_is_one, _skip_n_of_a_query_needs_an_order),
    "sow_and_subscribe": (_needs_topic, _id_is_one),
    "sow_and_delta_subscribe": (_needs_topic, _id_is_one, _has_no_bookmark),
    "sow_delete": (_needs_topic, _deletes_by_one_criterion, _acknowledges_messages),
    "unsubscribe": (_needs_an_id,),
    "logon": (_needs_client_name,),
}
