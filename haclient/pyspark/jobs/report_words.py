"""What the figures and violations of a report mean, in a sentence each."""

from __future__ import annotations

from typing import Final

from haclient.pyspark.jobs.verdict import FindingKind

_FIGURES: Final = {
    "acknowledged": "Publishes whose acknowledgement the publishers have received.",
    "audited_after": "Where the earlier audit ended: only messages at later positions were read.",
    "behind": "Newest messages that this instance need not have yet, since both are running.",
    "deletes": "Publishes that delete records; they are never counted as lost.",
    "first_position": "The position of the oldest message that is left in the journal.",
    "in_flight": "Publishes without an acknowledgement: they may be in the journal or not.",
    "is_whole": "Whether the journal still has its beginning, so what it lacks was never logged.",
    "last_position": "The position of the newest message.",
    "messages": "Messages that were read.",
    "messages_before": "Messages that the earlier audit had read.",
    "not_compared": "What may have been removed with the oldest segments, and cannot be judged.",
    "other_queues": "Queues that the journal has, and that were not asked for.",
    "published": "Publishes in the audit logs of publishers.",
    "publishers": "Different publishers of these messages.",
    "queued": "Messages that are still in a queue.",
    "queues": "The queues that were audited.",
    "received": "Messages in the audit logs of subscribers, repeated ones included.",
    "redelivered": "Messages received again before they were discarded, as after a restart.",
    "seconds_per_point": "How many seconds each point of the plots over time stands for.",
    "suspect_runs": "Stretches of the journal that had to be read again, row by row: 0 if all was "
    "in order at first sight.",
    "undecided": "Messages from before the first removal, which may never have been in a queue.",
    "unlogged": "Acknowledged publishes to topics that the server does not log.",
}

_KINDS: Final = {
    FindingKind.DAMAGED: "Bytes of a file do not fit their checksum. The bookmark is that of the "
    "first message that may be hit.",
    FindingKind.DUPLICATE: "The journal has a message more than once.",
    FindingKind.ORDER_BREAK: "A message was logged after a later one of the same publisher.",
    FindingKind.HOLE: "Sequences are missing of a publisher that numbers without gaps.",
    FindingKind.LOST: "The server has acknowledged a publish, and the journal does not have it.",
    FindingKind.NOT_LOGGED: "A client has received a message that the journal does not have.",
    FindingKind.UNDELIVERED: "A client has received earlier and later messages of a publisher, and "
    "not this one.",
    FindingKind.RECEIVED_TWICE: "A client has received a message again after it had discarded it.",
    FindingKind.RECEIVED_OUT_OF_ORDER: "A client has received a message after a later one of the "
    "same publisher.",
    FindingKind.MISSING_IN_REPLICA: "Only one of the two instances has this message.",
    FindingKind.REPLICA_ORDER: "From this message on, the instances have another order of its "
    "publisher.",
    FindingKind.CONTENT: "The instances have different messages under one bookmark.",
    FindingKind.REMOVED_TWICE: "A message has left its queue more than once.",
    FindingKind.NEVER_QUEUED: "A message has left a queue in which it never was.",
    FindingKind.LOST_FROM_QUEUE: "The segment of a message was removed before its delivery.",
}


def figure_meaning(name: str) -> str:
    """What a figure says; that of one of two instances has the name of this before it."""
    fitting = [known for known in _FIGURES if name == known or name.endswith(f"_{known}")]
    return _FIGURES[max(fitting, key=len)] if fitting else ""


def kind_meaning(kind: FindingKind) -> str:
    """What a violation of a kind is."""
    return _KINDS[kind]
