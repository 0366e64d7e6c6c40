from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from haclient.errors import StoreError
from haclient.protocol.codec import publish_head
from haclient.session.auditing import AuditedOwner, Auditor
from haclient_stores.audit_log import AuditLog, AuditLogReader


@pytest.fixture
def auditor(tmp_path: Path) -> Iterator[Auditor]:
    times = iter(range(1000, 10**6))
    made = Auditor(AuditLog(tmp_path), lambda: next(times))
    made.open_for("c")
    yield made
    made.log.close()


@pytest.mark.parametrize(
    "topic", ["orders", 'with "quotes"', "back\\slash", "\N{EURO SIGN}", "\udcff", "}"]
)
def test_the_topic_is_read_from_the_head_of_a_frame(auditor: Auditor, topic: str) -> None:
    for sequence in (1, 2):
        auditor.published(publish_head(topic, correlation_id="ab"), sequence)
    auditor.log.flush()
    records = list(AuditLogReader(auditor.log.path).publishes())
    assert [(each.sequence, each.topic) for each in records] == [(1, topic), (2, topic)]


def test_many_topics_do_not_fill_the_memory(auditor: Auditor) -> None:
    for sequence in range(1, 5001):
        auditor.published(publish_head(f"t{sequence}"), sequence)
    assert len(auditor._topics) < 5000
    auditor.log.flush()
    assert len(list(AuditLogReader(auditor.log.path).publishes())) == 5000


def test_a_discard_that_the_store_refuses_is_not_recorded(auditor: Auditor) -> None:
    class Owner:
        def discard(self, number: int, /) -> None:
            if number == 2:
                raise StoreError("refused")

    owner = AuditedOwner(Owner(), auditor, "s")
    auditor.log.received("s", [("7|1|", 1), ("7|2|", 2)], 1)
    owner.discard(1)
    with pytest.raises(StoreError, match="refused"):
        owner.discard(2)
    auditor.log.flush()
    records = AuditLogReader(auditor.log.path).deliveries()
    assert {each.sequence: each.discarded_us is not None for each in records} == {1: True, 2: False}
