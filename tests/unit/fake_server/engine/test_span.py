"""Which messages the bookmark of a subscription covers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from haclient_fake_server.engine import span
from haclient_fake_server.engine.journal import MemoryJournal
from haclient_fake_server.engine.span import covered_by
from haclient_fake_server.journal.files import JournalFiles
from support.engine import World
from support.recording import RecordingDisk

pytestmark = pytest.mark.row("CC15")


@pytest.mark.parametrize(
    ("bookmark", "covered"),
    [
        ("0", {}),
        ("0|1|", {}),
        ("7|3|", {}),
        ("20231114T221320Z", {}),
        ("7|3|,9|5|", {7: 3, 9: 5}),
        ("7|5|,7|3|,7|4|", {7: 3}),
        ("7|3|,20231114T221320Z", {7: 3}),
        ("(7|3|,9|5|:9|8|]", {7: 3, 9: 5}),
        ("[7|3|,9|5|:9|8|]", {}),
    ],
)
def test_a_list_covers_what_it_names_and_a_single_place_nothing(
    bookmark: str, covered: dict[int, int]
) -> None:
    assert covered_by(bookmark) == covered


def test_a_list_of_many_bookmarks_is_looked_up_in_one_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    reads = Counter[int]()  # by the length of the list
    length = 0
    read_bytes = MemoryJournal.read_bytes

    def count(self: MemoryJournal, number: int, size: int, offset: int) -> bytes:
        reads[length] += 1
        return read_bytes(self, number, size, offset)

    monkeypatch.setattr(MemoryJournal, "read_bytes", count)
    publishers = [world.client(f"p{number}") for number in range(20)]
    for sequence in range(1, 6):
        for publisher in publishers:
            publisher.publish(sequence, b"%d" % sequence)
    reader = world.client("reader")
    reader.subscribe("all", bm="0")
    bookmarks = [message.bookmark for message in reader.take() if message.kind == "p"]
    chosen = [bookmarks[30], *bookmarks[50:90], *(f"{number}|7|" for number in range(3000))]
    reader.subscribe("list", bm=",".join(chosen))
    replayed = [message.bookmark for message in reader.take() if message.kind == "p"]
    assert replayed == bookmarks[31:]
    reader.subscribe("range", bm=f"[{','.join(chosen)}:{','.join(bookmarks[60:70])}]")
    replayed = [message.bookmark for message in reader.take() if message.kind == "p"]
    assert replayed == bookmarks[30:70]
    for length in (2, 40):
        reader.subscribe(f"of {length}", bm=",".join(bookmarks[40 : 40 + length]))
    assert reads[40] == reads[2] > 0


@pytest.mark.row("TL10")
@pytest.mark.parametrize("comes_again", [True, False])
def test_a_list_with_a_message_that_was_removed_skips_nothing_after_it(
    *, comes_again: bool
) -> None:
    journal = JournalFiles(Path("/log"), RecordingDisk(), segment_bytes=4096, instance_id=1)
    world = World(journal=journal)
    often, seldom, reader = (world.client(name) for name in ("often", "seldom", "reader"))
    seldom.publish(1, b"first")
    for sequence in range(1, 41):
        often.publish(sequence, b"x" * 300)
        if sequence == 30 and comes_again:
            seldom.publish(2, b"again")
    reader.subscribe("all", bm="0")
    bookmarks = [message.bookmark for message in reader.take() if message.kind == "p"]
    while journal.has_unsealed:
        journal.seal()
    journal.remove_files(journal.forget_oldest())
    reader.subscribe("list", bm=f"{bookmarks[0]},{bookmarks[36]}")
    replayed = [message.bookmark for message in reader.take() if message.kind == "p"]
    if comes_again:
        assert {bookmarks[31], *bookmarks[37:]} <= {*replayed}
    else:
        assert replayed == bookmarks[37:]


@pytest.mark.row("TL10")
@pytest.mark.parametrize("not_found", ["now", "epoch", "fail"])
def test_a_subscription_after_what_was_removed_is_refused_or_reported(not_found: str) -> None:
    journal = JournalFiles(Path("/log"), RecordingDisk(), segment_bytes=4096, instance_id=1)
    world = World(journal=journal)
    publisher, reader = world.client("publisher"), world.client("reader")
    for sequence in range(1, 41):
        publisher.publish(sequence, b"x" * 300)
    reader.subscribe("all", bm="0")
    bookmarks = [message.bookmark for message in reader.take() if message.kind == "p"]
    while journal.has_unsealed:
        journal.seal()
    journal.remove_files(journal.forget_oldest())
    options = f"bookmark_not_found={not_found}"
    reader.subscribe("left", bm=f"{bookmarks[0]},{bookmarks[36]}", opts=options)
    assert not world.events
    reader.take()
    reader.subscribe("late", bm=bookmarks[0], opts=options)
    (answer, *_), (event,) = reader.take(), world.events
    assert answer.status == ("failure" if not_found == "fail" else "success")
    words = {"fail": "bookmark not found", "epoch": f"begins at position {journal.first_position}"}
    assert words.get(not_found, "begins at position 41") in event


@pytest.mark.row("TL10")
def test_a_time_before_the_log_does_not_hide_that_the_messages_of_a_list_were_removed() -> None:
    journal = JournalFiles(Path("/log"), RecordingDisk(), segment_bytes=4096, instance_id=1)
    world = World(journal=journal)
    publisher, reader = world.client("publisher"), world.client("reader")
    for sequence in range(1, 41):
        publisher.publish(sequence, b"x" * 300)
        world.advance(1.0)
    reader.subscribe("all", bm="0", opts="timestamp")
    sent = [message for message in reader.take() if message.kind == "p"]
    while journal.has_unsealed:
        journal.seal()
    journal.remove_files(journal.forget_oldest())
    removed, early, late = sent[0].bookmark, sent[1].timestamp, sent[36].timestamp
    options = "bookmark_not_found=fail"
    for bookmark in (f"{removed},{late}", f"{removed},{early},{sent[36].bookmark}"):
        reader.subscribe(f"of {bookmark.replace(',', ' ')}", bm=bookmark, opts=options)
        assert reader.take()[0].status == "success"
        assert not world.events
    reader.subscribe("refused", bm=f"{removed},{early}", opts=options)
    reader.subscribe("warned", bm=f"{removed},{early}")
    refused, accepted, *replayed = reader.take()
    assert (refused.status, accepted.status) == ("failure", "success")
    first = journal.first_position
    assert replayed[0].bookmark == sent[first - 1].bookmark
    assert f"begins at position {first}: what it asks to begin after" in world.events[-1]


def test_a_list_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span, "MAX_BOOKMARKS", 3)
    reader = World().client("reader")
    reader.subscribe("s", bm="1|1|,2|1|,3|1|", a="processed")
    reader.subscribe("t", bm="1|1|,2|1|,3|1|,4|1|", a="processed")
    accepted, refused = reader.take()
    assert accepted.status == "success"
    assert (refused.status, refused.reason) == ("failure", "invalid bookmark")
    assert "a list of 4, at most 3" in refused.detail
