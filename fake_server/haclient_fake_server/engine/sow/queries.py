"""Queries of the state of the world: sow, sow_and_subscribe and sow_delete.

Queries and deletes are carried out in steps, between which other clients are served; a small one
ends with its first step, in the batch of its command. A query is answered with the records of the
moment at which it came. Its answer is sent at the pace of its reader.

What changes while the query of a subscription is answered is held back (see `Hold`) and follows the
answer. The subscription to a query of the past has its place in the log from the beginning, and
gets nothing before the group has ended. A page is built in steps, and answered as it is then.

A delete that takes several steps looks at the records that there were when it came, each as it is
when its turn comes. The commands that follow it on its connection wait for its end. Only then is
its sequence used up: what was deleted before is recorded under numbers of the server, so that a
client whose delete was cut sends it again, and the rest is deleted.
Deletes are recorded as the keys that they removed, so that the journal records the effect and not
the request.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient_fake_server.engine.acks import Reason, Refused, ack, requested
from haclient_fake_server.engine.answers import Answer, check_batch_size
from haclient_fake_server.engine.apply import Applier
from haclient_fake_server.engine.conflation import Conflation
from haclient_fake_server.engine.connections import (
    BookmarkSubscription,
    Connection,
    LongCommand,
    Style,
    Subscription,
)
from haclient_fake_server.engine.filters import Document, OrderByError, parse_order_by
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.patterns import to_bytes
from haclient_fake_server.engine.persisted_acks import PersistedAcks
from haclient_fake_server.engine.publishers import KnownPublisher
from haclient_fake_server.engine.publishing import problem_of_headers
from haclient_fake_server.engine.replay import Replay
from haclient_fake_server.engine.requests import (
    DELTA_COMMANDS,
    MAX_PENDING_COMMANDS,
    Request,
    read_options,
    read_request,
)
from haclient_fake_server.engine.routes import Routes
from haclient_fake_server.engine.settings import EngineSettings
from haclient_fake_server.engine.sow.history import records_at
from haclient_fake_server.engine.sow.page import MAX_PAGE_RECORDS, Page, PageSubscription
from haclient_fake_server.engine.sow.table import (
    Query,
    QueryResult,
    Search,
    SowError,
    SowRecord,
    SowTable,
    parse_sow_keys,
    sorted_parts,
    weight_of,
)
from haclient_fake_server.engine.span import Span, covered_by, span_of
from haclient_fake_server.engine.subscribing import Subscribing, check_live_only
from haclient_fake_server.engine.timers import Clock
from haclient_fake_server.journal.format import Record, RecordCommand, RecordFlag
from haclient_stores.bookmark import NOW, Timestamp, parse_bookmark

MAX_KEYS: Final = 100_000
"""Keys that one query or delete may name: they are looked up in one step, a tenth of a second."""


@dataclass(eq=False, slots=True)
class Queries:
    """Executes queries and deletes of the state of the world."""

    settings: EngineSettings
    log: LogWriter
    routes: Routes
    clock: Clock
    outbox: Outbox
    conflation: Conflation
    applier: Applier
    subscribing: Subscribing
    replay: Replay
    acks: PersistedAcks

    def sow(self, connection: Connection, message: Message) -> None:
        """Answer a query.

        Raises:
            Refused: Why.
        """
        request = read_request(message, read_options(message), connection.reading)
        if request.options.skip_n and not message.order_by:
            raise Refused(Reason.INVALID_OPTIONS, "skip_n of a sow needs an orderby")
        topics = self._required_topics(connection, request)
        query = _query(request)
        ids = _ids(message)
        del ids["sub_id"]
        position = self._position(connection, request, topics)
        searches = [Search(topic, query) for topic in topics] if position is None else []
        is_long = self._takes_steps(searches)
        if is_long:
            _check_pending(connection)
        self.outbox.acknowledge(connection, message, "received", "processed", more=ids)
        if position is None:
            steps = self._answer(connection, request, searches, query, ids)
            self._begin(connection, steps, is_long=is_long)
            return
        steps = self._answer_of(connection, request, topics, position, query, ids)
        self._add_query(connection, steps)

    def _takes_steps(self, searches: list[Search]) -> bool:
        """Whether these searches take more than one step."""
        step_bytes, cost_bytes = self.settings.query_step_bytes, 0
        return any(
            (cost_bytes := cost_bytes + part.cost_bytes) >= step_bytes
            for search in searches
            for part in search.all_parts(step_bytes)
        )

    def _begin(self, connection: Connection, steps: LongCommand, *, is_long: bool = False) -> bool:
        """Take the first step of an answer; return whether others have to follow.

        The first step of a long one has its turn later, too: many clients may ask at once.
        """
        if not is_long and next(steps, self) is self:  # it has ended
            return False
        self._add_query(connection, steps)
        return True

    def _add_query(self, connection: Connection, steps: LongCommand) -> None:
        """Answer a query in steps, after those that came before it."""
        connection.queries.append(steps)
        self.outbox.wake(connection)

    def _position(
        self, connection: Connection, request: Request, topics: list[SowTable]
    ) -> int | None:
        """The position of the log before which a query's records are wanted; `None` for now.

        Raises:
            Refused: The bookmark is invalid or not in this log, a topic keeps no history, or the
                beginning of the log was removed.
        """
        text = request.message.bookmark
        if not text or _is_now(text):
            return None
        span = span_of(self.log, text, not_found="fail")
        if span.last_position is not None or span.last_us is not None:
            raise Refused(Reason.INVALID_BOOKMARK, f"a query is of one moment, not of {text!r}")
        forgetful = _without_history(topics)
        if forgetful:
            raise Refused(Reason.INVALID_BOOKMARK, f"{forgetful!r} keeps no history")
        self._check_log_is_whole()
        _check_pending(connection)
        return span.start

    def _check_log_is_whole(self) -> None:
        """Check that the records of an earlier moment can be found.

        Raises:
            Refused: The beginning of the log was removed.
        """
        first = self.log.journal.first_position
        if first > 1:
            detail = f"the log begins at position {first}, not at 1"
            raise Refused(Reason.BOOKMARK_NOT_FOUND, detail)

    def _answer_of(  # the parts of one answer
        self,
        connection: Connection,
        request: Request,
        topics: list[SowTable],
        position: int,
        query: Query,
        ids: dict[str, str | int],
    ) -> LongCommand:
        """Answer a query with the records that there were before a position of the log."""
        point = parse_bookmark(request.message.bookmark)
        moment_us = point.microseconds if isinstance(point, Timestamp) else 0
        past = yield from records_at(
            self.log, self.routes, self.clock, topics, position, moment_us=moment_us
        )
        searches = [Search(topic, query) for topic in past]
        yield from self._answer(connection, request, searches, query, ids)

    def sow_and_subscribe(self, connection: Connection, message: Message) -> None:
        """Answer a query and go on with what changes its result.

        Raises:
            Refused: Why.
        """
        request = read_request(message, read_options(message), connection.reading)
        if self.routes.queues.matching(request.matcher, connection.message_type):
            detail = f"{message.topic!r} is a queue: subscribe to it, or browse it with sow"
            raise Refused(Reason.INVALID_TOPIC, detail)
        ids = _ids(message)
        sub_id = str(ids["sub_id"])
        replaced = self.subscribing.check_id(connection, request, sub_id)
        query = _query(request)
        topics = self._topics(connection, request)
        span = self._span(request, topics, replaced, paged=query.paged)
        if query.paged:
            _check_page(request, topics)
        if span is None:
            check_live_only(request)
            if replaced is not None:
                _check_replaced(replaced, request, paged=query.paged)
        conflator = self.conflation.conflator_of(request, connection.message_type)
        leaving = [] if span is not None or query.paged else self._leaving(request, replaced, query)
        if self._takes_steps(leaving):
            _check_pending(connection)
        if replaced is not None:
            self.conflation.flush(replaced)
            self.subscribing.release(replaced)
        self.outbox.acknowledge(connection, message, "received", "processed", more=ids)
        if span is not None:
            item = self.subscribing.subscribe_after_query(
                connection, request, sub_id, span, conflator
            )
            self._answer_before(item, request, topics, query, ids)
            return
        if query.paged:
            self._subscribe_page(connection, request, topics, query, ids, replaced)
        else:
            live = self.subscribing.subscribe_live(connection, request, sub_id, conflator)
            # With a key of its own, conflation merges the messages of several records into one.
            merges_records = conflator is not None and bool(conflator.paths)
            is_partial = query.top_n is not None or query.keys is not None
            keeps_all = not (is_partial or merges_records)
            # What has left an earlier one, too, comes before the group: it may have returned.
            follows = replaced is not None and (
                self._begin_leaving(live, replaced, leaving) or replaced.query is not None
            )
            had = replaced if replaced is not None and replaced.has_records else None
            searches = [Search(topic, _without(query, topic, had)) for topic in topics]
            self._answer_live(
                live, request, searches, query, ids, follows=follows, keeps_all=keeps_all
            )

    def _leaving(
        self, request: Request, replaced: Subscription | None, query: Query
    ) -> list[Search]:
        """The records of which a subscriber may have some that it does not select any more."""
        if replaced is None or not (replaced.has_records or replaced.query):
            return []
        if not request.options.oof:
            return []
        message_type = replaced.connection.message_type
        topics = self.routes.sow_tables(message_type, replaced.matcher)
        return [Search(topic, Query(weight=query.weight)) for topic in topics]

    def _begin_leaving(
        self, item: Subscription, replaced: Subscription, searches: list[Search]
    ) -> bool:
        """Send out-of-focus messages for the records that the subscriber may have from before.

        One whose query was not answered to its end has received some of its records. If the
        subscription is replaced again meanwhile, that goes on: the next one relies on it.

        Returns:
            Whether steps have to follow.
        """
        connection, step_bytes = item.connection, self.settings.query_step_bytes

        def leave() -> LongCommand:
            spent_bytes = 0
            for search in searches:
                topic = search.topic
                for part in search.all_parts(step_bytes):
                    now = connection.subscriptions.get(item.id)
                    if now is None or now.number != item.number:  # it has ended meanwhile
                        return
                    left = [
                        record
                        for record in part.records
                        if replaced.selects(topic.name, document := topic.document(record))
                        and not item.selects(topic.name, document)
                    ]
                    self.applier.leave(item, topic.name, left)
                    spent_bytes += part.cost_bytes
                    if spent_bytes >= step_bytes:
                        spent_bytes = 0
                        yield

        return self._begin(connection, leave(), is_long=self._takes_steps(searches))

    def _answer_live(  # noqa: PLR0913  # the parts of one answer
        self,
        item: Subscription,
        request: Request,
        searches: list[Search],
        query: Query,
        ids: dict[str, str | int],
        *,
        follows: bool,
        keeps_all: bool,
    ) -> None:
        """Answer the query of a subscription, after what leaves if that takes steps."""

        def answer_then_live() -> LongCommand:
            yield from self._answer(item.connection, request, searches, query, ids)
            item.has_records = keeps_all
            self.subscribing.go_on(item)

        is_long = follows or self._takes_steps(searches)
        if self._begin(item.connection, answer_then_live(), is_long=is_long):
            self.subscribing.hold(item)

    def _subscribe_page(  # the parts of one answer
        self,
        connection: Connection,
        request: Request,
        topics: list[SowTable],
        query: Query,
        ids: dict[str, str | int],
        replaced: Subscription | None,
    ) -> None:
        """Answer the query of a page and follow it, in place of another page of this id.

        Records that only the other page had go out of focus; all records of this page are sent.
        """
        topic, page = topics[0], Page(topics[0], query)
        had = replaced.records if isinstance(replaced, PageSubscription) else ()
        item = self.subscribing.subscribe_page(connection, request, str(ids["sub_id"]), page)
        item.had = had

        def build_then_answer() -> LongCommand:
            yield from page.build(self.settings.query_step_bytes)
            records, item.had = topic.records(page.keys), ()
            if item.oof:
                now = frozenset(page.keys)
                left = [topic.get(each.key) or each for each in had if each.key not in now]
                self.applier.leave(item, topic.name, left)
            # All of it in one step: it has few records, and they change while it is sent.
            answer = Answer(self.outbox, connection, request.message, ids)
            for record in records:
                body = request.wanted_of(record.body, topic.message_type)
                answer.add(topic.name, _fields(record, request.style), body)
            count = request.seen_of(len(topic), page.matches)
            answer.end(topic_matches=count, matches=page.matches)
            self.subscribing.go_on(item)

        if self._begin(connection, build_then_answer()):
            item.query = connection.queries[-1]
            connection.subscription_queries += 1

    def _span(
        self,
        request: Request,
        topics: list[SowTable],
        replaced: Subscription | None,
        *,
        paged: bool,
    ) -> Span | None:
        """The part of the log that follows a query of the past; `None` for a query of now.

        Without a bookmark, one that replaces a subscription to the log continues at its position.

        Raises:
            Refused: The bookmark is invalid or not in this log, or a topic keeps no history.
        """
        text = request.message.bookmark
        forgetful = _without_history(topics) if topics else request.message.topic
        if text:
            if _is_now(text) and (paged or forgetful):
                return None
            not_found = request.options.bookmark_not_found or "fail"
            span = span_of(self.log, text, not_found=not_found)._replace(covered=covered_by(text))
        elif isinstance(replaced, BookmarkSubscription):
            if request.message.kind in DELTA_COMMANDS:
                detail = f"{replaced.id!r} has a bookmark, and gets whole messages"
                raise Refused(Reason.INVALID_OPTIONS, f"replace: {detail}")
            if request.options.oof:
                raise Refused(Reason.INVALID_OPTIONS, f"oof: {replaced.id!r} has a bookmark")
            span = self.replay.rest_of(replaced)
        else:
            return None
        if forgetful:
            raise Refused(Reason.INVALID_BOOKMARK, f"{forgetful!r} keeps no history")
        if paged:
            detail = "a page follows the records of now, so it has no bookmark of the past"
            raise Refused(Reason.INVALID_OPTIONS, f"skip_n: {detail}")
        if not self._is_of_now(span):
            self._check_log_is_whole()
        return span

    def _is_of_now(self, span: Span) -> bool:
        """Whether nothing was recorded since the beginning of a span."""
        return span.start >= self.log.messages_end

    def _answer_before(
        self,
        item: BookmarkSubscription,
        request: Request,
        topics: list[SowTable],
        query: Query,
        ids: dict[str, str | int],
    ) -> None:
        """Answer the query of a subscription to the log, whose replay begins afterwards."""
        span = self.replay.rest_of(item)

        is_of_now = self._is_of_now(span)  # there is nothing that could be covered, either

        def answer_then_replay(found: list[SowTable]) -> LongCommand:
            if not is_of_now:
                position = yield from self.replay.pass_covered(item)
                if not self._is_of_now(Span(position)):
                    found = yield from records_at(
                        self.log, self.routes, self.clock, topics, position
                    )
            searches = [Search(topic, query) for topic in found]
            # `completed` belongs to the replay: the end of the group is the end of the query.
            connection = item.connection
            yield from self._answer(connection, request, searches, query, ids, completes=False)
            self.replay.query_answered(item)

        steps = answer_then_replay(topics)
        if is_of_now:
            if not self._begin(item.connection, steps):
                return
        else:
            self._add_query(item.connection, steps)
        item.query = steps
        item.connection.subscription_queries += 1

    def sow_delete(self, connection: Connection, message: Message) -> None:
        """Delete records by filter, by keys or by data.

        Raises:
            Refused: Why.
        """
        options = read_options(message)
        request = read_request(message, options, connection.publishing)
        _check_delete(message, options)
        topics = self._required_topics(connection, request)
        # A topic for which the body has no key refuses the whole delete, however often it is sent.
        queries = [(topic, _query_of_delete(topic, request)) for topic in topics]
        sequence = message.sequence
        if sequence and sequence <= connection.publisher.seen:
            self.acks.acknowledge_duplicate(connection, message)
            self._stats(connection, message, [])
            return
        searches = [Search(topic, query) for topic, query in queries]
        if self._takes_steps(searches):
            connection.blocking = self._delete_in_steps(connection, message, searches)
            self.outbox.wake(connection)  # its first step has its turn, too
            return
        found = [(topic, topic.query(query)) for topic, query in queries]
        self.log.note_seen(connection.publisher, message.sequence or 0)
        for topic, result in found:
            if result.records:
                publisher = connection.publisher if sequence else connection.origin
                self._delete(publisher, message, topic, result.records, sequence)
        self._confirm_deleted(connection, message, [result for _, result in found])

    def _delete_in_steps(
        self, connection: Connection, message: Message, searches: list[Search]
    ) -> LongCommand:
        """Delete what each step finds; the sequence is used up with the last step."""
        results: list[QueryResult] = []
        step_bytes = self.settings.query_step_bytes
        for search in searches:
            topic, matches, count = search.topic, search.query.matches, 0
            for part in search.all_parts(step_bytes):
                found = [topic.get(record.key) for record in part.records]
                deleted = tuple(
                    record
                    for record in found
                    if record is not None and (matches is None or matches(topic.document(record)))
                )
                count += len(deleted)
                if deleted:
                    self._delete(connection.origin, message, topic, deleted, None)
                yield
            results.append(QueryResult((), search.topic_matches, count))
        self.log.note_seen(connection.publisher, message.sequence or 0)
        self._confirm_deleted(connection, message, results)

    def _topics(self, connection: Connection, request: Request) -> list[SowTable]:
        return self.routes.sow_tables(connection.message_type, request.matcher)

    def _required_topics(self, connection: Connection, request: Request) -> list[SowTable]:
        """The topics of a query or delete; a pattern may match some of which none is known yet.

        Raises:
            Refused: There are none.
        """
        topics = self._topics(connection, request)
        may_come = request.matcher.is_regex and self.routes.sow.has_patterns(
            connection.message_type
        )
        if not topics and not may_come:
            topic = request.message.topic
            raise Refused(Reason.INVALID_TOPIC, f"{topic!r} has no state of the world")
        return topics

    def _answer(  # the parts of one answer
        self,
        connection: Connection,
        request: Request,
        searches: list[Search],
        query: Query,
        ids: dict[str, str | int],
        *,
        completes: bool = True,
    ) -> LongCommand:
        """Send the result of a query."""
        answer = Answer(self.outbox, connection, request.message, ids)
        room = sys.maxsize if query.top_n is None else query.top_n
        step_bytes = self.settings.query_step_bytes
        spent_bytes = 0
        parts = (
            sorted_parts(searches, step_bytes)
            if query.is_sorted
            else _unsorted(searches, step_bytes)
        )
        for found, cost_bytes in parts:
            for topic, record in found[: room - answer.returned]:
                body = request.wanted_of(record.body, topic.message_type)
                answer.add(topic.name, _fields(record, request.style), body)
            spent_bytes += cost_bytes
            if spent_bytes >= step_bytes:
                spent_bytes = 0
                yield
        matches = sum(each.matches for each in searches)
        records = sum(each.topic_matches for each in searches)
        answer.end(
            topic_matches=request.seen_of(records, matches), matches=matches, completes=completes
        )

    def _delete(
        self,
        publisher: KnownPublisher,
        message: Message,
        topic: SowTable,
        records: tuple[SowRecord, ...],
        sequence: int | None,
    ) -> None:
        """Record and carry out a delete, under a number of the server if it has no sequence."""
        record = Record(
            position=0,
            publisher_id=publisher.id,
            sequence=sequence or self.log.publishers.assign(),
            timestamp_us=self.log.now_us,
            topic_id=0,
            command=RecordCommand.SOW_DELETE,
            flags=0 if sequence else RecordFlag.ASSIGNED,
            correlation_id=to_bytes(message.correlation_id),
            payload=to_bytes(",".join(each.key for each in records)),
        )
        route = self.routes[topic.message_type].route(topic.name)
        self.applier.apply(route, publisher, record)

    def _confirm_deleted(
        self, connection: Connection, message: Message, results: list[QueryResult]
    ) -> None:
        wanted = requested(message.ack_type)
        self.outbox.acknowledge(connection, message, "received", "processed", "completed")
        if "persisted" in wanted and message.sequence and self.log.is_logging:
            self.acks.schedule(connection)
        elif "persisted" in wanted:
            more = {"s": message.sequence} if message.sequence else None
            self.outbox.confirm(connection, ack("persisted", message.command_id, more=more))
        self._stats(connection, message, results)

    def _stats(self, connection: Connection, message: Message, results: list[QueryResult]) -> None:
        if "stats" not in requested(message.ack_type):
            return
        more: dict[str, str | int] = {
            "records_deleted": sum(result.matches for result in results),
            "topic_matches": sum(result.topic_matches for result in results),
            "matches": sum(result.matches for result in results),
        }
        if message.query_id:
            more["query_id"] = message.query_id
        self.outbox.send(connection, ack("stats", message.command_id, more=more))


def _unsorted(
    searches: Sequence[Search], part_bytes: int
) -> Iterator[tuple[list[tuple[SowTable, SowRecord]], int]]:
    """The parts of some searches, one search after the other."""
    for search in searches:
        for part in search.parts(part_bytes):
            yield [(search.topic, record) for record in part.records], part.cost_bytes


def _without_history(topics: list[SowTable]) -> str:
    """The name of the first topic that keeps no history; empty if all of them do."""
    return next((topic.name for topic in topics if not topic.history), "")


def _check_pending(connection: Connection) -> None:
    """Check that a connection may begin another query that takes several steps.

    Raises:
        Refused: It has too many that have not ended. Those of subscriptions do not count.
    """
    pending = len(connection.queries) - connection.subscription_queries
    if pending >= MAX_PENDING_COMMANDS:
        raise Refused(Reason.TOO_MANY_QUERIES, f"{pending} are not answered yet")


def _is_now(bookmark: str) -> bool:
    return bookmark.rstrip("|") == str(NOW).rstrip("|")


def _ids(message: Message) -> dict[str, str | int]:
    """Sub id and query id: each defaults to the other, and both default to the command id."""
    return {
        "sub_id": message.sub_id or message.query_id or message.command_id,
        "query_id": message.query_id or message.sub_id or message.command_id,
    }


def _query(request: Request) -> Query:
    message = request.message
    check_batch_size(message)
    try:
        order_by = parse_order_by(message.order_by) if message.order_by else Query().order_by
    except OrderByError as error:
        raise Refused(Reason.INVALID_ORDERBY, error.detail) from error
    return Query(
        matches=request.filter,
        keys=_keys(message.sow_keys) if message.sow_keys else None,
        order_by=order_by,
        top_n=request.top_n,
        skip_n=request.options.skip_n or 0,
        paged=request.options.skip_n is not None,
        weight=weight_of(request.filter_text),
    )


def _keys(text: str) -> tuple[str, ...]:
    """The keys of a query or delete.

    Raises:
        Refused: There are more than are looked up at once.
    """
    count = text.count(",") + 1
    if count > MAX_KEYS:
        raise Refused(Reason.BAD_SOW_KEY, f"{count} keys, at most {MAX_KEYS} in one command")
    return parse_sow_keys(text)


def _without(query: Query, topic: SowTable, had: Subscription | None) -> Query:
    """A query of one topic without the records that a subscription had already."""
    if had is None:
        return query
    matches = query.matches

    def is_new(document: Document) -> bool:
        return (matches is None or matches(document)) and not had.selects(topic.name, document)

    return replace(query, matches=is_new)


def _check_replaced(replaced: Subscription, request: Request, *, paged: bool) -> None:
    """Check that a `sow_and_subscribe` without a bookmark may replace a subscription.

    Raises:
        Refused: The one is a page and the other is not, or they are pages of two topics, or the
            subscription is one to a queue or to the log.
    """
    if type(replaced) is Subscription and not paged:
        return
    if not isinstance(replaced, PageSubscription):
        kind = "neither a page nor one to the log" if paged else "one to a queue or to the log"
        detail = f"{replaced.id!r} is {kind}"
        raise Refused(Reason.INVALID_OPTIONS, f"replace: {detail}")
    if not paged:
        detail = f"{replaced.id!r} is a page: repeat top_n and skip_n"
        raise Refused(Reason.INVALID_OPTIONS, f"replace: {detail}")
    if request.matcher.text != replaced.matcher.text:
        detail = f"the page {replaced.id!r} keeps its topic {replaced.matcher.text!r}"
        raise Refused(Reason.INVALID_TOPIC, f"replace: {detail}")


def _check_page(request: Request, topics: list[SowTable]) -> None:
    """Check that a subscription may have a page.

    Raises:
        Refused: Its topic is a pattern or has no records, or the page is too long.
    """
    message = request.message
    if request.options.conflation not in {None, "none"}:
        raise Refused(Reason.INVALID_OPTIONS, "conflation is not for a page")
    if request.matcher.is_regex:
        raise Refused(Reason.INVALID_TOPIC, f"a page is of one topic, not of {message.topic!r}")
    if not topics:
        raise Refused(Reason.INVALID_TOPIC, f"{message.topic!r} has no state of the world")
    if (request.top_n or 0) > MAX_PAGE_RECORDS:
        detail = f"a page of {request.top_n} records, at most {MAX_PAGE_RECORDS}"
        raise Refused(Reason.INVALID_OPTIONS, detail)


def _fields(record: SowRecord, style: int) -> dict[str, str | int]:
    fields: dict[str, str | int] = {}
    if not style & Style.NO_SOW_KEY:
        fields["k"] = record.key
    if style & Style.TIMESTAMP:
        fields["ts"] = record.timestamp
    if record.correlation_id:
        fields["x"] = record.correlation_id
    return fields


def _check_delete(message: Message, options: Options) -> None:
    """Check that a delete is no acknowledgement, means records in one way, and fits into the log.

    Raises:
        Refused: It is one, or does not.
    """
    if message.bookmark:
        raise Refused(Reason.INVALID_TOPIC, f"{message.topic!r} is no queue")
    for name in ("cancel", "expire", "lease_extension"):
        if getattr(options, name):
            raise Refused(Reason.INVALID_OPTIONS, f"{name}: {message.topic!r} is no queue")
    # With several of them, one would be ignored, and records that it leaves out be deleted.
    if sum(map(bool, (message.filter, message.sow_keys, message.data or message.sow_key))) != 1:
        detail = "a sow_delete needs one of a filter, sow_keys and a body, and no more"
        raise Refused(Reason.BAD_SOW_KEY, detail)
    if problem := problem_of_headers(message):
        raise Refused(*problem)


def _query_of_delete(topic: SowTable, request: Request) -> Query:
    """Which records of a topic a sow_delete means."""
    message = request.message
    keys = message.sow_keys or message.sow_key
    if keys and not message.data:
        return Query(keys=_keys(keys))
    if request.filter is not None:
        return Query(matches=request.filter, weight=weight_of(request.filter_text))
    try:
        return Query(
            keys=(topic.key_of(Document(message.data, topic.message_type), message.sow_key),)
        )
    except SowError as error:
        raise Refused(error.reason, str(error)) from error
