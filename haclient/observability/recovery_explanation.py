"""What a subscription would ask for if its connection were lost now, and why.

Nothing is changed by asking. The answer comes from the code that a resume uses
(`haclient.session.resume`), so that the two cannot differ; what a store would tell the next process
comes from the store's own `explain`, which `haclient store explain` prints for a file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from typing_extensions import override

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.session.resume import ResumeRule, resume_bookmarks, resume_rule
from haclient.session.subscriptions import Subscription
from haclient.transport.core import Core
from haclient.transport.message_queue import MessageQueue
from haclient_stores.bookmark import Bookmark, BookmarkList
from haclient_stores.interfaces import SubscriptionLog
from haclient_stores.tools.explain import Explanation

__all__ = ["RecoveryExplanation"]

_ANOTHER_SERVER: Final = "another server"  # no log has this name: names have no blank
_UNNAMED = (
    "messages are queued of a publisher of whom nothing is finished, so only the start is surely "
    "before all of them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryExplanation:
    """What a subscription would ask for if its connection were lost now.

    Attributes:
        sub_id: The subscription.
        topic: Its topic.
        bookmark: The wire bookmark that it would resume with on the same server; empty when it
            would not resume, or resumes without one.
        elsewhere: The same for another server, the best form first; the next one is requested
            where a server refuses it.
        reason: Why, and what becomes of its messages, in sentences.
        recovery_point: Up to where everything is discarded, and covered by persisted acks; empty
            without a bookmark store.
        oldest_undiscarded: The bookmark of the oldest message that holds the recovery point; empty
            when there is none, or the store cannot name it.
        undelivered: Queued messages that would be dropped, to be redelivered.
        in_progress: Delivered, undiscarded messages: their redelivery would be filtered out.
        next_process: What a process would see that starts after this one has died; `None` if the
            store cannot say.
    """

    sub_id: str
    topic: str
    bookmark: str
    elsewhere: tuple[str, ...]
    reason: str
    recovery_point: str
    oldest_undiscarded: str
    undelivered: int
    in_progress: int
    next_process: Explanation | None

    def as_dict(self) -> dict[str, object]:
        """The same as plain values, for JSON."""
        return asdict(self)

    @override
    def __str__(self) -> str:
        lines = [
            f"subscription {self.sub_id} on {self.topic!r}, if its connection were lost now",
            f"  resumes at    {self.bookmark or 'nothing'}",
            f"  elsewhere     {'; else '.join(self.elsewhere) or 'nothing'}",
            f"  because       {self.reason}",
            f"  redelivered   {self.undelivered} undelivered",
            f"  filtered out  {self.in_progress} delivered and undiscarded",
        ]
        if self.oldest_undiscarded:
            lines.append(f"  held by       {self.oldest_undiscarded}, the oldest undiscarded one")
        if self.next_process is not None:
            lines.append(f"if this process died: {self.next_process}")
        return "\n".join(lines)


def explain_recovery(core: Core, sub_id: str) -> RecoveryExplanation:
    """What one subscription of a client would ask for.

    Args:
        core: The client.
        sub_id: The id of the subscription.

    Raises:
        UsageError: The client has no such subscription.
    """
    subscriptions = {each.sub_id: each for each in core.kept.all()}
    found = subscriptions.get(sub_id)
    if found is None:
        known = ", ".join(subscriptions) or "none"
        raise UsageError(f"no subscription {sub_id!r} in this client; it has {known}")
    log = found.log
    queued = _undelivered(found)
    forms: tuple[str, ...]
    elsewhere: tuple[str, ...]
    if log is None:
        bookmark = found.request.bookmark if core.status.reconnects and not found.is_query else ""
        forms, elsewhere, why = (bookmark,), (bookmark,), _without_log(core, found)
    else:
        forms, why = _resumption(core, found, log, queued)
        forms = found.covering(forms, queued)
        elsewhere = found.covering(_elsewhere(core, log, queued), queued)
        why += _what_it_takes(core, found)
    next_process = None if log is None else _next_process(core, sub_id)
    return RecoveryExplanation(
        sub_id=sub_id,
        topic=str(found.request.fields.get("t", "")),
        bookmark=forms[0],
        elsewhere=tuple(filter(None, elsewhere)),
        reason=why,
        recovery_point="" if log is None else str(log.recovery_point()),
        oldest_undiscarded=next(iter(next_process.oldest), "") if next_process else "",
        undelivered=len(queued),
        in_progress=0 if log is None else max(0, log.undiscarded_count - _tracked(queued)),
        next_process=next_process,
    )


def _undelivered(subscription: Subscription) -> list[Message]:
    """The queued messages that a lost connection drops."""
    queue = subscription.queue
    if not isinstance(queue, MessageQueue):
        return []
    if not (subscription.is_redelivered or subscription.query_id):
        return []  # of a plain subscription, what has arrived is still delivered
    return queue.undelivered(keep_replaced=not subscription.is_of_queue)


def _tracked(messages: list[Message]) -> int:
    return sum(each.number > 0 for each in messages)


def _without_log(core: Core, found: Subscription) -> str:
    """Why a subscription that no store tracks resumes, or does not."""
    if found.is_query:
        return "it is a query, which ends with its connection by an error"
    if not core.status.reconnects:
        return "a Client does not reconnect: it ends with its connection"
    if found not in core.kept:
        return "it was not opened to be sent again: it ends with its connection"
    if found.is_of_queue:
        return "its leases end with the connection, and the queue redelivers their messages"
    request = found.request
    if request.bookmark:
        return "no bookmark store tracks it, so it begins again where it has begun"
    return "it has no bookmark: what is published until it is back is missing"


def _resumption(
    core: Core, found: Subscription, log: SubscriptionLog, queued: list[Message]
) -> tuple[tuple[str, ...], str]:
    """The forms for the same server, as a resume requests them, and the rule in words."""
    resume = core.resume
    server = resume.servers.resolve(log.server_order.server)
    last = found.position.last_bookmark if found.request.is_in_log_order else ""
    is_conflated = found.request.is_conflated
    rule = resume_rule(log, server, last=last, is_conflated=is_conflated)
    if rule is not ResumeRule.IN_ORDER and _has_unnamed(log, queued):
        return (log.resume_from_start(),), _UNNAMED
    return (
        resume_bookmarks(
            log, server, last=last, overlap_us=resume.overlap_us, is_conflated=is_conflated
        ),
        rule.value,
    )


def _elsewhere(core: Core, log: SubscriptionLog, queued: list[Message]) -> tuple[str, ...]:
    if _has_unnamed(log, queued):
        return (log.resume_from_start(),)
    overlap_us = core.resume.overlap_us
    return resume_bookmarks(log, _ANOTHER_SERVER, last="", overlap_us=overlap_us)


def _has_unnamed(log: SubscriptionLog, queued: list[Message]) -> bool:
    """Whether a queued message is of a publisher that the recovery point does not name.

    Dropped, it awaits redelivery, and no list of bookmarks covers it (`Resumption`).
    """
    named = {b.publisher_id for b in log.recovery_point() if isinstance(b, Bookmark)}
    return any(
        isinstance(item, Bookmark) and item.publisher_id not in named
        for each in queued
        if each.number > 0
        for item in BookmarkList.parse(each.bookmark)
    )


def _what_it_takes(core: Core, found: Subscription) -> str:
    """Who sends the command of a tracked subscription again."""
    if core.status.reconnects and found in core.kept:
        return ""
    return "; it ends with its connection: subscribe again with MOST_RECENT to resume there"


def _next_process(core: Core, sub_id: str) -> Explanation | None:
    """What the store says of the next process; a store of the application may know nothing."""
    explain = getattr(core.settings.bookmark_store, "explain", None)
    found = explain(sub_id) if callable(explain) else None
    return found if isinstance(found, Explanation) else None
