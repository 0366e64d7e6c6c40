from __future__ import annotations

import pytest

from haclient.protocol.identity import crc64
from haclient_fake_server.engine.filters import (
    Document,
    FilterError,
    compile_filter,
    parse_order_by,
)
from haclient_fake_server.engine.sow.table import (
    Query,
    SowBodyError,
    SowError,
    SowKeyError,
    SowRecord,
    SowTable,
    generated_key,
    parse_sow_keys,
)


def doc(body: str) -> Document:
    return Document(body.encode())


def filled(*bodies: str, keys: tuple[str, ...] = ("/id",)) -> SowTable:
    topic = SowTable("orders", keys)
    for body in bodies:
        topic.apply(doc(body))
    return topic


def bodies(records: tuple[SowRecord, ...]) -> list[str]:
    return [record.body.decode() for record in records]


ONE, TWO, THREE = '{"id":1,"px":30}', '{"id":2,"px":20}', '{"id":3,"px":10}'


class TestKeys:
    @pytest.mark.row("SW1")
    def test_a_key_is_the_decimal_text_of_64_bits(self) -> None:
        key = SowTable("orders", ["/id"]).key_of(doc('{"id":1}'))
        assert key == "2713044273251004064"
        assert key == generated_key("orders", ["1"]) == str(crc64(b"6:orders1:1"))

    @pytest.mark.row("SW1")
    def test_the_same_values_give_the_same_key_whatever_else_the_body_holds(self) -> None:
        topic = SowTable("orders", ["/id", "/leg/no"])
        first = topic.key_of(doc('{"id":1,"leg":{"no":2},"px":3}'))
        assert topic.key_of(doc('{"px":4,"leg":{"no":2,"x":0},"id":1}')) == first
        assert (
            SowTable("orders", ["/id", "/leg/no"]).key_of(doc('{"id":1,"leg":{"no":2}}')) == first
        )

    @pytest.mark.row("SW1")
    @pytest.mark.parametrize(
        "body",
        ['{"a":"1","b":"12"}', '{"a":2,"b":11}', '{"a":1,"b":"2"}', '{"a":"112","b":"x"}'],
    )
    def test_other_values_give_another_key(self, body: str) -> None:
        topic = SowTable("orders", ["/a", "/b"])
        assert topic.key_of(doc(body)) != topic.key_of(doc('{"a":11,"b":2}'))

    def test_the_topic_is_part_of_the_key(self) -> None:
        assert generated_key("orders", ["1"]) != generated_key("trades", ["1"])

    @pytest.mark.parametrize(
        ("left", "right", "same"),
        [
            ('{"id":1}', '{"id":"1"}', True),
            ('{"id":true}', '{"id":1}', True),
            ('{"id":[1,2]}', '{"id":1}', True),
            ('{"id":100.0}', '{"id":1e2}', True),
            ('{"id":1}', '{"id":1.0}', False),
            ('{"id":"a"}', '{"id":"A"}', False),
        ],
    )
    def test_a_key_value_counts_by_its_text(self, left: str, right: str, *, same: bool) -> None:
        topic = SowTable("orders", ["/id"])
        assert (topic.key_of(doc(left)) == topic.key_of(doc(right))) is same

    @pytest.mark.row("SW1")
    @pytest.mark.parametrize("body", ["{}", '{"id":null}', '{"id":""}', '{"id":{}}', '{"id":[]}'])
    def test_a_body_without_its_key_is_refused(self, body: str) -> None:
        topic = filled(ONE)
        with pytest.raises(SowKeyError, match="'orders' needs key field /id, found no value"):
            topic.apply(doc(body))
        assert len(topic) == 1

    @pytest.mark.row("SW1")
    @pytest.mark.parametrize("body", ["", "text", "1", "null", '{"id":1'])
    def test_a_body_that_is_not_json_is_refused_where_keys_are_fields(self, body: str) -> None:
        topic = filled(ONE)
        with pytest.raises(SowBodyError, match="'orders' takes JSON bodies only") as caught:
            topic.apply(doc(body))
        assert len(topic) == 1
        assert caught.value.reason == "bad message"
        assert isinstance(caught.value, SowError)

    def test_a_key_that_is_sent_along_is_not_looked_at_where_keys_are_fields(self) -> None:
        topic = SowTable("orders", ["/id"])
        assert topic.apply(doc(ONE), "mine").key == topic.key_of(doc(ONE))

    @pytest.mark.row("SW1", "SW9")
    def test_a_topic_without_key_fields_takes_the_publishers_key_and_any_body(self) -> None:
        topic = SowTable("blobs", message_type="binary")
        assert topic.has_user_keys
        assert topic.apply(Document(b"\x00\xff", "binary"), "my key").key == "my key"
        record = topic.get("my key")
        assert record is not None
        assert record.body == b"\x00\xff"
        assert not topic.document(record).has_fields

    @pytest.mark.row("SW1")
    @pytest.mark.parametrize("key", ["", "a,b", ","])
    def test_a_publishers_key_must_be_there_and_fit_a_comma_list(self, key: str) -> None:
        with pytest.raises(SowKeyError, match="needs a sow_key without commas") as caught:
            SowTable("blobs").apply(doc("x"), key)
        assert caught.value.reason == "bad sow key"

    def test_a_key_field_that_is_no_path_is_refused_at_once(self) -> None:
        with pytest.raises(FilterError, match="an absolute path"):
            SowTable("orders", ["id"])

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("", ()), ("1", ("1",)), ("1,2", ("1", "2")), (" a b , c,,", ("a b", "c"))],
    )
    def test_a_sow_keys_header_is_a_comma_list(self, text: str, expected: tuple[str, ...]) -> None:
        assert parse_sow_keys(text) == expected


class TestApply:
    @pytest.mark.row("SW1")
    def test_the_first_publish_of_a_key_inserts_and_the_next_replaces(self) -> None:
        topic = SowTable("orders", ["/id"])
        assert not topic.has_user_keys
        key, previous = topic.apply(
            doc('{"id":1,"v":1}'), timestamp="20240101T000000Z", correlation_id="c", bookmark="1|1|"
        )
        assert previous is None
        first = topic.get(key)
        assert first == SowRecord(key, b'{"id":1,"v":1}', "20240101T000000Z", "c", "1|1|")
        again = topic.apply(doc('{"id":1,"v":2}'))
        assert again == (key, first)
        assert topic.get(key) == SowRecord(key, b'{"id":1,"v":2}')
        assert len(topic) == 1

    def test_a_record_of_an_earlier_run_is_put_back_as_it_was(self) -> None:
        topic = SowTable("orders", ["/id"])
        record = SowRecord("77", b"anything", bookmark="1|2|")
        assert topic.restore(record) is None
        assert topic.restore(record) is record
        assert list(topic) == [record]

    def test_an_unknown_key_has_no_record(self) -> None:
        assert filled(ONE).get("0") is None


class TestQuery:
    @pytest.mark.row("SW1", "SW2")
    def test_without_conditions_all_records_come_in_order_of_insertion(self) -> None:
        result = filled(TWO, ONE, THREE, TWO).query(Query())
        assert bodies(result.records) == [TWO, ONE, THREE]
        assert (result.topic_matches, result.matches) == (3, 3)

    @pytest.mark.row("SW1", "SW7")
    def test_a_filter_leaves_the_matching_ones(self) -> None:
        result = filled(ONE, TWO, THREE).query(Query(matches=compile_filter("/px >= 20")))
        assert bodies(result.records) == [ONE, TWO]
        assert (result.topic_matches, result.matches) == (3, 2)

    @pytest.mark.row("SW1")
    def test_keys_restrict_and_unknown_or_repeated_ones_do_not_matter(self) -> None:
        topic = filled(ONE, TWO, THREE)
        two, three = topic.key_of(doc(TWO)), topic.key_of(doc(THREE))
        result = topic.query(Query(keys=(three, "0", two, three)))
        assert bodies(result.records) == [THREE, TWO]
        assert (result.topic_matches, result.matches) == (3, 2)

    @pytest.mark.row("SW1")
    def test_keys_and_filter_both_have_to_fit(self) -> None:
        topic = filled(ONE, TWO, THREE)
        keys = (topic.key_of(doc(ONE)), topic.key_of(doc(TWO)))
        result = topic.query(Query(matches=compile_filter("/px < 25"), keys=keys))
        assert bodies(result.records) == [TWO]
        assert topic.query(Query(keys=())).matches == 0

    @pytest.mark.row("SW2")
    def test_order_by_sorts_by_several_paths(self) -> None:
        extra = '{"id":4,"px":20}'
        topic = filled(ONE, TWO, THREE, extra)
        query = Query(order_by=parse_order_by("/px DESC, /id DESC"))
        assert bodies(topic.query(query).records) == [ONE, extra, TWO, THREE]

    @pytest.mark.row("SW2")
    @pytest.mark.parametrize(
        ("skip_n", "top_n", "expected"),
        [
            (0, None, [THREE, TWO, ONE]),
            (0, 2, [THREE, TWO]),
            (1, 1, [TWO]),
            (1, None, [TWO, ONE]),
            (2, 5, [ONE]),
            (3, 5, []),
            (0, 0, []),
        ],
    )
    def test_a_window_of_the_order_is_exact_and_counts_stay_whole(
        self, skip_n: int, top_n: int | None, expected: list[str]
    ) -> None:
        query = Query(order_by=parse_order_by("/px"), skip_n=skip_n, top_n=top_n)
        result = filled(ONE, TWO, THREE).query(query)
        assert bodies(result.records) == expected
        assert (result.topic_matches, result.matches) == (3, 3)

    @pytest.mark.row("SW2")
    def test_pages_without_an_order_go_by_key(self) -> None:
        topic = filled(ONE, TWO, THREE)
        keys = sorted(record.key for record in topic)
        pages = [topic.query(Query(skip_n=skip, top_n=1)).records for skip in (1, 2)]
        assert [page[0].key for page in pages] == keys[1:]

    def test_an_empty_topic_answers_with_nothing(self) -> None:
        assert SowTable("orders", ["/id"]).query(Query()) == ((), 0, 0)


class TestDelete:
    @pytest.mark.row("SW3")
    def test_by_keys_passing_over_unknown_and_repeated_ones(self) -> None:
        topic = filled(ONE, TWO)
        key = topic.key_of(doc(ONE))
        assert bodies(topic.delete_keys([key, "0", key])) == [ONE]
        assert topic.delete_keys([key]) == ()
        assert bodies(tuple(topic)) == [TWO]

    def test_a_deleted_key_is_inserted_anew(self) -> None:
        topic = filled(ONE, TWO)
        topic.delete_keys([topic.key_of(doc(ONE))])
        assert topic.apply(doc(ONE)).previous is None
        assert bodies(tuple(topic)) == [TWO, ONE]


@pytest.mark.row("SW1")
@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("18446744073709551616", "18446744073709551617", False),
        ("100000000000000000000001", "100000000000000000000002", False),
        ("0.12345678901234567891", "0.12345678901234567892", False),
        ("1e400", "1e401", False),
        ("1e9999999999999999999", "1e9999999999999999998", False),
        ("1.50", "1.5", True),
        ("1e2", "100.0", True),
    ],
)
def test_numbers_that_no_float_holds_are_keys_of_their_own(
    left: str, right: str, *, same: bool
) -> None:
    topic = SowTable("orders", ["/a/id"])
    keys = [topic.key_of(doc('{"a":[{"id":' + number + "}]}")) for number in (left, right)]
    assert (keys[0] == keys[1]) is same


@pytest.mark.row("SW1")
def test_a_float_keeps_the_key_that_it_had() -> None:
    topic = SowTable("orders", ["/id"])
    assert topic.key_of(doc('{"id":1.50}')) == generated_key("orders", ["1.5"])
