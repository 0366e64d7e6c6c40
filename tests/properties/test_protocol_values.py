"""Values that are written and read back: bookmarks, options, connection strings, commands."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.protocol.codec import MessageDecoder, encode_frame, encode_string, parse_header
from haclient.protocol.commands import AckType, Command, CommandName, format_acks, parse_acks
from haclient.protocol.framing import FrameReader
from haclient.protocol.identity import crc64, instance_publisher_id, publisher_id, version_number
from haclient.protocol.messages import WIRE_NAMES
from haclient.protocol.options import Options, format_interval, parse_interval
from haclient.protocol.uri import Uri
from haclient_stores.bookmark import (
    EPOCH,
    NOW,
    Bookmark,
    BookmarkList,
    BookmarkRange,
    RangeEnd,
    StartPoint,
    Timestamp,
    parse_bookmark,
)

unsigned = st.integers(0, 2**64 - 1)
bookmarks = st.builds(Bookmark, unsigned, unsigned).filter(lambda mark: str(mark) != "0|1|")
moments = st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)).map(Bookmark.at)  # noqa: DTZ001  the zone comes by the strategy
lists = st.lists(st.one_of(bookmarks, moments), min_size=2, max_size=4).map(
    lambda items: BookmarkList(tuple(items))
)
ends: st.SearchStrategy[RangeEnd] = st.one_of(
    st.sampled_from([EPOCH, NOW]), bookmarks, moments, lists
)
ranges = st.builds(BookmarkRange, ends, ends, st.sampled_from(["[)", "(]", "[]", "()"]))


@pytest.mark.row("ID1")
@given(st.one_of(ends, ranges))
def test_every_bookmark_is_read_as_it_was_written(value: StartPoint) -> None:
    assert parse_bookmark(str(value)) == value


@given(st.one_of(st.text(max_size=30), st.text("0123456789|,:[]()TZ. tnecr", max_size=30)))
def test_any_text_is_a_bookmark_or_a_usage_error(text: str) -> None:
    try:
        value = parse_bookmark(text)
    except UsageError:
        return
    assert parse_bookmark(str(value)) == value


@given(st.datetimes(datetime(1971, 1, 1)), st.integers(-23, 23))  # noqa: DTZ001  the zone is added below
def test_a_moment_is_the_same_in_every_zone(naive: datetime, hours: int) -> None:
    moment = naive.replace(tzinfo=timezone(timedelta(hours=hours)))
    try:
        assert Timestamp.parse(str(Bookmark.at(moment))).datetime == moment
    except UsageError:
        assert moment.astimezone(UTC).year not in range(1971, 9999)


flags = st.dictionaries(
    st.sampled_from(["bookmark", "fully_durable", "no_empties", "no_sowkey", "non_regex_topic"]),
    st.just(value=True),
)
paths = (
    st.text("abc/[0]", min_size=1, max_size=8)
    .map(lambda t: f"/{t}")
    .filter(lambda t: t.count("[") == t.count("]") and t.find("]") >= t.find("["))
)


@pytest.mark.row("CC20")
@given(
    flags,
    st.one_of(st.none(), st.integers(0, 10**9)),
    st.one_of(st.none(), st.integers(0, 10**12).map(lambda n: n / 10**6)),
    st.lists(st.builds(str.__add__, st.sampled_from("+-"), paths), max_size=3).map(tuple),
)
def test_options_are_read_as_they_were_written(
    given_flags: dict[str, bool],
    top_n: int | None,
    conflation: float | None,
    select: tuple[str, ...],
) -> None:
    options = Options(**given_flags, top_n=top_n, conflation=conflation, select=select)  # type: ignore[arg-type]  # all flags are booleans
    again = Options.parse(str(options))
    assert str(again) == str(options)
    assert (again.top_n, again.select, again.conflation_s) == (top_n, select, options.conflation_s)


@given(st.one_of(st.text(max_size=40), st.text("abcdeflostu_=,[]()'\"/-+ 0129", max_size=60)))
def test_any_text_is_options_or_a_usage_error(text: str) -> None:
    try:
        options = Options.parse(text)
    except UsageError:
        return
    assert Options.parse(str(options)) == options


@given(st.integers(0, 10**15))
def test_an_interval_of_whole_nanoseconds_is_read_as_it_was_written(nanoseconds: int) -> None:
    seconds = nanoseconds / 10**9
    assert parse_interval(format_interval(seconds)) == pytest.approx(seconds, abs=5e-10)


@given(st.text(max_size=10))
def test_any_text_is_an_interval_or_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert parse_interval(text) >= 0


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
topics = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)


@pytest.mark.row("AT1")
@given(words, words.filter(bool), words.filter(bool), st.integers(1, 65535), st.booleans())
def test_user_password_and_type_may_be_any_text_when_percent_encoded(
    user: str,
    password: str,
    message_type: str,
    port: int,
    nodelay: bool,  # noqa: FBT001  a drawn value
) -> None:
    userinfo = f"{quote(user, safe='')}:{quote(password, safe='')}"
    text = f"tcp://{userinfo}@host:{port}/amps/{quote(message_type, safe='')}"
    uri = Uri.parse(f"{text}?tcp_nodelay={nodelay}")
    assert (uri.user, uri.password, uri.message_type) == (user, password, message_type)
    assert (uri.port, uri.tcp_nodelay) == (port, nodelay)
    again = Uri.parse(str(uri))
    assert (again.user, again.password, again.message_type) == (user, "", message_type)


@given(
    st.one_of(
        st.text(max_size=40), st.text("tcp://@:[]amps?=&%. 019", max_size=40).map("tcp://".__add__)
    )
)
def test_any_text_is_a_connection_string_or_a_usage_error(text: str) -> None:
    try:
        uri = Uri.parse(text)
    except UsageError:
        return
    assert Uri.parse(str(uri)).address == uri.address


@pytest.mark.row("AT12")
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6), st.text("/?@:[]&=#", max_size=3)
)
def test_no_error_about_a_connection_string_tells_the_password(before: str, junk: str) -> None:
    text = f"tcp://{before}:{junk}s3cret{junk}@host:1/{junk}amps"
    try:
        shown = str(Uri.parse(text))
    except UsageError as error:
        shown = str(error)
    assert "s3cret" not in shown


@pytest.mark.row("CC18")
@given(
    st.sampled_from(CommandName),
    st.dictionaries(
        st.sampled_from(["filter", "sub_id", "order_by", "client_name", "options"]), words
    ),
    topics,
    st.dictionaries(st.sampled_from(["top_n", "batch_size", "sequence", "expiration"]), unsigned),
    st.binary(max_size=20),
)
def test_a_command_arrives_as_it_was_made(
    name: CommandName, text: dict[str, str], topic: str, numbers: dict[str, int], body: bytes
) -> None:
    text = text | {"topic": topic}
    command = Command(name, data=body, **text, **numbers)  # type: ignore[arg-type]  # drawn by their types
    frame = encode_frame(command.to_fields(), command.body)
    (message,) = MessageDecoder(expand_sow=False).decode(*FrameReader().feed(frame))
    assert (message.command, message.data) == (str(name), body)
    for attribute in WIRE_NAMES:
        if attribute != "kind":
            expected = {**text, **numbers}.get(attribute) or getattr(message, attribute)
            assert getattr(message, attribute) == expected


@given(st.text(max_size=20))
def test_any_text_is_written_and_read_back_or_refused(text: str) -> None:
    try:
        written = encode_string(text)
    except UsageError:
        assert any("\ud800" <= character <= "\udfff" for character in text)
        return
    assert parse_header(b'{"t":%b}' % written)[0] == {"topic": text}


@given(st.sets(st.sampled_from(AckType)))
def test_a_list_of_acks_is_read_as_it_was_written(acks: set[AckType]) -> None:
    assert parse_acks(format_acks(acks)) == acks


@pytest.mark.row("ID3")
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_an_identity_is_64_bits_and_follows_from_names_alone(
    client: bytes, instance: bytes
) -> None:
    bit_by_bit = 2**64 - 1
    for byte in client:
        bit_by_bit ^= byte
        for _ in range(8):
            bit_by_bit = (bit_by_bit >> 1) ^ (0x95AC9329AC4BC9B5 * (bit_by_bit & 1))
    assert publisher_id(client) == crc64(client) == bit_by_bit
    assert instance_publisher_id(client, instance) == crc64(client + b"\x01" + instance)


@given(st.text(max_size=20))
def test_any_text_has_a_version_number(text: str) -> None:
    assert 0 <= version_number(text) <= 99_999_999
