"""The rules behind `publish --store --file`: no line twice, none left out."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from haclient.cli import publish_ledger
from haclient.cli.lines import FileScan
from haclient.cli.publish_ledger import PublishLedger, Source
from haclient.errors import StoreError, UsageError
from support.lengths import length

SOURCE = Source("/data/rows.csv", "rows", b"\n")


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def scan(data: bytes, prefix: int = 0) -> FileScan:
    before, after = data[:prefix], data[prefix:]
    return FileScan(
        size=len(data),
        digest=digest(data),
        lines=data.count(b"\n") + (not data.endswith(b"\n") and data != b""),
        prefix_digest=digest(before) if prefix and len(data) >= prefix else "",
        prefix_is_open=bool(before and after and before[-1:] != b"\n" and after[:1] != b"\n"),
    )


def begun(data: bytes, *, last: int = 1000) -> PublishLedger:
    return PublishLedger().begin(SOURCE, scan(data), last)[0]


def resumed(book: PublishLedger, data: bytes, last: int) -> tuple[int, int]:
    settled = book.close_open_file(last)
    _, plan = settled.begin(SOURCE, scan(data, settled.noted_size(SOURCE)), last)
    return plan.skip, plan.base


TEN = b"".join(b"%d\n" % n for n in range(10))


def test_the_first_run_publishes_every_line() -> None:
    book, plan = PublishLedger().begin(SOURCE, scan(TEN), 1000)
    assert (plan.skip, plan.base) == (0, 1000)
    assert PublishLedger.parse(book.note()) == book


@pytest.mark.row("CLI9")
def test_after_a_kill_only_the_missing_lines_are_published() -> None:
    assert resumed(begun(TEN), TEN, 1004) == (4, 1000)


def test_a_kill_before_the_first_line_leaves_all_of_them() -> None:
    assert resumed(begun(TEN), TEN, 1000) == (0, 1000)


def test_stdin_in_between_takes_no_lines_of_the_file() -> None:
    settled = begun(TEN).close_open_file(1004)  # what a run from stdin notes before it publishes
    assert resumed(settled, TEN, 1500) == (4, 1496)


def test_another_file_in_between_is_published_from_its_first_line() -> None:
    other = Source("/data/other.csv", "rows", b"\n")
    book = begun(TEN).close_open_file(1004)
    book, plan = book.begin(other, scan(b"x\ny\n"), 1004)
    assert (plan.skip, plan.base) == (0, 1004)
    book = book.close_open_file(1005)
    assert resumed(book, TEN, 1005) == (4, 1001)


def test_the_same_file_to_another_topic_is_another_source() -> None:
    book = begun(TEN).close_open_file(1010)
    _, plan = book.begin(Source(SOURCE.path, "elsewhere", b"\n"), scan(TEN), 1010)
    assert plan.skip == 0


def test_a_grown_file_goes_on_after_the_lines_taken() -> None:
    assert resumed(begun(TEN).close_open_file(1010), TEN + b"10\n11\n", 1010) == (10, 1000)
    assert resumed(begun(TEN), TEN + b"10\n11\n", 1004) == (4, 1000)


def test_a_published_last_line_that_grew_is_refused() -> None:
    book = begun(b"a\nb").close_open_file(1002)
    with pytest.raises(UsageError, match="has grown"):
        resumed(book, b"a\nbb\n", 1002)


def test_a_last_line_that_only_got_its_end_is_not_published_again() -> None:
    assert resumed(begun(b"a\nb").close_open_file(1002), b"a\nb\nc\n", 1002) == (2, 1000)


def test_an_unpublished_last_line_may_grow() -> None:
    assert resumed(begun(b"a\nb").close_open_file(1001), b"a\nbb\n", 1001) == (1, 1000)


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("data", "last", "what"),
    [
        (b"X" + TEN[1:], 1010, "begins otherwise than the file of which all 10 lines were"),
        (TEN[:-2] + b"X\n", 1010, "begins otherwise than the file of which all 10 lines were"),
        (b"X" + TEN, 1010, "begins otherwise than the file of which all 10 lines were"),
        (TEN[:-2], 1010, "is shorter than the file of which all 10 lines were"),
        (b"", 1010, "is shorter than the file of which all 10 lines were"),
        (b"X" + TEN[1:], 1004, "begins otherwise than the file of which 4 of its 10 lines were"),
        (TEN[:8], 1004, "is shorter than the file of which 4 of its 10 lines were"),
    ],
    ids=["edited", "last-edited", "inserted", "cut", "emptied", "edited-midway", "cut-midway"],
)
def test_a_file_that_changed_after_it_was_published_is_refused(
    data: bytes, last: int, what: str
) -> None:
    with pytest.raises(UsageError, match=f"{what} published.*--from-start"):
        resumed(begun(TEN), data, last)


def test_a_file_that_changed_before_its_first_line_was_taken_is_simply_read_anew() -> None:
    assert resumed(begun(TEN), b"X" + TEN[1:], 1000) == (0, 1000)


def test_from_start_forgets_the_file_whatever_happened() -> None:
    book = begun(TEN).forget(SOURCE)
    assert resumed(book, b"X" + TEN[1:], 5000) == (0, 5000)
    other = Source("/data/other.csv", "rows", b"\n")
    assert begun(TEN).forget(other) == begun(TEN)


def test_numbers_that_somebody_else_took_are_refused_and_not_counted_as_lines() -> None:
    with pytest.raises(StoreError, match=r"in the middle of /data/rows.csv \(10 lines\), and 11 "):
        begun(TEN).close_open_file(1011)


def test_numbers_that_are_skipped_after_the_machine_was_started_are_no_lines() -> None:
    settled = begun(TEN).close_open_file(1004)
    book, plan = settled.begin(SOURCE, scan(TEN, settled.noted_size(SOURCE)), 5000)
    assert (plan.skip, plan.base) == (4, 4996)
    assert book.counted_to == 5000
    assert book.close_open_file(1004).files[SOURCE.key].taken == 4  # killed before the next line
    assert book.close_open_file(5002).files[SOURCE.key].taken == 6


def test_lines_that_are_lost_before_others_are_refused_and_named() -> None:
    with pytest.raises(StoreError, match=r"lines 3 to 4 of /data/rows.csv are missing.*from-start"):
        begun(TEN).close_open_file(1007, (1003, 1004))
    assert begun(TEN).forget(SOURCE).close_open_file(1007, (1003, 1004)).open == ""


def test_a_book_that_is_full_refuses_instead_of_forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_ledger, "MAX_FILES", 1)
    book = begun(TEN).close_open_file(1010)
    with pytest.raises(UsageError, match="take a new store"):
        book.begin(Source("/data/second.csv", "rows", b"\n"), scan(TEN), 1010)
    assert resumed(book, TEN, 1010) == (10, 1000)


@pytest.mark.parametrize("note", ["{", "[]", '{"open": "x"}', '{"base": "x"}'])
def test_a_note_that_is_not_ours_is_refused(note: str) -> None:
    with pytest.raises(StoreError, match="note"):
        PublishLedger.parse(note)


def test_an_empty_note_is_an_empty_book() -> None:
    assert PublishLedger.parse("") == PublishLedger()


class Runs(RuleBasedStateMachine):
    """Any order of runs, kills, growing files, and stdin in between."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, list[bytes]] = {"a": [b"a0", b"a1"], "b": [b"b0"]}
        self.sent: list[tuple[str, bytes]] = []
        self.note = ""
        self.last = 10**15  # the highest number that is used or skipped
        self.used = 0

    def take(self, name: str, line: bytes) -> int:
        self.last += 1
        self.used = self.last
        self.sent.append((name, line))
        return self.last

    def data(self, name: str) -> bytes:
        return b"".join(line + b"\n" for line in self.files[name])

    @rule(name=st.sampled_from("ab"), count=st.integers(1, 4))
    def a_file_grows(self, name: str, count: int) -> None:
        start = len(self.files[name])
        self.files[name] += [b"%s%d" % (name.encode(), start + n) for n in range(count)]

    @rule()
    def the_machine_is_started(self) -> None:
        self.last += 10**9  # the next numbers are above the clock

    @rule(name=st.sampled_from("ab"), killed_after=st.integers(0, 12))
    def a_run_publishes_a_file(self, name: str, killed_after: int) -> None:
        source = Source(name, "t", b"\n")
        book = PublishLedger.parse(self.note).close_open_file(self.used)
        book, plan = book.begin(source, scan(self.data(name), book.noted_size(source)), self.last)
        self.note = book.note()
        for number, line in enumerate(self.files[name], start=1):
            if number <= plan.skip:
                continue
            if killed_after == 0:
                return
            killed_after -= 1
            assert self.take(name, line) == plan.base + number
        self.note = book.close_open_file(self.used).note()

    @rule(count=st.integers(0, 5), dies_early=st.booleans())
    def a_run_publishes_stdin(self, count: int, dies_early: bool) -> None:  # noqa: FBT001 - drawn
        book = PublishLedger.parse(self.note)
        settled = book.close_open_file(self.used)
        if settled != book:
            self.note = settled.note()
        for number in range(0 if dies_early else count):
            self.take("stdin", b"%d" % number)

    @invariant()
    def lines_are_sent_once_and_in_order(self) -> None:
        for name, lines in self.files.items():
            sent = [line for source, line in self.sent if source == name]
            assert sent == lines[: len(sent)]


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=length(60), stateful_step_count=25)
