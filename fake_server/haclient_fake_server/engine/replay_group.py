"""Subscriptions that are replayed together, so that the order of the log holds across them.

One `resume` command may name several subscriptions. Those that are paused at the same position,
with the same rate, share one replay: each record is sent to all of them before the next record.
The rate applies to the replay as a whole.

A subscription leaves its group when it is paused, changed or ended, and when it reaches the end of
the log. The last member of a group continues alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from haclient_fake_server.engine.connections import BookmarkSubscription, ReplayGroup


def members_of(item: BookmarkSubscription) -> tuple[BookmarkSubscription, ...]:
    """The subscriptions that share a subscription's replay; the first one reads."""
    return (item,) if item.group is None else tuple(item.group.members)


def of_topic(item: BookmarkSubscription, topic: str) -> Sequence[BookmarkSubscription]:
    """Those of them that a record of this topic may be for."""
    return (item,) if item.group is None else item.group.of_topic(topic)


def join(items: Iterable[BookmarkSubscription]) -> None:
    """Let those of these subscriptions share a replay that can.

    Args:
        items: Subscriptions of one connection that are in no group, in the order in which they are
            to receive each record.
    """
    groups: dict[object, list[BookmarkSubscription]] = {}
    for item in items:
        if item.wants_replay and item.conflator is None:
            terms = None if item.pace is None else item.pace.terms
            key = (item.position, item.fully_durable, terms)
            groups.setdefault(key, []).append(item)
    for members in groups.values():
        if len(members) > 1:
            reader, group = members[0], ReplayGroup(members)
            for item in members:
                item.group, item.pace = group, reader.pace
                if item is not reader:  # one cursor suffices; the other ones would fall behind
                    item.read_anew()


def leave(item: BookmarkSubscription) -> None:
    """Let a subscription read the log alone again, from its own position."""
    group, item.group = item.group, None
    if group is None:
        return
    group.remove(item)
    item.read_anew()
    item.pace = None if item.pace is None else item.pace.anew()
    if len(group.members) == 1:
        leave(group.members[0])
