"""The parts of a bookmark store that a client's subscriptions have. Pure, apart from the store.

One part belongs to one subscription id. It outlives the subscription: a slow handler still
processes messages that were delivered before the end, and the id may be subscribed again meanwhile.
So what is redelivered, and when, depends on the subscriptions and handlers that use an id.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from haclient.errors import UsageError
from haclient.protocol.commands import Command
from haclient.session.custom_stores import StoreSubscription
from haclient.session.kept_subscriptions import KeptSubscriptions
from haclient.session.resume import ResumeContext, resume_options
from haclient.session.subscriptions import Marker, SubscribeRequest, Subscription
from haclient_stores.bookmark import MOST_RECENT, NOW, parse_bookmark
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.tracked_store import TrackedBookmarkStore
from haclient_stores.interfaces import BookmarkStore, SubscriptionLog

_MOST_RECENT: Final = str(MOST_RECENT)
_BEGINS_ANEW: Final = (
    "subscription %s on %s: without a bookmark store MOST_RECENT begins at the start of the log "
    "each time, and discard() does nothing: give the client a bookmark_store, or bookmark=EPOCH if "
    "that is what you want"
)
_CONSUMES_NOTHING: Final = (
    "subscription %s on %s has a bookmark, so it replays the log and consumes no queue: messages "
    "have no leases, and ack() does nothing; use queue_subscribe to consume a queue"
)


class BookmarkLogs:
    """The parts of the bookmark store of one client, by subscription id.

    Args:
        store: The store; `None` if the client has none.
        kept: What is active, or waits for the next connection.
    """

    def __init__(self, store: BookmarkStore | None, kept: KeptSubscriptions) -> None:
        self._store = store
        self._kept = kept
        self._custom: dict[str, StoreSubscription] = {}  # by id; they know what the store does not
        self._served: dict[str, set[Subscription]] = {}  # by id; their handlers have yet to end
        self._streams: dict[str, set[Subscription]] = {}  # by id; they have yet to be closed
        self._generated_ids: set[str] = set()  # that the application did not choose
        self._purged_ids: list[str] = []  # of ended subscriptions, to be generated again

    def of(self, request: SubscribeRequest) -> SubscriptionLog | None:
        """The part of a subscribe; `None` if it has none."""
        if self._store is None or not request.bookmark:
            return None
        log = self._custom.get(request.sub_id) or subscription_log(self._store, request.sub_id)
        if isinstance(log, StoreSubscription):
            self._custom[request.sub_id] = log
        return log

    # -- who uses an id ---------------------------------------------------------------------------

    def serve(self, subscription: Subscription) -> None:
        """Note that a handler's task gets its messages, which may end later than it does."""
        self._served.setdefault(subscription.sub_id, set()).add(subscription)

    def read(self, subscription: Subscription) -> None:
        """Note that a stream has its messages, which is closed later than it ends, or never."""
        if subscription.log is not None:
            self._streams.setdefault(subscription.sub_id, set()).add(subscription)

    def is_served(self, subscription: Subscription) -> bool:
        """Whether a handler's task gets its messages."""
        return subscription in self._served.get(subscription.sub_id, ())

    def served(self, subscription: Subscription) -> None:
        """Note that the handler's task of a subscription has ended."""
        of_id = self._served[subscription.sub_id]
        of_id.remove(subscription)
        if not of_id:
            del self._served[subscription.sub_id]

    # -- what is redelivered ----------------------------------------------------------------------

    def enter(self, request: SubscribeRequest) -> SubscriptionLog | None:
        """The part of a subscription that begins now.

        Its undiscarded messages are redelivered to this one. Earlier handlers of the id that are
        still running keep what they have yet to process; earlier streams that were not closed have
        no more.
        """
        log = self.of(request)
        if log is None or self._has_log(request.sub_id):
            return log
        streams = self._streams.pop(request.sub_id, set())
        for one in streams:
            one.drop_queued()  # with the mark of the end
            one.queue.mark(Marker.ENDED)
            one.queue.skip_rest()
        tracked = [one for one in self._served.get(request.sub_id, ()) if one.log is not None]
        if tracked or streams:
            taken = [one.queue.unprocessed() for one in tracked]
            log.ended_except({message.number for messages in taken for message in messages})
        return log

    def release(self, ended: Subscription) -> None:
        """Have the undiscarded messages of an ended subscription redelivered."""
        if streams := self._streams.get(ended.sub_id):
            streams.discard(ended)
            if not streams:
                del self._streams[ended.sub_id]
        self._release(ended.log, ended.sub_id, ended)

    def release_refused(self, request: SubscribeRequest) -> None:
        """As `release`, for a subscribe that failed: a handler may have ended meanwhile."""
        self._release(self.of(request), request.sub_id)

    def _release(
        self,
        log: SubscriptionLog | None,
        sub_id: str,
        ended: Subscription | None = None,
    ) -> None:
        """Have undiscarded messages redelivered, unless the id is still in use.

        It is in use when it was subscribed again with a bookmark, or while a slow handler still
        processes messages that were delivered before the end of its subscription. Then `enter`, or
        the end of that handler, does it.
        """
        if log is None or self._has_log(sub_id, ended):
            return
        if all(one.log is None for one in self._served.get(sub_id, ())):
            log.ended()
            if not self._kept.has_id(sub_id):  # else a later process may restore it
                self.purge_generated(sub_id)

    def _has_log(self, sub_id: str, ended: Subscription | None = None) -> bool:
        """Whether another subscription with this id has the part."""
        named = self._kept.named((sub_id,))
        return any(one.log is not None for one in named if one is not ended)

    # -- ids that the application did not choose --------------------------------------------------

    def generated_id(self, new: str, taken: Container[str]) -> str:
        """An id for a tracked subscription that the application has given none.

        One that the store has forgotten is used again, since it keeps an entry for each.

        Args:
            new: An id that no earlier process has used, for where there is none to use again.
            taken: Ids that may still get messages.
        """
        sub_id = next((each for each in self._purged_ids if each not in taken), new)
        if sub_id != new:
            self._purged_ids.remove(sub_id)
        self._generated_ids.add(sub_id)
        return sub_id

    def purge_generated(self, sub_id: str) -> None:
        """Have the store forget an ended subscription whose id was generated."""
        if sub_id not in self._generated_ids:
            return
        self._generated_ids.remove(sub_id)
        self._custom.pop(sub_id, None)
        store = self._store
        if isinstance(store, MemoryBookmarkStore):
            store.purge_ended(sub_id)
        elif store is not None:
            store.purge(sub_id)
        # Only where numbers go on: else a late discard could mean a message of the next one.
        if isinstance(store, TrackedBookmarkStore) and sub_id in store.subscriptions:
            self._purged_ids.append(sub_id)


def subscription_log(store: BookmarkStore, sub_id: str) -> SubscriptionLog:
    """The store's own fast handle for one subscription, or one made of its public methods."""
    own = getattr(store, "subscription", None)
    handle: SubscriptionLog = own(sub_id) if own is not None else StoreSubscription(store, sub_id)
    return handle


def subscribe_header(  # noqa: PLR0913  # what decides where it begins
    subscription: Subscription,
    bookmark: str,
    resume: ResumeContext,
    now: float,
    *,
    version: str,
    resumes: bool,
    is_again: bool,
) -> dict[str, str | int]:
    """The header of a subscribe that is sent now.

    Once it is accepted, the bookmark store follows the log of that server.

    Args:
        subscription: What it begins or continues.
        bookmark: Where its replay begins; empty for none.
        resume: The servers and their logs.
        now: The time, in seconds.
        version: The version of the server.
        resumes: Whether it begins where the store says.
        is_again: Whether it is sent again, on another connection.
    """
    log, request = subscription.log, subscription.request
    subscription.sending(now)
    if log is not None:
        # It begins anew at an explicit bookmark, and where conflated messages may come again.
        starts_over = not resumes or request.is_conflated
        entered_us = 0
        if starts_over and parse_bookmark(bookmark) == NOW:  # by any server's clock not before
            entered_us = max(1, resume.now_us(now) - resume.overlap_us)

        def accepted() -> None:  # not before: a refused command must not change the store
            if starts_over:
                log.begin(
                    acked=request.gets_persisted_acks,
                    start=bookmark,
                    conflated=request.is_conflated,
                    entered_us=entered_us,
                )
            resume.accepted(subscription.position)

        subscription.accepted = accepted
    options = request.options
    # The server may lack what this client knows, so it must not begin after it.
    if is_again or (resumes and "|" in bookmark and bookmark != str(NOW)):
        options = resume_options(options, bookmark=bookmark, version=version, again=is_again)
    return request.header(subscription.command_id, bookmark=bookmark, options=options)


class BookmarkAdvice:
    """Warns of commands with a bookmark that do less than an application may expect.

    Args:
        has_store: Whether the client has a bookmark store.

    Attributes:
        queues: Topics that a server has accepted as queues.
    """

    def __init__(self, *, has_store: bool) -> None:
        self._has_store = has_store
        self.queues: set[str] = set()
        # Each warning with its topic: generated ids are new ones each time.
        self._warned_of: set[tuple[str, str]] = set()

    def warnings(self, command: Command, request: SubscribeRequest) -> Iterator[str]:
        """The warnings about a command, each once for its topic; formats for id and topic.

        Raises:
            UsageError: A query at `MOST_RECENT` has no id of the application: a generated id would
                differ from run to run.
        """
        is_recent, is_named = command.start == _MOST_RECENT, command.sub_id or command.query_id
        if is_recent and self._has_store and request.query_id and not is_named:
            raise UsageError(
                f"{command.name} with MOST_RECENT needs a sub_id: the bookmark store remembers "
                "under it where the subscription was, so it is the same in every run"
            )
        # The server does not say that such a subscription is none of the queue's consumers. It can
        # be known where this client has consumed the queue, or where a backlog is asked for.
        is_queue = command.topic in self.queues or request.parsed.max_backlog is not None
        for is_due, warning in (
            (is_recent and not self._has_store, _BEGINS_ANEW),
            (is_queue and request.bookmark, _CONSUMES_NOTHING),
        ):
            if is_due and (warning, command.topic) not in self._warned_of:
                self._warned_of.add((warning, command.topic))
                yield warning
