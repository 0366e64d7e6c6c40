"""The file of the queues' recovery points."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.journal.format import LogStart
from haclient_fake_server.journal.queue_points import QUEUE_POINTS_NAME, QueuePointFile
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import StoreError
from support.recording import Event, RecordingDisk, kills, power_cuts

POINTS = (
    QueuePoint("work", "json", ("^jobs/.*", "caf\u00e9 \udcff"), "epoch", 2**63),
    QueuePoint("later", "fix", (), "now", 7),
)
STARTS = (LogStart(11, 1), LogStart(22, 5))


def opened(directory: Path, starts: Sequence[LogStart] = STARTS) -> QueuePointFile:
    return QueuePointFile(directory, RealDisk(), log_starts=starts)


@pytest.mark.row("QB29")
def test_what_was_written_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert not file.points
    file.write(POINTS)
    assert file.points == POINTS
    assert opened(tmp_path).points == POINTS
    file.write(())
    assert opened(tmp_path).points == ()


def test_the_file_is_as_the_readme_says(tmp_path: Path) -> None:
    opened(tmp_path).write(POINTS[1:])
    assert json.loads((tmp_path / "queues.ack").read_text("ascii")) == {
        "format": 1,
        "log_start": "0000000000000016",
        "queues": [
            {
                "name": "later",
                "message_type": "fix",
                "topics": [],
                "recovery_point": "now",
                "position": 7,
            }
        ],
        "crc32": 2485862938,
    }


@pytest.mark.row("QB29")
@pytest.mark.parametrize(("old", "new"), [(": 7", ": 70"), ("later", "latex"), ("0016", "0011")])
def test_a_changed_character_is_damage(
    tmp_path: Path, old: str, new: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A point that is too high would leave out messages without a word."""
    opened(tmp_path).write(POINTS[1:])
    path = tmp_path / QUEUE_POINTS_NAME
    path.write_text(path.read_text().replace(old, new))
    assert opened(tmp_path).points == ()
    assert "its checksum does not match" in caplog.text


@pytest.mark.row("QB29")
def test_points_outlast_the_start_that_they_named_first(tmp_path: Path) -> None:
    """The log knows its last starts only, and the points may stay as they are for long."""
    opened(tmp_path).write(POINTS[1:])
    opened(tmp_path, [LogStart(22, 7), LogStart(33, 7)]).note_start()
    assert opened(tmp_path, [LogStart(33, 7), LogStart(44, 9)]).points == POINTS[1:]


@pytest.mark.row("QB29")
def test_later_starts_at_the_end_of_the_log_change_nothing(tmp_path: Path) -> None:
    opened(tmp_path).write(POINTS[1:])
    assert opened(tmp_path, [*STARTS, LogStart(33, 7), LogStart(44, 9)]).points == POINTS[1:]


@pytest.mark.row("QB29")
@pytest.mark.parametrize(
    ("later", "position"), [([(33, 6)], 6), ([(33, 6), (44, 9)], 6), ([(33, 9), (44, 2)], 2)]
)
def test_where_the_end_of_the_log_was_lost_a_point_is_moved_back_to_what_follows(
    tmp_path: Path, later: list[tuple[int, int]], position: int
) -> None:
    opened(tmp_path).write(POINTS[1:])
    starts = [*STARTS, *(LogStart(*each) for each in later)]
    (point,) = opened(tmp_path, starts).points
    assert point == POINTS[1]._replace(position=position)


@pytest.mark.row("QB29")
@pytest.mark.parametrize(("end", "count"), [(6, 1), (7, 0), (8, 0)])
def test_a_start_that_finds_the_end_of_the_log_lost_says_so(
    tmp_path: Path, end: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path).write(POINTS[1:])
    opened(tmp_path, [*STARTS, LogStart(33, end)])
    assert caplog.text.count("positions 6 to 6: lost, and given again") == count
    caplog.clear()
    opened(tmp_path, [*STARTS, LogStart(33, end), LogStart(44, 9)])  # said once, by that start
    assert "lost" not in caplog.text


@pytest.mark.row("QB29")
def test_points_of_another_log_are_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path).write(POINTS)
    with caplog.at_level(logging.WARNING):
        assert opened(tmp_path, [LogStart(33, 1)]).points == ()
    assert "points of another log (no start 0000000000000016)" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"format":1}',
        b'{"format":1,"log_start":"1","queues":[{"name":"x"}]}',
        b'{"format":1,"log_start":"x","queues":[]}',
        b"\xff",
    ],
)
def test_a_damaged_file_is_ignored_with_a_warning(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / QUEUE_POINTS_NAME).write_bytes(damage)
    file = opened(tmp_path)
    assert file.points == ()
    (warning,) = caplog.messages
    assert "queues.ack: ignored, since it is damaged" in warning
    assert "each queue begins at its configured" in warning
    file.write(POINTS)
    assert opened(tmp_path).points == POINTS


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"message_type": None},
        {"topics": "orders"},
        {"topics": [1]},
        {"topics": None},
        {"recovery_point": 5},
        {"position": "5"},
        {"position": True},
        {"position": 0},
        {"position": 2**64},
        {"more": 1},
    ],
)
def test_a_point_that_cannot_be_is_damage(
    tmp_path: Path, change: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    fields = POINTS[1]._asdict()
    for point, is_good in ((fields, True), (fields | change, False)):
        content = {"format": 1, "log_start": "16", "queues": [point]}
        (tmp_path / QUEUE_POINTS_NAME).write_text(json.dumps(content))
        if is_good:
            assert opened(tmp_path).points == POINTS[1:]
        else:
            assert opened(tmp_path).points == ()
            wanted = r"is damaged \((queues or log_start: |\d+ is no position)"
            assert re.search(wanted, caplog.text)


@pytest.mark.parametrize("content", [{}, {"queues": {}}, {"queues": [5]}, {"log_start": "16"}])
def test_a_file_of_another_shape_says_what_was_wanted(
    tmp_path: Path, content: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    start: dict[str, object] = {"log_start": "16"} if "queues" in content else {}
    (tmp_path / QUEUE_POINTS_NAME).write_text(json.dumps({"format": 1, **start, **content}))
    assert opened(tmp_path).points == ()
    assert re.search(r"\(queues or log_start: Expected `\w+`, got", caplog.text)


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / QUEUE_POINTS_NAME).write_text(json.dumps({"format": 2, "other": "fields"}))
    with pytest.raises(StoreError, match="version 2, but this version of haclient reads up to 1"):
        opened(tmp_path)


@pytest.mark.row("QB29")
@pytest.mark.parametrize("crash", [kills, power_cuts])
def test_a_crash_while_it_is_replaced_leaves_the_points_of_before_or_after(crash: object) -> None:
    events: list[Event] = []
    disk = RecordingDisk(events)
    directory = Path("/disk")
    file = QueuePointFile(directory, disk, log_starts=STARTS)
    written = [POINTS, POINTS[1:], ()]
    for points in written:
        file.write(points)
        disk.note(points)
    found: set[tuple[QueuePoint, ...]] = set()
    for each in kills(events) if crash is kills else power_cuts(events):
        points = QueuePointFile(directory, each.disk(), log_starts=STARTS).points
        at = len(each.notes)
        assert points in [written[at - 1] if at else (), *written[at : at + 1]]
        found.add(points)
    assert found == {*written}
