"""What options mean, and which are wrong."""

from __future__ import annotations

import pytest

from haclient.errors import UsageError
from haclient.pyspark.options import OptionReader
from haclient.pyspark.server.settings import ServerOptions, task_name, topic_of


def options(**given: str) -> ServerOptions:
    return ServerOptions(
        OptionReader("amps", {"topic": "a", "uri": "tcp://127.0.0.1:1/amps/json", **given})
    )


def test_topics_are_one_literal_or_a_pattern() -> None:
    assert topic_of(["orders"]) == "orders"
    assert topic_of(["/a/b.c"]) == r"^(/a/b\.c)$"
    assert topic_of(["a", "b"]) == "^(a|b)$"


def test_each_split_is_combined_with_the_filter() -> None:
    assert options(filter="/x = 1").filters == ("/x = 1",)
    assert options(splits='["/a", "/b"]').filters == ("/a", "/b")
    assert options(filter="/x OR /y", splits='["/a"]').filters == ("(/x OR /y) AND (/a)",)


def test_a_comma_at_the_end_of_the_servers_is_none_of_theirs() -> None:
    assert options(uri="tcp://a:1/amps/json , ").uris == ("tcp://a:1/amps/json",)


def test_no_two_names_outside_of_tasks_are_the_same() -> None:
    names = {task_name("reader") for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("reader-") for name in names)


def test_a_stream_is_no_query_of_the_sow() -> None:
    read = OptionReader("amps", {"topic": "a", "uri": "tcp://a:1/amps/json", "command": "sow"})
    with pytest.raises(UsageError, match=r"command has to be subscribe in a stream .* are batches"):
        ServerOptions(read, is_stream=True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"topic": ""}, "topic"),
        ({}, "the option topic is missing"),
        ({"topic": "a", "topicPattern": "b"}, "exclude each other"),
        ({"topic": "a", "offsetMode": "both"}, "one of position, vector"),
        ({"topic": "a", "splits": "x"}, "a JSON list of content filters"),
        ({"topic": "a", "splits": "[1]"}, "a JSON list of content filters"),
        ({"topic": "a", "splits": '["/a=1"]', "offsetMode": "vector"}, "splits needs offsetMode"),
        ({"topic": "a", "startingBookmark": "yesterday"}, "EPOCH, NOW, bookmarks or a time"),
        ({"topic": "a", "endingBookmark": "1|1|,2|1|"}, "endingBookmark has to be one bookmark"),
        ({"topic": "a", "partitionBy": "topic", "splits": '["/a=1"]'}, "exclude each other"),
        ({"topicPattern": "a", "partitionBy": "topic"}, "needs names of topics"),
        ({"topic": "a", "columns": "data,price"}, "'price', which does not exist"),
        ({"topic": "a", "fetchTimeoutMs": "0"}, "a whole number from 1"),
        ({"topic": "a", "startingOffset": "NOW"}, "did you mean startingOffsets"),
        (
            {
                "topic": "a",
                "uri": "tcp://a:1/amps/json,tcp://b:1/amps/json",
                "offsetMode": "position",
            },
            "for one server, found 2",
        ),
        ({"topic": "a", "uri": "nonsense"}, "nonsense"),
        (
            {"topic": "a", "uri": "tcp://bob:s3cret"},
            "as number 1: not shown, it may",
        ),
        ({"topic": "a", "uri": "tcp://bob:s3cret/amps/json"}, "as number 1: not shown"),
        ({"topic": "a", "uri": " , "}, "the option uri names no server"),
        ({"topic": "a", "uri": "tcp://bob:s3,cret@h:0x/amps/json"}, "uri|port|host"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(
    options: dict[str, str], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem) as refused:
        ServerOptions(OptionReader("amps", {"uri": "tcp://127.0.0.1:1/amps/json", **options}))
    assert len(str(refused.value).splitlines()) == 1
    assert "s3" not in str(refused.value)
