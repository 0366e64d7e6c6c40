"""What a run of records comes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_fake_server.engine.scanning import scan
from haclient_fake_server.journal.format import Record, RecordCommand, RecordFlag, encode_record


@pytest.mark.row("TL1", "ID2")
@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from(list(RecordCommand)),
            st.sampled_from([0, RecordFlag.ASSIGNED]),
            st.binary(max_size=9),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_a_scan_knows_what_reading_each_record_would_tell(
    items: list[tuple[int, RecordCommand, int, bytes]],
) -> None:
    records = [
        Record(
            number if command in {RecordCommand.PUBLISH, RecordCommand.SOW_DELETE} else 0,
            publisher,
            10 * number,
            1000 * number,
            1,
            command,
            flags,
            payload=payload,
        )
        for number, (publisher, command, flags, payload) in enumerate(items, 1)
    ]
    data = b"junk" + b"".join(map(encode_record, records))
    found = scan(data, 4, len(data))
    messages = [record for record in records if record.position]
    assert found.special == [record for record in records if not record.position]
    assert set(found.publishers) == {record.publisher_id for record in messages}
    for publisher, (low, high) in found.publishers.items():
        sequences = [r.sequence for r in messages if r.publisher_id == publisher]
        assert (low, high) == (sequences[0], sequences[-1])
    assert found.assigned == {r.publisher_id for r in messages if r.flags}
    assert found.last_position == (messages[-1].position if messages else 0)
    last = (messages[-1].publisher_id, messages[-1].sequence) if messages else None
    assert found.last == last
    assert (found.first_us, found.last_us) == (1000, 1000 * len(records))
