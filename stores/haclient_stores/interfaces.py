"""The interfaces of stores: Protocols that applications may implement themselves.

Stores are synchronous on purpose. `store`, `log` and `discard` are atomic under cancellation and
cost well under a microsecond; only `sync` and `prune` may be slow, and the client runs those two in
a thread while the others continue.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from threading import get_ident
from typing import Protocol, runtime_checkable

from haclient_stores.bookmark import BookmarkList
from haclient_stores.errors import PublishGap
from haclient_stores.tracker.server_order import ServerOrder

__all__ = ["BookmarkStore", "Discard", "FrameLog", "PublishStore", "SubscriptionLog"]


class PublishStore(Protocol):
    """Keeps every publish and SOW delete until the server has persisted it.

    All calls but `sync` and `close` come from one thread, the one that first uses the store.
    """

    @property
    @abstractmethod
    def client_name(self) -> str:
        """The client that the store belongs to; empty before the first `open_for`."""

    @property
    @abstractmethod
    def unpersisted_count(self) -> int:
        """How many messages wait for their persisted ack."""

    @property
    @abstractmethod
    def unpersisted_bytes(self) -> int:
        """About how many bytes those take; exact when there are none."""

    @property
    @abstractmethod
    def lowest_unpersisted(self) -> int:
        """The lowest sequence that waits; 0 when none does."""

    @property
    @abstractmethod
    def last_persisted(self) -> int:
        """The highest sequence that was ever acknowledged; 0 when none was."""

    @property
    @abstractmethod
    def last_sequence(self) -> int:
        """The highest sequence in use; the next is above it."""

    @property
    @abstractmethod
    def gap(self) -> PublishGap | None:
        """The messages that the last server lacked at its logon, if any."""

    @abstractmethod
    def open_for(self, client_name: str) -> None:
        """Bind the store to a client before it connects; the first use decides.

        Args:
            client_name: The name of the client.

        Raises:
            StoreLocked: The store belongs to a client of another name.
        """

    @abstractmethod
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        """Keep one frame: its length, head, decimal sequence, tail and body.

        Args:
            head: The frame up to the sequence, without its length.
            tail: The header after the sequence.
            body: The payload.

        Returns:
            The sequence that the frame got.

        Raises:
            StoreFull: There is no room; nothing was stored, and no sequence used.
            UsageError: Another thread uses the store, or the frame is too large for any server.
        """

    @abstractmethod
    def discard_up_to(self, sequence: int) -> None:
        """Take over a persisted ack: forget every message up to that sequence.

        Args:
            sequence: The highest sequence that the server has persisted.

        Raises:
            StoreError: The number is higher than any publisher reaches; nothing is changed.
        """

    @abstractmethod
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """The unpersisted messages.

        Args:
            after: Only those with a higher sequence.

        Returns:
            Sequence and whole frame of each, ascending.
        """

    @abstractmethod
    def replay_single(self, sequence: int) -> bytes | None:
        """The whole frame of one unpersisted message.

        Args:
            sequence: Its sequence.

        Returns:
            The frame; None when it is not stored.
        """

    @abstractmethod
    def number_above(self, sequence: int) -> None:
        """Start numbering above `sequence` if the history of the store is unknown.

        The history is unknown in a new store, and in one that was in use when its machine stopped.
        Any other store ignores the call. Before the first logon the client passes the time in
        microseconds, so that new publishes get higher numbers than those of any earlier run.

        Args:
            sequence: Microseconds since 1970.

        Raises:
            StoreError: The number is higher than any publisher reaches; nothing is changed.
        """

    @abstractmethod
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        """Take over the logon ack: trim, and number above what the server has seen.

        Args:
            seen: The highest sequence that the server has seen of this publisher.
            persisted: The highest that it and its sync destinations have persisted.
            clock_us: Microseconds since 1970, the first number of a store without history.

        Raises:
            PublishGap: The server lacks what was acknowledged, and the store is set to raise.
            StoreError: A number is higher than any publisher reaches, or the server would drop as
                duplicates what was stored before the first logon; nothing is changed.
        """

    @abstractmethod
    def sync(self) -> None:
        """Return when everything stored so far would survive a loss of power; may be slow.

        Raises:
            StoreError: The disk has failed: nothing is known of what was not synced before.
        """

    @abstractmethod
    def close(self) -> None:
        """Sync, and release files and locks; what is stored stays stored.

        Raises:
            StoreError: It could not be synced. Files and locks are released all the same.
        """


@runtime_checkable
class FrameLog(PublishStore, Protocol):
    """The methods that our own stores add, so that the log itself is the send queue.

    Attributes:
        unsent_bytes: Bytes between the send cursor and the head.
    """

    unsent_bytes: int

    @abstractmethod
    def append(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        """The same as `store`, for a caller that has checked that this is the store's thread.

        The client calls it for each message, and checks its own thread before.

        Args:
            head: The frame up to the sequence, without its length.
            tail: The header after the sequence.
            body: The payload.

        Returns:
            The sequence that the frame got.

        Raises:
            StoreFull: There is no room; nothing was stored, and no sequence used.
            UsageError: The frame is too large for any server.
        """

    def append_many(
        self, heads: Iterable[bytes], tail: bytes, bodies: Iterable[bytes | bytearray | memoryview]
    ) -> None:
        """Store several frames, as `append` stores each of them.

        Args:
            heads: The frames up to their sequences, at least one for each body.
            tail: The header after the sequence of each.
            bodies: The payloads.

        Raises:
            StoreFull: There is no room for one of them; those before it are stored.
            UsageError: One is too large for any server; those before it are stored.
        """
        for body, head in zip(bodies, heads, strict=False):
            self.append(head, tail, body)

    @abstractmethod
    def rewind(self, after: int) -> None:
        """Set the send cursor to the first unpersisted frame with a sequence above `after`.

        Args:
            after: A sequence; 0 for the first unpersisted frame.
        """

    @abstractmethod
    def peek(self) -> memoryview:
        """The unsent bytes in one piece, not copied.

        Returns:
            A view that is valid until the next call of anything else on the store; empty when there
            are none.
        """

    @abstractmethod
    def advance(self, count: int) -> None:
        """Advance the send cursor by `count` bytes of what `peek` returned.

        Args:
            count: The number of bytes that were sent.
        """

    @abstractmethod
    def frame_remainder(self) -> int:
        """Bytes from the send cursor to the next frame boundary; 0 when it is at one."""


class Discard(Protocol):
    """The type of `SubscriptionLog.discard` with its object bound: the hot path."""

    def __call__(self, number: int) -> None: ...  # noqa: D102  # see the class


class SubscriptionLog(Protocol):
    """One subscription's part of a bookmark store: the fast handle.

    Attributes:
        paused: Set by the client while the server holds the subscription back. Persisted acks then
            cover what is finished, but are no recovery points: there may be undelivered messages
            before them.
    """

    paused: bool

    @property
    @abstractmethod
    def oldest_undiscarded(self) -> int:
        """The number of the oldest entry that is not discarded; 0 when there is none."""

    @property
    @abstractmethod
    def undiscarded_count(self) -> int:
        """How many entries are not discarded."""

    @property
    def redelivered_count(self) -> int | None:
        """How many redelivered messages got a new number; `None` if the store does not count them.

        Their entries were not discarded when their connection or process ended. The count only
        rises while the store is open.
        """
        return None

    @abstractmethod
    def begin(
        self, *, acked: bool, start: str | None, conflated: bool = False, entered_us: int = 0
    ) -> None:
        """The subscription is about to be (re)entered.

        Args:
            acked: The subscribe asks for persisted acks: a message is finished only when it is
                discarded *and* covered by one.
            start: An explicit wire bookmark, which forgets what was known of the sub id first (also
                on disk); None resumes from the stored position.
            conflated: Persisted acks are then no recovery points of their own.
            entered_us: For a start of NOW the time of it, in microseconds since 1970, or a little
                earlier, since clocks differ. It is stored: what came since is to be delivered.
        """

    @abstractmethod
    def log_batch(self, bookmarks: list[str]) -> list[int] | range:
        """Note messages before the application sees them.

        Args:
            bookmarks: The bookmark of each message in wire form, in the order of their arrival.

        Returns:
            A number for each message. 0 stands for a duplicate, which must not be delivered; -1 for
            a message without a usable bookmark, which is delivered but not tracked.

        Raises:
            StoreFull: There is no room; nothing was noted.
            UsageError: Another thread uses the store, or it is closed.
        """

    @abstractmethod
    def log(self, bookmark: str) -> int:
        """`log_batch` of one message.

        Args:
            bookmark: Its bookmark in wire form.

        Returns:
            Its number, 0 or -1; see `log_batch`.

        Raises:
            StoreFull: There is no room; nothing was noted.
            UsageError: Another thread uses the store, or it is closed.
        """

    @abstractmethod
    def discard(self, number: int) -> None:
        """Note that the application has finished with one message. Any order is allowed.

        Args:
            number: The number of the message; one that is unknown or was discarded does nothing.

        Raises:
            UsageError: Another thread uses the store, or it is closed.
        """

    def discard_function(self, elsewhere: Discard) -> Discard:
        """The function behind `message.discard()`, which any thread may call.

        A store overrides it to spare each message a second call and a second look at the thread.

        Args:
            elsewhere: Takes the number of a message that another thread discards, and calls
                `discard` in the thread which calls this method now.

        Returns:
            `discard`, in the calling thread; `elsewhere` in any other.
        """
        discard, ident = self.discard, get_ident()

        def discard_here(number: int) -> None:
            if get_ident() == ident:
                discard(number)
            else:
                elsewhere(number)

        return discard_here

    @abstractmethod
    def discard_up_to(self, number: int) -> None:
        """Discard every delivered message with a number up to this one.

        Args:
            number: The highest number to discard.

        Raises:
            UsageError: Another thread uses the store, or it is closed.
        """

    @abstractmethod
    def persisted(self, bookmark: str) -> None:
        """Apply a persisted ack of the subscription.

        Args:
            bookmark: Its bookmarks in wire form, separated by commas; unusable ones are ignored.
        """

    @abstractmethod
    def completed(self, bookmark: str) -> None:
        """The replay has reached the end of the log.

        Args:
            bookmark: The position of the end in wire form; empty when the server names none.
        """

    @abstractmethod
    def link_lost(self, first_queued: int) -> None:
        """The link is lost. Undelivered messages are dropped from the queue, to be redelivered.

        Delivered, undiscarded messages stay with their consumer; their redelivery is dropped.

        Args:
            first_queued: The number of the first message that was never delivered.
        """

    def dropped(self, numbers: Collection[int]) -> None:
        """These messages were dropped undelivered, with their link or their queue.

        They are the latest that were logged, unless a store gives a redelivered message its old
        number.

        Args:
            numbers: Their numbers, at least one.
        """
        self.link_lost(min(numbers))

    @abstractmethod
    def ended(self) -> None:
        """No consumer holds messages any more: all undiscarded ones must be redelivered."""

    def ended_except(self, numbers: Collection[int]) -> None:  # noqa: ARG002  # overridden by ours
        """`ended`, but a handler still processes some messages: they stay with it.

        A store that does not override it redelivers the others when `ended` is called.

        Args:
            numbers: Their numbers.
        """
        return

    @abstractmethod
    def is_discarded(self, bookmark: str) -> bool:
        """Whether a message must not be delivered (again).

        Args:
            bookmark: The bookmark of the message in wire form.

        Returns:
            True for a duplicate, whether it was discarded or is still held by its consumer.
        """

    @abstractmethod
    def recovery_point(self) -> BookmarkList:
        """Where to resume so that nothing undiscarded is skipped; empty when nothing is known."""

    @abstractmethod
    def resume(self) -> str:
        """The wire bookmark of an automatic re-subscribe, the original start included."""

    @abstractmethod
    def resume_elsewhere(self, since_us: int, after: str = "") -> tuple[str, ...]:
        """The same where a list of what is finished is not enough: the best form first.

        Args:
            since_us: A time that lies before anything that may be missing, in microseconds since
                1970; a list of bookmarks also carries it. What is redelivered is filtered. 0 when
                no such time is needed.
            after: A bookmark that lies before anything that may be missing; the list carries it.
        """

    @abstractmethod
    def resume_from_start(self) -> str:
        """The wire bookmark from which every possibly missing message is redelivered."""

    # -- server order ------------------------------------------------------------------------

    @property
    @abstractmethod
    def server_order(self) -> ServerOrder:
        """The server order of its recovery point, and the caught-up times."""

    @property
    @abstractmethod
    def in_order(self) -> bool:
        """Whether `resume` is safe on the server of the last entry by its order alone."""

    @abstractmethod
    def entered(self, server: str) -> None:
        """A server has accepted it; what comes next is in the order of its log.

        Args:
            server: Its address, or another name of its log. The part after a space says how far
                that log has progressed: it is stored, but does not change which log it is.
        """

    @abstractmethod
    def caught_up(self, until_us: int) -> None:
        """The server has sent everything that it had at a time, and it was received.

        Args:
            until_us: The caught-up time, in microseconds since 1970.
        """


class BookmarkStore(Protocol):
    """Remembers what each subscription has received and finished."""

    @property
    @abstractmethod
    def client_name(self) -> str:
        """The client that the store belongs to; empty before the first `open_for`."""

    @abstractmethod
    def open_for(self, client_name: str) -> None:
        """Bind the store to a client before it connects.

        Args:
            client_name: The name of the client.

        Raises:
            StoreLocked: The store belongs to a client of another name.
        """

    @abstractmethod
    def log(self, sub_id: str, bookmark: str) -> int:
        """Note an arriving message before the application sees it.

        Args:
            sub_id: The id of the subscription.
            bookmark: The bookmark of the message in wire form.

        Returns:
            Its number. 0 stands for a duplicate, -1 for a message that is not tracked.

        Raises:
            StoreFull: There is no room; nothing was noted.
        """

    @abstractmethod
    def discard(self, sub_id: str, number: int) -> None:
        """Note that the application has finished with one message.

        Args:
            sub_id: The id of the subscription.
            number: The number that `log` has returned.
        """

    @abstractmethod
    def discard_up_to(self, sub_id: str, number: int) -> None:
        """Discard every message with a number up to this one.

        Args:
            sub_id: The id of the subscription.
            number: The highest number to discard.
        """

    @abstractmethod
    def is_discarded(self, sub_id: str, bookmark: str) -> bool:
        """Whether a message must not be delivered (again).

        Args:
            sub_id: The id of the subscription.
            bookmark: The bookmark of the message in wire form.
        """

    @abstractmethod
    def most_recent(self, sub_id: str) -> BookmarkList:
        """The recovery point of a subscription.

        Args:
            sub_id: The id of the subscription.

        Returns:
            One bookmark for each publisher; empty, and `0` as text, for an unknown subscription.
        """

    @abstractmethod
    def persisted(self, sub_id: str, bookmark: str) -> None:
        """Apply a persisted ack of a subscription.

        Args:
            sub_id: The id of the subscription.
            bookmark: Its bookmarks in wire form, separated by commas.
        """

    @abstractmethod
    def oldest_undiscarded(self, sub_id: str) -> int:
        """The lowest number of a subscription that is not discarded.

        Args:
            sub_id: The id of the subscription.

        Returns:
            The number; 0 when all are discarded.
        """

    @abstractmethod
    def purge(self, sub_id: str | None = None) -> None:
        """Forget what is known of a subscription, also on the disk.

        Args:
            sub_id: The id of the subscription; None for all of them.
        """

    @abstractmethod
    def prune(self) -> None:
        """Give back the space of what is finished; may be slow.

        Raises:
            StoreFull: There is no room to rewrite the store; it stays as it is.
        """

    @abstractmethod
    def close(self) -> None:
        """Release files and locks; what is known stays known.

        Raises:
            StoreError: The disk has failed. Files and locks are released all the same.
        """
