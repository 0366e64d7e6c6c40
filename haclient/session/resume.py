"""Where a subscription resumes after a lost connection, a fail-over or a restart. Pure.

Terms. A message is *missing* when it was never received, or was received and dropped from the queue
undelivered. A start position is *safe* on a server when every missing message comes after it in
that server's log. A server starts at the earliest item of a list that it can find, and it can find
every time.

**What a list of bookmarks covers.** If the list names a publisher, all missing messages of that
publisher come after the named one on every server, since a publisher's messages keep their order.
For other publishers the order of the log decides: a list of finished messages is safe on a server
if some of them arrived from that server, since every missing message came after those or is still
to come.

**On another server** the messages of a publisher that the list does not name may come earlier.
Everything that a server had until the caught-up time has arrived if the server has sent everything
older (`completed`). So a list with that time, minus an overlap for clock skew and replication lag,
is safe. Until a replay was complete once, there is no such time, and only the start is safe. A safe
time stays safe whatever is received later: a subscription that was lost before its replay was
complete changes nothing. If the two logs differ for good, the other server may not have what the
list names, and then the time alone decides. So while anything is undiscarded, the time is an
earlier one: everything that had arrived until then is discarded (`discarded_until_us`). Until there
is one, it is the caught-up time all the same: the start would send the whole log again to everybody
who fails over with his first messages at work, for the sake of logs that differ for good.

**On the same server**, before anything new of it is finished, the last bookmark that it has sent is
added to the list: the subscription began at a safe position, and everything from there to this
bookmark has arrived. If there is no such bookmark, the previous request is repeated. A complete
replay does not make the list safe by itself: the server may receive the messages that the list
names later than others.

**Progress from elsewhere.** Progress that comes from an adapter which does not know the server
order is valid in no server's order: every server counts as another one. Progress from a store that
the application has written is trusted. A message of a publisher that the list does not name, which
was received and is missing again, may be anywhere unless the order covers it; the store then
answers with the start.

**A conflated subscription begins anew.** A server merges the messages of an interval under the
bookmark of the first one, and a replay has other intervals, so a message under a finished bookmark
may hold newer values. When it resumes, the store therefore forgets which messages were finished and
takes the bookmark of the resume as an explicit start: everything from there on is delivered, once
more if need be. That start has to be safe on every server, so it is always that of another one.

**Which log a server has** (`ServerLogs`). A server that returns at its address with another log (a
lost disk, a restored backup) is another server. Our broker reports the recent starts of its log at
logon, each as a random number with the first position after it, and a position with each persisted
ack. The log is another one if the youngest start that we know is not among them, or if a younger
start begins at or below a position that the log had reached. If a server reports no starts, an `s`
or `bm` that is lower than before shows another log. One case cannot be detected: a restored backup
that contains the start that we know and every position that an ack has reported. The store keeps
that position as well (`with_progress`), since a restarted client has to know it.

**The caught-up time** (`CaughtUpClock`) must never be too late. When nothing is left to read,
everything that the server has written has been received. While the client is too slow to empty the
link, however, the server may be blocked, and then the data that it writes is as old as the blockage
is long. The server catches up once the client reads again. How soon is unknown, so a slow rate is
assumed. A subscription that is paused at the server has received nothing newer than the pause,
whatever else arrives on the link; once it is resumed, the server catches up as after a blockage.

**The wall clock** may step (`StepProofClock`). A time that is too early costs repetitions, which
are filtered; one that is too late causes a silent gap. So the earlier of two times is used: the
wall clock's time, and its time when the client started plus the seconds that have passed since. The
remaining risk is a clock that was ahead when the client started and was not corrected since.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from haclient.errors import UsageError
from haclient.protocol.identity import version_number
from haclient.protocol.options import Options
from haclient.session.connection_state import LoggedOn, LogStart
from haclient_stores.bookmark import (
    NOW,
    Bookmark,
    parse_bookmark,
)
from haclient_stores.interfaces import SubscriptionLog
from haclient_stores.tracker.server_order import log_name

OVERLAP_S: Final = 5.0
"""How long before the caught-up time the replay on another server begins, in seconds."""

_KNOWS_BOOKMARK_NOT_FOUND: Final = 5_030_500  # servers from 5.3.5 on
_BUSY_S: Final = 1.0  # reading for this long does not block a server; the overlap is far longer
_CATCHES_UP: Final = 0.1  # how many seconds an unblocked server catches up in each second


# -- clocks -------------------------------------------------------------------------------------


class StepProofClock:
    """Returns a lower bound of the current time, in microseconds since 1970.

    Args:
        wall_us: The wall clock's time at the start.
        now: The start, in seconds on a clock that never steps.
    """

    __slots__ = ("_started_at", "_started_us")

    def __init__(self, wall_us: int, now: float) -> None:
        self._started_us = wall_us
        self._started_at = now

    def earliest_us(self, wall_us: int, now: float) -> int:
        """The lower bound of the current time, from the readings of the two clocks."""
        passed_us = int((now - self._started_at) * 1_000_000)
        return min(wall_us, self._started_us + passed_us)


def catching_up(behind_s: float, for_s: float) -> float:
    """How many seconds a server still lags after it was not blocked for a given time."""
    return max(0.0, behind_s - _CATCHES_UP * for_s)


class CaughtUpClock:
    """The caught-up time of one link: everything the peer sent before it has been received.

    Times are seconds on the caller's clock.

    Args:
        now: When the link was opened.

    Attributes:
        caught_up_until: The caught-up time: everything sent before it has been received.
    """

    __slots__ = ("_behind_s", "_empty_at", "caught_up_until")

    def __init__(self, now: float) -> None:
        self._empty_at = now
        self._behind_s = 0.0
        self.caught_up_until = now

    def lag_s(self, now: float, *, is_idle: bool) -> float:
        """How many seconds lie between the caught-up time and now.

        Args:
            now: The time.
            is_idle: Whether everything that has arrived until now is read.
        """
        if is_idle:
            return catching_up(self._behind_s, now - self._empty_at)
        return max(0.0, now - self._empty_at + self._behind_s)

    def drained(self, now: float) -> None:
        """Everything that has arrived was read and processed."""
        busy_s = now - self._empty_at
        if busy_s > _BUSY_S:
            self._behind_s += busy_s
        self._empty_at = now
        self.caught_up_until = now - self._behind_s

    def arrived(self, now: float) -> None:
        """There is something to read again, after the link was empty.

        The caught-up time stays: it may have come while this process was held, with more behind it.
        """
        self._behind_s = catching_up(self._behind_s, now - self._empty_at)
        self._empty_at = now


# -- which log a server has -----------------------------------------------------------------------


@dataclass(slots=True)
class _KnownLog:
    """The known facts about the log at one address.

    Attributes:
        name: The name that recovery points use for it.
        start_id: The youngest start that was seen; 0 when the server names none.
        reached: A position that the log has reached.
        seen: The `s` of the last logon there, `None` when it was absent.
        persisted: The highest sequence of this publisher that was persisted there.
        names: The names under which stored recovery points may refer to this log.
        lost: The names under which they refer to an earlier log at this address.
    """

    name: str
    start_id: int = 0
    reached: int = 0
    seen: int | None = None
    persisted: int | None = None
    names: set[str] = field(default_factory=set[str])
    lost: set[str] = field(default_factory=set[str])


class ServerLogs:
    """The transaction logs of the servers that one client has used, by address.

    A log is named by the address of its server and, if the server reports the starts of its log, by
    the youngest start and a position: `localhost:9007#00c0ffee@1200`. Stores keep the name with
    their recovery points. After a space it says how far the log has progressed since, as the
    youngest start and a position, so that the next process, too, recognizes an older backup as
    another log.
    """

    __slots__ = ("_known", "_replaced", "_starts", "address")

    def __init__(self) -> None:
        self.address = ""
        self._known: dict[str, _KnownLog] = {}
        self._starts: Sequence[LogStart] = ()
        self._replaced = 0

    @property
    def name(self) -> str:
        """The log of the server in use."""
        known = self._known.get(self.address)
        return self.address if known is None else known.name

    def logged_on(self, address: str, server: LoggedOn) -> bool:
        """Note a logon; return whether the server still has the log that it had before.

        Args:
            address: The address of the server.
            server: Its answer to the logon.
        """
        self.address = address
        starts = self._starts = server.log_starts
        known = self._known.get(address)
        same = known is None or self._is_same(known, server)
        if known is None:
            known = self._known[address] = _KnownLog(_name(address, starts))
        elif not same:
            self._replaced += 1
            name = _name(address, starts) if starts else f"{address}#replaced{self._replaced}"
            known.lost |= {known.name, *known.names}
            known.name, known.names, known.reached = name, set(), 0
        known.seen, known.persisted = server.seen, server.persisted
        if starts:
            known.start_id = starts[-1].id
            known.reached = max(known.reached, starts[-1].first_position - 1)
        return same

    @staticmethod
    def _is_same(known: _KnownLog, server: LoggedOn) -> bool:
        starts = server.log_starts
        if starts and known.start_id:
            return _holds(starts, known.start_id, known.reached)
        # Without starts only the numbers of this publisher tell: the log has forgotten some.
        return not (
            _is_lower(server.seen, known.seen) or _is_lower(server.persisted, known.persisted)
        )

    def reached(self, text: str) -> None:
        """A persisted ack names the youngest start and a position that the log has reached."""
        known = self._known.get(self.address)
        start, _, position = text.rpartition(",")[2].partition("@")
        try:
            if known is not None and known.start_id == int(start, 16):
                known.reached = max(known.reached, int(position))
        except ValueError:  # of a peer that uses the name for something else
            return

    def persisted(self, sequence: int) -> None:
        """A publish of this client is persisted at the server in use."""
        known = self._known.get(self.address)
        if known is not None:
            known.persisted = max(known.persisted or 0, sequence)

    def resolve(self, stored: str) -> str:
        """The name of a log that a store has kept, or the current name if that is another log.

        Args:
            stored: The stored name of the log in whose order a recovery point is; empty if unknown.
        """
        known = self._known.get(self.address)
        stored, _, progress = stored.partition(" ")
        if known is None or not stored or stored == known.name:
            return stored or self.name
        if stored in known.lost:
            return known.name
        address, _, which = stored.rpartition("#")
        start, _, position = (progress or which).partition("@")
        try:
            same = address == self.address and _holds(self._starts, int(start, 16), int(position))
        except ValueError:  # an address alone, or of a server that named no starts
            return known.name
        if same:
            known.names.add(stored)
        return stored if same else known.name

    @property
    def progress(self) -> str:
        """How far the log of the server in use has progressed; empty if it does not say."""
        known = self._known.get(self.address)
        if known is None or not known.start_id:
            return ""
        return f"{known.start_id:x}@{known.reached}"

    def with_progress(self, name: str) -> str:
        """The name of the current log, as `resolve` returns it, with the position reached."""
        place = self.progress
        return name if not place or name.endswith(f"#{place}") else f"{name} {place}"


def _name(address: str, starts: Sequence[LogStart]) -> str:
    if not starts:
        return address
    return f"{address}#{starts[-1].id:x}@{max(0, starts[-1].first_position - 1)}"


def _holds(starts: Sequence[LogStart], start_id: int, reached: int) -> bool:
    """Whether a log with these starts continues from one of them, and after a position."""
    for number, start in enumerate(starts):
        if start.id == start_id:
            return all(each.first_position > reached for each in starts[number + 1 :])
    return False


def _is_lower(number: int | None, before: int | None) -> bool:
    return number is not None and before is not None and number < before


# -- one subscription -----------------------------------------------------------------------------


class ResumePosition:
    """What one subscription has received, and where it resumes.

    Times are seconds on the caller's clock.

    Attributes:
        log: Its part of the bookmark store; `None` if the store does not track it.
        is_complete: Whether the server has sent everything that it had at the subscribe.
        last_bookmark: The last bookmark that the server has sent, on this link or an earlier one;
            empty if there is none, or if messages do not arrive in the order of the log.
        last_persisted: The bookmark of the last persisted ack.
        is_ahead_of_note: Whether messages have arrived since the position of the server's log was
            noted in the store.
        busy_since: When a message arrived last while nothing was undiscarded: everything earlier is
            discarded. `None` before the first one.
        server_holds_s: How long the server itself holds messages back, as the options ask it to;
            infinite where nobody knows.
        is_paced: Whether a replay comes at a rate, so that nobody knows when it has caught up.
    """

    __slots__ = (
        "_behind_s",
        "_complete_at",
        "_completed_at",
        "_held_at",
        "_noted",
        "_sent_at",
        "busy_since",
        "is_ahead_of_note",
        "is_complete",
        "is_paced",
        "last_bookmark",
        "last_persisted",
        "log",
        "server_holds_s",
    )

    def __init__(self, log: SubscriptionLog | None = None) -> None:
        self.log = log
        self.server_holds_s = 0.0
        self.is_paced = False
        self.is_complete = False
        self.is_ahead_of_note = False
        self.last_bookmark = ""
        self.last_persisted = ""
        self._sent_at = 0.0
        self._complete_at: float | None = None
        self._completed_at = 0.0
        self._behind_s = 0.0
        self._held_at: float | None = None
        self._noted: str | None = None
        self.busy_since: float | None = None

    def sending(self, now: float) -> None:
        """The command is about to be sent."""
        self.is_complete = False
        self._sent_at = now
        self._complete_at = None
        self._held_at = None
        self._noted = None

    def hold(self, now: float) -> None:
        """Note that the server may hold messages back from now on; further calls do nothing."""
        if self._held_at is None:
            self._held_at = now

    def release(self, now: float) -> None:
        """Note that the server sends again, beginning with the messages that it held back."""
        held_at, self._held_at = self._held_at, None
        if held_at is not None and self.is_paced:  # what was held back comes at its rate
            self.is_complete = False
        if held_at is not None and self.is_complete:
            behind_s = self._behind(held_at)
            self._complete_at, self._behind_s = now, behind_s + now - held_at

    def completed(self, now: float) -> None:
        """The replay has reached the end of the log."""
        self.is_complete = True
        self._completed_at = now

    def receive_lag_s(self, link_lag_s: float, now: float) -> float | None:
        """How many seconds behind the server it is; None until a replay was complete.

        What was published during a replay is sent after it. Unlike `caught_up_until`, this may be
        too low: nothing depends on it.

        Args:
            link_lag_s: The same of the link as a whole.
            now: The time.
        """
        if not self.is_complete:
            return None
        replay_s = self._completed_at - self._sent_at
        held_s = 0.0 if self._held_at is None else now - self._held_at
        return link_lag_s + catching_up(replay_s, now - self._completed_at) + held_s

    def accepted(self, server_log: str) -> None:
        """A server has accepted it: later messages arrive in the order of this log."""
        if self.log is not None:
            if log_name(self.log.server_order.server) != log_name(server_log):
                self.last_bookmark = ""
            self.log.entered(server_log)

    def caught_up_until(self, link_until: float, now: float) -> float | None:
        """The caught-up time of this subscription; None while it is unknown.

        Messages published during a replay are sent after it, so the server lags by its duration.
        During a pause, nothing newer than its beginning has arrived.

        Args:
            link_until: The same of the link as a whole.
            now: The time.
        """
        if not self.is_complete or self.server_holds_s == math.inf:
            return None
        if self._held_at is not None:
            now = self._held_at
        return min(link_until, now) - self._behind(now) - self.server_holds_s

    def _behind(self, now: float) -> float:
        """How many seconds the server lags, once its replay is complete."""
        if self._complete_at is None:
            self._complete_at = now
            self._behind_s = now - self._sent_at
        return catching_up(self._behind_s, now - self._complete_at)

    def take_moved(self) -> bool:
        """Whether anything has arrived since the last call."""
        noted, self._noted = self._noted, self.last_bookmark
        return noted != self.last_bookmark


class ResumeRule(enum.Enum):
    """Why a subscription resumes where it does; the values are sentences for people."""

    FROM_ELSEWHERE = "its progress was taken over from elsewhere, and is in no server's order"
    IN_ORDER = "the recovery point is a position in the log of this server"
    AFTER_LAST = (
        "nothing that this server has sent is finished yet, so it resumes after the last message "
        "that arrived from there, or at the recovery point where that is earlier"
    )
    BY_TIME = (
        "the log of this server may have another order, so the list also carries a time before "
        "which everything has arrived"
    )
    FROM_START = "no replay was complete yet, so only the start is surely before everything missing"


def resume_rule(
    log: SubscriptionLog, server: str, *, last: str, is_conflated: bool = False
) -> ResumeRule:
    """The rule that decides where a subscription resumes on a server.

    Args:
        log: The subscription's part of the bookmark store.
        server: The name of the server's log.
        last: The last bookmark that the server of the last entry has sent; empty if unknown.
        is_conflated: Whether the server merges its messages: then it begins anew (see the module).
    """
    server_order = log.server_order
    if not server_order.server:  # progress from elsewhere (see the module)
        return ResumeRule.FROM_ELSEWHERE
    if server == log_name(server_order.server) and not is_conflated:
        if log.in_order:
            return ResumeRule.IN_ORDER
        if _is_position(last):
            return ResumeRule.AFTER_LAST
    return ResumeRule.BY_TIME if _safe_time_us(log) else ResumeRule.FROM_START


def _safe_time_us(log: SubscriptionLog) -> int:
    """A time before which nothing is missing and, once there is one, nothing undiscarded; or 0."""
    order = log.server_order
    until_us = order.discarded_until_us if log.oldest_undiscarded else 0
    return until_us or order.caught_up_us


def resume_bookmarks(
    log: SubscriptionLog, server: str, *, last: str, overlap_us: int, is_conflated: bool = False
) -> tuple[str, ...]:
    """The bookmarks to request from a server, the best form first.

    Args:
        log: The subscription's part of the bookmark store.
        server: The name of the server's log.
        last: The last bookmark that the server of the last entry has sent; empty if unknown.
        overlap_us: How long before the caught-up time to begin on another server.
        is_conflated: As for `resume_rule`.
    """
    match resume_rule(log, server, last=last, is_conflated=is_conflated):
        case ResumeRule.FROM_ELSEWHERE:
            return log.resume_elsewhere(0)
        case ResumeRule.IN_ORDER:
            return (log.resume(),)
        case ResumeRule.AFTER_LAST:
            return log.resume_elsewhere(0, last)
        case ResumeRule.BY_TIME:
            return log.resume_elsewhere(max(1, _safe_time_us(log) - overlap_us))
        case ResumeRule.FROM_START:
            return (log.resume_from_start(),)


def _is_position(bookmark: str) -> bool:
    """Whether a server's bookmark names a message, so that it can be requested."""
    try:
        found = parse_bookmark(bookmark) if bookmark else None
    except UsageError:  # a position of another kind of server
        return False
    return isinstance(found, Bookmark)


def resume_options(options: str, *, bookmark: str, version: str, again: bool) -> str:
    """The options of a subscribe that resumes from a store.

    A server that knows none of the bookmarks would begin at the end of its log, which is a silent
    gap. A server that supports the option begins at the start instead, and the store filters
    duplicates.

    Args:
        options: As the application gave them.
        bookmark: The requested bookmark; empty for a subscription without one.
        version: The server's version, as it writes it.
        again: Whether it was sent before; on a new connection there is nothing to replace.
    """
    parsed = Options.parse(options)
    knows = version_number(version) >= _KNOWS_BOOKMARK_NOT_FOUND
    names_place = bookmark not in {"", str(NOW)}  # which a server may not find
    not_found = parsed.bookmark_not_found or ("epoch" if names_place and knows else None)
    return str(replace(parsed, replace=parsed.replace and not again, bookmark_not_found=not_found))


# -- one client -----------------------------------------------------------------------------------


class ResumeContext:
    """What the resume positions of one client share: the servers' logs, and the clock.

    Args:
        clock_us: Returns microseconds since 1970, from a clock that may step.
        overlap_s: How long before the caught-up time the replay on another server starts.

    Attributes:
        servers: The logs of the servers.
        overlap_us: As above, in microseconds.
    """

    __slots__ = ("_ahead", "_clock", "_clock_us", "_progress", "overlap_us", "servers")

    def __init__(self, clock_us: Callable[[], int], *, overlap_s: float = OVERLAP_S) -> None:
        self.servers = ServerLogs()
        self.overlap_us = int(overlap_s * 1_000_000)
        self._clock_us = clock_us
        self._clock: StepProofClock | None = None
        self._ahead: dict[ResumePosition, None] = {}  # of what the store knows of the server's log
        self._progress = ""  # of the server's log, when it was noted last

    def now_us(self, now: float) -> int:
        """The current time; safe against clock steps after the first call, at the start."""
        wall_us = self._clock_us()
        if self._clock is None:
            self._clock = StepProofClock(wall_us, now)
        return self._clock.earliest_us(wall_us, now)

    def bookmarks(
        self, log: SubscriptionLog, last: str = "", *, is_conflated: bool = False
    ) -> tuple[str, ...]:
        """The bookmarks to request from the current server, the best form first.

        The last one is the start, since a server may refuse a long list: all that is missing comes
        after the start, and the store filters what comes again.
        """
        server = self.servers.resolve(log.server_order.server)
        forms = resume_bookmarks(
            log, server, last=last, overlap_us=self.overlap_us, is_conflated=is_conflated
        )
        return tuple(dict.fromkeys((*forms, log.resume_from_start())))

    def accepted(self, position: ResumePosition) -> None:
        """The server in use has accepted the subscription."""
        if position.log is not None:
            name = self.servers.resolve(position.log.server_order.server)
            position.accepted(self.servers.with_progress(name))

    def note_caught_up(
        self,
        positions: Iterable[ResumePosition],
        link_until: float,
        now: float,
        *,
        is_last: bool = False,
    ) -> None:
        """Record the caught-up times of subscriptions in the store.

        Args:
            positions: Those of them that have received something since the last time; all of the
                link if it has ended.
            link_until: The caught-up time of the link.
            now: The time; both in seconds.
            is_last: Whether the link has ended: then also when nothing has arrived since the last
                time.
        """
        for position in positions:
            log, until = position.log, position.caught_up_until(link_until, now)
            if log is None or until is None:
                continue
            has_moved = position.take_moved() or is_last
            if has_moved:
                log.caught_up(max(1, self.now_us(now) - int((now - until) * 1_000_000)))
                position.is_ahead_of_note = True
            self._note_progress(position, log, has_moved=has_moved)
            if position.is_ahead_of_note:
                self._ahead[position] = None
        # Persisted acks report how far the log is, so that may become known after the messages.
        if self.servers.progress != self._progress:
            self._progress = self.servers.progress
            for position in list(self._ahead):
                if position.log is not None:
                    self._note_progress(position, position.log, has_moved=False)
                if not position.is_ahead_of_note:
                    del self._ahead[position]
        if is_last or not self._progress:  # it is noted as well when the next server accepts them
            self._ahead.clear()

    def _note_progress(
        self, position: ResumePosition, log: SubscriptionLog, *, has_moved: bool
    ) -> None:
        """Store how far the server's log has progressed, at least as far as the received messages.

        Persisted acks report the position, so it may become known only after the messages.
        """
        server = log.server_order.server
        if not server:  # the store has forgotten an ended subscription
            position.is_ahead_of_note = False
        name = self.servers.resolve(server)
        if not position.is_ahead_of_note or name != log_name(server):
            return
        placed = self.servers.with_progress(name)
        if placed != server:
            log.entered(placed)
            position.is_ahead_of_note = has_moved
