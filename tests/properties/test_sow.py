"""A SOW topic against a dict: the last message of each key, whatever happens in between."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from haclient_fake_server.engine.filters import Document, compile_filter, parse_order_by
from haclient_fake_server.engine.sow.table import Query, SowKeyError, SowRecord, SowTable
from support.lengths import length

pytestmark = pytest.mark.row("SW1", "SW2", "SW3")

IDS = st.integers(0, 5)
SIZES = st.integers(0, 3)


def body(number: int, size: int) -> bytes:
    return json.dumps({"id": number, "size": size}).encode()


def rows(records: tuple[SowRecord, ...]) -> list[tuple[int, int]]:
    decoded = [json.loads(record.body) for record in records]
    return [(row["id"], row["size"]) for row in decoded]


class SowModel(RuleBasedStateMachine):
    """The model is a dict from id to size; a dict keeps the order of first insertion as well."""

    def __init__(self) -> None:
        super().__init__()
        self.topic = SowTable("orders", ["/id"])
        self.model: dict[int, int] = {}

    def key(self, number: int) -> str:
        return self.topic.key_of(Document(body(number, 0)))

    @rule(number=IDS, size=SIZES)
    def publish(self, number: int, size: int) -> None:
        key, previous = self.topic.apply(Document(body(number, size)))
        assert key == self.key(number)
        known = [(number, self.model[number])] if number in self.model else []
        assert rows((previous,) if previous else ()) == known
        self.model[number] = size

    @rule(size=SIZES)
    def publish_without_key(self, size: int) -> None:
        with pytest.raises(SowKeyError):
            self.topic.apply(Document(b'{"size":%d}' % size))

    @rule(size=SIZES)
    def delete_by_filter(self, size: int) -> None:
        gone = [item for item in self.model.items() if item[1] > size]
        found = self.topic.query(Query(matches=compile_filter(f"/size > {size}")))
        deleted = self.topic.delete_keys([record.key for record in found.records])
        self.check_deleted(gone, rows(deleted), found.topic_matches)

    @rule(numbers=st.lists(IDS, max_size=3))
    def delete_by_keys(self, numbers: list[int]) -> None:
        gone = [(n, self.model[n]) for n in dict.fromkeys(numbers) if n in self.model]
        before = len(self.topic)
        deleted = self.topic.delete_keys([self.key(number) for number in numbers])
        self.check_deleted(gone, rows(deleted), before)

    @rule(number=IDS)
    def delete_by_data(self, number: int) -> None:
        gone = [(number, self.model[number])] if number in self.model else []
        before = len(self.topic)
        deleted = self.topic.delete_keys([self.topic.key_of(Document(body(number, 0)))])
        self.check_deleted(gone, rows(deleted), before)

    def check_deleted(
        self, expected: list[tuple[int, int]], found: list[tuple[int, int]], before: int
    ) -> None:
        assert found == expected
        assert before == len(self.model)
        for number, _ in expected:
            del self.model[number]

    @rule(
        size=SIZES,
        keys=st.none() | st.lists(IDS, max_size=4, unique=True),
        top_n=st.none() | st.integers(0, 7),
        skip_n=st.integers(0, 7),
    )
    def query(self, size: int, keys: list[int] | None, top_n: int | None, skip_n: int) -> None:
        wanted = self.model if keys is None else keys
        fit = [(n, s) for n, s in self.model.items() if s <= size and n in wanted]
        fit.sort(key=lambda row: (-row[1], row[0]))
        result = self.topic.query(
            Query(
                matches=compile_filter(f"/size <= {size}"),
                keys=None if keys is None else [self.key(number) for number in keys],
                order_by=parse_order_by("/size DESC, /id"),
                top_n=top_n,
                skip_n=skip_n,
            )
        )
        assert rows(result.records) == fit[skip_n:][: len(fit) if top_n is None else top_n]
        assert (result.topic_matches, result.matches) == (len(self.model), len(fit))

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert rows(tuple(self.topic)) == list(self.model.items())
        assert len(self.topic) == len(self.model)


SowModel.TestCase.settings = settings(max_examples=length(60), stateful_step_count=25)


TestSowAgainstADict = SowModel.TestCase
