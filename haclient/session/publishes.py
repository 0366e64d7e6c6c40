"""What becomes of the publishes of one client: stored, acknowledged, refused or lost.

Every publish is an entry of one log, which is also the send queue. The log is the publish store of
the client. A client without a store has a log that keeps nothing past its connection, so its
publishes have numbers and acks as well, but those in flight are lost with the connection.

**Numbers of the caller.** A client without a store may number its publishes itself: a sink that
derives the numbers from its input publishes the same message under the same number after a crash,
and the server drops what it has. Four rules make that safe:

1. On one connection the numbers rise. The server drops a message whose number is not above the last
   one as a duplicate, and acknowledges it: a number out of order would be a silent loss.
2. A number at or below what the server has persisted at the logon is refused for the same reason.
   Between `persisted` and `seen` lies what the server has, but has not promised to keep: that may
   be published again, and is de-duplicated.
3. A lost connection ends the chain. What was in flight may be missing, and the cumulative ack of a
   later message would hide that, so a client that reconnects by itself takes no explicit numbers.
4. On one connection either the caller or the client gives the numbers. A number that the client
   gives to one message may be the one that the caller wants for another.

The object is pure; `haclient.transport.publisher` sends, waits and calls it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Sequence
from sys import intern
from typing import Final, cast

from haclient.errors import DisconnectedError, HAClientError, UsageError
from haclient.protocol.codec import MessageDecoder, Payload, check_payload
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient.session.acks import refused_publish
from haclient.session.connection_state import MAX_SEEN_SEQUENCE, LoggedOn
from haclient.session.custom_stores import SendingStore
from haclient_stores.checks import check_count
from haclient_stores.errors import PublishGap
from haclient_stores.interfaces import FrameLog, PublishStore
from haclient_stores.publish_stores.memory import VolatilePublishLog
from haclient_stores.publish_stores.publish_log import PublishLog

# For later queries about the result of one publish; some 200 bytes each.
_REMEMBERED_REFUSALS: Final = 65_536
_REMEMBERED_LOSSES: Final = 1024  # likewise: lost connections
_MOST_SAMPLES: Final = 1024  # above it every second sample is dropped: old ones get coarser


class Publishes:
    """The log of one client, and the result of each publish.

    Args:
        store: The publish store of the client, or `None`.

    Attributes:
        log: The store as a log; without a store, one that is forgotten with the connection.
        is_kept: Whether the log outlives its connection.
        seen: The highest sequence that the server had seen at the last logon; `None` before the
            first logon and for a server that does not report it.
        persisted: The highest sequence that the server has reported as persisted, at the last logon
            or in an ack since; `None` as for `seen`.
        numbered_to: The highest number of the caller on the current connection, 0 for none.
        refusals: Reason and detail of the last publishes that a server has refused, by sequence.
        parked: Publishes that no server takes, and that wait for acks of those before them.
        sent_after: The current connection began to send after this sequence.
    """

    __slots__ = (
        "_begins_above",
        "_first_free",
        "_known_above",
        "_last_forgotten",
        "_losses",
        "_lost_reason",
        "_refused",
        "_unreported",
        "_unreported_of_caller",
        "_used_to",
        "is_kept",
        "log",
        "numbered_to",
        "parked",
        "persisted",
        "refusals",
        "seen",
        "sent_after",
    )

    def __init__(self, store: PublishStore | None) -> None:
        self.log: FrameLog = _as_log(store)
        self.is_kept = not isinstance(self.log, VolatilePublishLog)
        self.seen: int | None = None
        self.persisted: int | None = None
        self.numbered_to = 0
        self.refusals: dict[int, tuple[str, str]] = {}
        self.parked = set[int]()
        self.sent_after = 0
        self._begins_above = 0  # the caller's numbers
        self._first_free = 0  # the last number in use when this connection began
        self._used_to = 0  # the last number of an earlier connection, where the log is not kept
        self._last_forgotten = 0  # the sequence that was last dropped from `refusals`
        # Refused, in order, while something before them is not acknowledged.
        self._refused: list[int] = []
        self._losses: list[tuple[int, int, HAClientError | None]] = []  # first, last, and why
        self._lost_reason: HAClientError | None = None  # of the last loss
        self._known_above = 0  # the last number of the losses that were forgotten
        self._unreported = 0  # how many lost publishes no error has named yet
        self._unreported_of_caller = 0  # likewise with numbers of the caller, until the next logon

    # -- the connection's life ----------------------------------------------------------------

    def gap_at(self, server: LoggedOn) -> PublishGap | None:
        """What this server lacks of what was acknowledged, if anything, in a log that is kept."""
        log, acknowledged = self.log, self.log.last_persisted
        if isinstance(log, PublishLog):  # the last one may be a parked publish, which nobody has
            acknowledged = log.last_acknowledged
        has = server.has_of(acknowledged)
        return PublishGap(acknowledged, has) if self.is_kept and has < acknowledged else None

    @property
    def highest(self) -> int:
        """The highest number that this client has used; 0 for none."""
        last = self.log.last_sequence
        is_used = self.is_kept or self.numbered_to or last > self._first_free
        return last if is_used else self._used_to

    def logged_on(self, server: LoggedOn, clock_us: int) -> None:
        """A connection begins: trim to what is persisted, and number above what was seen.

        Raises:
            PublishGap: The server has lost what was once acknowledged, and the store refuses gaps.
            StoreError: The server has seen higher numbers than the clock gave: it would take what
                was published before the logon for duplicates.
        """
        log = self.log
        self._used_to = self.highest
        self.seen, self.persisted = server.seen, server.persisted
        self.numbered_to, self._begins_above = 0, server.persisted or 0
        # Who numbers the messages itself knows from `persisted_sequence` what to repeat.
        self._unreported_of_caller = 0
        persisted = server.has_of(log.last_persisted)
        if not self.is_kept:  # a planned move: another server has made no promise that it can break
            persisted = max(persisted, log.last_persisted)
        # A server that does not name what it has gets everything again: nothing is trimmed.
        log.reconcile(seen=server.seen or 0, persisted=persisted, clock_us=clock_us)
        # What one server has refused is not sent to the next one: it was reported as failed.
        self._discard_refused()
        self.sent_after = self._sent_already()
        log.rewind(self.sent_after)
        self._first_free = log.last_sequence

    def _sent_already(self) -> int:
        """Up to which sequence nothing is to be sent on a new connection.

        Usually what is persisted. What the server has seen is sent again as well, but not together
        with a parked publish: the server would close this connection, too.
        """
        log = self.log
        self.parked = {each for each in self.parked if each > log.last_persisted}
        after, seen = log.last_persisted, max(log.last_persisted, self.seen or 0)
        for parked in sorted(self.parked):
            if parked <= seen or next(iter(log.replay(seen)))[0] == parked:
                after, seen = parked, max(seen, parked)
        return after

    def lost(self, reason: HAClientError | None) -> None:
        """The connection is lost, and with it what is not persisted of a log that is not kept."""
        log = self.log
        if not isinstance(log, VolatilePublishLog):
            return
        if count := log.unpersisted_count - len(self._refused):
            self._lost_reason = reason
            self._losses.append((log.lowest_unpersisted, log.last_sequence, reason))
            if len(self._losses) > _REMEMBERED_LOSSES:
                self._known_above = self._losses.pop(0)[1]
            if self.numbered_to:
                self._unreported_of_caller = count
            else:
                self._unreported += count
        if self.numbered_to:  # the caller may publish under the same numbers again
            self.refusals.clear()
            self._last_forgotten = 0
        self._refused.clear()
        log.forget()

    # -- acks ---------------------------------------------------------------------------------

    def acknowledged(self, sequence: int) -> None:
        """The server has persisted everything up to `sequence`."""
        known = min(sequence, max(self.log.last_sequence, self.seen or 0))
        if known > (self.persisted or 0):
            self.persisted = known
        self.log.discard_up_to(sequence)
        self._discard_refused()

    def refused(self, ack: Message) -> Message | None:
        """Remove a refused publish from the log.

        It leaves the log after everything before it: an ack for those may still be on its way.

        Args:
            ack: The failure ack.

        Returns:
            The publish as it was stored, with the reason of the ack. Where it is not in the store,
            only the facts of the ack. `None` if its refusal was reported before, by any server.
        """
        sequence, log = ack.sequence, self.log
        if sequence is None:  # nothing says which one it is
            return Message(kind="p", reason=ack.reason, detail=ack.detail)
        if sequence in self.refusals or self._is_refused(sequence):
            return None
        frame = log.replay_single(sequence)
        if frame is None and self.is_kept and sequence <= self._last_forgotten:
            return None
        message = Message(kind="p", sequence=sequence)
        if frame is not None:
            (message,) = MessageDecoder(expand_sow=False).decode(*FrameReader().feed(frame))
        message.reason, message.detail = ack.reason, ack.detail
        # Most refusals have the same reason: interned, it is in memory once.
        self.refusals[sequence] = intern(ack.reason), intern(ack.detail)
        if len(self.refusals) > _REMEMBERED_REFUSALS:
            self._last_forgotten = next(iter(self.refusals))
            del self.refusals[self._last_forgotten]
        if frame is not None:
            insort(self._refused, sequence)
            self._discard_refused()
        return message

    def first_in_flight(self) -> tuple[int, bytes]:
        """Sequence and frame of the first publish that the server may not have read; 0 for none.

        A server holds its acks back for its replicas, but has named at the logon what it has seen.
        """
        after = max(self.log.last_persisted, self.seen or 0, self.sent_after)
        return next(iter(self.log.replay(after)), (0, b""))

    def park(self, sequence: int) -> str:
        """Move a publish to a file beside the store, and return its path.

        It leaves the log as if a server had refused it: `refused` has to follow.

        Raises:
            StoreError: The file cannot be written.
        """
        assert isinstance(self.log, PublishLog)  # noqa: S101  # the options say so
        path = str(self.log.park_publish(sequence))
        self.parked.add(sequence)
        return path

    def _is_refused(self, sequence: int) -> bool:
        at = bisect_left(self._refused, sequence)
        return self._refused[at : at + 1] == [sequence]

    def _discard_refused(self) -> None:
        log, done = self.log, 0
        for sequence in self._refused:
            if sequence == log.lowest_unpersisted:
                if sequence in self.parked and isinstance(log, PublishLog):
                    log.note_parked(sequence)
                log.discard_up_to(sequence)
            elif sequence > log.last_persisted:
                break
            done += 1
        del self._refused[:done]

    # -- results ------------------------------------------------------------------------------

    def is_done(self, sequence: int, what: str) -> bool:
        """Whether the result of a publish is known: it is persisted, or refused.

        Args:
            sequence: The publish.
            what: The call of the application, for errors.

        Raises:
            UsageError: Nothing was published under so high a sequence.
            DisconnectedError: It was lost.
        """
        log = self.log
        for first, last, reason in self._losses:
            if first <= sequence <= last and sequence not in self.refusals:
                raise DisconnectedError(
                    f"{what}: publish {sequence} was lost with its connection: {reason}; publish "
                    "it again, or give the client a publish store"
                ) from reason
        if 0 < sequence <= self._known_above:
            raise DisconnectedError(
                f"{what}: {len(self._losses)} connections were lost since publish {sequence}, and "
                "whether it was persisted is not known any more: ask sooner"
            )
        if sequence > self.highest:
            raise UsageError(
                f"{what}: wanted a sequence that this client has published, up to {self.highest}, "
                f"found {sequence}"
            )
        return log.last_persisted >= sequence or not log.unpersisted_count

    def check_not_refused(self, sequence: int, what: str) -> None:
        """Raise an error for a publish that was refused; its result has to be known.

        Args:
            sequence: The publish.
            what: The call of the application, for errors.

        Raises:
            PublishFailed: The server refused it.
            DisconnectedError: So many were refused since that it is not known any more.
        """
        if (why := self.refusals.get(sequence)) is not None:
            ack = Message(kind="ack", sequence=sequence, reason=why[0], detail=why[1])
            raise refused_publish(f"the server refused publish {sequence}", ack)
        if 0 < sequence <= self._last_forgotten:  # 0: nothing was published
            raise DisconnectedError(
                f"{what}: {len(self.refusals)} publishes were refused since publish {sequence}, "
                "and whether it was is not known any more: ask sooner"
            )

    def check_none_lost(self, what: str) -> None:
        """Raise an error for what was lost since the last such error.

        Args:
            what: The call of the application, for the error.

        Raises:
            DisconnectedError: Publishes were lost with their connections.
        """
        count = self._unreported + self._unreported_of_caller
        self._unreported = self._unreported_of_caller = 0
        if count:
            reason = self._lost_reason
            raise DisconnectedError(
                f"{what}: {count} publishes were not persisted and are lost with their connection: "
                f"{reason}; publish them again, or give the client a publish store"
            ) from reason

    def what_remains(self) -> str:
        """What happens to unpersisted publishes, for an error message."""
        if not self.is_kept:
            return "they are lost with the connection"
        if isinstance(self.log, PublishLog) and self.log.path is None:
            return "they stay in memory until the client is left"
        return "they stay in the store"

    # -- numbers of the caller ----------------------------------------------------------------

    def check_caller_may_number(self, sequence: int, *, reconnects: bool) -> None:
        """Check that the caller may number what is published.

        Args:
            sequence: The number of the caller.
            reconnects: Whether the client reconnects by itself.

        Raises:
            UsageError: A publish store does that, or the client reconnects by itself.
        """
        if self.is_kept:
            raise UsageError(
                f"the publish store numbers what is published, found the sequence "
                f"{sequence}: leave it out, or use a client without a publish store"
            )
        if reconnects:
            raise UsageError(
                f"an HAClient takes no sequence, found {sequence}: what is in flight when it "
                "reconnects would be lost unnoticed; use a Client, or give it a publish store"
            )

    def check_client_may_number(self) -> None:
        """Check that the client may number what is published.

        Raises:
            UsageError: The caller does that on this connection.
        """
        if self.numbered_to:
            raise UsageError(
                f"the caller numbers what is published on this connection, up to "
                f"{self.numbered_to} so far: give each publish a sequence"
            )

    def number_from(self, first: int, last: int) -> int:
        """Have the next entries of the log get the caller's numbers.

        Args:
            first: The number of the first message.
            last: The number of the last one.

        Returns:
            How many of the messages the server has persisted already: they need not be sent.

        Raises:
            UsageError: The server would drop one of them as a duplicate, or the number cannot be
                sent.
        """
        log = self.log
        assert isinstance(log, VolatilePublishLog)  # noqa: S101  # as was checked
        for number in (first, last):
            check_count("a sequence", number, 1, MAX_SEEN_SEQUENCE)
        if first <= self.numbered_to:
            raise UsageError(
                f"the sequences of one connection rise: the server would drop {first} after "
                f"{self.numbered_to} as a duplicate; connect again to repeat what is not persisted"
            )
        if first <= self._begins_above:
            raise UsageError(
                f"the server has persisted this publisher up to {self._begins_above} and would "
                f"drop {first} as a duplicate: publish what is above client.persisted_sequence"
            )
        if not self.numbered_to and log.last_sequence != self._first_free:
            raise UsageError(
                f"this connection has publishes without a sequence, so that the server would drop "
                f"{first} as a duplicate: give each publish a sequence, or none"
            )
        if not self.numbered_to:  # what is published again counts as lost no longer
            self._losses = self._lost_below(first)
            self._known_above = 0
        begin = max(first, min(log.last_persisted, last) + 1)
        if begin <= last and begin != log.last_sequence + 1:
            log.number_from(begin)
        self.numbered_to = last
        return begin - first

    def _lost_below(self, first: int) -> list[tuple[int, int, HAClientError | None]]:
        """The losses below this number: an ack of it says nothing of what no server has seen."""
        seen = max(self._begins_above, self.seen or 0)
        cut = [(max(low, seen + 1), min(high, first - 1), why) for low, high, why in self._losses]
        return [each for each in cut if each[0] <= each[1]]


def _as_log(store: PublishStore | None) -> FrameLog:
    if store is None:
        return VolatilePublishLog()
    return store if isinstance(store, FrameLog) else SendingStore(store)


class UnpersistedAges:
    """Samples of the last sequence number over time: how old an unpersisted publish is."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float]] = deque()

    def note(self, last_sequence: int, now: float) -> None:
        """Add a sample, if the number has risen since the last one."""
        samples = self._samples
        if samples and samples[-1][0] >= last_sequence:
            return
        samples.append((last_sequence, now))
        if len(samples) > _MOST_SAMPLES:
            kept = list(samples)[::2]
            self._samples = deque(kept if kept[-1] == samples[-1] else [*kept, samples[-1]])

    def forget(self, lowest_unpersisted: int) -> None:
        """Drop the samples below the lowest unpersisted number; all of them when it is 0."""
        samples = self._samples
        while samples and (not lowest_unpersisted or samples[0][0] < lowest_unpersisted):
            samples.popleft()

    def age(self, lowest_unpersisted: int, now: float) -> float:
        """Seconds that the message with this number has waited; 0 for the number 0."""
        self.forget(lowest_unpersisted)
        return now - self._samples[0][1] if self._samples else 0.0


def check_many(
    topics: object,
    bodies: Sequence[Payload],
    expiration: object,
    correlation_ids: object,
    sow_keys: object = (),
) -> None:
    """Refuse what `publish_many` cannot publish.

    Raises:
        UsageError: A list has not one item for each message, or a body is neither text nor bytes.
    """
    _check_list("bodies", bodies)
    for name, given, is_one in (
        ("topic", topics, isinstance(topics, str)),
        ("expiration", expiration, isinstance(expiration, int | None)),
        ("correlation_ids", correlation_ids, not correlation_ids),
        ("sow_keys", sow_keys, not sow_keys),
    ):
        if not is_one:
            _check_list(name, given, count=len(bodies))
    for body in bodies:
        if type(body) is not bytes:
            check_payload(body)


def _check_list(name: str, value: object, *, count: int | None = None) -> None:
    """Refuse a single value where a list is wanted, and an iterator, which the checks would use up.

    Raises:
        UsageError: It is not a list, or not of this length.
    """
    found = type(value).__name__
    is_single = isinstance(value, str | bytes | bytearray | memoryview)
    if is_single or not isinstance(value, Collection):
        how = "one alone is [one]" if is_single else "make it one by list(...)"
        raise UsageError(f"{name} is a list or a tuple, not {found}: {how}")
    size = len(cast("Collection[object]", value))
    if count is not None and size != count:
        raise UsageError(
            f"publish_many takes one {name} for each message: {count} messages, {size} found"
        )
