"""The files beside a checkpoint, without a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient.errors import UsageError
from haclient.pyspark.sink.checkpoint_files import (
    REFUSED_FILE,
    arrow_uri,
    check_guard,
    check_refusals,
    keep_refusal,
    query_id,
)
from haclient.pyspark.sink.lanes import Guard

GUARD = Guard(2, "key", ("at",), "spark")


@pytest.mark.row("SK6")
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "{}/"])
def test_a_location_is_a_path_or_a_uri(tmp_path: Path, form: str) -> None:
    checkpoint = form.format(tmp_path / "c")
    check_guard(checkpoint, GUARD)
    check_guard(checkpoint, GUARD)
    assert [each.name for each in (tmp_path / "c").iterdir()] == ["haclient-sink.json"]
    with pytest.raises(UsageError, match="key is id and was key when this checkpoint began"):
        check_guard(checkpoint, Guard(2, "id", ("at",), "spark"))


@pytest.mark.row("SK6")
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_a_location_is_taken_as_it_is_written_as_pyspark_does(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "a%20b c"
    check_guard(form.format(folder), GUARD)
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]


def test_the_names_of_hadoop_for_s3_are_known() -> None:
    for scheme in ("s3", "s3a", "s3n"):
        assert arrow_uri(f"{scheme}://bucket/a%20b c") == "s3://bucket/a%2520b%20c"
    assert arrow_uri("abfss://c@a/s3a://") == "abfss://c@a/s3a://"


@pytest.mark.parametrize(
    "location", ["dbfs://x/y", "dbfs:/x/y", "hdfs:/user/q", "wasbs://c@a.blob.core.windows.net/q"]
)
def test_a_file_system_that_pyarrow_does_not_know_is_named(location: str) -> None:
    wanted = r"pyarrow cannot open .* use a path, or a URI of a file"
    with pytest.raises(UsageError, match=wanted) as caught:
        check_refusals(location)
    assert "\n" not in str(caught.value)


@pytest.mark.row("SK8")
def test_a_refusal_is_kept_until_its_file_is_removed(tmp_path: Path) -> None:
    check_refusals("")  # a batch job has no checkpoint
    check_refusals(str(tmp_path))
    keep_refusal(str(tmp_path), 7, "row 1: not entitled")
    with pytest.raises(UsageError, match=rf"row 1: not entitled.* then remove .*{REFUSED_FILE}"):
        check_refusals(str(tmp_path))
    (tmp_path / REFUSED_FILE).unlink()
    check_refusals(str(tmp_path))


def test_the_id_of_a_query_is_that_of_its_checkpoint(tmp_path: Path) -> None:
    for content in (None, "", "{}", "[]", '"id"'):
        if content is not None:
            (tmp_path / "metadata").write_text(content)
        with pytest.raises(UsageError, match="metadata does not tell the id of the query"):
            query_id(str(tmp_path))
    (tmp_path / "metadata").write_text('{"id":"a-b"}')
    assert query_id(f"file:{tmp_path}") == "a-b"
